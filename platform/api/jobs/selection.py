"""Filters of jobs, as in the query of lists and streams."""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ...model import times
from ...model.selectors import Selector
from .summaries import JobSummary

ALL = Selector()
"""Selects every label."""


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Times as Kubernetes writes them, in whole seconds: *first* inclusive, *end* exclusive."""

    first: str = ""
    end: str = ""

    @classmethod
    def between(cls, first: datetime | None, end: datetime | None) -> "TimeRange":
        """Return the range from *first* until before *end*; ``None`` is no limit."""
        return cls(_earliest(first), _earliest(end))

    @property
    def is_unlimited(self) -> bool:
        """Whether all times are in the range."""
        return not (self.first or self.end)

    def contains(self, time: str | None) -> bool:
        """Return whether *time* is in the range; a missing time is in an unlimited one only."""
        if self.is_unlimited:
            return True
        return time is not None and self.first <= time and (not self.end or time < self.end)


ALWAYS = TimeRange()
"""Contains every time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs to select; what is not set selects all."""

    namespace: str = ""
    phases: frozenset[str] = frozenset()
    queue: str | None = None
    user: str | None = None
    labels: Selector = ALL
    created: TimeRange = ALWAYS

    def matches(self, job: JobSummary) -> bool:
        """Return whether *job* is selected."""
        return (
            self.namespace in ("", job.namespace)
            and (not self.phases or job.phase in self.phases)
            and self.queue in (None, job.queue)
            and self.user in (None, job.user)
            and self.created.contains(job.created_at)
            and self.labels.matches(job.labels)
        )

    @property
    def digest(self) -> str:
        """Digest of the filter: equal for equal filters."""
        text = repr(
            (
                self.namespace,
                sorted(self.phases),
                self.queue,
                self.user,
                str(self.labels),
                self.created.first,
                self.created.end,
            )
        )
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _earliest(limit: datetime | None) -> str:
    """Return the first whole second at or after *limit* as text; empty without a limit."""
    if limit is None:
        return ""
    if limit.microsecond:
        try:
            limit = limit.astimezone(UTC).replace(microsecond=0) + timedelta(seconds=1)
        except OverflowError:
            return "~"  # after all times
    return times.format(limit)
