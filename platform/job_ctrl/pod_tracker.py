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
from .deferred import Docket

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
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
    leaving: bool = False
    """It has a deletion timestamp."""
    ready: bool = False
    """It runs, and all its containers are ready."""
    exit_code: int = 0
    """Of the first container that failed; 0 as long as none has."""
    restarts: int = 0
    """How often its containers have been started anew, taken together."""
    revision: str = field(default="", compare=False)
    """The ``resourceVersion`` that all this was read from."""
    since: str | None = field(default=None, compare=False)
    """When what policies may ask about happened to it last, as the pod says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """Something that a policy may react to."""

    event: JobEvent
    task: str = ""
    partition: str = ""
    pod: str = ""
    uid: str = ""
    """Of the pod; empty if nobody has seen it."""
    owner: str = ""
    version: int | None = None
    """Version of the job that it concerns; ``None`` for whichever is there."""
    exit_code: int = 0
    since: float = 0.0
    """When it happened, on the monotonic clock."""

    @classmethod
    def of(cls, event: JobEvent, pod: Entry, *, since: float) -> "Happening":
        """What happened to *pod*."""
        return cls(
            event=event,
            task=pod.task,
            partition=pod.partition,
            pod=pod.name,
            uid=pod.uid,
            owner=pod.owner,
            version=pod.version,
            exit_code=pod.exit_code if event is JobEvent.POD_FAILED else 0,
            since=since,
        )

    @property
    def key(self) -> tuple[str, JobEvent]:
        """Of two with the same key only one is kept: a task is completed by its last pod."""
        return self.task if self.event is JobEvent.TASK_COMPLETED else self.pod, self.event


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

    def without(self, pods: Iterable[Entry]) -> "PodCounts":
        """The same with *pods*, which are counted by their phases, as going."""
        tasks = {task: dict(phases) for task, phases in self.tasks.items()}
        terminating = self.terminating
        for pod in pods:
            _add(tasks[pod.task], pod.phase, -1)
            terminating += 1
        return replace(self, tasks=tasks, terminating=terminating)

    def of(self, phase: PodPhase) -> int:
        """Number of pods in *phase*."""
        return sum(phases.get(phase, 0) for phases in self.tasks.values())

    @property
    def finished(self) -> int:
        """Pods that succeeded or failed."""
        return sum(self.of(phase) for phase in FINISHED)

    @property
    def alive(self) -> int:
        """Pods that have not ended, or have not gone."""
        counted = sum(sum(phases.values()) for phases in self.tasks.values())
        return counted - self.finished + self.terminating


class Place(Enum):
    """Where a pod is kept; see the module's story."""

    LIVE = "live"
    DONE = "done"
    LEAVING = "leaving"
    SURPLUS = "surplus"
    STRANGE = "strange"


_PHASES = {"": PodPhase.PENDING} | {phase.value: phase for phase in PodPhase}


def read(pod: Pod) -> Entry | None:
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
    return Entry(
        uid=pod.metadata.uid,
        name=pod.metadata.name,
        owner=owner.uid,
        task=task,
        index=int(index),
        version=int(version),
        retries=int(retries) if retries.isdecimal() else 0,
        partition=pod.metadata.labels.get(names.PARTITION_ID, ""),
        phase=phase,
        leaving=pod.metadata.deletion_timestamp is not None,
        ready=phase is PodPhase.RUNNING and all(one.ready for one in containers),
        exit_code=next((end.exit_code for end in ended if end.exit_code), 0) if ended else 0,
        restarts=sum([one.restart_count for one in (*containers, *before)]),
        revision=pod.metadata.resource_version,
        since=_since(pod, phase),
    )


def _since(pod: Pod, phase: PodPhase) -> str | None:
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


