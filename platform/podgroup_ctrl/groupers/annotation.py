"""Pods of any owners that name their gang, and its size, in annotations."""

from collections.abc import Sequence

from ...model.names import GANG, GANG_SIZE
from ...model.podgroup import PodGroup
from ..core_types import Pod
from .base import Described, Gang, Grouper, Membership, podgroup_name

PREFIX = "gang"
_MAX = 2**31 - 1


def _membership(pod: Pod) -> Membership | None:
    group = podgroup_name(PREFIX, pod.metadata.annotations.get(GANG, ""))
    return Membership(podgroup=group) if group else None


def _gang(_: Described | None, pods: Sequence[Pod]) -> Gang:
    """Return the gang of *pods*: the largest size that one of them names."""
    sizes = (_size(pod.metadata.annotations.get(GANG_SIZE, "")) for pod in pods)
    return Gang(owner=None, min_member=max(sizes, default=1), annotations={})


def is_of_pods(podgroup: PodGroup) -> bool:
    """Whether *podgroup* was generated for pods that name their gang: it has no owner."""
    meta = podgroup.metadata
    named = podgroup_name(PREFIX, meta.annotations.get(GANG, ""))
    return bool(named) and meta.name == named and not meta.owner_references


def _size(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and 0 < int(text[:11]) <= _MAX else 1


GROUPER = Grouper(name="annotation", membership=_membership, gang=_gang)
