"""Pods that are resized in place: what a node is charged for them.

Until the kubelet has actuated a resize, a container may use what it had, what it is to have, or
what the kubelet has allocated to it. The maximum is charged, as kube-scheduler and kubelet do; also
for a deferred resize, since the kubelet carries it out once it can. A resize that the
kubelet reports as infeasible is not carried out, so what the spec requests does not count then.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from ....model.pod_resources import Resources
from ..core_types import Container, ContainerStatus, Pod, PodSpec, PodStatus, Quantities
from ..resources import Amounts, amounts, to_resource_list

_RESIZABLE = ("cpu", "memory")


def charged_spec(pod: Pod) -> PodSpec:
    """Return the spec of *pod* with the requests that its node is charged for it."""
    spec, status = pod.spec, pod.status
    infeasible = _is_infeasible(status)
    changes: dict[str, object] = {}
    if status.container_statuses:
        by_name = {each.name: each for each in status.container_statuses}
        charged = [
            _charged(each, by_name.get(each.name), infeasible=infeasible)
            for each in spec.containers
        ]
        if any(new is not old for new, old in zip(charged, spec.containers, strict=True)):
            changes["containers"] = tuple(charged)
    if status.init_container_statuses:
        by_name = {each.name: each for each in status.init_container_statuses}
        changes["init_containers"] = tuple(
            _charged(each, by_name.get(each.name), infeasible=infeasible)
            if each.restart_policy == "Always"
            else each
            for each in spec.init_containers
        )
    if spec.resources.requests and (status.allocated_resources or status.resources):
        reported = (status.allocated_resources, _requests(status.resources))
        changes["resources"] = _maximum(spec.resources, reported, infeasible=infeasible)
    return replace(spec, **changes) if changes else spec


def has_equal_charge(old: Pod, new: Pod) -> bool:
    """Return whether a node is charged the same for two versions of a pod with equal specs."""
    before, after = charged_spec(old), charged_spec(new)
    return (before is old.spec and after is new.spec) or before == after


def _charged(
    container: Container, status: ContainerStatus | None, *, infeasible: bool
) -> Container:
    """Return *container* with what is charged for it; the same object if nothing differs."""
    if status is None:
        return container
    reported = (status.allocated_resources, _requests(status.resources))
    resources = _maximum(container.resources, reported, infeasible=infeasible)
    return (
        container if resources is container.resources else replace(container, resources=resources)
    )


def _maximum(wanted: Resources, reported: Iterable[Quantities], *, infeasible: bool) -> Resources:
    """Return the maximum of what is *wanted* and what is *reported*; the same object if nothing
    differs."""
    known = [each for each in reported if each]
    if all(each == wanted.requests for each in known):
        return wanted  # as for most pods
    own = amounts(wanted.limits | wanted.requests)
    found = [amounts(each) for each in known]
    charged: Amounts = {
        name: units
        for name, units in own.items()
        if not (infeasible and name in _RESIZABLE and any(name in each for each in found))
    }
    for each in found:
        for name, units in each.items():
            charged[name] = max(charged.get(name, 0), units)
    if charged == own:
        return wanted
    return Resources(requests=dict(to_resource_list(charged)), limits=wanted.limits)


def _requests(resources: Resources | None) -> Quantities:
    return resources.requests if resources is not None else {}


def _is_infeasible(status: PodStatus) -> bool:
    return any(
        each.type == "PodResizePending" and each.reason == "Infeasible"
        for each in status.conditions
    )
