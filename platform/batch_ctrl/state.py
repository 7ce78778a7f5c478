"""What the controller keeps of one Job between syncs. All of it is lost in a crash without harm."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from .backoff import BackoffRecord
from .batch_pod import JobTraits, parse_pod
from .core_types import Job, JobStatus, Pod
from .effects import Creation, SyncAction
from .indexes import IndexSet
from .pod_tracker import BatchPodTracker


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """A pod that may exist: the response to its creation was lost."""

    creation: Creation
    until: float
    """Time on the monotonic clock after which it counts as not created."""


class _ParsedIndexes(NamedTuple):
    """Indexes as a status contains them, mostly as this controller has written them, and parsed."""

    text: str = ""
    completions: int = 0
    indexes: IndexSet = IndexSet()


class BatchJobState:
    """State of one Job that has not finished."""

    def __init__(self, job: Job, pods: Iterable[Pod] = ()) -> None:
        """*pods* are those that the Job controls."""
        self.job = job
        """The Job as of the last observation or own write."""
        self.action = SyncAction.RECONCILING
        """What the current sync has done with pods."""
        self.backoff = BackoffRecord()
        self.unconfirmed: dict[str, Unconfirmed] = {}
        """Unconfirmed pods by name."""
        self.traits = JobTraits.of(job)
        self.pods = BatchPodTracker(self.traits)
        for pod in pods:
            self.pods.observe(parse_pod(pod, self.traits))
        self._template: dict[str, Any] | None = None
        self._completed, self._failed = _ParsedIndexes(), _ParsedIndexes()
        self._parse_indexes()

    def refresh(self, job: Job, *, now: float, synced_version: int) -> None:
        """Begin a sync of *job*, of whose spec only the completions and the template may change.

        *now* is on the monotonic clock; the informer has all pods up to *synced_version*.
        """
        if job.metadata.generation != self.job.metadata.generation:
            self._template = None
            traits = JobTraits.of(job)
            if traits != self.traits:
                self.traits = traits
                self.pods = self.pods.with_traits(traits)
        self.job, self.action = job, SyncAction.RECONCILING
        self._parse_indexes()
        self.pods.remove_unreported(synced_version)
        for name in [name for name, each in self.unconfirmed.items() if each.until <= now]:
            del self.unconfirmed[name]

    def template(self) -> dict[str, Any]:
        """Return the decoded pod template; not to be changed."""
        if self._template is None:
            self._template = msgspec.json.decode(self.job.spec.template, type=dict[str, Any])
        return self._template

    @property
    def completed(self) -> IndexSet:
        """The parsed ``status.completedIndexes``."""
        return self._completed.indexes

    @property
    def failed_indexes(self) -> IndexSet:
        """The parsed ``status.failedIndexes``."""
        return self._failed.indexes

    def _parse_indexes(self) -> None:
        status = self.job.status
        self._completed = self._parsed(self._completed, status.completed_indexes)
        self._failed = self._parsed(self._failed, status.failed_indexes or "")

    def _parsed(self, known: _ParsedIndexes, text: str) -> _ParsedIndexes:
        completions = self.job.completions
        if (text, completions) == known[:2]:
            return known
        indexes = IndexSet.parse(text, completions)
        if indexes.total < known.indexes.total:  # written by another client: some are free again
            self.pods.examine_all_indexes()
        return _ParsedIndexes(text, completions, indexes)

    def keep_indexes(self, status: JobStatus, completed: IndexSet, failed: IndexSet | None) -> None:
        """Keep the sets whose texts were written."""
        completions = self.traits.completions
        self._completed = _ParsedIndexes(status.completed_indexes, completions, completed)
        if failed is not None:
            self._failed = _ParsedIndexes(status.failed_indexes or "", completions, failed)

    def unconfirmed_name(
        self, creation: Creation, *, excluded: Callable[[str], bool]
    ) -> str | None:
        """Return the name of an unconfirmed pod like *creation*: the same request again."""
        for name, each in self.unconfirmed.items():
            if each.creation.index == creation.index and not excluded(name):
                return name
        return None
