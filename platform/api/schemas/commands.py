"""Bodies of requests for commands, and the conversion of commands."""

from typing import Annotated

from pydantic import ConfigDict, Field

from ...model import times
from ...model.validation import DNS1123_LABEL, DNS1123_SUBDOMAIN
from ...store.commands import CommandRecord
from ...wire.commands import QUEUES_KIND, Command
from ...wire.jobs import JobKindName, Phase
from ..command_orders import (
    MAX_TARGETS,
    CommandAction,
    QueueAction,
    Scope,
    target_of,
)
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


def command_of(record: CommandRecord) -> Command:
    """Convert a row of the store."""
    is_queue = record.kind == QUEUES_KIND
    return Command(
        id=record.id,
        kind=record.kind,
        namespace=record.namespace,
        job="" if is_queue else record.job,
        queue=record.job if is_queue else "",
        action=record.action,
        target=target_of(record.action),
        task=record.task,
        pod=record.pod,
        partition=record.partition,
        who=record.who,
        state=record.state,
        detail=record.detail,
        received_at=times.known(record.received_at),
        finished_at=times.known(record.finished_at),
    )
