"""What a job waits for before anything is created for it: see :mod:`batholith.model.dependencies`.

A dependency that was met once is recorded in the status, so that it stays met when the other job is
deleted, or when this one restarts.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from ...kube.client.client import Client
from ...kube.errors import NotFoundError
from ...machinery.clock import Clock
from ...model import names, times
from ...model.controlled_resources import MET_DEPENDENCIES
from ...model.dependencies import (
    Dependency,
    DependencyType,
    begin_of,
    dependencies_of,
    is_met,
)
from ...model.job import FINAL_PHASES, Job, JobPhase

_Key = tuple[str, str]
_Age = tuple[str, str]
"""Creation timestamp and uid."""
_MAX_ENDED = 10_000
POLL_INTERVAL = 10.0
"""Seconds until jobs are read again that this controller does not watch: those of other shards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DependencyState:
    """What is known of the dependencies of a job in phase Pending."""

    met: str = ""
    """The mark of those that are met."""
    waiting: str = ""
    """What the job waits for; empty if it may begin."""
    never: str = ""
    """Which dependency can no longer be met."""
    check_after: float | None = None
    """Seconds after which the job is to be synced while it waits; ``None``: a change wakes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unmet:
    """Why a dependency is not met."""

    text: str
    never: str = ""
    """Why it can no longer be met."""
    is_remote: bool = False
    """Whether a job that it is about is not watched here, as it is of another shard."""


class Dependencies:
    """Observes jobs that others wait for."""

    def __init__(
        self,
        client: Client,
        cached: Callable[[str], Job | None],
        *,
        clock: Clock,
        enqueue: Callable[[str], object],
    ) -> None:
        """*cached* returns a job of this controller by its key; *enqueue* syncs a job again."""
        self._client = client
        self._cached = cached
        self._clock = clock
        self._enqueue = enqueue
        self._waiting: defaultdict[_Key, dict[str, _Age]] = defaultdict(dict)
        """Keys of the jobs that wait, by what they wait for: namespace and name, or label."""
        self._ended: dict[_Key, str] = {}
        """Final phases of jobs that others wait for: one may be deleted before they are synced."""

    def on_job(self, job: Job, *, deleted: bool) -> None:
        """Sync the jobs that wait for this one, if it has ended or was deleted."""
        phase, meta = job.status.state.phase, job.metadata
        key, singleton = (meta.namespace, meta.name), _singleton_key(job)
        if phase not in FINAL_PHASES:
            self._ended.pop(key, None)  # of an earlier job of this name
        if not self._waiting or not (deleted or phase in FINAL_PHASES):
            return
        if key in self._waiting:
            if phase in FINAL_PHASES:
                self._ended[key] = phase
                if len(self._ended) > _MAX_ENDED:
                    del self._ended[next(iter(self._ended))]
            for waiting in self._waiting.pop(key):
                self._enqueue(waiting)
        self._forget(singleton, meta.key)
        if singleton in self._waiting:  # the others wait for the oldest
            self._enqueue(min(self._waiting[singleton], key=self._waiting[singleton].__getitem__))

    def _forget(self, key: _Key, waiting: str) -> None:
        """Note that a job does not wait for *key* any longer."""
        if key in self._waiting:
            self._waiting[key].pop(waiting, None)
            if not self._waiting[key]:
                del self._waiting[key]

    async def state_of(self, job: Job) -> DependencyState | None:
        """Return what *job* waits for; ``None`` if it has no dependencies, or another phase.

        Raises:
            ApiError: another job cannot be read.
        """
        annotations = job.metadata.annotations
        if names.DEPENDS_ON not in annotations and names.BEGIN not in annotations:
            return None
        if job.status.state.phase not in ("", JobPhase.PENDING):
            return None
        try:
            dependencies, begin = dependencies_of(annotations), begin_of(annotations)
        except ValueError as error:  # stored without admission
            return DependencyState(waiting=f"its annotations are malformed: {error}")
        before = job.status.controlled_resources.get(MET_DEPENDENCIES, "").split(",")
        met: list[str] = []
        unmet: list[_Unmet] = []
        for each in dependencies:
            found = None if str(each) in before else await self._unmet(job, each)
            if found is None:
                met.append(str(each))
            else:
                unmet.append(found)
        left = 0.0 if begin is None else (begin - self._clock.now()).total_seconds()
        reasons = [f"waits for {', '.join(each.text for each in unmet)}"] if unmet else []
        checks = [POLL_INTERVAL] if any(each.is_remote for each in unmet) else []
        if left > 0 and begin is not None:
            reasons.append(f"begins at {times.format(begin)}")
            checks.append(left)
        return DependencyState(
            met=",".join(met),
            waiting="; ".join(reasons),
            never=next((each.never for each in unmet if each.never), ""),
            check_after=min(checks, default=None),
        )

    async def _unmet(self, job: Job, dependency: Dependency) -> "_Unmet | None":
        """Return why a dependency is not met; ``None`` if it is."""
        meta, is_singleton = job.metadata, dependency.type is DependencyType.SINGLETON
        key = _singleton_key(job) if is_singleton else (meta.namespace, dependency.job)
        # Before anything is read, so that no change is missed.
        self._waiting[key][meta.key] = _age(job)
        if is_singleton:
            found = await self._unmet_singleton(job)
        else:
            found = await self._unmet_job(meta.namespace, dependency)
        if found is None or found.never:
            self._forget(key, meta.key)
        return found

    async def _unmet_job(self, namespace: str, dependency: Dependency) -> "_Unmet | None":
        other = await self._read(namespace, dependency.job)
        ended = self._ended.get((namespace, dependency.job))
        phase = ended if other is None else other.status.state.phase
        match is_met(dependency.type, phase):
            case True:
                return None
            case None:
                is_remote = self._cached(f"{namespace}/{dependency.job}") is None
                return _Unmet(
                    text=f"{dependency} ({phase or JobPhase.PENDING})", is_remote=is_remote
                )
            case _:
                state = "does not exist" if phase is None else f"is {phase}"
                never = f"{dependency} can no longer be met: job {dependency.job} {state}"
                return _Unmet(text=str(dependency), never=never)

    async def _read(self, namespace: str, name: str) -> Job | None:
        """Return a job, also of another shard."""
        cached = self._cached(f"{namespace}/{name}")
        if cached is not None:
            return cached
        try:
            return await self._client.get(names.JOBS, name, namespace=namespace, view=Job)
        except NotFoundError:
            return None

    async def _unmet_singleton(self, job: Job) -> "_Unmet | None":
        """Return which jobs of the same name and user are to end first.

        Of two that were created in the same second, the one that has begun is first.
        """
        label = job.metadata.labels.get(names.SUBMITTED_NAME, "")
        found = await self._client.list(
            names.JOBS,
            namespace=job.metadata.namespace,
            view=Job,
            label_selector=f"{names.SUBMITTED_NAME}={label}",
        )
        others = [each.metadata for each in found.items if _precedes(each, job)]
        if not others:
            return None
        is_remote = any(self._cached(each.key) is None for each in others)
        text = ", ".join(sorted(each.name for each in others)[:3])
        return _Unmet(text=f"{DependencyType.SINGLETON} ({text})", is_remote=is_remote)


def _precedes(other: Job, job: Job) -> bool:
    if other.metadata.uid == job.metadata.uid or other.status.state.phase in FINAL_PHASES:
        return False
    if _user_of(other) != _user_of(job):
        return False
    met = other.status.controlled_resources.get(MET_DEPENDENCIES, "").split(",")
    has_begun = other.status.state.phase not in ("", JobPhase.PENDING)
    return has_begun or DependencyType.SINGLETON in met or _age(other) < _age(job)


def _age(job: Job) -> _Age:
    return job.metadata.creation_timestamp or "", job.metadata.uid


def _user_of(job: Job) -> str:
    return job.metadata.annotations.get(names.SUBMITTED_BY, "")


def _singleton_key(job: Job) -> _Key:
    """Return the key of those who wait for jobs of this name; no job has such a name."""
    return job.metadata.namespace, f"/{job.metadata.labels.get(names.SUBMITTED_NAME, '')}"
