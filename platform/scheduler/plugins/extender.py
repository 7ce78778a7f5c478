"""``extender``: a service that is asked over HTTP which nodes suit pods, and which gangs may start.

Decisions wait for it only to know which pods may be evicted, and whether a gang is ready
(:mod:`.extender_responses`): without a response, a node or a gang is rejected until there is one.
Responses are about equivalence classes of pods and about nodes, and are kept for some time.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from ..state.cache.cache import SchedulerCache
from ..state.gangs.diagnosis import Stage
from ..state.gangs.gang import Gang, QueueInfo, Task, TaskStatus
from ..state.nodes.node_matrix import NodeInfo, NodeMatrix
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.podinfo.pod_traits import REVOCABLE_ZONE
from ..state.queue.scheduling_queue import ANY
from ..state.resources import MAX_AMOUNT, Amounts, FloatVector, IntVector
from .arguments import ArgumentError, boolean, duration, text
from .extender_responses import (
    Extender,
    ExtenderError,
    Json,
    Response,
    Responses,
    parse_prefix,
)
from .extension_points import NodeAmounts, Preemptor, Rejection, Scores
from .handle import Handle
from .placement import Placement

log = logging.getLogger(__name__)

_PREFIX = "extender."
_WAITING = "waits for the response of the extender"
_ABSTAIN = 0
"""A vote; votes below are rejections, above are permissions."""


@dataclass(frozen=True, slots=True)
class _Verbs:
    """The paths below the prefix; empty for what the extender is not asked about."""

    session_open: str
    session_close: str
    predicate: str
    prioritize: str
    job_enqueueable: str
    job_enqueued: str
    job_ready: str
    queue_overused: str
    preemptable: str
    reclaimable: str
    allocate_func: str
    deallocate_func: str


class ExtenderPlugin:
    """Asks a service about nodes, queues and gangs."""

    def __init__(self, arguments: Mapping[str, object], *, handle: Handle | None = None) -> None:
        """Parse the arguments; nothing is sent yet."""
        try:
            prefix = parse_prefix(text(arguments, f"{_PREFIX}urlPrefix"))
        except ValueError as error:
            if isinstance(error, ArgumentError):
                raise
            raise ArgumentError(f"{_PREFIX}urlPrefix", str(error)) from error
        self._verbs = _Verbs(
            *(
                text(arguments, f"{_PREFIX}{name}Verb").strip("/")
                for name in (
                    "onSessionOpen", "onSessionClose", "predicate", "prioritize",
                    "jobEnqueueable", "jobEnqueued", "jobReady", "queueOverused",
                    "preemptable", "reclaimable", "allocateFunc", "deallocateFunc",
                )
            )
        )  # fmt: skip
        self._ignorable = boolean(arguments, f"{_PREFIX}ignorable", default=False)
        self._managed = _managed_resources(arguments)
        self._keep = _seconds(arguments, "cacheTime", 30.0)
        wake = (lambda: handle.wake(ANY)) if handle is not None else (lambda: None)
        self._responses = Responses(
            Extender(prefix, timeout=_seconds(arguments, "httpTimeout", 1.0)),
            keep=self._keep,
            on_responses=wake,
        )
        self._nodes = NodeMatrix()
        self._now = 0.0
        self._seen = 0
        self._ask_again_at = 0.0
        self._versions: dict[int, tuple[NodeInfo | None, int]] = {}
        """Nodes by index, and how many with this index there have been."""
        self._reasons: dict[object, str] = {}
        """Why the extender has rejected a node for a class."""
        self.generation = 0
        """Grows when responses differ from before, or are too old."""

    def on_session_open(self, cache: SchedulerCache) -> None:
        """Keep nodes and time, and let requests be sent again whose response is too old.

        Raises:
            ExtenderError: the extender did not respond to the start of the session, and cannot be
                ignored.
        """
        self._nodes, self._now = cache.node_matrix, cache.cycle_time
        self._responses.begin_cycle()
        if self._now >= self._ask_again_at:
            self._ask_again_at = self._now + self._keep
            self._responses.drop_unused(self._now)
            self._reasons.clear()
            self.generation += 1
        if self._responses.version != self._seen:
            self._seen = self._responses.version
            self.generation += 1
        if self._verbs.session_open:
            self._exchange(self._verbs.session_open, lambda: _session(cache))

    def on_session_close(self) -> None:
        """Report the end of the session."""
        if self._verbs.session_close:
            self._exchange(self._verbs.session_close, dict)

    def retry_at(self, gang: Gang) -> float | None:
        """Return when responses are too old."""
        return self._ask_again_at

    # -- nodes ---------------------------------------------------------------------------------

    def node_limit(
        self, eq_class: EquivalenceClass, nodes: NodeMatrix, node_indexes: IntVector | None
    ) -> IntVector | None:
        """Exclude nodes that the extender has rejected, and those without a response yet."""
        if not self._verbs.predicate or not self._is_managed(eq_class):
            return None
        indexes = np.arange(nodes.columns) if node_indexes is None else node_indexes
        limit: IntVector = np.zeros(len(indexes), np.int64)
        key = _class_key(eq_class)
        for position, node_index in enumerate(indexes.tolist()):
            if nodes.alive[node_index]:
                reason = self._node_rejection(eq_class, nodes, node_index)
                limit[position] = 0 if reason else MAX_AMOUNT
                if reason:
                    self._reasons[key] = reason
        return limit

    def node_limit_reason(self, eq_class: EquivalenceClass) -> str:
        """Return the reason of the extender for a node."""
        return self._reasons.get(_class_key(eq_class), f"node(s) {_WAITING}")

    def score(self, eq_class: EquivalenceClass, amounts: NodeAmounts) -> Scores:
        """Score by the response of the extender; 0 without one."""
        scores: FloatVector = np.zeros(len(amounts.node_indexes))
        if not self._verbs.prioritize or not self._is_managed(eq_class):
            return scores
        nodes = self._nodes

        def body() -> Json:
            alive = np.flatnonzero(nodes.alive).tolist()
            return {"task": _task(eq_class), "nodes": [_node(nodes, index) for index in alive]}

        key = (_class_key(eq_class), nodes.node_changes.position)
        response = self._responses.get(self._verbs.prioritize, key, body, self._now)
        by_name = response.body.get("nodeScore") if response is not None else None
        if not isinstance(by_name, dict) or (response and response.body.get("errorMessage")):
            return scores
        for position, node_index in enumerate(amounts.node_indexes.tolist()):
            value = by_name.get(nodes.names[node_index], 0.0)
            scores[position] = value if isinstance(value, int | float) else 0.0
        return scores

    # -- gangs and queues ----------------------------------------------------------------------

    def job_enqueueable(self, gang: Gang) -> Rejection | bool | None:
        """Return the vote of the extender."""
        if not self._verbs.job_enqueueable:
            return None
        verb = self._verbs.job_enqueueable
        response = self._responses.get(verb, gang.key, lambda: {"job": _job(gang)}, self._now)
        if response is None:
            return _rejection(_WAITING, self._ask_again_at)
        if response.error:
            return True if self._ignorable else _rejection(response.error, self._ask_again_at)
        vote = response.body.get("status")
        if not isinstance(vote, int) or vote < _ABSTAIN:
            return _rejection("the extender rejects the gang", self._ask_again_at)
        return True if vote > _ABSTAIN else None

    def job_enqueued(self, gang: Gang) -> None:
        """Report a gang that has been admitted."""
        if self._verbs.job_enqueued:
            self._responses.send(self._verbs.job_enqueued, {"job": _job(gang)})

    def job_ready(self, gang: Gang) -> Rejection | None:
        """Return whether the extender rejects what *gang* has been allocated."""
        if not self._verbs.job_ready:
            return None
        verb = self._verbs.job_ready
        nodes = frozenset((each.uid, each.node) for each in gang.tasks.values() if each.node)
        response = self._responses.require(
            verb, (gang.key, nodes), lambda: {"job": _job_with_tasks(gang)}, self._now
        )
        if response is None:  # maybe it has not been asked: too much was asked in this cycle
            return _rejection(_WAITING, min(self._now + 1, self._ask_again_at))
        if response.error:
            return None if self._ignorable else _rejection(response.error, self._ask_again_at)
        if response.body.get("status") is True:
            return None
        return _rejection("the gang is not ready for the extender", self._ask_again_at)

    def overused(self, queue: QueueInfo) -> bool:
        """Return whether the extender reports that, or has not responded yet."""
        if not self._verbs.queue_overused:
            return False
        verb = self._verbs.queue_overused
        response = self._responses.get(
            verb, queue.name, lambda: {"queue": _queue(queue)}, self._now
        )
        if response is None:
            return True
        return not self._ignorable if response.error else response.body.get("overused") is True

    # -- evictions and bindings ----------------------------------------------------------------

    def preemptable(
        self, preemptor: Preemptor, candidates: Sequence[Task]
    ) -> Sequence[Task] | None:
        """Return the tasks that the extender names."""
        return self._victims(self._verbs.preemptable, preemptor, candidates)

    def reclaimable(
        self, preemptor: Preemptor, candidates: Sequence[Task]
    ) -> Sequence[Task] | None:
        """Return the tasks that the extender names."""
        return self._victims(self._verbs.reclaimable, preemptor, candidates)

    def reserve(self, placements: Sequence[Placement]) -> None:
        """Report pods that have got a node."""
        self._report(self._verbs.allocate_func, placements)

    def unreserve(self, placements: Sequence[Placement]) -> None:
        """Report pods that do not get their node after all."""
        self._report(self._verbs.deallocate_func, placements)

    # -- private -------------------------------------------------------------------------------

    def _exchange(self, verb: str, body: Callable[[], Json]) -> None:
        try:
            self._responses.exchange(verb, body)
        except ExtenderError as error:
            if not self._ignorable:
                raise
            log.warning("extender failed", extra={"verb": verb, "error": str(error)})

    def _victims(
        self, verb: str, preemptor: Preemptor, candidates: Sequence[Task]
    ) -> Sequence[Task] | None:
        if not verb or not self._is_managed(preemptor.eq_class):
            return None
        if not candidates:
            return []

        def body() -> Json:
            evictor = {**_task(preemptor.eq_class), "Job": preemptor.gang.key}
            evictor["Priority"] = preemptor.priority
            return {"evictor": evictor, "evictees": [_one_task(each) for each in candidates]}

        uids = tuple(each.uid for each in candidates)
        key = (preemptor.gang.key, _class_key(preemptor.eq_class), uids)
        response = self._responses.require(verb, key, body, self._now)
        if response is None or response.error:
            return None if response is not None and self._ignorable else []
        vote, victims = response.body.get("status"), response.body.get("victims") or ()
        if vote == _ABSTAIN:
            return None
        if not isinstance(vote, int) or vote < _ABSTAIN or not isinstance(victims, list):
            return []
        named = {each.get("UID") for each in victims if isinstance(each, dict)}
        return [each for each in candidates if each.uid in named]

    def _report(self, verb: str, placements: Sequence[Placement]) -> None:
        for each in placements if verb else ():
            task = {"UID": each.uid, "Namespace": each.namespace, "Name": each.name}
            self._responses.send(verb, {"task": {**task, "NodeName": each.node}})

    def _is_managed(self, eq_class: EquivalenceClass) -> bool:
        return not self._managed or any(eq_class.request.get(name) for name in self._managed)

    def _node_rejection(
        self, eq_class: EquivalenceClass, nodes: NodeMatrix, node_index: int
    ) -> str:
        """Return why a node is infeasible; empty if it is not."""

        def body() -> Json:
            return {"task": _task(eq_class), "node": _node(nodes, node_index)}

        info = nodes.node_infos[node_index]
        before, version = self._versions.get(node_index, (None, 0))
        if info is not before:
            version += 1
            self._versions[node_index] = (info, version)
        key = (_class_key(eq_class), node_index, version)
        response = self._responses.get(self._verbs.predicate, key, body, self._now)
        if response is None:
            return f"node(s) {_WAITING}"
        if response.error:
            return "" if self._ignorable else f"node(s) without a response: {response.error}"
        return _message(response)


def _message(response: Response) -> str:
    """Return the error in the response to a predicate; ``status`` is the name of the field."""
    found = response.body.get("status")
    if found is None or isinstance(found, str):
        return found or ""
    return f"node(s) with an invalid response of the extender: status {found!r}"


def _rejection(message: str, retry_at: float) -> Rejection:
    return Rejection("Extender", message, Stage.QUEUE, retry_at=retry_at)


def _managed_resources(arguments: Mapping[str, object]) -> tuple[str, ...]:
    name = f"{_PREFIX}managedResources"
    given = arguments.get(name, [])
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise ArgumentError(name, f"must be a list of resources, not {given!r}")
    return tuple(given)


def _seconds(arguments: Mapping[str, object], name: str, default: float) -> float:
    given = duration(arguments, _PREFIX + name)
    return default if given is None else given.total_seconds()


_STATUSES = {
    TaskStatus.PENDING: 1,
    TaskStatus.ALLOCATED: 2,
    TaskStatus.PIPELINED: 4,
    TaskStatus.BINDING: 8,
    TaskStatus.BOUND: 16,
    TaskStatus.RUNNING: 32,
    TaskStatus.RELEASING: 64,
    TaskStatus.SUCCEEDED: 128,
    TaskStatus.FAILED: 256,
    TaskStatus.UNKNOWN: 512,
}
"""The numbers that Volcano's type TaskStatus has in JSON."""


