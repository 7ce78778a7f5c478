"""What an object uses of a ResourceQuota, and which quotas apply to it; pure.

A quota names amounts: ``requests.cpu``, ``pods``, ``count/deployments.apps``. Each belongs to one
resource, except that quotas with scopes apply to pods or to claims only.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec

from ....model import times
from ....model.names import PERSISTENTVOLUMECLAIMS, PODS, SERVICES
from ....model.pod_resources import Amounts, PodResources, quota_usage
from ....model.quantity import Quantity, parse
from ....model.resource_names import COMPUTE, is_extended
from ..builtin.core_objects import BETA_CLASS_ANNOTATION
from ..http.requests import Json
from ..kinds.groups import RESOURCE

ResourceKey = tuple[str, str]
"""API group and plural."""

ONE = parse(1)
_PODS: ResourceKey = ("", PODS.plural)
_CLAIMS: ResourceKey = ("", PERSISTENTVOLUMECLAIMS.plural)
_SERVICES: ResourceKey = ("", SERVICES.plural)
_DEVICE_CLAIMS: ResourceKey = (RESOURCE, "resourceclaims")
_ALIASES = frozenset(("configmaps", "replicationcontrollers", "resourcequotas", "secrets"))
_IGNORED: frozenset[ResourceKey] = frozenset((("", "events"), ("events.k8s.io", "events")))
"""Resources that no quota limits."""

_REQUIRED = frozenset(
    f"{prefix}{name}" for prefix in ("", "requests.", "limits.") for name in ("cpu", "memory")
)
"""Amounts that each container must specify if a quota limits them."""

_OF_PODS = frozenset(
    ("pods", *(f"{prefix}{name}" for prefix in ("", "requests.", "limits.") for name in COMPUTE))
)
_COUNT = "count/"
_HUGE_PAGES = ("hugepages-", "requests.hugepages-")
_OF_STORAGE_CLASS = ".storageclass.storage.k8s.io/"
_OF_DEVICE_CLASS = ".deviceclass.resource.k8s.io/devices"
_ALL_DEVICES = parse(32)
"""What a claim of all devices of a class counts as: the most that one claim may get."""


class Requirement(NamedTuple):
    """A scope of a quota, and the values that it allows."""

    scope: str
    operator: str
    values: Sequence[str] = ()

    def matches_any(self, names: Iterable[str]) -> bool:
        """Return whether one of *names*, or their absence, meets the requirement."""
        found = set(names)
        if self.operator == "Exists":
            return bool(found)
        if self.operator == "DoesNotExist":
            return not found
        if self.operator == "In":
            return not found.isdisjoint(self.values)
        return not found or bool(found.difference(self.values))


def requirements(spec: Json) -> list[Requirement]:
    """Return the scopes of a quota; an object must meet all."""
    selector = spec.get("scopeSelector") or {}
    return [
        *(Requirement(scope, "Exists") for scope in spec.get("scopes") or ()),
        *(
            Requirement(
                each.get("scopeName", ""), each.get("operator", ""), each.get("values") or ()
            )
            for each in selector.get("matchExpressions") or ()
        ),
    ]


def resource_of(name: str) -> ResourceKey | None:
    """Return the resource whose objects use the amount *name*; ``None`` if none does."""
    if name.startswith(_COUNT):
        plural, _, group = name.removeprefix(_COUNT).partition(".")
        return None if (group, plural) in _IGNORED else (group, plural)
    if name in _ALIASES:
        return "", name
    if name == "services" or name.startswith("services."):
        return _SERVICES
    if name.endswith(_OF_DEVICE_CLASS):
        return _DEVICE_CLAIMS
    of_class = name.rpartition(_OF_STORAGE_CLASS)[2]
    if of_class in ("persistentvolumeclaims", "requests.storage"):
        return _CLAIMS
    if name in _OF_PODS or name.startswith(_HUGE_PAGES):
        return _PODS
    return _PODS if name.startswith("requests.") and is_extended(name) else None


def usage(key: ResourceKey, obj: Json, now: datetime) -> Amounts:
    """Return the amounts that an object uses at the time *now*.

    Raises:
        QuantityError: an amount is not a quantity.
    """
    compute = _USAGES.get(key)
    if compute is not None:
        return compute(obj, now)
    group, plural = key
    found = {_count_name(key): ONE}
    if not group and plural in _ALIASES:
        found[plural] = ONE
    return found


def depends_on_content(key: ResourceKey) -> bool:
    """Return whether the usage of an object depends on more than its existence."""
    return key in _USAGES


def expiry(key: ResourceKey, obj: Json) -> datetime | None:
    """Return when a pod that is being deleted stops being counted."""
    metadata = obj["metadata"]
    if key != _PODS or "deletionTimestamp" not in metadata:
        return None
    grace = timedelta(seconds=metadata.get("deletionGracePeriodSeconds") or 0)
    return times.parse(metadata["deletionTimestamp"]) + grace


def is_in_scope(key: ResourceKey, obj: Json, scopes: Iterable[Requirement]) -> bool:
    """Return whether an object meets all requirements of a quota."""
    if key == _PODS:
        return all(_pod_meets(obj, each) for each in scopes)
    if key == _CLAIMS:
        return all(_claim_meets(obj, each) for each in scopes)
    return not list(scopes)


def is_checked(key: ResourceKey, obj: Json, old: Json | None) -> bool:
    """Return whether a write may exceed a quota: a new object, or one that may use more."""
    if old is None:
        return True
    if key == _PODS:
        return _is_terminating(obj) != _is_terminating(old) or (_resources(obj) != _resources(old))
    return depends_on_content(key)


def missing_amounts(key: ResourceKey, obj: Json, limited: Iterable[str]) -> str:
    """Return which of the amounts that a quota limits a pod's containers do not specify."""
    spec = obj.get("spec") or {}
    if key != _PODS or _has_own_resources(spec):
        return ""
    required = _REQUIRED.intersection(limited)
    found: dict[str, list[str]] = {}
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        resources = container.get("resources") or {}
        requests, limits = (resources.get(each) or {} for each in ("requests", "limits"))
        specified = {*requests, *(f"requests.{each}" for each in requests)}
        specified.update(f"limits.{each}" for each in limits)
        for name in required - specified:
            found.setdefault(name, []).append(container.get("name", ""))
    return "; ".join(f"{name} for: {','.join(sorted(set(found[name])))}" for name in sorted(found))


