"""Commands and their outcomes."""

from datetime import datetime

from ..errors import Problem
from .base import Page, Record


class Command(Record, frozen=True):
    """A command with its state and outcome."""

    id: str
    kind: str = ""
    """Kind of the jobs, as in paths, or ``queues``."""
    namespace: str = ""
    job: str = ""
    queue: str = ""
    action: str = ""
    target: str = ""
    """What the command concerns: the job, or a task, pod or partition of it."""
    task: str = ""
    pod: str = ""
    partition: str = ""
    who: str = ""
    state: str = ""
    """``Accepted``, ``Issued``, ``Executed``, ``Ignored``, ``Unknown`` or ``Failed``."""
    detail: str = ""
    received_at: datetime | None = None
    finished_at: datetime | None = None


class CommandResult(Record, frozen=True):
    """A command that was sent, and what it has led to as far as that was waited for."""

    command: Command
    phase: str = ""
    """Phase of the job or state of the queue, after a wait."""
    reached: bool | None = None
    """Whether the command has led to the phase that it asks for; ``None`` without a wait."""
    detail: str = ""
    """Why that phase is not reached."""

    @property
    def id(self) -> str:
        """Id of the command."""
        return self.command.id


class CommandPage(Page[Command], frozen=True):
    """Commands of one job or queue, newest first."""

    items: list[Command] = []


class BulkResult(Record, frozen=True):
    """What a bulk command did to one job."""

    namespace: str = ""
    name: str = ""
    status: int = 0
    """HTTP status that the command for this job alone would have had."""
    command: Command | None = None
    problem: Problem | None = None


class BulkResults(Record, frozen=True):
    """One row for each target of a bulk command."""

    results: list[BulkResult] = []
