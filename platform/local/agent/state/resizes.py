"""Pods that are resized in place: what is allocated to their containers; pure.

As a kubelet, the agent runs the containers of a pod with the resources that it has allocated to
them. When the spec asks for others, it allocates those if the node has them. *Desired* is a pod as
the API server has it; the same pod with its allocated resources is what the rest of the agent sees.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec.structs import replace

from ....model.meta import ResourceList
from ....model.pod_resources import (
    SCALABLE,
    Amounts,
    ContainerResources,
    PodResources,
    Resources,
    effective_resources,
)
from ....model.quantity import ZERO, Quantity, parse
from .core_types import RESTART_CONTAINER, Container, Pod

DEFERRED, INFEASIBLE = "Deferred", "Infeasible"
PENDING, IN_PROGRESS = RESIZE_CONDITIONS = "PodResizePending", "PodResizeInProgress"
"""Conditions of a pod that is being resized."""

Allocation = Mapping[str, Resources]
"""Resources by container, of those that have any."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why the resources that a pod asks for are not allocated to it."""

    reason: str
    message: str


def allocation_of(pod: Pod) -> dict[str, Resources]:
    """Return the resources of the containers of *pod*."""
    return {
        each.name: each.resources
        for each in (*pod.spec.init_containers, *pod.spec.containers)
        if each.resources.requests or each.resources.limits
    }


def with_allocation(desired: Pod, allocation: Allocation) -> Pod:
    """Return *desired* with the resources of *allocation*; the same object if nothing differs."""
    if allocation_of(desired) == allocation:
        return desired
    spec = desired.spec
    return replace(
        desired,
        spec=replace(
            spec,
            containers=_allocated(spec.containers, allocation),
            init_containers=_allocated(spec.init_containers, allocation),
        ),
    )


def _allocated(containers: Iterable[Container], allocation: Allocation) -> tuple[Container, ...]:
    return tuple(
        replace(each, resources=allocation.get(each.name, Resources())) for each in containers
    )


def allocation_from_status(pod: Pod) -> dict[str, Resources]:
    """Return the resources that the status of *pod* shows as allocated, else those of its spec."""
    found = allocation_of(pod)
    for status in pod.status.all_container_statuses:
        if status.resources is not None and status.name in found:
            requests = status.allocated_resources or status.resources.requests
            found[status.name] = Resources(requests=requests, limits=status.resources.limits)
    return found


def find_rejection(
    desired: Pod, others: Iterable[Pod], allocatable: ResourceList
) -> Rejection | None:
    """Return why the node cannot allocate what *desired* requests, if it cannot.

    *others* are the other pods of the node, with their allocated resources.
    """
    requested = requests_of(desired)
    used = [requests_of(each) for each in others if not each.is_terminal]
    for name in SCALABLE:
        capacity, wanted = parse(allocatable.get(name, 0)), requested.get(name, ZERO)
        if wanted > capacity:
            text = f"{_number(name, wanted)}, capacity: {_number(name, capacity)}"
            message = f"Node didn't have enough capacity: {name}, requested: {text}"
            return Rejection(INFEASIBLE, message)
    for name in SCALABLE:
        capacity, wanted = parse(allocatable.get(name, 0)), requested.get(name, ZERO)
        taken = sum((each.get(name, ZERO) for each in used), ZERO)
        if taken + wanted > capacity:
            message = (
                f"Node didn't have enough resource: {name}, requested: {_number(name, wanted)}, "
                f"used: {_number(name, taken)}, capacity: {_number(name, capacity)}"
            )
            return Rejection(DEFERRED, message)
    return None


def requests_of(pod: Pod) -> Amounts:
    """Return what a node allocates to a pod."""
    spec = pod.spec
    return effective_resources(
        PodResources(
            containers=_resources_of(spec.containers),
            init_containers=_resources_of(spec.init_containers),
            overhead=spec.overhead,
            resources=spec.resources,
        ),
        "requests",
    )


def _resources_of(containers: Iterable[Container]) -> tuple[ContainerResources, ...]:
    return tuple(
        ContainerResources(resources=each.resources, restart_policy=each.restart_policy)
        for each in containers
    )


def _number(name: str, amount: Quantity) -> int:
    """Return CPU in millicores, as kubelets report it, and memory in bytes."""
    return amount.nanos // (1_000_000 if name == "cpu" else 1_000_000_000)


def shows_resize(pod: Pod) -> bool:
    """Return whether a status shows a resize, which may have ended since it was rendered."""
    return any(each.type in RESIZE_CONDITIONS for each in pod.status.conditions)


def resize_order(pod: Pod) -> tuple[int, bool, str]:
    """Return the order in which pods get what they wait for: priority, QoS class, time."""
    since = [each.last_transition_time for each in pod.status.conditions if each.type == PENDING]
    first = since[0] if since else None
    return -pod.spec.priority, pod.status.qos_class != "Guaranteed", first or "9"


def is_equal(one: Resources, other: Resources) -> bool:
    """Return whether CPU and memory of two containers are the same."""
    return not changed_resources(one, other)


def changed_resources(one: Resources, other: Resources) -> list[str]:
    """Return which of CPU and memory differ."""
    return [
        name
        for name in SCALABLE
        if any(
            parse(before.get(name, 0)) != parse(after.get(name, 0))
            for before, after in (
                (one.requests, other.requests),
                (one.limits, other.limits),
            )
        )
    ]


def needs_restart(container: Container, actual: Resources) -> bool:
    """Return whether *container*, which runs with *actual*, must restart for its resources."""
    changed = changed_resources(actual, container.resources)
    return any(
        each.resource_name in changed and each.restart_policy == RESTART_CONTAINER
        for each in container.resize_policy
    )


def describe(pod: Pod, error: str = "") -> str:
    """Return the resources of a pod as kubelets describe them in events: compact JSON."""
    spec = pod.spec
    content: dict[str, Any] = {
        kind: [
            {"name": each.name, "resources": builtin_resources(each.resources)}
            for each in containers
        ]
        for kind, containers in (
            ("initContainers", spec.init_containers),
            ("containers", spec.containers),
        )
        if containers
    }
    content["generation"] = pod.metadata.generation
    if error:
        content["error"] = error
    return msgspec.json.encode(content).decode()


def builtin_resources(resources: Resources) -> dict[str, Any]:
    """Return resources as they are in a status: without empty maps."""
    both = (("limits", resources.limits), ("requests", resources.requests))
    return {kind: amounts for kind, amounts in both if amounts}