def _has_own_resources(spec: Json) -> bool:
    """Return whether resources are set for the pod as a whole."""
    resources = spec.get("resources") or {}
    names = {*(resources.get("requests") or ()), *(resources.get("limits") or ())}
    return any(each in ("cpu", "memory") or each.startswith("hugepages-") for each in names)


def _count_name(key: ResourceKey) -> str:
    group, plural = key
    return f"{_COUNT}{plural}.{group}" if group else f"{_COUNT}{plural}"


def _pod_usage(pod: Json, now: datetime) -> Amounts:
    ends = expiry(_PODS, pod)
    phase = (pod.get("status") or {}).get("phase")
    finished = phase in ("Succeeded", "Failed") or (ends is not None and now > ends)
    return quota_usage(msgspec.convert(pod.get("spec") or {}, PodResources), finished=finished)


def _service_usage(service: Json, now: datetime) -> Amounts:
    spec = service.get("spec") or {}
    ports = spec.get("ports") or ()
    node_ports = 0
    of_balancer = spec.get("type") == "LoadBalancer"
    if spec.get("type") == "NodePort" or of_balancer:
        node_ports = len(ports)
    if of_balancer and spec.get("allocateLoadBalancerNodePorts") is False:
        node_ports = sum(bool(port.get("nodePort")) for port in ports)
    return {
        _count_name(_SERVICES): ONE,
        "services": ONE,
        "services.nodeports": parse(node_ports),
        "services.loadbalancers": parse(int(of_balancer)),
    }