class Ledger:
    """The books of one job; belongs to one event loop, and does no I/O."""

    def __init__(self) -> None:
        self._uid = ""
        self._replicas: dict[str, int] = {}
        self._entries: dict[str, Entry] = {}
        self._slots: dict[tuple[str, int], str] = {}
        self._missing: dict[str, set[int]] = {}
        self._places: dict[Place, dict[str, Entry]] = {place: {} for place in Place}
        self._doomed: set[str] = set()
        # Pods that may have been asked to go: the revision that the request named, and until when
        # that explains their end.
        self._doubted: dict[str, tuple[str, float]] = {}
        self._counts: Counter[tuple[Place, int, str, PodPhase]] = Counter()
        self._ready: Counter[tuple[int, str]] = Counter()
        self._restarts: Counter[tuple[int, str]] = Counter()
        self._happenings: Docket[tuple[str, JobEvent], Happening] = Docket()
        self._unseen: dict[str, str] = {}
        # What counts() answered since a pod changed: each decision asks several times.
        self._counted: dict[tuple[int, bool], PodCounts] = {}

    # What the world says.

    def adapt(self, job: Job) -> None:
        """Count for *job*: its uid, tasks and replicas. Walks all pods only if one has changed."""
        replicas = {task.name: task.replicas for task in job.spec.tasks}
        if (job.metadata.uid, replicas) == (self._uid, self._replicas):
            return
        entries = list(self._entries.values())
        for entry in entries:
            self._take_out(entry)
        self._uid, self._replicas = job.metadata.uid, replicas
        self._missing = {task: set(range(number)) for task, number in replicas.items()}
        for entry in entries:
            self._put_in(entry)

    def put(self, entry: Entry, *, now: float = 0.0) -> bool:
        """A pod is there, or has changed; whether that matters to us."""
        self._settle_doubt(entry, now)
        old = self._entries.get(entry.uid)
        unseen = self._unseen.pop(entry.name, None) == entry.uid
        if old == entry and not unseen:
            self._entries[entry.uid] = self._places[self._place(entry)][entry.uid] = entry
            return False
        self._notice(None if unseen else old, entry, now)
        self._store(entry)
        return True

    def expect(self, name: str) -> None:
        """A pod of this name is about to be created by us."""
        self._unseen[name] = ""

    def put_unseen(self, entry: Entry) -> None:
        """The expected pod was created; if the cache has not shown it yet, it is there now."""
        if entry.name in self._unseen:  # else the cache was faster, and has the last word
            self._unseen[entry.name] = entry.uid
            self._store(entry)

    def drop(self, uid: str, *, now: float = 0.0) -> None:
        """A pod is gone. Unless we asked for that, it was evicted."""
        entry = self._entries.pop(uid, None)
        if entry is None:
            return
        if now > self._doubted.pop(uid, ("", -math.inf))[1]:
            self._notice(entry, None, now)
        self._take_out(entry)
        self._doomed.discard(uid)

    @property
    def has_unseen(self) -> bool:
        """Whether there are pods that we made, or may have made, and that nobody has seen."""
        return bool(self._unseen)

    def overtaken(self, version: int) -> list[Entry]:
        """Pods that we made, and that a cache which has come to *version* should have shown."""
        made = (self._entries.get(uid) for uid in self._unseen.values())
        return [pod for pod in made if pod is not None and int(pod.revision or 0) <= version]

    def drop_unseen(self, awaited: Collection[str]) -> None:
        """Pods that we made, that were not seen and are not *awaited* any longer, do not exist."""
        for name, uid in list(self._unseen.items()):
            if name not in awaited:
                del self._unseen[name]
                entry = self._entries.pop(uid, None)
                if entry is not None:
                    self._take_out(entry)

    # What we did.

    def doom(self, uids: Iterable[str]) -> None:
        """These pods are asked to go: leaving from now on, and no happening when they end."""
        for uid in uids:
            entry = self._entries.get(uid)
            if entry is not None and uid not in self._doomed:
                self._take_out(entry)
                self._doomed.add(uid)
                self._put_in(entry)

    def reprieve(self, uids: Iterable[str]) -> None:
        """These pods were not asked to go: that was refused, or not tried."""
        for uid in uids:
            entry = self._entries.get(uid)
            if entry is not None and uid in self._doomed:
                self._take_out(entry)
                self._doomed.discard(uid)
                self._put_in(entry)

    def doubt(self, uid: str, *, revision: str, until: float) -> None:
        """The pod may have been asked to go, if it still had *revision* then: no answer has come.

        It counts as one that was not, so that it is asked again. But if the next that is seen of
        it, *until* then, is that it goes or is gone, that was our doing. A later revision that does
        not go shows that the request has had no effect, and will have none.
        """
        entry = self._entries.get(uid)
        if entry is None or entry.leaving:
            return
        self.reprieve((uid,))
        if entry.revision == revision:
            self._doubted[uid] = (revision, until)

    def _settle_doubt(self, entry: Entry, now: float) -> None:
        """A pod has been seen; if it is another revision, that tells what became of a request."""
        revision, until = self._doubted.get(entry.uid, (entry.revision, 0.0))
        if entry.revision == revision:
            return
        del self._doubted[entry.uid]
        if entry.leaving and now <= until:
            self.doom((entry.uid,))

    def note(self, happening: Happening) -> None:
        """Something happened that no pod shows; an earlier one like it stands."""
        if self._happenings.get(happening.key) is None:
            self._happenings.add(happening.key, happening)

    def strike(self, event: JobEvent) -> None:
        """What was noted of *event* is over."""
        self._happenings.discard(("", event))

    def forget(self, happenings: Iterable[Happening]) -> None:
        """These have been judged."""
        for happening in happenings:
            if self._happenings.get(happening.key) == happening:
                self._happenings.discard(happening.key)

    def put_off(self, waits: Mapping[Happening, float], *, terms: object) -> None:
        """These are answered later, each at its time, if nothing happens to its pod before.

        The times are of the monotonic clock. On other *terms* all are to be judged anew.
        """
        for happening, until in waits.items():
            if self._happenings.get(happening.key) == happening:
                self._happenings.put_off(happening.key, until=until, terms=terms)

    # What a decision asks.

    def counts(self, version: int, *, spare_finished: bool = True) -> PodCounts:
        """Count the pods of *version*; finished ones of older versions too if they are spared.

        Live pods of older versions (and finished ones not spared) must go, so they count as
        terminating.
        """
        known = self._counted.get((version, spare_finished))
        if known is None:
            known = self._counted[version, spare_finished] = self._count(version, spare_finished)
        return known

    def _count(self, version: int, spare_finished: bool) -> PodCounts:
        tasks: defaultdict[str, dict[str, int]] = defaultdict(dict)
        terminating = len(self._places[Place.LEAVING]) + len(self._places[Place.SURPLUS])
        for (place, made_for, task, phase), number in self._counts.items():
            if made_for == version or (spare_finished and place is Place.DONE):
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

    def entry(self, uid: str) -> Entry | None:
        """The pod as it was seen last."""
        return self._entries.get(uid)

    def replaced(self, happening: Happening) -> bool:
        """Whether another pod has the name of its pod by now."""
        stem, _, index = happening.pod.rpartition("-")
        holder = self._slots.get((happening.task, int(index))) if stem else None
        return holder not in (None, happening.uid)

    def stands(self, happening: Happening) -> bool:
        """Whether its pod is still in the phase that it came into then, and is to stay."""
        pod = self._entries.get(happening.uid)
        if pod is None or self._place(pod) not in (Place.LIVE, Place.DONE):
            return False
        return _ENTERED.get(pod.phase) is happening.event

    def missing(self, task: str) -> list[int]:
        """Indices of *task* that no pod holds, in order."""
        return sorted(self._missing.get(task, ()))

    def holds(self, task: str, index: int) -> bool:
        """Whether some pod holds an index of *task*."""
        return (task, index) in self._slots

    def present(self, task: str) -> int:
        """Number of indices of *task* that some pod holds."""
        return self._replicas.get(task, 0) - len(self._missing.get(task, ()))

    def live(self) -> Iterator[Entry]:
        """Pods that have not ended, of any version."""
        return iter(self._places[Place.LIVE].values())

    def done(self) -> Iterator[Entry]:
        """Pods that have ended and are kept, of any version."""
        return iter(self._places[Place.DONE].values())

    def leaving(self) -> Iterator[Entry]:
        """Pods that are being deleted, or were asked to go."""
        return iter(self._places[Place.LEAVING].values())

    def surplus(self) -> Iterator[Entry]:
        """Pods that the job has no place for."""
        return iter(self._places[Place.SURPLUS].values())

    def outdated(self, version: int) -> Iterator[Entry]:
        """Live pods of versions older than *version*; costs nothing if there are none."""
        live = Place.LIVE
        if any(key[0] is live and key[1] < version for key in self._counts):
            yield from (entry for entry in self.live() if entry.version < version)

    def has_any_of(self, version: int) -> bool:
        """Whether a pod of *version* is there, live or done."""
        return any(key[1] == version for key in self._counts)

    @property
    def has_happenings(self) -> bool:
        """Whether something happened that has not been answered or forgotten yet."""
        return bool(self._happenings)

    def due(self, now: float, *, terms: object) -> tuple[list[Happening], float | None]:
        """What is to be judged *now*, oldest first, and when the first of the others will be."""
        return self._happenings.due(now, terms=terms)

    @property
    def happenings(self) -> list[Happening]:
        """What has not been answered or forgotten yet, oldest first."""
        return self._happenings.matters

    def __len__(self) -> int:
        """Number of pods, strangers included."""
        return len(self._entries)

    def validate(self) -> None:
        """Compare the running counts with a count of every pod; for tests.

        Raises:
            AssertionError: they differ.
        """
        counted: Counter[tuple[Place, int, str, PodPhase]] = Counter()
        for entry in self._entries.values():
            place = self._place(entry)
            assert self._places[place].get(entry.uid) == entry, entry  # noqa: S101
            if place in (Place.LIVE, Place.DONE):
                counted[place, entry.version, entry.task, entry.phase] += 1
        assert counted == self._counts  # noqa: S101
        assert all(self._counts.values())  # noqa: S101
        held = {(entry.task, entry.index) for entry in self._entries.values()}
        for task, replicas in self._replicas.items():
            free = {index for index in range(replicas) if (task, index) not in held}
            assert free == self._missing[task]  # noqa: S101
        self._happenings.validate()

    # Book-keeping.

    def _store(self, entry: Entry) -> None:
        old = self._entries.get(entry.uid)
        if old is not None:
            self._take_out(old)
        namesake = self._slots.get((entry.task, entry.index))
        if namesake is not None and self._entries[namesake].name == entry.name:
            self._take_out(self._entries.pop(namesake))
        self._entries[entry.uid] = entry
        self._put_in(entry)

    def _place(self, entry: Entry) -> Place:
        if entry.owner != self._uid:
            return Place.STRANGE
        if entry.leaving or entry.uid in self._doomed:
            return Place.LEAVING
        if entry.index >= self._replicas.get(entry.task, 0):
            return Place.SURPLUS
        return Place.DONE if entry.phase in FINISHED else Place.LIVE

    def _put_in(self, entry: Entry) -> None:
        self._counted.clear()
        place = self._place(entry)
        self._places[place][entry.uid] = entry
        self._slots[entry.task, entry.index] = entry.uid
        self._missing.get(entry.task, set()).discard(entry.index)
        self._reopen(entry)
        if place in (Place.LIVE, Place.DONE):
            self._counts[place, entry.version, entry.task, entry.phase] += 1
            self._tally(entry, 1)

    def _take_out(self, entry: Entry) -> None:
        self._counted.clear()
        place = self._place(entry)
        del self._places[place][entry.uid]
        self._slots.pop((entry.task, entry.index), None)
        if entry.index < self._replicas.get(entry.task, 0):
            self._missing[entry.task].add(entry.index)
        self._reopen(entry)
        if place in (Place.LIVE, Place.DONE):
            _add(self._counts, (place, entry.version, entry.task, entry.phase), -1)
            self._tally(entry, -1)

    def _reopen(self, entry: Entry) -> None:
        """Have what waits about a pod judged anew: where it stands has changed."""
        if self._happenings:
            for event in _WAITING:
                self._happenings.reopen((entry.name, event))

    def _tally(self, entry: Entry, sign: int) -> None:
        """Count what is neither place nor phase."""
        if entry.phase not in FINISHED:
            _add(self._ready, (entry.version, entry.task), sign * entry.ready)
            _add(self._restarts, (entry.version, entry.task), sign * entry.restarts)

    def _notice(self, old: Entry | None, new: Entry | None, now: float) -> None:
        """Remember what happened to a pod, unless we did it; forget what it undoes."""
        entry = new or old
        if entry is None or entry.uid in self._doomed:
            return
        if old is not None and (new is None or new.phase is not PodPhase.PENDING):
            self._happenings.discard((entry.name, JobEvent.POD_PENDING))
        for event in _events(old, new):
            if event is JobEvent.POD_RUNNING:  # the pod, or its replacement, is well
                for undone in (JobEvent.POD_FAILED, JobEvent.POD_EVICTED):
                    self._happenings.discard((entry.name, undone))
                continue
            happening = Happening.of(event, entry, since=now)
            before = self._happenings.get(happening.key)
            if event is JobEvent.TASK_COMPLETED and before is not None and before.since > now:
                happening = before  # pods that ended unseen come in any order
            self._happenings.add(happening.key, happening)


