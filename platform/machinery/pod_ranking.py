"""Which pods to delete first, and what active, ready and terminating pods are.

:func:`deletion_order` sorts as the controllers of Kubernetes do, beginning with pods that do not
run yet. With :class:`NodeSpread` it considers the pods on the same node too, as ReplicaSets do.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Protocol, TypeVar

from ..model import times
from ..model.meta import Condition, HasMeta, ObjectMeta
from ..model.pod import FINISHED, PodPhase

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
"""Annotation of a pod: those with lower costs are deleted first; 0 by default."""

_MAX_COST = 2**31 - 1
_PHASE_RANKS: dict[str, int] = {PodPhase.PENDING: 0, PodPhase.UNKNOWN: 1, PodPhase.RUNNING: 2}


class RankedContainer(Protocol):
    """A container in a pod's spec."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def restart_policy(self) -> str:
        """``Always`` for a sidecar; otherwise empty."""
        ...


class RankedContainerStatus(Protocol):
    """A container in a pod's status."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def restart_count(self) -> int:
        """How often it was restarted."""
        ...


class RankedPodSpec(Protocol):
    """Fields of a pod's spec that determine its rank."""

    @property
    def node_name(self) -> str:
        """The node; empty if it has none."""
        ...

    @property
    def init_containers(self) -> Sequence[RankedContainer]:
        """Init containers, sidecars among them."""
        ...


class RankedPodStatus(Protocol):
    """Fields of a pod's status that determine its rank."""

    @property
    def phase(self) -> str:
        """The phase."""
        ...

    @property
    def conditions(self) -> Sequence[Condition]:
        """The conditions."""
        ...

    @property
    def container_statuses(self) -> Sequence[RankedContainerStatus]:
        """Statuses of the regular containers."""
        ...

    @property
    def init_container_statuses(self) -> Sequence[RankedContainerStatus]:
        """Statuses of the init containers."""
        ...


class HasPhase(Protocol):
    """Status with a phase."""

    @property
    def phase(self) -> str:
        """The phase."""
        ...


class PodWithPhase(HasMeta, Protocol):
    """View of a pod with metadata and phase."""

    @property
    def status(self) -> HasPhase:
        """The status."""
        ...


class HasConditions(Protocol):
    """Status with conditions."""

    @property
    def conditions(self) -> Sequence[Condition]:
        """The conditions."""
        ...


class PodWithConditions(Protocol):
    """View of a pod with conditions."""

    @property
    def status(self) -> HasConditions:
        """The status."""
        ...


class RankedPod(Protocol):
    """View of a pod with all fields that determine its rank."""

    @property
    def metadata(self) -> ObjectMeta:
        """The metadata."""
        ...

    @property
    def spec(self) -> RankedPodSpec:
        """The spec."""
        ...

    @property
    def status(self) -> RankedPodStatus:
        """The status."""
        ...


P = TypeVar("P", bound=RankedPod)


def is_active(pod: PodWithPhase) -> bool:
    """Whether *pod* is neither finished nor being deleted."""
    return pod.status.phase not in FINISHED and pod.metadata.deletion_timestamp is None


def is_terminating(pod: PodWithPhase) -> bool:
    """Whether *pod* is being deleted and not finished yet."""
    return pod.status.phase not in FINISHED and pod.metadata.deletion_timestamp is not None


def is_ready(pod: PodWithConditions) -> bool:
    """Whether the condition Ready is True."""
    condition = _ready_condition(pod)
    return condition is not None and condition.status == "True"


@dataclass(frozen=True, kw_only=True)
class NodeSpread:
    """Options of ReplicaSets: deletion costs, pods on the same node, and coarse ages.

    *related* are the pods to spread over nodes, those that are ranked and their siblings. Ages
    compare by their binary logarithm, which leaves the rest of the choice to the other rules.
    """

    related: Iterable[RankedPod]
    now: datetime
    _colocated: Counter[str] = field(default_factory=Counter, init=False, repr=False)

    def __post_init__(self) -> None:
        """Count the active pods on each node."""
        self._colocated.update(
            pod.spec.node_name for pod in self.related if pod.spec.node_name and is_active(pod)
        )

    def colocated(self, pod: RankedPod) -> int:
        """Return the number of related active pods on the node of *pod*."""
        return self._colocated[pod.spec.node_name]


def deletion_order(pods: Iterable[P], *, spread: NodeSpread | None = None) -> list[P]:
    """Return *pods* in the order in which to delete them.

    1. Pods without node; 2. Pending, then Unknown, then Running; 3. not ready; 4. the most recently
    ready; 5. more container restarts; 6. the youngest. With *spread*, the deletion cost and then
    the number of pods on the node precede rule 4. Pods that are equal in all of this are in the
    order of their names.
    """
    return sorted(pods, key=lambda pod: _rank(pod, spread))


def _rank(pod: RankedPod, spread: NodeSpread | None) -> tuple[float | str, ...]:
    condition = _ready_condition(pod)
    ready = condition is not None and condition.status == "True"
    ready_since = condition.last_transition_time if condition is not None else None
    placement = (_deletion_cost(pod), -spread.colocated(pod)) if spread is not None else ()
    return (
        bool(pod.spec.node_name),
        _PHASE_RANKS.get(pod.status.phase, 0),
        ready,
        *placement,
        _age_rank(ready_since, spread) if ready else 0.0,
        *_restart_ranks(pod),
        _age_rank(pod.metadata.creation_timestamp, spread),
        pod.metadata.name,
    )


def _ready_condition(pod: PodWithConditions) -> Condition | None:
    return next((each for each in pod.status.conditions if each.type == "Ready"), None)


def _restart_ranks(pod: RankedPod) -> tuple[int, int]:
    """Return the negative maximum restarts of the regular containers, and of the sidecars."""
    sidecars = {each.name for each in pod.spec.init_containers if each.restart_policy == "Always"}
    regular = (each.restart_count for each in pod.status.container_statuses)
    sidecar = (
        each.restart_count for each in pod.status.init_container_statuses if each.name in sidecars
    )
    return -max(regular, default=0), -max(sidecar, default=0)


def _age_rank(timestamp: str | None, spread: NodeSpread | None) -> float:
    """Return a number that grows with the age; the lowest for a missing or malformed time."""
    seconds = _epoch_seconds(timestamp or "")
    if seconds is None:
        return -math.inf
    if spread is None:
        return -seconds
    age = spread.now.timestamp() - seconds
    return math.floor(math.log2(age)) if age >= 1 else -1.0


@lru_cache(maxsize=4096)
def _epoch_seconds(timestamp: str) -> float | None:
    """Return the time since the epoch; many pods have equal times."""
    try:
        return times.parse(timestamp).timestamp()
    except times.TimeError:
        return None


def _deletion_cost(pod: RankedPod) -> int:
    """Return the cost in the annotation; 0 if it is missing or not a 32-bit integer."""
    text = pod.metadata.annotations.get(DELETION_COST, "")
    try:
        cost = int(text)
    except ValueError:
        return 0
    return cost if -_MAX_COST - 1 <= cost <= _MAX_COST and str(cost) == text else 0
