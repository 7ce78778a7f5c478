"""Extended resources of pods that are provided by devices: the DeviceClass names the resource, and
the scheduler creates a claim for the pod.

As with kube-scheduler, the claim has a request for each container and resource. An init container
that ends uses the devices of the containers that run later, and more only if these do not suffice.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ....model.quantity import parse
from ..core_types import PodSpec

Json = dict[str, Any]

IMPLICIT_PREFIX = "deviceclass.resource.kubernetes.io/"
"""With the name of a class, an extended resource that each class has."""

ANNOTATION = "resource.kubernetes.io/extended-resource-claim"
"""``"true"`` for claims that a scheduler has created for extended resources."""


@dataclass(frozen=True, slots=True)
class ContainerUse:
    """What a container requests of an extended resource."""

    container: str
    index: int
    """Of the container, init containers first."""
    position: int
    """Of the resource among those of the container, by name."""
    resource: str
    count: int
    is_short: bool
    """Whether the container ends before the next one starts."""

    @property
    def request(self) -> str:
        """The name of its request in the claim."""
        return f"container-{self.index}-request-{self.position}"


def extended_uses(spec: PodSpec) -> tuple[ContainerUse, ...]:
    """Return what the containers of a pod request of extended resources."""
    return tuple(_uses(spec))


def _uses(spec: PodSpec) -> Iterator[ContainerUse]:
    for index, container in enumerate((*spec.init_containers, *spec.containers)):
        requested = container.resources.requests
        if not any("/" in name for name in requested):
            continue
        is_init = index < len(spec.init_containers)
        for position, name in enumerate(sorted(requested)):
            if _is_extended(name) and (count := parse(requested[name]).value()):
                is_short = is_init and container.restart_policy != "Always"
                yield ContainerUse(container.name, index, position, name, count, is_short)


def _is_extended(name: str) -> bool:
    if name.startswith(IMPLICIT_PREFIX):
        return True
    return "/" in name and "kubernetes.io/" not in name and not name.startswith("requests.")


class ClaimOfUses(NamedTuple):
    """The claim for what the containers of a pod request."""

    requests: Sequence[Json]
    """``spec.devices.requests``."""
    mappings: Sequence[Json]
    """Which container uses which request, as in the status of the pod."""
    resources: Mapping[str, str]
    """The resource of each request."""


def claim_of(uses: Sequence[ContainerUse], classes: Mapping[str, str]) -> ClaimOfUses:
    """Return the claim for those of *uses* whose resource has a class in *classes*."""
    requests: list[Json] = []
    mappings: list[Json] = []
    resources: dict[str, str] = {}
    for resource in sorted({each.resource for each in uses} & classes.keys()):
        own = [each for each in uses if each.resource == resource]
        running = [each for each in own if not each.is_short]
        counts = {each: each.count for each in running}
        found = [(each, each.request) for each in running]
        largest: ContainerUse | None = None
        short: list[tuple[ContainerUse, str]] = []
        for use in (each for each in own if each.is_short):
            names, missing = _reused(use, running)
            short += ((use, name) for name in names)
            if missing > 0:
                counts[use] = missing
                short.append((use, ""))  # the largest request of those
                if largest is None or missing > counts[largest]:
                    largest = use
        chosen = [*running, *([largest] if largest is not None else [])]
        requests += (_request(use, classes[resource], counts[use]) for use in chosen)
        resources |= {use.request: resource for use in chosen}
        name_of_largest = largest.request if largest is not None else ""
        mappings += (
            {"containerName": use.container, "resourceName": resource,
             "requestName": name or name_of_largest}
            for use, name in (*found, *short)
        )  # fmt: skip
    requests.sort(key=lambda each: each["name"])
    return ClaimOfUses(requests, mappings, resources)


def _reused(use: ContainerUse, running: Sequence[ContainerUse]) -> tuple[list[str], int]:
    """Return the requests of later containers that *use* has, and how many devices it lacks."""
    names, missing = [], use.count
    for each in running:
        if each.index >= use.index and missing > 0:
            names.append(each.request)
            missing -= each.count
    return names, missing


def _request(use: ContainerUse, device_class: str, count: int) -> Json:
    exactly = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": count}
    return {"name": use.request, "exactly": exactly}
