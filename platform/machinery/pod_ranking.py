"""Which pods to delete first: the order of the Job controller of Kubernetes.

It begins with pods that do not run yet.
"""

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Protocol, TypeVar

from ..model import times
from ..model.meta import Condition, ObjectMeta
from ..model.pod import PodPhase

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


def deletion_order(pods: Iterable[P]) -> list[P]:
    """Return *pods* in the order in which to delete them.

    1. Pods without node; 2. Pending, then Unknown, then Running; 3. not ready; 4. the most recently
    ready; 5. more container restarts; 6. the youngest. Pods that are equal in all of this are in
    the order of their names.
    """
    return sorted(pods, key=_rank)


def _rank(pod: RankedPod) -> tuple[float | str, ...]:
    condition = _ready_condition(pod)
    ready = condition is not None and condition.status == "True"
    ready_since = condition.last_transition_time if condition is not None else None
    return (
        bool(pod.spec.node_name),
        _PHASE_RANKS.get(pod.status.phase, 0),
        ready,
        _age_rank(ready_since) if ready else 0.0,
        *_restart_ranks(pod),
        _age_rank(pod.metadata.creation_timestamp),
        pod.metadata.name,
    )


def _ready_condition(pod: RankedPod) -> Condition | None:
    return next((each for each in pod.status.conditions if each.type == "Ready"), None)


def _restart_ranks(pod: RankedPod) -> tuple[int, int]:
    """Return the negative maximum restarts of the regular containers, and of the sidecars."""
    sidecars = {each.name for each in pod.spec.init_containers if each.restart_policy == "Always"}
    regular = (each.restart_count for each in pod.status.container_statuses)
    sidecar = (
        each.restart_count for each in pod.status.init_container_statuses if each.name in sidecars
    )
    return -max(regular, default=0), -max(sidecar, default=0)


def _age_rank(timestamp: str | None) -> float:
    """Return a number that grows with the age; the lowest for a missing or malformed time."""
    seconds = _epoch_seconds(timestamp or "")
    return -math.inf if seconds is None else -seconds


@lru_cache(maxsize=4096)
def _epoch_seconds(timestamp: str) -> float | None:
    """Return the time since the epoch; many pods have equal times."""
    try:
        return times.parse(timestamp).timestamp()
    except times.TimeError:
        return None
