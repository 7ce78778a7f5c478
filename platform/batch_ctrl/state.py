"""What the controller keeps of one Job between syncs. All of it is lost in a crash without harm."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from .backoff import BackoffRecord
from .batch_pod import JobTraits, parse_pod
from .core_types import Job, JobStatus, Pod
from .evaluation import Creation
from .indexes import IndexSet
from .pod_tracker import BatchPodTracker


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """A pod that may exist: the response to its creation was lost."""

    creation: Creation
    until: float
    """Time on the monotonic clock after which it counts as not created."""


@dataclass(slots=True)
class _ParsedIndexes:
    """The last parsed index text: it mostly is what this controller has written."""

    text: str = ""
    completions: int = 0
    indexes: IndexSet = field(default_factory=IndexSet)

    def get(self, text: str, completions: int) -> IndexSet:
        if (text, completions) != (self.text, self.completions):
            self.keep(text, completions, IndexSet.parse(text, completions))
        return self.indexes

    def keep(self, text: str, completions: int, indexes: IndexSet) -> None:
        self.text, self.completions, self.indexes = text, completions, indexes


class BatchJobState:
    """State of one Job that has not finished."""

    def __init__(self, job: Job, pods: Iterable[Pod]) -> None:
        """*pods* are those that the Job controls."""
        self.uid = job.metadata.uid
        self.backoff = BackoffRecord()
        self.unconfirmed: dict[str, Unconfirmed] = {}
        """Unconfirmed pods by name."""
        self.written: Job | None = None
        """The Job as of this controller's last write of its status."""
        self.traits = JobTraits.of(job)
        self.pods = BatchPodTracker(self.traits)
        for pod in pods:
            self.pods.observe(parse_pod(pod, self.traits))
        self._own_versions = ("", "")
        self._generation = job.metadata.generation
        self._template: dict[str, Any] | None = None
        self._completed, self._failed = _ParsedIndexes(), _ParsedIndexes()

    def refresh(self, job: Job) -> None:
        """Adopt the spec of *job*, of which only the completions and the template may change."""
        if job.metadata.generation == self._generation:
            return
        self._generation, self._template = job.metadata.generation, None
        traits = JobTraits.of(job)
        if traits != self.traits:
            self.traits = traits
            self.pods = self.pods.with_traits(traits)

    def latest(self, observed: Job) -> Job:
        """Return the Job as of the informer, or of the last own write if that is newer."""
        written = self.written
        if written is None or written.metadata.uid != observed.metadata.uid:
            return observed
        if _version(written) > _version(observed):
            return written
        self.written = None
        return observed

    def keep_written(self, job: Job) -> None:
        """Keep the Job as of an own write."""
        self.written = job
        self._own_versions = (self._own_versions[-1], job.metadata.resource_version)

    def is_own_write(self, job: Job) -> bool:
        """Whether this version of the Job is one of the last sync's own writes."""
        return job.metadata.resource_version in self._own_versions

    def template(self, job: Job) -> dict[str, Any]:
        """Return the decoded pod template; not to be changed."""
        if self._template is None:
            self._template = msgspec.json.decode(job.spec.template, type=dict[str, Any])
        return self._template

    def completed_indexes(self, job: Job) -> IndexSet:
        """Return the parsed ``status.completedIndexes``."""
        return self._parsed(self._completed, job.status.completed_indexes, job.completions)

    def failed_indexes(self, job: Job) -> IndexSet:
        """Return the parsed ``status.failedIndexes``."""
        return self._parsed(self._failed, job.status.failed_indexes or "", job.completions)

    def _parsed(self, parsed: _ParsedIndexes, text: str, completions: int) -> IndexSet:
        before = parsed.indexes
        indexes = parsed.get(text, completions)
        if indexes.total < before.total:  # written by another client: ended indexes are free again
            self.pods.examine_all_indexes()
        return indexes

    def keep_indexes(self, status: JobStatus, completed: IndexSet, failed: IndexSet | None) -> None:
        """Keep the sets whose texts were written."""
        completions = self.traits.completions
        self._completed.keep(status.completed_indexes, completions, completed)
        if failed is not None:
            self._failed.keep(status.failed_indexes or "", completions, failed)

    def drop_expired(self, now: float) -> None:
        """Drop unconfirmed pods that count as not created."""
        expired = [name for name, each in self.unconfirmed.items() if each.until <= now]
        for name in expired:
            del self.unconfirmed[name]

    def unconfirmed_name(
        self, creation: Creation, *, excluded: Callable[[str], bool]
    ) -> str | None:
        """Return the name of an unconfirmed pod like *creation*: the same request again."""
        for name, each in self.unconfirmed.items():
            if each.creation.index == creation.index and not excluded(name):
                return name
        return None


def _version(job: Job) -> int:
    version = job.metadata.resource_version
    return int(version) if version.isdecimal() else 0
