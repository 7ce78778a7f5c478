"""The pods of one job, counted as they change.

The pod cache's handler tells the ledger of each pod that comes, changes or goes; everything that a
decision asks for is kept up to date on the way, so that one pod's event costs the same in a job of
ten pods and in one of ten thousand. A pod of the job is in exactly one *place*:

* live: not ended, wanted (but perhaps of an older version of the job),
* done: succeeded or failed,
* leaving: being deleted, or asked to be,
* surplus: beyond its task's replicas, or of a task that the job does not have.

Pods of an earlier job of the same name are in none; they only hold their names.

*Happenings* are what policies may react to. They lie here until the controller has judged them;
those that a policy answers later are put off, and cost nothing until then or until something
happens to their pod.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeVar

from ..model import names
from ..model.job import Job, JobEvent
from ..model.pod import FINISHED, PodPhase
from .core_types import Pod
from .deferred import DeferredItems

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodInfo:
    """What the ledger keeps of a pod."""

    uid: str
    name: str
    owner: str
    """Uid of the job that the pod belongs to."""
    task: str
    index: int
    version: int
    """Version of the job for which the pod was made."""
    retries: int = 0
    """Retries that the job had used up when the pod was made."""
    partition: str = ""
    """Of its task, if that is cut into partitions."""
    phase: PodPhase = PodPhase.PENDING
    terminating: bool = False
    """It has a deletion timestamp."""
    ready: bool = False
    """It runs, and all its containers are ready."""
    exit_code: int = 0
    """Of the first container that failed; 0 as long as none has."""
    restarts: int = 0
    """How often its containers have been started anew, taken together."""
    resource_version: str = field(default="", compare=False)
    """The ``resourceVersion`` that all this was read from."""
    event_time: str | None = field(default=None, compare=False)
    """When what policies may ask about happened to it last, as the pod says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleEvent:
    """Something that a policy may react to."""

    event_type: JobEvent
    task: str = ""
    partition: str = ""
    pod: str = ""
    uid: str = ""
    """Of the pod; empty if nobody has seen it."""
    owner: str = ""
    version: int | None = None
    """Version of the job that it concerns; ``None`` for whichever is there."""
    exit_code: int = 0
    occurred_at: float = 0.0
    """When it happened, on the monotonic clock."""

    @classmethod
    def from_pod(
        cls, event_type: JobEvent, pod: PodInfo, *, occurred_at: float
    ) -> "LifecycleEvent":
        """What happened to *pod*."""
        return cls(
            event_type=event_type,
            task=pod.task,
            partition=pod.partition,
            pod=pod.name,
            uid=pod.uid,
            owner=pod.owner,
            version=pod.version,
            exit_code=pod.exit_code if event_type is JobEvent.POD_FAILED else 0,
            occurred_at=occurred_at,
        )

    @property
    def key(self) -> tuple[str, JobEvent]:
        """Of two with the same key only one is kept: a task is completed by its last pod."""
        return (
            self.task if self.event_type is JobEvent.TASK_COMPLETED else self.pod,
            self.event_type,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PodCounts:
    """How many pods a job has, by task and phase; what has no pods is not named."""

    tasks: Mapping[str, Mapping[str, int]]
    ready: Mapping[str, int]
    """Running pods with all containers ready, by task."""
    restarts: Mapping[str, int]
    """Restarts of the containers of live pods, by task."""
    terminating: int = 0
    """Pods that are going, or must go."""

    def with_terminating(self, pods: Iterable[PodInfo]) -> "PodCounts":
        """The same with *pods*, which are counted by their phases, as going."""
        tasks = {task: dict(phases) for task, phases in self.tasks.items()}
        terminating = self.terminating
        for pod in pods:
            _add_to_counter(tasks[pod.task], pod.phase, -1)
            terminating += 1
        return replace(self, tasks=tasks, terminating=terminating)

    def in_phase(self, phase: PodPhase) -> int:
        """Number of pods in *phase*."""
        return sum(phases.get(phase, 0) for phases in self.tasks.values())

    @property
    def finished(self) -> int:
        """Pods that succeeded or failed."""
        return sum(self.in_phase(phase) for phase in FINISHED)

    @property
    def unfinished(self) -> int:
        """Pods that have not ended, or have not gone."""
        counted = sum(sum(phases.values()) for phases in self.tasks.values())
        return counted - self.finished + self.terminating


class PodState(Enum):
    """Where a pod is kept; see the module's story."""

    ACTIVE = "live"
    FINISHED = "done"
    TERMINATING = "leaving"
    EXCESS = "surplus"
    FOREIGN = "strange"


_PHASES = {"": PodPhase.PENDING} | {phase.value: phase for phase in PodPhase}


def parse_pod(pod: Pod) -> PodInfo | None:
    """The entry of *pod*; ``None`` if it is no pod of a Volcano job."""
    owner = pod.metadata.controller
    notes = pod.metadata.annotations
    if owner is None or owner.kind != names.JOBS.kind:
        return None
    if owner.api_version != names.JOBS.api_version or notes.get(names.JOB_NAME) != owner.name:
        return None
    task, version = notes.get(names.TASK_SPEC, ""), notes.get(names.JOB_VERSION, "")
    stem, _, index = pod.metadata.name.rpartition("-")
    if stem != f"{owner.name}-{task}" or not index.isdecimal() or not version.isdecimal():
        return None
    retries = notes.get(names.JOB_RETRY_COUNT, "")
    phase = _PHASES.get(pod.status.phase, PodPhase.UNKNOWN)
    containers, before = pod.status.container_statuses, pod.status.init_container_statuses
    ended = [one.state.terminated for one in containers if one.state.terminated is not None]
    return PodInfo(
        uid=pod.metadata.uid,
        name=pod.metadata.name,
        owner=owner.uid,
        task=task,
        index=int(index),
        version=int(version),
        retries=int(retries) if retries.isdecimal() else 0,
        partition=pod.metadata.labels.get(names.PARTITION_ID, ""),
        phase=phase,
        terminating=pod.metadata.deletion_timestamp is not None,
        ready=phase is PodPhase.RUNNING and all(one.ready for one in containers),
        exit_code=next((end.exit_code for end in ended if end.exit_code), 0) if ended else 0,
        restarts=sum([one.restart_count for one in (*containers, *before)]),
        resource_version=pod.metadata.resource_version,
        event_time=_event_time(pod, phase),
    )


def _event_time(pod: Pod, phase: PodPhase) -> str | None:
    """When *pod* was made, if it still waits; else when the last of its containers ended."""
    if phase is PodPhase.PENDING:
        return pod.metadata.creation_timestamp
    status = pod.status
    ends = [
        state.terminated.finished_at
        for one in (*status.container_statuses, *status.init_container_statuses)
        for state in (one.state, one.last_state)
        if state.terminated is not None and state.terminated.finished_at
    ]
    return max(ends, default=None)


class PodTracker:
    """The books of one job; belongs to one event loop, and does no I/O."""

    def __init__(self) -> None:
        self._job_uid = ""
        self._replicas: dict[str, int] = {}
        self._pods: dict[str, PodInfo] = {}
        self._uid_by_index: dict[tuple[str, int], str] = {}
        self._missing_indices: dict[str, set[int]] = {}
        self._pods_by_state: dict[PodState, dict[str, PodInfo]] = {place: {} for place in PodState}
        self._deleting: set[str] = set()
        # Pods that may have been asked to go: the revision that the request named, and until when
        # that explains their end.
        self._unconfirmed_deletions: dict[str, tuple[str, float]] = {}
        self._counts: Counter[tuple[PodState, int, str, PodPhase]] = Counter()
        self._ready: Counter[tuple[int, str]] = Counter()
        self._restarts: Counter[tuple[int, str]] = Counter()
        self._events: DeferredItems[tuple[str, JobEvent], LifecycleEvent] = DeferredItems()
        self._unobserved: dict[str, str] = {}
        # What counts() answered since a pod changed: each decision asks several times.
        self._counts_cache: dict[tuple[int, bool], PodCounts] = {}

    # What the world says.

    def set_job(self, job: Job) -> None:
        """Count for *job*: its uid, tasks and replicas. Walks all pods only if one has changed."""
        replicas = {task.name: task.replicas for task in job.spec.tasks}
        if (job.metadata.uid, replicas) == (self._job_uid, self._replicas):
            return
        entries = list(self._pods.values())
        for entry in entries:
            self._remove_pod(entry)
        self._job_uid, self._replicas = job.metadata.uid, replicas
        self._missing_indices = {task: set(range(number)) for task, number in replicas.items()}
        for entry in entries:
            self._add_pod(entry)

    def update(self, entry: PodInfo, *, now: float = 0.0) -> bool:
        """A pod is there, or has changed; whether that matters to us."""
        self._resolve_unconfirmed_deletion(entry, now)
        old = self._pods.get(entry.uid)
        unseen = self._unobserved.pop(entry.name, None) == entry.uid
        if old == entry and not unseen:
            self._pods[entry.uid] = self._pods_by_state[self._state(entry)][entry.uid] = entry
            return False
        self._derive_events(None if unseen else old, entry, now)
        self._store(entry)
        return True

    def expect(self, name: str) -> None:
        """A pod of this name is about to be created by us."""
        self._unobserved[name] = ""

    def add_unobserved(self, entry: PodInfo) -> None:
        """The expected pod was created; if the cache has not shown it yet, it is there now."""
        if entry.name in self._unobserved:  # else the cache was faster, and has the last word
            self._unobserved[entry.name] = entry.uid
            self._store(entry)

    def remove(self, uid: str, *, now: float = 0.0) -> None:
        """A pod is gone. Unless we asked for that, it was evicted."""
        entry = self._pods.pop(uid, None)
        if entry is None:
            return
        if now > self._unconfirmed_deletions.pop(uid, ("", -math.inf))[1]:
            self._derive_events(entry, None, now)
        self._remove_pod(entry)
        self._deleting.discard(uid)

    @property
    def has_unobserved(self) -> bool:
        """Whether there are pods that we made, or may have made, and that nobody has seen."""
        return bool(self._unobserved)

    def missing_from_informer(self, resource_version: int) -> list[PodInfo]:
        """Pods that we made, and that a cache which has come to *version* should have shown."""
        made = (self._pods.get(uid) for uid in self._unobserved.values())
        return [
            pod
            for pod in made
            if pod is not None and int(pod.resource_version or 0) <= resource_version
        ]

    def remove_unobserved(self, pending: Collection[str]) -> None:
        """Pods that we made, that were not seen and are not *awaited* any longer, do not exist."""
        for name, uid in list(self._unobserved.items()):
            if name not in pending:
                del self._unobserved[name]
                entry = self._pods.pop(uid, None)
                if entry is not None:
                    self._remove_pod(entry)

    # What we did.

    def mark_deleting(self, uids: Iterable[str]) -> None:
        """These pods are asked to go: leaving from now on, and no happening when they end."""
        for uid in uids:
            entry = self._pods.get(uid)
            if entry is not None and uid not in self._deleting:
                self._remove_pod(entry)
                self._deleting.add(uid)
                self._add_pod(entry)

    def unmark_deleting(self, uids: Iterable[str]) -> None:
        """These pods were not asked to go: that was refused, or not tried."""
        for uid in uids:
            entry = self._pods.get(uid)
            if entry is not None and uid in self._deleting:
                self._remove_pod(entry)
                self._deleting.discard(uid)
                self._add_pod(entry)

    def mark_unconfirmed_deletion(self, uid: str, *, resource_version: str, until: float) -> None:
        """The pod may have been asked to go, if it still had *revision* then: no answer has come.

        It counts as one that was not, so that it is asked again. But if the next that is seen of
        it, *until* then, is that it goes or is gone, that was our doing. A later revision that does
        not go shows that the request has had no effect, and will have none.
        """
        entry = self._pods.get(uid)
        if entry is None or entry.terminating:
            return
        self.unmark_deleting((uid,))
        if entry.resource_version == resource_version:
            self._unconfirmed_deletions[uid] = (resource_version, until)

    def _resolve_unconfirmed_deletion(self, entry: PodInfo, now: float) -> None:
        """A pod has been seen; if it is another revision, that tells what became of a request."""
        revision, until = self._unconfirmed_deletions.get(entry.uid, (entry.resource_version, 0.0))
        if entry.resource_version == revision:
            return
        del self._unconfirmed_deletions[entry.uid]
        if entry.terminating and now <= until:
            self.mark_deleting((entry.uid,))

    def add_event(self, event: LifecycleEvent) -> None:
        """Something happened that no pod shows; an earlier one like it stands."""
        if self._events.get(event.key) is None:
            self._events.add(event.key, event)

    def clear_event(self, event_type: JobEvent) -> None:
        """What was noted of *event* is over."""
        self._events.discard(("", event_type))

    def drop_events(self, events: Iterable[LifecycleEvent]) -> None:
        """These have been judged."""
        for happening in events:
            if self._events.get(happening.key) == happening:
                self._events.discard(happening.key)

    def defer_events(self, due_at: Mapping[LifecycleEvent, float], *, inputs: object) -> None:
        """These are answered later, each at its time, if nothing happens to its pod before.

        The times are of the monotonic clock. On other *terms* all are to be judged anew.
        """
        for happening, until in due_at.items():
            if self._events.get(happening.key) == happening:
                self._events.defer(happening.key, until=until, inputs=inputs)

    # What a decision asks.

    def counts(self, version: int, *, keep_finished: bool = True) -> PodCounts:
        """Count the pods of *version*; finished ones of older versions too if they are spared.

        Live pods of older versions (and finished ones not spared) must go, so they count as
        terminating.
        """
        known = self._counts_cache.get((version, keep_finished))
        if known is None:
            known = self._counts_cache[version, keep_finished] = self._count(version, keep_finished)
        return known

    def _count(self, version: int, keep_finished: bool) -> PodCounts:
        tasks: defaultdict[str, dict[str, int]] = defaultdict(dict)
        terminating = len(self._pods_by_state[PodState.TERMINATING]) + len(
            self._pods_by_state[PodState.EXCESS]
        )
        for (place, made_for, task, phase), number in self._counts.items():
            if made_for == version or (keep_finished and place is PodState.FINISHED):
                tasks[task][phase] = tasks[task].get(phase, 0) + number
            else:
                terminating += number
        return PodCounts(
            tasks=dict(tasks),
            terminating=terminating,
            ready={task: number for (of, task), number in self._ready.items() if of == version},
            restarts={
                task: number for (of, task), number in self._restarts.items() if of == version
            },
        )

    def get(self, uid: str) -> PodInfo | None:
        """The pod as it was seen last."""
        return self._pods.get(uid)

    def is_replaced(self, event: LifecycleEvent) -> bool:
        """Whether another pod has the name of its pod by now."""
        stem, _, index = event.pod.rpartition("-")
        holder = self._uid_by_index.get((event.task, int(index))) if stem else None
        return holder not in (None, event.uid)

    def still_applies(self, event: LifecycleEvent) -> bool:
        """Whether its pod is still in the phase that it came into then, and is to stay."""
        pod = self._pods.get(event.uid)
        if pod is None or self._state(pod) not in (PodState.ACTIVE, PodState.FINISHED):
            return False
        return _EVENT_ON_ENTERING.get(pod.phase) is event.event_type

    def missing(self, task: str) -> list[int]:
        """Indices of *task* that no pod holds, in order."""
        return sorted(self._missing_indices.get(task, ()))

    def has_index(self, task: str, index: int) -> bool:
        """Whether some pod holds an index of *task*."""
        return (task, index) in self._uid_by_index

    def index_count(self, task: str) -> int:
        """Number of indices of *task* that some pod holds."""
        return self._replicas.get(task, 0) - len(self._missing_indices.get(task, ()))

    def active(self) -> Iterator[PodInfo]:
        """Pods that have not ended, of any version."""
        return iter(self._pods_by_state[PodState.ACTIVE].values())

    def finished(self) -> Iterator[PodInfo]:
        """Pods that have ended and are kept, of any version."""
        return iter(self._pods_by_state[PodState.FINISHED].values())

    def terminating(self) -> Iterator[PodInfo]:
        """Pods that are being deleted, or were asked to go."""
        return iter(self._pods_by_state[PodState.TERMINATING].values())

    def excess(self) -> Iterator[PodInfo]:
        """Pods that the job has no place for."""
        return iter(self._pods_by_state[PodState.EXCESS].values())

    def outdated(self, version: int) -> Iterator[PodInfo]:
        """Live pods of versions older than *version*; costs nothing if there are none."""
        live = PodState.ACTIVE
        if any(key[0] is live and key[1] < version for key in self._counts):
            yield from (entry for entry in self.active() if entry.version < version)

    def has_version(self, version: int) -> bool:
        """Whether a pod of *version* is there, live or done."""
        return any(key[1] == version for key in self._counts)

    @property
    def has_events(self) -> bool:
        """Whether something happened that has not been answered or forgotten yet."""
        return bool(self._events)

    def due_events(
        self, now: float, *, inputs: object
    ) -> tuple[list[LifecycleEvent], float | None]:
        """What is to be judged *now*, oldest first, and when the first of the others will be."""
        return self._events.due(now, inputs=inputs)

    @property
    def events(self) -> list[LifecycleEvent]:
        """What has not been answered or forgotten yet, oldest first."""
        return self._events.items

    def __len__(self) -> int:
        """Number of pods, strangers included."""
        return len(self._pods)

    def validate(self) -> None:
        """Compare the running counts with a count of every pod; for tests.

        Raises:
            AssertionError: they differ.
        """
        counted: Counter[tuple[PodState, int, str, PodPhase]] = Counter()
        for entry in self._pods.values():
            place = self._state(entry)
            assert self._pods_by_state[place].get(entry.uid) == entry, entry  # noqa: S101
            if place in (PodState.ACTIVE, PodState.FINISHED):
                counted[place, entry.version, entry.task, entry.phase] += 1
        assert counted == self._counts  # noqa: S101
        assert all(self._counts.values())  # noqa: S101
        held = {(entry.task, entry.index) for entry in self._pods.values()}
        for task, replicas in self._replicas.items():
            free = {index for index in range(replicas) if (task, index) not in held}
            assert free == self._missing_indices[task]  # noqa: S101
        self._events.validate()

    # Book-keeping.

    def _store(self, entry: PodInfo) -> None:
        old = self._pods.get(entry.uid)
        if old is not None:
            self._remove_pod(old)
        namesake = self._uid_by_index.get((entry.task, entry.index))
        if namesake is not None and self._pods[namesake].name == entry.name:
            self._remove_pod(self._pods.pop(namesake))
        self._pods[entry.uid] = entry
        self._add_pod(entry)

    def _state(self, entry: PodInfo) -> PodState:
        if entry.owner != self._job_uid:
            return PodState.FOREIGN
        if entry.terminating or entry.uid in self._deleting:
            return PodState.TERMINATING
        if entry.index >= self._replicas.get(entry.task, 0):
            return PodState.EXCESS
        return PodState.FINISHED if entry.phase in FINISHED else PodState.ACTIVE

    def _add_pod(self, entry: PodInfo) -> None:
        self._counts_cache.clear()
        place = self._state(entry)
        self._pods_by_state[place][entry.uid] = entry
        self._uid_by_index[entry.task, entry.index] = entry.uid
        self._missing_indices.get(entry.task, set()).discard(entry.index)
        self._reactivate_events(entry)
        if place in (PodState.ACTIVE, PodState.FINISHED):
            self._counts[place, entry.version, entry.task, entry.phase] += 1
            self._add_ready_and_restarts(entry, 1)

    def _remove_pod(self, entry: PodInfo) -> None:
        self._counts_cache.clear()
        place = self._state(entry)
        del self._pods_by_state[place][entry.uid]
        self._uid_by_index.pop((entry.task, entry.index), None)
        if entry.index < self._replicas.get(entry.task, 0):
            self._missing_indices[entry.task].add(entry.index)
        self._reactivate_events(entry)
        if place in (PodState.ACTIVE, PodState.FINISHED):
            _add_to_counter(self._counts, (place, entry.version, entry.task, entry.phase), -1)
            self._add_ready_and_restarts(entry, -1)

    def _reactivate_events(self, entry: PodInfo) -> None:
        """Have what waits about a pod judged anew: where it stands has changed."""
        if self._events:
            for event in _DEFERRABLE_EVENTS:
                self._events.reactivate((entry.name, event))

    def _add_ready_and_restarts(self, entry: PodInfo, sign: int) -> None:
        """Count what is neither place nor phase."""
        if entry.phase not in FINISHED:
            _add_to_counter(self._ready, (entry.version, entry.task), sign * entry.ready)
            _add_to_counter(self._restarts, (entry.version, entry.task), sign * entry.restarts)

    def _derive_events(self, old: PodInfo | None, new: PodInfo | None, now: float) -> None:
        """Remember what happened to a pod, unless we did it; forget what it undoes."""
        entry = new or old
        if entry is None or entry.uid in self._deleting:
            return
        if old is not None and (new is None or new.phase is not PodPhase.PENDING):
            self._events.discard((entry.name, JobEvent.POD_PENDING))
        for event in _pod_events(old, new):
            if event is JobEvent.POD_RUNNING:  # the pod, or its replacement, is well
                for undone in (JobEvent.POD_FAILED, JobEvent.POD_EVICTED):
                    self._events.discard((entry.name, undone))
                continue
            happening = LifecycleEvent.from_pod(event, entry, occurred_at=now)
            before = self._events.get(happening.key)
            if event is JobEvent.TASK_COMPLETED and before is not None and before.occurred_at > now:
                happening = before  # pods that ended unseen come in any order
            self._events.add(happening.key, happening)


_DEFERRABLE_EVENTS = (JobEvent.POD_PENDING, JobEvent.POD_FAILED, JobEvent.POD_EVICTED)
"""What happens to a pod alone, and may be answered later."""
_EVENT_ON_ENTERING = {
    PodPhase.PENDING: JobEvent.POD_PENDING,
    PodPhase.RUNNING: JobEvent.POD_RUNNING,
    PodPhase.SUCCEEDED: JobEvent.TASK_COMPLETED,  # perhaps: whoever judges it counts the task
    PodPhase.FAILED: JobEvent.POD_FAILED,
}


def _pod_events(old: PodInfo | None, new: PodInfo | None) -> Iterator[JobEvent]:
    """What it means that a pod went from *old* to *new*."""
    if new is None:
        yield JobEvent.POD_EVICTED
        return
    if new.terminating and (old is None or new.phase is PodPhase.FAILED):
        return  # it was asked to go, and fails because of that; once it is gone it was evicted
    if (old is None or old.phase is not new.phase) and new.phase in _EVENT_ON_ENTERING:
        yield _EVENT_ON_ENTERING[new.phase]
    if new.phase not in FINISHED and new.restarts > (old.restarts if old else 0):
        yield JobEvent.TASK_FAILED  # perhaps, likewise


def _add_to_counter(counter: dict[Key, int], key: Key, number: int) -> None:
    """Count *number* more, and leave no zero behind."""
    counter[key] = counter.get(key, 0) + number
    if not counter[key]:
        del counter[key]
