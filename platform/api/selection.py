"""Filters of jobs, as in the query of lists and streams."""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ..model import times
from ..model.selectors import Selector
from .job_summaries import JobSummary

ALL = Selector()
"""Selects every label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs to select; what is not set selects all."""

    namespace: str = ""
    phases: frozenset[str] = frozenset()
    queue: str | None = None
    user: str | None = None
    labels: Selector = ALL
    created_after: datetime | None = None
    """Inclusive."""
    created_before: datetime | None = None
    """Exclusive."""

    def matches(self, job: JobSummary) -> bool:
        """Return whether *job* is selected."""
        return (
            self.namespace in ("", job.namespace)
            and (not self.phases or job.phase in self.phases)
            and self.queue in (None, job.queue)
            and self.user in (None, job.user)
            and self.created_range.contains(job.created_at)
            and self.labels.matches(job.labels)
        )

    @property
    def created_range(self) -> "TimeRange":
        """The range of creation times."""
        return TimeRange(_earliest(self.created_after), _earliest(self.created_before))

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
                _earliest(self.created_after),
                _earliest(self.created_before),
            )
        )
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Times as Kubernetes writes them, in whole seconds: *first* inclusive, *end* exclusive."""

    first: str = ""
    end: str = ""

    def contains(self, time: str | None) -> bool:
        """Return whether *time* is in the range; a missing time is in an unlimited one only."""
        if not (self.first or self.end):
            return True
        return time is not None and self.first <= time and (not self.end or time < self.end)


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
