"""Which endpoints a Service has: pure functions from a Service and its pods."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ...model import times
from .types import Json, Pod, Service, ServicePort

SERVICE_NAME = "kubernetes.io/service-name"
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
SLICE_MANAGER = "endpointslice-controller.k8s.io"
ENDPOINTS_MANAGED_BY = "endpoints.kubernetes.io/managed-by"
ENDPOINTS_MANAGER = "endpoint-controller"
HEADLESS_LABEL = "service.kubernetes.io/headless"
OVER_CAPACITY = "endpoints.kubernetes.io/over-capacity"
CHANGE_TIME = "endpoints.kubernetes.io/last-change-trigger-time"

MAX_ADDRESSES = 1000
"""Addresses of one Endpoints object; the rest are only in slices."""

_RESERVED_LABELS = frozenset({SERVICE_NAME, MANAGED_BY, ENDPOINTS_MANAGED_BY, HEADLESS_LABEL})

PortKey = tuple[tuple[str, int, str, str | None], ...]
"""Name, number, protocol and application protocol of each port."""


class PodEndpoint(NamedTuple):
    """A pod behind a Service."""

    pod: Pod
    ports: PortKey


def pod_endpoints(service: Service, pods: Iterable[Pod]) -> list[PodEndpoint]:
    """Return the *pods* of a Service that have an address and have not ended, by name."""
    found = [
        PodEndpoint(pod, _ports_of(service, pod))
        for pod in pods
        if service.selects(pod) and pod.status.pod_ip and not pod.is_finished
    ]
    return sorted(found, key=lambda each: each.pod.metadata.name)


def _ports_of(service: Service, pod: Pod) -> PortKey:
    ports = ((port, target_port(port, pod)) for port in service.spec.ports)
    return tuple(
        (port.name, number, port.protocol, port.app_protocol) for port, number in ports if number
    )


def target_port(port: ServicePort, pod: Pod) -> int:
    """Return the number of the port at *pod*; 0 if it has no port of that name."""
    target = port.target_port
    if isinstance(target, int):
        return target or port.port
    sidecars = (each for each in pod.spec.init_containers if each.restart_policy == "Always")
    for container in (*pod.spec.containers, *sidecars):
        for each in container.ports:
            if (each.name, each.protocol) == (target, port.protocol):
                return each.container_port
    return 0


def slice_endpoint(service: Service, pod: Pod) -> Json:
    """Return the entry of *pod* in an EndpointSlice."""
    serving, terminating = pod.is_ready, pod.is_terminating
    ready = service.spec.publish_not_ready_addresses or (serving and not terminating)
    entry: Json = {
        "addresses": [pod.status.pod_ip],
        "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
        "targetRef": _reference(pod),
    }
    if pod.spec.node_name:
        entry["nodeName"] = pod.spec.node_name
    if _has_hostname(service, pod):
        entry["hostname"] = pod.spec.hostname
    return entry


def _has_hostname(service: Service, pod: Pod) -> bool:
    return bool(pod.spec.hostname) and pod.spec.subdomain == service.metadata.name


def _reference(pod: Pod) -> Json:
    meta = pod.metadata
    return {"kind": "Pod", "namespace": meta.namespace, "name": meta.name, "uid": meta.uid}


def slice_ports(ports: PortKey) -> list[Json]:
    """Return the ports of an EndpointSlice."""
    return [
        {
            "name": name,
            "port": number,
            "protocol": protocol,
            **({"appProtocol": app} if app else {}),
        }
        for name, number, protocol, app in ports
    ]


def slice_labels(service: Service) -> dict[str, str]:
    """Return the labels of the slices of a Service."""
    return {
        **_copied_labels(service),
        **_headless_label(service),
        SERVICE_NAME: service.metadata.name,
        MANAGED_BY: SLICE_MANAGER,
    }


def endpoints_labels(service: Service) -> dict[str, str]:
    """Return the labels of the Endpoints of a Service."""
    return {
        **_copied_labels(service),
        **_headless_label(service),
        ENDPOINTS_MANAGED_BY: ENDPOINTS_MANAGER,
    }


def _copied_labels(service: Service) -> dict[str, str]:
    labels = service.metadata.labels
    return {key: value for key, value in labels.items() if key not in _RESERVED_LABELS}


def _headless_label(service: Service) -> dict[str, str]:
    return {HEADLESS_LABEL: ""} if service.is_headless else {}


def subsets(service: Service, found: Sequence[PodEndpoint]) -> tuple[list[Json], bool]:
    """Return the subsets of Endpoints, one for each set of ports; and whether some are left out."""
    groups: dict[PortKey, tuple[list[Json], list[Json]]] = {}
    kept = [each for each in found if not each.pod.is_terminating or _publishes(service)]
    # Ready addresses are kept first.
    chosen = sorted(kept, key=lambda each: not each.pod.is_ready)[:MAX_ADDRESSES]
    for pod, ports in chosen:
        ready, not_ready = groups.setdefault(ports, ([], []))
        address: Json = {"ip": pod.status.pod_ip, "targetRef": _reference(pod)}
        if pod.spec.node_name:
            address["nodeName"] = pod.spec.node_name
        if _has_hostname(service, pod):
            address["hostname"] = pod.spec.hostname
        (ready if pod.is_ready or _publishes(service) else not_ready).append(address)
    return [_subset(ports, *both) for ports, both in sorted(groups.items())], len(kept) > len(
        chosen
    )


def _publishes(service: Service) -> bool:
    return service.spec.publish_not_ready_addresses


def _subset(ports: PortKey, ready: list[Json], not_ready: list[Json]) -> Json:
    subset: Json = {}
    if ready:
        subset["addresses"] = sorted(ready, key=_ip_key)
    if not_ready:
        subset["notReadyAddresses"] = sorted(not_ready, key=_ip_key)
    if ports:
        subset["ports"] = [
            {key: value for key, value in port.items() if key != "name" or value}
            for port in slice_ports(ports)
        ]
    return subset


def _ip_key(address: Json) -> tuple[str, str]:
    return address["ip"], address["targetRef"]["uid"]


def change_time(service: Service, pods: Iterable[Pod]) -> str:
    """Return when the last of the changes happened that endpoints depend on, as far as known."""
    moments = [service.metadata.creation_timestamp or ""]
    for pod in pods:
        condition = pod.ready_condition
        if condition is not None and condition.last_transition_time:
            moments.append(condition.last_transition_time)
    return max(moments, key=_epoch)


def _epoch(text: str) -> float:
    return times.parse(text).timestamp() if text else 0.0


def group_by_ports(found: Sequence[PodEndpoint]) -> Mapping[PortKey, list[Pod]]:
    """Return the pods by their ports: one slice has one set of ports."""
    groups: dict[PortKey, list[Pod]] = {}
    for pod, ports in found:
        groups.setdefault(ports, []).append(pod)
    return groups
