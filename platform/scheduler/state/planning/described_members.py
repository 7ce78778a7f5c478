"""The pods that a PodGroup describes before they exist.

Users may write the description, so only such pods are accepted as the job controller describes.
"""

from collections.abc import Callable, Iterator

import msgspec

from ....model import names
from ....model.meta import ObjectMeta
from ....model.placement import MemberRole, Members, decode_members
from ....model.podgroup import PodGroup
from ..core_types import Container, Pod, PodSpec
from ..gangs.gang import Gang
from ..podinfo.pod_terms import has_terms
from ..resources import amounts

Key = tuple[str, int]
"""Task and index of a pod."""

_MAX_PORT = 65535


def members_text(podgroup: PodGroup) -> str:
    """Return the description in *podgroup*."""
    return podgroup.metadata.annotations.get(names.MEMBERS, "")


def members_of(gang: Gang) -> Members | None:
    """Return the description in the PodGroup of *gang*, if that is of a job."""
    podgroup = gang.podgroup
    owner = podgroup.metadata.controller if podgroup is not None else None
    if podgroup is None or owner is None:
        return None
    if (owner.api_version, owner.kind) != (names.JOBS.api_version, names.JOBS.kind):
        return None
    members = decode_members(members_text(podgroup))
    if members is None or (members.job, members.uid) != (owner.name, owner.uid):
        return None
    return members if gang.name == f"{members.job}-{members.uid}" else None


def pods_of(
    gang: Gang, members: Members, *, is_wanted: Callable[[Pod], bool]
) -> list[tuple[Key, Pod]] | None:
    """Return the described pods, or ``None`` if one of them is not wanted or cannot be planned."""
    created = gang.podgroup.metadata.creation_timestamp if gang.podgroup else None
    pods: list[tuple[Key, Pod]] = []
    for role in members.roles:
        template = _template(role)
        if template is None or not is_wanted(template):
            return None
        annotations = {
            **template.metadata.annotations,
            names.GROUP_NAME: gang.name,
            names.TASK_SPEC: role.name,
        }
        labels, spec = template.metadata.labels, template.spec
        for index in range(role.first, role.first + role.count):
            name = members.pod_name(role.name, index)
            meta = ObjectMeta(
                name=name,
                namespace=gang.namespace,
                uid=f"plan:{gang.key}/{name}",
                labels={**labels, names.TASK_INDEX: str(index)},
                annotations=annotations,
                creation_timestamp=created,
            )
            pods.append(((role.name, index), Pod(metadata=meta, spec=spec)))
    return pods


def _template(role: MemberRole) -> Pod | None:
    """Return the pod of *role* without name, or ``None`` if such pods are not planned."""
    try:
        pod = msgspec.json.decode(role.pod, type=Pod)
    except (msgspec.DecodeError, RecursionError):
        return None
    spec = pod.spec
    is_plain = not (
        spec.node_name
        or spec.scheduling_gates
        or spec.resource_claims
        or spec.volumes
        or spec.overhead
        or spec.scheduling_group
        or spec.resources.requests
        or spec.resources.limits
        or has_terms(spec)
        or pod.metadata.annotations.get(names.QUEUE_GATE)
    )
    if not is_plain or not all(map(_is_possible, _containers(spec))):
        return None
    return Pod(metadata=pod.metadata, spec=msgspec.structs.replace(spec, priority=role.priority))


def _containers(spec: PodSpec) -> Iterator[Container]:
    yield from spec.containers
    yield from spec.init_containers


def _is_possible(container: Container) -> bool:
    """Return whether an API server would accept requests and ports of a container."""
    resources = container.resources
    requested = amounts(resources.limits), amounts(resources.requests)
    return all(units >= 0 for each in requested for units in each.values()) and all(
        0 <= port.host_port <= _MAX_PORT for port in container.ports
    )
