"""Bodies of the routes of commands."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from ...model.validation import DNS1123_LABEL, DNS1123_SUBDOMAIN
from ...store.commands import QUEUES_KIND, CommandRecord, CommandState
from ..commands.orders import (
    MAX_TARGETS,
    CommandAction,
    CommandTarget,
    QueueAction,
    Scope,
    command_fields,
)
from ..jobs.summaries import JobKindName, Phase
from .problem import Problem
from .strict import StrictBody

MAX_INDEX_DIGITS = 10

JobName = Annotated[str, Field(max_length=253, pattern=f"^{DNS1123_SUBDOMAIN}$")]


class CommandIn(StrictBody):
    """A command for a job, or for some of its pods."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"action": "suspend"}, {"action": "restart", "task": "worker"}]
        },
    )

    action: CommandAction = Field(
        description="`suspend` and `abort` stop the pods and keep the job; `resume` starts it "
        "again; `restart` runs it, or some of its pods, from the start; `terminate` and `complete` "
        "end it for good. Jobs of other kinds than Volcano's know `suspend` and `resume` alone."
    )
    task: str | None = Field(
        default=None,
        max_length=63,
        pattern=f"^{DNS1123_LABEL}$",
        description="Restart the pods of this task; of one partition with `partition`.",
    )
    pod: str | None = Field(
        default=None,
        max_length=253,
        pattern=f"^{DNS1123_SUBDOMAIN}$",
        description="Restart this pod.",
    )
    partition: str | None = Field(
        default=None,
        max_length=MAX_INDEX_DIGITS,
        pattern="^[0-9]+$",
        description="Restart the pods of this partition of `task`.",
    )

    @property
    def scope(self) -> Scope:
        """The scope that is named."""
        return Scope(task=self.task or "", pod=self.pod or "", partition=self.partition or "")


class QueueCommandIn(StrictBody):
    """A command for a queue."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"action": "close"}]})

    action: QueueAction = Field(
        description="`close`: the queue accepts no more jobs; `open`: it accepts them again."
    )


class BulkCommandIn(StrictBody):
    """A command for all jobs that match; at least one filter must be given."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"action": "suspend", "label_selector": "team=vision", "phase": ["Running"]}
            ]
        },
    )

    action: CommandAction
    kind: JobKindName = Field(default=JobKindName.JOBS, description="Kind of the jobs.")
    label_selector: str | None = Field(
        default=None, max_length=2000, description="As in Kubernetes, e.g. `team=vision`."
    )
    phase: list[Phase] | None = Field(default=None, min_length=1, description="Any of these.")
    queue: str | None = Field(default=None, max_length=253, description="Queue of the jobs.")
    names: list[JobName] | None = Field(
        default=None, min_length=1, max_length=MAX_TARGETS, description="Any of these names."
    )
    dry_run: bool = Field(default=False, description="Only report what would be done.")


class CommandOut(BaseModel):
    """A command with its state and outcome."""

    id: str
    kind: str = Field(
        description=f"Kind of the jobs, as in paths, or `{QUEUES_KIND}`.", examples=["jobs"]
    )
    namespace: str = Field(description="Empty for a queue.")
    job: str = Field(description="Name of the job; empty for a queue.")
    queue: str = Field(description="Name of the queue; empty for a job.")
    action: str = Field(
        description="The Command's action, e.g. `AbortJob`; `Suspend` or `Resume` for jobs of other"
        " kinds than Volcano's."
    )
    target: CommandTarget = Field(description="What the command concerns.")
    task: str
    pod: str
    partition: str
    who: str
    state: CommandState = Field(
        description="`Accepted` and `Issued`: no outcome yet. `Executed`. `Ignored`: without "
        "effect, for the reason in `detail`. `Failed`: not issued, or the job was deleted before. "
        "`Unknown`: the outcome was not observed."
    )
    detail: str
    received_at: str
    finished_at: str | None

    @classmethod
    def of(cls, record: CommandRecord) -> "CommandOut":
        """Convert a row of the store."""
        return cls.model_validate(command_fields(record))


class CommandList(BaseModel):
    """Commands of one job or queue, newest first."""

    items: list[CommandOut]
    next_cursor: str | None


class CommandResult(BaseModel):
    """A command, and what it has led to so far."""

    command: CommandOut
    phase: str = Field(description="Phase of the job or state of the queue; empty if deleted.")
    reached: bool = Field(description="Whether the command has led to the phase that it asks for.")
    detail: str = Field(description="Why that phase is not reached; empty if it is.")


class BulkResult(BaseModel):
    """The result for one job."""

    namespace: str
    name: str
    status: int = Field(
        description="As for a single command: 202, or that of the problem; 200 in a dry run."
    )
    command: CommandOut | None
    problem: Problem | None


class BulkResults(BaseModel):
    """The results for all jobs that match, by namespace and name."""

    results: list[BulkResult]
