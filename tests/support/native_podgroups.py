"""PodGroups of Kubernetes itself, and pods that name them, for the tests of the scheduler."""

from typing import Any

import msgspec
from support.scheduler import SchedulerWorld, pod

from batholith.model.meta import Condition, ObjectMeta
from batholith.model.names import NATIVE_PODGROUPS, Resource
from batholith.model.native_podgroup import (
    NativePodGroup,
    NativePodGroupSpec,
    NativePodGroupStatus,
    PodSchedulingGroup,
)
from batholith.scheduler.state.cache.events import NativePodGroupEvent
from batholith.scheduler.state.core_types import Pod


def native(
    name: str,
    min_count: int | None,
    *,
    uid: str = "",
    annotations: dict[str, str] | None = None,
    condition: Condition | None = None,
    **spec: Any,
) -> NativePodGroup:
    """A gang of *min_count* pods, or with ``None`` a group whose pods start alone."""
    policy = {"basic": {}} if min_count is None else {"gang": {"minCount": min_count}}
    return NativePodGroup(
        metadata=ObjectMeta(
            name=name,
            namespace="ns",
            uid=uid or f"native-{name}",
            creation_timestamp="2026-01-01T00:00:00Z",
            annotations=annotations or {},
        ),
        spec=msgspec.convert({"schedulingPolicy": policy, **spec}, NativePodGroupSpec),
        status=NativePodGroupStatus(conditions=(condition,) if condition else ()),
    )


def grouped(name: str, group: str, **fields: Any) -> Pod:
    """A pod that names the PodGroup *group*."""
    created = pod(name, **fields)
    named = msgspec.structs.replace(
        created.spec, scheduling_group=PodSchedulingGroup(pod_group_name=group)
    )
    return msgspec.structs.replace(created, spec=named)


def put(
    world: SchedulerWorld,
    new: NativePodGroup | None,
    old: NativePodGroup | None = None,
    *,
    resource: Resource = NATIVE_PODGROUPS,
) -> None:
    """Add, update or delete a PodGroup."""
    world.cluster.apply(NativePodGroupEvent(resource, old, new))