# -- bodies of requests --------------------------------------------------------------------------


def _class_key(eq_class: EquivalenceClass) -> tuple[bytes, tuple[tuple[str, int], ...]]:
    return eq_class.constraints_key, tuple(sorted(eq_class.request.items()))


def _amounts(amounts: Amounts) -> Json:
    """Return amounts as Volcano's type Resource."""
    scalars = {name: units for name, units in amounts.items() if name not in ("cpu", "memory")}
    return {
        "MilliCPU": amounts.get("cpu", 0),
        "Memory": amounts.get("memory", 0),
        "ScalarResources": scalars,
    }


def _task(eq_class: EquivalenceClass) -> Json:
    """Return what the pods of a class have in common, in the fields of Volcano's TaskInfo."""
    request = _amounts(eq_class.request)
    spec = {
        "nodeSelector": eq_class.node_selector,
        "tolerations": msgspec.to_builtins(eq_class.tolerations),
    }
    return {"Resreq": request, "InitResreq": request, "Pod": {"spec": spec}}


def _one_task(task: Task) -> Json:
    """Return a task in the fields of Volcano's TaskInfo."""
    return {
        **_task(task.eq_class),
        "UID": task.uid,
        "Job": "" if task.gang is None else task.gang.key,
        "Namespace": task.namespace,
        "Name": task.name,
        "NodeName": task.node,
        "Priority": task.priority,
        "Status": _STATUSES[task.status],
    }


