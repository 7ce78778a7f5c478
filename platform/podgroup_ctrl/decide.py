"""Decisions of the PodGroup controller: a pure function from a PodGroup's view to its effects."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from ..machinery.reconcile.events import Event
from ..model.names import PODGROUP_MIN_MEMBER, PODGROUP_QUEUE
from ..model.podgroup import PodGroup
from . import build
from .core_types import Owner, Pod
from .groupers import annotation
from .groupers.base import Gang

_SCALABLE_KINDS = ("ReplicaSet", "StatefulSet")
"""Owners that may be scaled to zero, when their PodGroup is deleted."""


class PodGroupView(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A PodGroup, whether it exists or not, and the pods that need it."""

    key: str
    podgroup: PodGroup | None
    pods: tuple[Pod, ...]
    """Those that have not finished."""
    has_finished: bool = False
    """Whether it has pods that have finished."""
    inherited: Mapping[str, str] = {}
    """Annotations of the pods' owners, where the PodGroup depends on them."""
    gang: Gang | None = None
    """The gang of a grouper, where the PodGroup depends on it."""
    unreadable: str = ""
    """Why the object that describes the gang cannot be read; empty if it can."""
    owner: Owner | None = None
    """Owner of a PodGroup without pods, if that may be scaled to zero."""

    @property
    def name(self) -> str:
        """Name of the PodGroup."""
        return self.key.rpartition("/")[2]

    @cached_property
    def unannotated(self) -> tuple[Pod, ...]:
        """The pods that do not name their PodGroup yet."""
        return tuple(pod for pod in self.pods if not pod.podgroup_name)


@dataclass(frozen=True, slots=True)
class CreatePodGroup:
    """Create the PodGroup."""

    podgroup: PodGroup


@dataclass(frozen=True, slots=True)
class UpdatePodGroup:
    """Update the PodGroup by a merge patch: its owner or the pod template has changed."""

    podgroup: PodGroup
    patch: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DeletePodGroup:
    """Delete the PodGroup, unless it was modified."""

    podgroup: PodGroup


@dataclass(frozen=True, slots=True)
class AnnotatePods:
    """Write the name of the PodGroup into the annotation of pods."""

    pods: tuple[Pod, ...]
    podgroup: str


@dataclass(frozen=True, slots=True)
class RecordEvent:
    """Record an event on a pod."""

    pod: Pod
    event: Event


Effect = CreatePodGroup | UpdatePodGroup | DeletePodGroup | AnnotatePods | RecordEvent


def decide(view: PodGroupView) -> list[Effect]:
    """Return what the PodGroup and its pods need, in order.

    Raises:
        QuantityError: a resource request of the pod is malformed.
    """
    podgroup = view.podgroup
    if not view.pods:
        if podgroup is not None and _is_left(view, podgroup):
            return [DeletePodGroup(podgroup)]
        return []
    effects: list[Effect] = []
    pod = template_of(view)
    if podgroup is None:
        desired = build.build(pod, view.inherited, name=view.name, gang=view.gang)
        effects.append(CreatePodGroup(desired))
        effects += _warnings(pod, desired.spec.min_member, view)
    elif view.gang is not None and build.is_of_predecessor(podgroup, view.gang.owner):
        return [DeletePodGroup(podgroup)]  # once it is deleted, the pods get another one
    elif (view.unannotated or view.gang) and (patch := _patch(view, podgroup, pod)):
        effects.append(UpdatePodGroup(podgroup, patch))
    if view.unannotated:
        effects.append(AnnotatePods(view.unannotated, view.name))
    return effects


def _patch(view: PodGroupView, podgroup: PodGroup, pod: Pod) -> Mapping[str, Any]:
    """Return the merge patch of a PodGroup that has got new pods; empty if none is needed."""
    if view.gang is not None:
        desired = build.build(pod, view.inherited, name=view.name, gang=view.gang)
        return build.gang_patch(podgroup, desired)
    if view.unreadable or not is_scalable(pod):
        return {}
    return build.merge_patch(podgroup, build.build(pod, view.inherited))


def _is_left(view: PodGroupView, podgroup: PodGroup) -> bool:
    """Whether a PodGroup without unfinished pods is not needed any more, and would not be deleted
    with its owner."""
    if annotation.is_of_pods(podgroup):
        return not view.has_finished
    return _is_scaled_down(podgroup, view.owner)


def template_of(view: PodGroupView) -> Pod:
    """Return the pod from which the PodGroup is built: one without annotation, by name."""
    if view.podgroup is not None and view.unannotated:
        return view.unannotated[0]
    return min(view.pods, key=lambda pod: (bool(pod.podgroup_name), pod.metadata.name))


def is_scalable(pod: Pod) -> bool:
    """Whether the pod's controller may be scaled, and its pod template changed."""
    controller = pod.metadata.controller
    return controller is not None and controller.kind in _SCALABLE_KINDS


def may_be_left(podgroup: PodGroup) -> bool:
    """Whether a PodGroup may have to be deleted without an event of a pod."""
    return annotation.is_of_pods(podgroup) or has_scalable_owner(podgroup)


def has_scalable_owner(podgroup: PodGroup) -> bool:
    """Whether the PodGroup was generated for an owner that may be scaled to zero."""
    owner = podgroup.metadata.controller
    if owner is None or owner.kind not in _SCALABLE_KINDS:
        return False
    return podgroup.metadata.name == f"podgroup-{owner.uid}"


def _is_scaled_down(podgroup: PodGroup, owner: Owner | None) -> bool:
    controller = podgroup.metadata.controller
    return (
        owner is not None
        and controller is not None
        and owner.metadata.uid == controller.uid
        and owner.spec.replicas == 0
    )


def _warnings(pod: Pod, size: int, view: PodGroupView) -> Iterator[RecordEvent]:
    """Yield events on annotations that have no effect."""
    if view.unreadable:
        yield RecordEvent(pod, Event("GangUnknown", view.unreadable, warning=True))
    if value := build.ineffective_size(pod, size):
        text = (
            f"annotation {PODGROUP_MIN_MEMBER}={value} has no effect on a pod; "
            "put it on the pod's owner"
        )
        yield RecordEvent(pod, Event("GroupMinMemberIgnored", text, warning=True))
    if view.gang is not None:
        return
    if value := build.ineffective_queue(pod, view.inherited):
        text = (
            f"annotation {PODGROUP_QUEUE}={value} has no effect on the pod's owner; "
            "put it into the pod template"
        )
        yield RecordEvent(pod, Event("QueueNameIgnored", text, warning=True))
