"""Commands and their outcomes."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

import msgspec

from .base import Page, Record, Sends, SentTime
from .problem import Problem

QUEUES_KIND = "queues"
"""Kind of commands for queues; others are kinds of jobs, as in paths."""


class CommandState(StrEnum):
    """State of a command."""

    ACCEPTED = "Accepted"
    """Row inserted; the Command object is not known to exist yet."""
    ISSUED = "Issued"
    """The Command object exists and awaits the job controller."""
    EXECUTED = "Executed"
    """The job's status names the Command."""
    IGNORED = "Ignored"
    """The job controller deleted the Command without effect in the job's phase."""
    UNKNOWN = "Unknown"
    """The Command was deleted and its outcome was not observed."""
    FAILED = "Failed"
    """The Command could not be created, or the job was deleted."""


class CommandTarget(StrEnum):
    """What a command concerns."""

    JOB = "job"
    TASK = "task"
    POD = "pod"
    PARTITION = "partition"
    QUEUE = "queue"


class Command(Record, frozen=True):
    """A command with its state and outcome."""

    id: str
    kind: Annotated[str, msgspec.Meta(examples=["jobs"])] = ""
    """Kind of the jobs, as in paths, or ``queues``."""
    namespace: str = ""
    """Empty for a queue."""
    job: str = ""
    """Name of the job; empty for a queue."""
    queue: str = ""
    """Name of the queue; empty for a job."""
    action: str = ""
    """The Command's action, e.g. ``AbortJob``; ``Suspend`` or ``Resume`` for jobs of other kinds
    than Volcano's."""
    target: Annotated[str, Sends(CommandTarget)] = ""
    """What the command concerns."""
    task: str = ""
    pod: str = ""
    partition: str = ""
    who: str = ""
    state: Annotated[str, Sends(CommandState)] = ""
    """``Accepted`` and ``Issued``: no outcome yet. ``Executed``. ``Ignored``: without effect, for
    the reason in ``detail``. ``Failed``: not issued, or the job was deleted before. ``Unknown``:
    the outcome was not observed."""
    detail: str = ""
    received_at: SentTime = None
    finished_at: datetime | None = None


class CommandResult(Record, frozen=True):
    """A command, and what it has led to so far."""

    command: Command
    phase: str = ""
    """Phase of the job or state of the queue; empty if deleted."""
    reached: Annotated[bool | None, Sends(bool)] = None
    """Whether the command has led to the phase that it asks for."""
    detail: str = ""
    """Why that phase is not reached; empty if it is."""

    @property
    def id(self) -> str:
        """Id of the command."""
        return self.command.id


class CommandPage(Page[Command], frozen=True):
    """Commands of one job or queue, newest first."""


class BulkResult(Record, frozen=True):
    """The result for one job."""

    namespace: str = ""
    name: str = ""
    status: int = 0
    """As for a single command: 202, or that of the problem; 200 in a dry run."""
    command: Command | None = None
    problem: Problem | None = None


class BulkResults(Record, frozen=True):
    """The results for all jobs that match, by namespace and name."""

    results: list[BulkResult] = []
