"""History of jobs, and usage over time."""

from datetime import datetime

from .base import Page, Record


class JobRecord(Record, frozen=True):
    """A job of the history."""

    namespace: str
    name: str
    uid: str = ""
    kind: str = ""
    queue: str = ""
    user: str = ""
    phase: str = ""
    finished_at: datetime | None = None


class JobRecordPage(Page[JobRecord], frozen=True):
    """One page of the history of jobs."""

    items: list[JobRecord] = []


class Usage(Record, frozen=True):
    """Usage over time."""
