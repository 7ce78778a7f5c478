"""Bodies of the routes of commands."""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

from ...model.job import Action
from ...store.commands import CommandRecord


class CommandAction(StrEnum):
    """Action on a job."""

    SUSPEND = "suspend"
    RESUME = "resume"
    RESTART = "restart"
    ABORT = "abort"
    TERMINATE = "terminate"
    COMPLETE = "complete"


ACTIONS = {
    CommandAction.SUSPEND: Action.ABORT_JOB,
    CommandAction.RESUME: Action.RESUME_JOB,
    CommandAction.RESTART: Action.RESTART_JOB,
    CommandAction.ABORT: Action.ABORT_JOB,
    CommandAction.TERMINATE: Action.TERMINATE_JOB,
    CommandAction.COMPLETE: Action.COMPLETE_JOB,
}


class CommandIn(BaseModel):
    """A command for a job."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"action": "suspend"}]}
    )

    action: CommandAction = Field(
        description="`suspend` and `abort` stop the pods and keep the job; `resume` starts it "
        "again; `restart` runs it from the start; `terminate` and `complete` end it for good."
    )


class CommandOut(BaseModel):
    """A command with its state and outcome."""

    id: str
    namespace: str
    job: str
    action: str = Field(description="The Command's action, e.g. `AbortJob`.")
    who: str
    state: str = Field(
        description="`Accepted`, `Issued`, `Executed`, `Ignored`, `Unknown` or `Failed`."
    )
    detail: str
    received_at: str
    finished_at: str | None

    @classmethod
    def of(cls, record: CommandRecord) -> "CommandOut":
        """Convert a row of the store."""
        return cls.model_validate(record, from_attributes=True)


class CommandList(BaseModel):
    """Commands of one job, newest first."""

    items: list[CommandOut]
