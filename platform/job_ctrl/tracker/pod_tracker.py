"""Counts and indexes of one job's pods, updated pod by pod.

The event handler of the pod informer passes each change to the tracker. All that a decision needs
is updated incrementally: one pod event costs the same in a job of ten pods and of ten thousand.
A pod is in exactly one *state*:

* active: not finished, and within the replicas of its task (of any version of the job),
* finished: succeeded or failed,
* terminating: being deleted, or its deletion was requested,
* excess: beyond the replicas of its task, of a task that the job does not have, or rejected by the
  kubelet before a container started: it is deleted and created again as if it had not existed,
* foreign: controlled by an earlier job of the same name; it only occupies its index.

*Lifecycle events* are what policies may react to. The tracker keeps them until the controller has
handled them. An event whose policy has a timeout is deferred; it costs nothing until it is due or
its pod changes.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import TypeVar

from ...model.job import Job, JobEvent, JobSpec
from ...model.pod import FINISHED, PodPhase
from .deferred import DeferredItems
from .pod_info import LifecycleEvent, PodCounts, PodInfo

Key = TypeVar("Key")

_REJECTION_BACKOFF, _MAX_REJECTION_BACKOFF = 10.0, 360.0
"""Seconds after which a pod is replaced whose predecessor was rejected, too: doubled each time."""


class PodState(StrEnum):
    """States of a pod; see the module docstring."""

    ACTIVE = "active"
    FINISHED = "finished"
    TERMINATING = "terminating"
    EXCESS = "excess"
    FOREIGN = "foreign"


class PodTracker:
    """The pods of one job. For one event loop; does no I/O."""

    def __init__(self) -> None:
        self._job_uid = ""
        self._spec: JobSpec | None = None
        self._has_policies = False
        self._replicas: dict[str, int] = {}
        self._pods: dict[str, PodInfo] = {}
        self._uid_by_index: dict[tuple[str, int], str] = {}
        self._missing_indices: dict[str, set[int]] = {}
        self._pods_by_state: dict[PodState, dict[str, PodInfo]] = {state: {} for state in PodState}
        self._deleting: set[str] = set()
        self._removed: set[str] = set()
        # Pods whose deletion was requested without a response: the resourceVersion in the request,
        # and until when the request may explain the deletion of the pod.
        self._unconfirmed_deletions: dict[str, tuple[str, float]] = {}
        # For each index whose pods were rejected in a row: how many, the last one, and when that is
        # to be replaced.
        self._rejections: dict[tuple[str, int], tuple[int, str, float]] = {}
        self._counts: Counter[tuple[PodState, int, str, PodPhase]] = Counter()
        self._known_counts: dict[tuple[int, bool], PodCounts] = {}
        """Results of :meth:`counts` since the last change."""
        self._ready: Counter[tuple[int, str]] = Counter()
        self._restarts: Counter[tuple[int, str]] = Counter()
        self._events: DeferredItems[tuple[str, JobEvent], LifecycleEvent] = DeferredItems()

    # Changes that the informers report.

    def set_job(self, job: Job, *, lists_missing: bool = True) -> None:
        """Set uid, tasks and replicas. Visits all pods only if one of them has changed.

        A job that gets no pods needs no list of those that are missing.
        """
        if job.spec is self._spec and job.metadata.uid == self._job_uid:
            return
        self._spec = job.spec
        self._has_policies = any((job.spec.policies, *(task.policies for task in job.spec.tasks)))
        replicas = {task.name: task.replicas for task in job.spec.tasks}
        if (job.metadata.uid, replicas) == (self._job_uid, self._replicas):
            return
        entries = list(self._pods.values())
        for pod in entries:
            self._remove_pod(pod)
        self._job_uid, self._replicas = job.metadata.uid, replicas
        self._missing_indices = {
            task: set(range(number) if lists_missing else ()) for task, number in replicas.items()
        }
        for pod in entries:
            self._add_pod(pod)

    def update(self, pod: PodInfo, *, now: float = 0.0, first_observed: bool = False) -> bool:
        """Add or update a pod; return whether anything relevant has changed.

        *first_observed*: this controller creates the pod, and the informer reports it for the first
        time. If it is as it was added with :meth:`add_created`, or if it has not started and the
        response is not received yet, that is no change for a job without policies.
        """
        self._resolve_unconfirmed_deletion(pod, now)
        old = self._pods.get(pod.uid)
        if old is None and first_observed and not self._has_policies and pod.is_new:
            self._store(pod)
            return False
        if old == pod and not (first_observed and self._has_policies):
            self._pods[pod.uid] = self._pods_by_state[self._state(pod)][pod.uid] = pod
            return False
        self._derive_events(None if first_observed else old, pod, now)
        self._store(pod)
        self._count_rejection(pod, now)
        return True

    def _count_rejection(self, pod: PodInfo, now: float) -> None:
        index = (pod.task, pod.index)
        count, uid, _ = self._rejections.get(index, (0, "", 0.0))
        if pod.phase is PodPhase.RUNNING:
            self._rejections.pop(index, None)
        elif pod.rejection and pod.uid != uid:
            delay = min(_REJECTION_BACKOFF * 2.0 ** (count - 1), _MAX_REJECTION_BACKOFF)
            self._rejections[index] = (count + 1, pod.uid, now + delay if count else now)

    def remove(self, uid: str, *, now: float = 0.0) -> None:
        """Remove a deleted pod: evicted, unless this controller requested the deletion."""
        pod = self._pods.pop(uid, None)
        if pod is None:
            return
        if now > self._unconfirmed_deletions.pop(uid, ("", -math.inf))[1]:
            self._derive_events(pod, None, now)
        self._remove_pod(pod)
        self._deleting.discard(uid)
        self._removed.discard(uid)

    # Writes of this controller.

    def add_created(self, pod: PodInfo) -> None:
        """Add a pod that was created and that the informer has not reported yet."""
        self._store(pod)

    def remove_created(self, uid: str) -> None:
        """Remove a created pod that the informer never reported; it causes no event."""
        pod = self._pods.pop(uid, None)
        if pod is not None:
            self._remove_pod(pod)

    def mark_deleting(self, uids: Iterable[str]) -> None:
        """Mark pods as terminating because their deletion is requested; they cause no events."""
        for uid in uids:
            pod = self._pods.get(uid)
            if pod is not None and uid not in self._deleting:
                self._remove_pod(pod)
                self._deleting.add(uid)
                self._add_pod(pod)

    def mark_removed(self, uid: str) -> None:
        """Record that the removal of a lost pod is requested."""
        self._removed.add(uid)

    def unmark_removed(self, uid: str) -> None:
        """Undo :meth:`mark_removed` for a pod whose removal has failed."""
        self._removed.discard(uid)

    def unmark_deleting(self, uids: Iterable[str]) -> None:
        """Undo :meth:`mark_deleting` for pods whose deletion was rejected or not attempted."""
        for uid in uids:
            pod = self._pods.get(uid)
            if pod is not None and uid in self._deleting:
                self._remove_pod(pod)
                self._deleting.discard(uid)
                self._add_pod(pod)

    def mark_unconfirmed_deletion(self, uid: str, *, resource_version: str, until: float) -> None:
        """Record a deletion request for *resource_version* that got no response.

        The pod counts as not deleted, so that the deletion is requested again. If the next change
        of the pod before *until* is its deletion, this controller caused it. A newer version that
        is not being deleted proves that the request had and will have no effect.
        """
        pod = self._pods.get(uid)
        if pod is None or pod.terminating:
            return
        self.unmark_deleting((uid,))
        if pod.resource_version == resource_version:
            self._unconfirmed_deletions[uid] = (resource_version, until)

    def _resolve_unconfirmed_deletion(self, pod: PodInfo, now: float) -> None:
        """Conclude from another version of the pod what an unconfirmed request has done."""
        version, until = self._unconfirmed_deletions.get(pod.uid, (pod.resource_version, 0.0))
        if pod.resource_version == version:
            return
        del self._unconfirmed_deletions[pod.uid]
        if pod.terminating and now <= until:
            self.mark_deleting((pod.uid,))

    def add_event(self, event: LifecycleEvent) -> None:
        """Add an event that does not derive from a pod; an earlier one of the same key is kept."""
        if self._events.get(event.key) is None:
            self._events.add(event.key, event)

    def clear_event(self, event_type: JobEvent) -> None:
        """Remove the event of this type that does not derive from a pod."""
        self._events.discard(("", event_type))

    def drop_events(self, events: Iterable[LifecycleEvent]) -> None:
        """Remove handled events."""
        for event in events:
            if self._events.get(event.key) == event:
                self._events.discard(event.key)

    def defer_events(self, due_at: Mapping[LifecycleEvent, float], *, inputs: object) -> None:
        """Defer events to times on the monotonic clock, unless their pods change before.

        With different *inputs* all deferred events are due.
        """
        for event, until in due_at.items():
            if self._events.get(event.key) == event:
                self._events.defer(event.key, until=until, inputs=inputs)

    def activate_events(self, now: float, *, inputs: object) -> None:
        """Activate the deferred events that are due at *now*, so that a decision finds them."""
        self._events.activate_due(now, inputs=inputs)

    # Reads: what decisions may call.

    def counts(self, version: int, *, keep_finished: bool = True) -> PodCounts:
        """Count the pods of *version*, and with *keep_finished* finished pods of all versions.

        All other pods will be deleted, so they count as terminating.
        """
        known = self._known_counts.get((version, keep_finished))
        if known is None:
            known = self._count(version, keep_finished=keep_finished)
            self._known_counts[version, keep_finished] = known
        return known

    def _count(self, version: int, *, keep_finished: bool) -> PodCounts:
        tasks: defaultdict[str, dict[str, int]] = defaultdict(dict)
        terminating = len(self._pods_by_state[PodState.TERMINATING]) + len(
            self._pods_by_state[PodState.EXCESS]
        )
        for (state, of, task, phase), number in self._counts.items():
            if of == version or (keep_finished and state is PodState.FINISHED):
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
        """Return the last known version of a pod."""
        return self._pods.get(uid)

    def is_replaced(self, event: LifecycleEvent) -> bool:
        """Whether another pod has the name of the event's pod."""
        stem, _, index = event.pod.rpartition("-")
        holder = self._uid_by_index.get((event.task, int(index))) if stem else None
        return holder not in (None, event.uid)

    def still_applies(self, event: LifecycleEvent) -> bool:
        """Whether the event's pod is still in the phase that caused the event, and is kept."""
        pod = self._pods.get(event.uid)
        if pod is None or self._state(pod) not in (PodState.ACTIVE, PodState.FINISHED):
            return False
        return _EVENT_ON_ENTERING.get(pod.phase) is event.event_type

    def missing(self, task: str) -> list[int]:
        """Return the indices of *task* without a pod, in order."""
        return sorted(self._missing_indices.get(task, ()))

    def has_index(self, task: str, index: int) -> bool:
        """Whether an index of *task* has a pod."""
        return (task, index) in self._uid_by_index

    def index_count(self, task: str) -> int:
        """Return the number of indices of *task* with a pod."""
        return self._replicas.get(task, 0) - len(self._missing_indices.get(task, ()))

    def unfinished_count(self, task: str) -> int:
        """Return the number of pods of *task* that may still run, also of those being deleted.

        Visits them all.
        """
        states = [each for each in PodState if each is not PodState.FINISHED]
        pods = (pod for each in states for pod in self._pods_by_state[each].values())
        return sum(pod.task == task for pod in pods)

    def active(self) -> Iterator[PodInfo]:
        """Return the pods that have not finished, of any version."""
        return iter(self._pods_by_state[PodState.ACTIVE].values())

    def finished(self) -> Iterator[PodInfo]:
        """Return the finished pods, of any version."""
        return iter(self._pods_by_state[PodState.FINISHED].values())

    def terminating(self) -> Iterator[PodInfo]:
        """Return the pods that are being deleted or whose deletion was requested."""
        return iter(self._pods_by_state[PodState.TERMINATING].values())

    def lost(self) -> Iterator[PodInfo]:
        """Return the terminating pods that count as lost with their node now or later, and whose
        removal was not requested."""
        return (pod for pod in self.terminating() if pod.lost_at and pod.uid not in self._removed)

    def excess(self) -> Iterator[PodInfo]:
        """Return the pods beyond the replicas of their task, and those that a kubelet rejected."""
        return iter(self._pods_by_state[PodState.EXCESS].values())

    def replace_at(self, pod: PodInfo) -> float:
        """Return when a rejected pod is to be replaced, by the monotonic clock."""
        _, uid, until = self._rejections.get((pod.task, pod.index), (0, "", -math.inf))
        return until if uid == pod.uid else -math.inf

    def outdated(self, version: int) -> Iterator[PodInfo]:
        """Return the active pods of versions before *version*; visits no pod if there are none."""
        if any(key[0] is PodState.ACTIVE and key[1] < version for key in self._counts):
            yield from (pod for pod in self.active() if pod.version < version)

    def has_version(self, version: int) -> bool:
        """Whether there is an active or finished pod of *version*."""
        return any(key[1] == version for key in self._counts)

    @property
    def all_pending(self) -> bool:
        """Whether no pod has started, except those that are being deleted."""
        return all(key[3] is PodPhase.PENDING for key in self._counts)

    @property
    def has_events(self) -> bool:
        """Whether there are unhandled events."""
        return bool(self._events)

    def due_events(
        self, now: float, *, inputs: object
    ) -> tuple[list[LifecycleEvent], float | None]:
        """Return the events due at *now*, oldest first, and when the next deferred one is due."""
        return self._events.due(now, inputs=inputs)

    @property
    def events(self) -> list[LifecycleEvent]:
        """All unhandled events, oldest first."""
        return self._events.items

    def __len__(self) -> int:
        """Number of pods, including foreign ones."""
        return len(self._pods)

    def validate(self) -> None:
        """Compare the incremental counts with a count of every pod; for tests.

        Raises:
            AssertionError: they differ.
        """
        counted: Counter[tuple[PodState, int, str, PodPhase]] = Counter()
        for pod in self._pods.values():
            state = self._state(pod)
            assert self._pods_by_state[state].get(pod.uid) == pod, pod  # noqa: S101
            if state in (PodState.ACTIVE, PodState.FINISHED):
                counted[state, pod.version, pod.task, pod.phase] += 1
        assert counted == self._counts  # noqa: S101
        assert all(self._counts.values())  # noqa: S101
        held = {(pod.task, pod.index) for pod in self._pods.values()}
        for task, replicas in self._replicas.items():
            free = {index for index in range(replicas) if (task, index) not in held}
            assert free == self._missing_indices[task]  # noqa: S101
        self._events.validate()

    # Internals.

    def _store(self, pod: PodInfo) -> None:
        old = self._pods.get(pod.uid)
        if old is not None:
            self._remove_pod(old)
        other = self._uid_by_index.get((pod.task, pod.index))
        if other is not None and self._pods[other].name == pod.name:
            self._remove_pod(self._pods.pop(other))
        self._pods[pod.uid] = pod
        self._add_pod(pod)

    def _state(self, pod: PodInfo) -> PodState:
        if pod.owner != self._job_uid:
            return PodState.FOREIGN
        if pod.terminating or pod.uid in self._deleting:
            return PodState.TERMINATING
        if pod.rejection or pod.index >= self._replicas.get(pod.task, 0):
            return PodState.EXCESS
        return PodState.FINISHED if pod.phase in FINISHED else PodState.ACTIVE

    def _add_pod(self, pod: PodInfo) -> None:
        state = self._state(pod)
        self._known_counts.clear()
        self._pods_by_state[state][pod.uid] = pod
        self._uid_by_index[pod.task, pod.index] = pod.uid
        self._missing_indices.get(pod.task, set()).discard(pod.index)
        self._reactivate_events(pod)
        if state in (PodState.ACTIVE, PodState.FINISHED):
            self._counts[state, pod.version, pod.task, pod.phase] += 1
            self._add_ready_and_restarts(pod, 1)

    def _remove_pod(self, pod: PodInfo) -> None:
        state = self._state(pod)
        self._known_counts.clear()
        del self._pods_by_state[state][pod.uid]
        self._uid_by_index.pop((pod.task, pod.index), None)
        if pod.index < self._replicas.get(pod.task, 0):
            self._missing_indices[pod.task].add(pod.index)
        self._reactivate_events(pod)
        if state in (PodState.ACTIVE, PodState.FINISHED):
            _add_to_counter(self._counts, (state, pod.version, pod.task, pod.phase), -1)
            self._add_ready_and_restarts(pod, -1)

    def _reactivate_events(self, pod: PodInfo) -> None:
        """Reactivate the deferred events of a changed pod."""
        if self._events:
            for event in _DEFERRABLE_EVENTS:
                self._events.reactivate((pod.name, event))

    def _add_ready_and_restarts(self, pod: PodInfo, sign: int) -> None:
        """Add *sign* times the ready containers and restarts of a pod to the counts."""
        if pod.phase not in FINISHED:
            _add_to_counter(self._ready, (pod.version, pod.task), sign * pod.ready)
            _add_to_counter(self._restarts, (pod.version, pod.task), sign * pod.restarts)

    def _derive_events(self, old: PodInfo | None, new: PodInfo | None, now: float) -> None:
        """Add the events of a change that this controller did not cause; remove obsolete ones."""
        pod = new or old
        if pod is None or pod.uid in self._deleting:
            return
        if old is not None and (new is None or new.phase is not PodPhase.PENDING):
            self._events.discard((pod.name, JobEvent.POD_PENDING))
        for event in _pod_events(old, new):
            if event is JobEvent.POD_RUNNING:  # the pod or its replacement runs
                for obsolete in (JobEvent.POD_FAILED, JobEvent.POD_EVICTED):
                    self._events.discard((pod.name, obsolete))
                continue
            derived = LifecycleEvent.from_pod(event, pod, occurred_at=now)
            before = self._events.get(derived.key)
            if event is JobEvent.TASK_COMPLETED and before is not None and before.occurred_at > now:
                derived = before  # the initial list has no order in time
            self._events.add(derived.key, derived)


