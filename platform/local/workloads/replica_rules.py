"""How many pods a ReplicaSet has, which go first, and its status: pure functions."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec

from ...machinery.reconcile.controller import RequeueAfter
from ...model import times
from ...model.base import ApiStruct
from ...model.meta import LabelSelector, ObjectMeta
from ...model.selectors import Selector, from_label_selector
from .types import Json, Pod, WriteStatus, next_available_in

BURST_REPLICAS = 500
"""Pods that one pass creates or deletes at most."""

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
FAILURE = "ReplicaFailure"

_ZEROS = ("replicas", "terminatingReplicas")
"""Counts that are written even if they are zero."""

_PHASES = {"Pending": 0, "Unknown": 1, "Running": 2}


class ReplicaSpec(ApiStruct, frozen=True):
    """``spec`` of a ReplicaSet or ReplicationController."""

    replicas: int = 1
    min_ready_seconds: int = 0
    selector: Json = {}
    template: msgspec.Raw = msgspec.Raw(b"{}")


class ReplicaSet(ApiStruct, frozen=True):
    """A ReplicaSet or ReplicationController."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ReplicaSpec = ReplicaSpec()
    status: Json = {}

    @property
    def is_being_deleted(self) -> bool:
        """Whether the object has a deletion timestamp."""
        return self.metadata.deletion_timestamp is not None

    @property
    def selector(self) -> Selector:
        """The selector, whose form depends on the kind."""
        selector = self.spec.selector
        if not selector.keys() <= {"matchLabels", "matchExpressions"}:
            selector = {"matchLabels": selector}
        return from_label_selector(msgspec.convert(selector, LabelSelector))

    def count(self, name: str) -> int:
        """Return a count of the status."""
        return int(self.status.get(name) or 0)


@dataclass(slots=True)
class ReplicaView:
    """A ReplicaSet and its pods."""

    owner: ReplicaSet
    pods: Sequence[Pod]
    """All that it controls, those that have ended or are being deleted among them."""
    now: float
    """Seconds since the epoch."""
    related: Mapping[str, int] = field(default_factory=dict)
    """Active pods by node, those of other ReplicaSets of the same Deployment among them."""
    counts_terminating: bool = True
    """Whether the status of the kind has the number of terminating pods."""
    failure: tuple[str, str] | None = None
    """Reason and message, if pods could not be created or deleted in this pass."""

    @property
    def active(self) -> list[Pod]:
        """The pods that count."""
        return [pod for pod in self.pods if pod.is_active]


@dataclass(frozen=True, slots=True)
class CreatePods:
    """Pods to create."""

    count: int


@dataclass(frozen=True, slots=True)
class DeletePods:
    """Pods to delete."""

    pods: tuple[Pod, ...]


ReplicaEffect = CreatePods | DeletePods | WriteStatus | RequeueAfter


def decide(view: ReplicaView) -> Iterator[ReplicaEffect]:
    """Yield the creation or deletion of pods, then the status with its outcome."""
    owner, active = view.owner, view.active
    if not owner.is_being_deleted:
        missing = owner.spec.replicas - len(active)
        if missing > 0:
            yield CreatePods(min(missing, BURST_REPLICAS))
            if view.failure is None:
                return  # the pass that follows sees the new pods, and writes the status once
        elif missing < 0:
            yield DeletePods(first_to_delete(view)[: min(-missing, BURST_REPLICAS)])
            if view.failure is None:
                return
    status = status_of(view)
    if status != _content(owner.status):
        yield WriteStatus(status)
    wait = next_available_in(active, owner.spec.min_ready_seconds, view.now)
    if wait is not None:
        yield RequeueAfter(wait)


def status_of(view: ReplicaView) -> Json:
    """Return the status that the pods require."""
    owner, active = view.owner, view.active
    template = msgspec.json.decode(owner.spec.template)
    labels = ((template.get("metadata") or {}).get("labels") or {}).items()
    seconds = owner.spec.min_ready_seconds
    status: Json = {
        "replicas": len(active),
        "observedGeneration": owner.metadata.generation,
    }
    if view.counts_terminating:
        terminating = [pod for pod in view.pods if pod.is_terminating and not pod.is_finished]
        status["terminatingReplicas"] = len(terminating)
    counts = {
        "fullyLabeledReplicas": sum(labels <= pod.metadata.labels.items() for pod in active),
        "readyReplicas": sum(pod.is_ready for pod in active),
        "availableReplicas": sum(pod.is_available(seconds, view.now) for pod in active),
    }
    status |= {name: count for name, count in counts.items() if count}
    others = [each for each in _conditions(owner.status) if each["type"] != FAILURE]
    conditions = [*others, *_failure(view)]
    if conditions:
        status["conditions"] = conditions
    return status


def _conditions(status: Json) -> Sequence[Json]:
    return status.get("conditions") or ()


def _failure(view: ReplicaView) -> Iterable[Json]:
    """Yield the condition of a failure, with the time when it began."""
    if view.failure is None:
        return
    reason, message = view.failure
    old = [each for each in _conditions(view.owner.status) if each["type"] == FAILURE]
    if old:
        yield old[0]
        return
    yield {
        "type": FAILURE,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": times.format(datetime.fromtimestamp(view.now, UTC)),
    }


def _content(status: Json) -> Json:
    """Return *status* without what the server adds to it."""
    return {key: value for key, value in status.items() if value or key in _ZEROS}


def first_to_delete(view: ReplicaView) -> tuple[Pod, ...]:
    """Return the active pods in the order in which they are deleted.

    That of kube-controller-manager: not on a node; by phase; not ready; the cheaper ones; those on
    nodes with more pods of the same kind; the most recently ready; more restarts; the youngest.
    Ages are compared by their order of magnitude, so that the youngest need not always go.
    """

    def rank(pod: Pod) -> tuple[float | str, ...]:
        condition = pod.ready_condition
        since = condition.last_transition_time if condition and pod.is_ready else None
        restarts = max((each.restart_count for each in pod.status.container_statuses), default=0)
        return (
            bool(pod.spec.node_name),
            _PHASES.get(pod.status.phase, 0),
            pod.is_ready,
            _deletion_cost(pod),
            -view.related.get(pod.spec.node_name, 0),
            _age_rank(since, view.now),
            -restarts,
            _age_rank(pod.metadata.creation_timestamp, view.now),
            pod.metadata.uid,
        )

    return tuple(sorted(view.active, key=rank))


def _deletion_cost(pod: Pod) -> int:
    try:
        return int(pod.metadata.annotations.get(DELETION_COST, "0"))
    except ValueError:
        return 0


def _age_rank(timestamp: str | None, now: float) -> float:
    if not timestamp:
        return -1.0
    age = now - times.parse(timestamp).timestamp()
    return math.floor(math.log2(age * 1e9)) if age > 0 else -1.0