def _node(nodes: NodeMatrix, node_index: int) -> Json:
    """Return a node in the fields of Volcano's NodeInfo."""
    info, names = nodes.node_infos[node_index], nodes.resource_index
    allocatable, idle = nodes.allocatable[:, node_index], nodes.idle[:, node_index]
    node: Json = {}
    if info is not None:
        spec = {"taints": msgspec.to_builtins(info.taints), "unschedulable": info.unschedulable}
        node = {"metadata": {"name": info.name, "labels": dict(info.labels)}, "spec": spec}
    return {
        "Name": nodes.names[node_index],
        "Node": node,
        "Allocatable": _amounts(names.amounts(allocatable)),
        "Idle": _amounts(names.amounts(idle)),
        "Used": _amounts(names.amounts(allocatable - idle)),
    }


def _job(gang: Gang) -> Json:
    """Return a gang in the fields of Volcano's JobInfo."""
    namespace, _, name = gang.key.partition("/")
    return {
        "UID": gang.key,
        "Namespace": namespace,
        "Name": name,
        "MinAvailable": gang.min_member,
        "PodGroup": None if gang.podgroup is None else msgspec.to_builtins(gang.podgroup),
    }


def _job_with_tasks(gang: Gang) -> Json:
    tasks = {uid: _one_task(task) for uid, task in gang.tasks.items()}
    return {**_job(gang), "Queue": gang.queue_name, "Tasks": tasks}


def _session(cache: SchedulerCache) -> Json:
    """Return all gangs, nodes and queues, by name, as Volcano's plugin does."""
    nodes = cache.node_matrix
    by_name = {
        nodes.names[index]: _node(nodes, index) for index in np.flatnonzero(nodes.alive).tolist()
    }
    revocable = {
        name: by_name[name]
        for info in nodes.node_infos
        if info is not None and REVOCABLE_ZONE in info.labels and (name := info.name) in by_name
    }
    return {
        "Jobs": {key: _job_with_tasks(gang) for key, gang in cache.gangs.items()},
        "Nodes": by_name,
        "NodeList": list(by_name),
        "Queues": {name: _queue(queue) for name, queue in cache.queues.by_name.items()},
        "NamespaceInfo": {},
        "RevocableNodes": revocable,
    }


def _queue(queue: QueueInfo) -> Json:
    found = None if queue.object is None else msgspec.to_builtins(queue.object)
    return {"UID": queue.name, "Name": queue.name, "Queue": found}
