"""Commands and their outcomes."""

from datetime import datetime

from ..errors import Problem
from .base import Page, Record


class Command(Record, frozen=True):
    """A command with its state and outcome."""

    id: str
    namespace: str = ""
    job: str = ""
    action: str = ""
    who: str = ""
    state: str = ""
    """``Accepted``, ``Issued``, ``Executed``, ``Ignored``, ``Unknown`` or ``Failed``."""
    detail: str = ""
    received_at: datetime | None = None
    finished_at: datetime | None = None

    @property
    def is_settled(self) -> bool:
        """Whether the outcome is known, or known to stay unknown."""
        return self.finished_at is not None


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