_DEFERRABLE_EVENTS = (JobEvent.POD_PENDING, JobEvent.POD_FAILED, JobEvent.POD_EVICTED)
"""Events of a single pod, whose policies may have a timeout."""
_EVENT_ON_ENTERING = {
    PodPhase.PENDING: JobEvent.POD_PENDING,
    PodPhase.RUNNING: JobEvent.POD_RUNNING,
    PodPhase.SUCCEEDED: JobEvent.TASK_COMPLETED,  # if all pods of the task succeeded
    PodPhase.FAILED: JobEvent.POD_FAILED,
}


def _pod_events(old: PodInfo | None, new: PodInfo | None) -> Iterator[JobEvent]:
    """Yield the events of a pod that changed from *old* to *new*."""
    if new is None:
        if old is None or not (old.replaced or old.rejection):
            yield JobEvent.POD_EVICTED
        return
    if new.rejection:
        return  # it never ran, and is replaced
    if new.terminating and (old is None or new.phase is PodPhase.FAILED):
        return  # fails because it is being deleted; its removal is an eviction
    if (old is None or old.phase is not new.phase) and new.phase in _EVENT_ON_ENTERING:
        yield _EVENT_ON_ENTERING[new.phase]
    if new.phase not in FINISHED and new.restarts > (old.restarts if old else 0):
        yield JobEvent.TASK_FAILED  # if the task has reached its restart limit


def _add_to_counter(counter: dict[Key, int], key: Key, number: int) -> None:
    """Add *number* to a count; remove the key at zero."""
    counter[key] = counter.get(key, 0) + number
    if not counter[key]:
        del counter[key]