_WAITING = (JobEvent.POD_PENDING, JobEvent.POD_FAILED, JobEvent.POD_EVICTED)
"""What happens to a pod alone, and may be answered later."""
_ENTERED = {
    PodPhase.PENDING: JobEvent.POD_PENDING,
    PodPhase.RUNNING: JobEvent.POD_RUNNING,
    PodPhase.SUCCEEDED: JobEvent.TASK_COMPLETED,  # perhaps: whoever judges it counts the task
    PodPhase.FAILED: JobEvent.POD_FAILED,
}


def _events(old: Entry | None, new: Entry | None) -> Iterator[JobEvent]:
    """What it means that a pod went from *old* to *new*."""
    if new is None:
        yield JobEvent.POD_EVICTED
        return
    if new.leaving and (old is None or new.phase is PodPhase.FAILED):
        return  # it was asked to go, and fails because of that; once it is gone it was evicted
    if (old is None or old.phase is not new.phase) and new.phase in _ENTERED:
        yield _ENTERED[new.phase]
    if new.phase not in FINISHED and new.restarts > (old.restarts if old else 0):
        yield JobEvent.TASK_FAILED  # perhaps, likewise


def _add(counter: dict[Key, int], key: Key, number: int) -> None:
    """Count *number* more, and leave no zero behind."""
    counter[key] = counter.get(key, 0) + number
    if not counter[key]:
        del counter[key]
