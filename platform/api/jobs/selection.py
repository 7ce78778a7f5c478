"""Filters of jobs, as in the query of lists and streams."""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ...model import times
from ...model.selectors import Selector, SelectorError, parse_label_selector
from ...wire.jobs import JobSummary
from ..problems import invalid_fields

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

    def contains(self, time: datetime | None) -> bool:
        """Return whether *time* is in the range; a missing time is in an unlimited one only."""
        if self.is_unlimited:
            return True
        if time is None:
            return False
        text = times.format(time)
        return self.first <= text and (not self.end or text < self.end)


ALWAYS = TimeRange()
"""Contains every time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs to select; what is not set selects all."""

    namespace: str = ""
    search: str = ""
    """Part of the name, in lower case."""

    phases: frozenset[str] = frozenset()
    queue: str | None = None
    user: str | None = None
    labels: Selector = ALL
    created: TimeRange = ALWAYS

    def matches(self, job: JobSummary) -> bool:
        """Return whether *job* is selected."""
        return (
            self.namespace in ("", job.namespace)
            and self.search in job.name
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
                self.search,
                sorted(self.phases),
                self.queue,
                self.user,
                str(self.labels),
                self.created.first,
                self.created.end,
            )
        )
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def parse_labels(text: str) -> Selector:
    """Parse the parameter ``label_selector``.

    Raises:
        ProblemError: 422 if it is none.
    """
    try:
        return parse_label_selector(text)
    except SelectorError as error:
        raise invalid_fields(("label_selector", str(error))) from None


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
