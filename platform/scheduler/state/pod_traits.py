"""What plugins see of a pod beside its spec: annotations, and the node groups of its queue."""

from collections.abc import Mapping
from dataclasses import dataclass

from ...model.podgroup import PodGroup
from ...model.queue import QueueAffinity
from .core_types import Pod

PREEMPTABLE = "volcano.sh/preemptable"
REVOCABLE_ZONE = "volcano.sh/revocable-zone"
STRATEGY_TYPE = "volcano.sh/resource-strategy-scoring-type"
STRATEGY_WEIGHT = "volcano.sh/resource-strategy-weight"

_TRUE = ("true", "True", "TRUE", "t", "T", "1")


@dataclass(frozen=True, slots=True)
class PodTraits:
    """Traits that make pods with equal specs belong to different equivalence classes."""

    revocable: bool = False
    """Whether it may run on nodes of revocable zones."""
    node_groups: QueueAffinity | None = None
    """Affinity of its queue to groups of nodes."""
    inherited_node_groups: QueueAffinity | None = None
    """That of the nearest ancestor of a queue that has none."""
    strategy: tuple[str, str] = ("", "")
    """Type and weights of the strategy for its resources."""


NO_TRAITS = PodTraits()


def annotated_traits(pod: Pod) -> PodTraits:
    """Return the traits of *pod* by its annotations."""
    annotations = pod.metadata.annotations
    revocable = (
        annotations.get(REVOCABLE_ZONE) == "*"
        if REVOCABLE_ZONE in annotations
        else annotations.get(PREEMPTABLE) in _TRUE
    )
    strategy = (annotations.get(STRATEGY_TYPE, ""), annotations.get(STRATEGY_WEIGHT, ""))
    if not revocable and strategy == ("", ""):
        return NO_TRAITS
    return PodTraits(revocable=revocable, strategy=strategy)


def is_preemptable_gang(podgroup: PodGroup | None) -> bool:
    """Return whether a PodGroup says that it may be preempted; by default it does not."""
    if podgroup is None:
        return False
    for source in (podgroup.metadata.annotations, podgroup.metadata.labels):
        if PREEMPTABLE in source:
            return _is_true(source)
    return False


def _is_true(source: Mapping[str, str]) -> bool:
    return source[PREEMPTABLE] in _TRUE
