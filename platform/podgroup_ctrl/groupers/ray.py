"""RayClusters, also those of RayJobs and RayServices: the head, and the minimum of each group."""

from collections.abc import Sequence

from ...model.base import ApiStruct
from ...model.names import Resource
from ..core_types import Pod
from .base import (
    Described,
    Gang,
    Grouper,
    Membership,
    Role,
    RoleTemplate,
    owner_reference,
    podgroup_name,
)

RAYCLUSTERS = Resource("ray.io", "v1", "rayclusters", "RayCluster")
_TYPE, _GROUP = "ray.io/node-type", "ray.io/group"
_QUEUE, _PRIORITY = "volcano.sh/queue-name", "ray.io/priority-class-name"
"""Labels with which KubeRay itself configures Volcano."""


class _Head(ApiStruct, frozen=True):
    template: RoleTemplate = RoleTemplate()


class _Workers(ApiStruct, frozen=True):
    group_name: str = ""
    replicas: int | None = None
    min_replicas: int | None = None
    num_of_hosts: int | None = None
    suspend: bool = False
    template: RoleTemplate = RoleTemplate()


class Spec(ApiStruct, frozen=True):
    """Fields of the spec of a RayCluster."""

    enable_in_tree_autoscaling: bool = False
    head_group_spec: _Head = _Head()
    worker_group_specs: tuple[_Workers, ...] = ()


class RayCluster(Described, frozen=True):
    """A RayCluster."""

    spec: Spec = Spec()


def _membership(pod: Pod) -> Membership | None:
    owner = pod.metadata.controller
    if (
        owner is None
        or owner.kind != RAYCLUSTERS.kind
        or not owner.api_version.startswith("ray.io/")
    ):
        return None
    group = podgroup_name(owner.uid)
    return Membership(podgroup=group, owner=owner.name, owner_uid=owner.uid) if group else None


def gang_of(cluster: RayCluster, _: Sequence[Pod]) -> Gang:
    """Return the gang of a RayCluster."""
    labels, spec = cluster.metadata.labels, cluster.spec
    head = Role(
        name="head", count=1, spec=spec.head_group_spec.template.spec, labels={_TYPE: "head"}
    )
    scaled = spec.enable_in_tree_autoscaling
    return Gang(
        owner=owner_reference(cluster, RAYCLUSTERS),
        roles=[head, *(_workers(each, scaled) for each in spec.worker_group_specs)],
        queue=labels.get(_QUEUE, ""),
        priority_class_name=labels.get(_PRIORITY, ""),
        annotations=cluster.metadata.annotations,
    )


def _workers(group: _Workers, scaled: bool) -> Role:
    """Return a group of workers: the autoscaler changes the number of what exceeds the minimum."""
    least = group.min_replicas or 0
    replicas = least if scaled or group.replicas is None else group.replicas
    hosts = 1 if group.num_of_hosts is None else group.num_of_hosts
    return Role(
        name=group.group_name,
        count=0 if group.suspend else replicas * hosts,
        spec=group.template.spec,
        labels={_GROUP: group.group_name, _TYPE: "worker"},
    )


GROUPER = Grouper(
    name="ray", resource=RAYCLUSTERS, view=RayCluster, membership=_membership, gang=gang_of
)