def _claim_usage(claim: Json, now: datetime) -> Amounts:
    spec = claim.get("spec") or {}
    annotations = claim["metadata"].get("annotations") or {}
    chosen = annotations.get(BETA_CLASS_ANNOTATION)
    if chosen is None:
        chosen = spec.get("storageClassName") or ""
    found = {_count_name(_CLAIMS): ONE, "persistentvolumeclaims": ONE}
    requested = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
    if requested is not None:
        allocated = ((claim.get("status") or {}).get("allocatedResources") or {}).get("storage")
        found["requests.storage"] = max(map(_rounded_up, (requested, allocated or "0")))
    if chosen:
        of_class = {
            f"{chosen}{_OF_STORAGE_CLASS}{name}": amount
            for name, amount in found.items()
            if not name.startswith(_COUNT)
        }
        found |= of_class
    return found


def _rounded_up(text: str) -> Quantity:
    amount = parse(text)
    return amount if amount.is_whole else Quantity(amount.value() * ONE.nanos, amount.format)


def _device_usage(claim: Json, now: datetime) -> Amounts:
    found = {_count_name(_DEVICE_CLAIMS): ONE}
    devices = (claim.get("spec") or {}).get("devices") or {}
    for request in devices.get("requests") or ():
        most: Amounts = {}
        for each in request.get("firstAvailable") or [request.get("exactly") or {}]:
            name = f"{each.get('deviceClassName', '')}{_OF_DEVICE_CLASS}"
            every = each.get("allocationMode") == "All"
            count = _ALL_DEVICES if every else parse(each.get("count") or 0)
            most[name] = max(count, most.get(name, count))
        for name, amount in most.items():
            found[name] = found[name] + amount if name in found else amount
    return found


_USAGES: Mapping[ResourceKey, Callable[[Json, datetime], Amounts]] = {
    _PODS: _pod_usage,
    _SERVICES: _service_usage,
    _CLAIMS: _claim_usage,
    _DEVICE_CLAIMS: _device_usage,
}
"""Resources whose usage depends on their content."""


def _pod_meets(pod: Json, requirement: Requirement) -> bool:
    spec, scope = pod.get("spec") or {}, requirement.scope
    if scope in ("Terminating", "NotTerminating"):
        return _is_terminating(pod) == (scope == "Terminating")
    if scope in ("BestEffort", "NotBestEffort"):
        best_effort = (pod.get("status") or {}).get("qosClass") == "BestEffort"
        return best_effort == (scope == "BestEffort")
    if scope == "PriorityClass":
        return requirement.matches_any(filter(None, (spec.get("priorityClassName"),)))
    return scope == "CrossNamespacePodAffinity" and _uses_other_namespaces(spec)


def _is_terminating(pod: Json) -> bool:
    """Return whether a pod has a deadline."""
    seconds = (pod.get("spec") or {}).get("activeDeadlineSeconds")
    return seconds is not None and seconds >= 0


def _resources(pod: Json) -> list[Json]:
    """Return the resources of a pod's containers."""
    spec = pod.get("spec") or {}
    containers = (*(spec.get("containers") or ()), *(spec.get("initContainers") or ()))
    return [each.get("resources") or {} for each in containers]


def _uses_other_namespaces(spec: Json) -> bool:
    affinity = spec.get("affinity") or {}
    for kind in ("podAffinity", "podAntiAffinity"):
        terms = affinity.get(kind) or {}
        weighted = terms.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
        found = [
            *(terms.get("requiredDuringSchedulingIgnoredDuringExecution") or ()),
            *(each.get("podAffinityTerm") or {} for each in weighted),
        ]
        if any(each.get("namespaces") or "namespaceSelector" in each for each in found):
            return True
    return False


def _claim_meets(claim: Json, requirement: Requirement) -> bool:
    if requirement.scope != "VolumeAttributesClass":
        return False
    spec, status = claim.get("spec") or {}, claim.get("status") or {}
    modified = status.get("modifyVolumeStatus") or {}
    names = (
        spec.get("volumeAttributesClassName"),
        status.get("currentVolumeAttributesClassName"),
        modified.get("targetVolumeAttributesClassName"),
    )
    return requirement.matches_any(filter(None, names))
