"""Where webhooks of Services listen: an address of the Service's endpoints."""

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ....model.names import PODS, SERVICES, Resource
from ....model.selectors import NOTHING, Selector, parse_label_selector
from ..http.requests import Json
from .matching import labels_of

ENDPOINTS = Resource("", "v1", "endpoints", "Endpoints")
ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
SERVICE_LABEL = "kubernetes.io/service-name"

Get = Callable[[Resource, str, str], Json | None]
List = Callable[[Resource, str], Iterable[Json]]
Address = tuple[str, int]


class NoEndpointError(Exception):
    """A Service has no endpoint on a port."""


class ServiceResolver:
    """Finds endpoints of Services.

    The first of these that has addresses is used: the EndpointSlices of the Service, its Endpoints,
    the ready pods that its selector matches.
    """

    def __init__(self, get: Get, list_in: List) -> None:
        """*get* returns an object, *list_in* the objects of a namespace."""
        self._get = get
        self._list_in = list_in

    def resolve(
        self, namespace: str, name: str, port: int | str, *, external: bool = False
    ) -> Address:
        """Return an address and port of the Service's *port*, a number or name; any of several.

        *external*: whether the Service may name another host (type ``ExternalName``).

        Raises:
            NoEndpointError: there is none.
        """
        service = self._get(SERVICES, namespace, name)
        if service is None:
            raise NoEndpointError(f'service "{name}" not found')
        spec = service.get("spec") or {}
        if external and isinstance(port, int) and spec.get("type") == "ExternalName":
            return spec["externalName"], port
        ports = spec.get("ports") or ()
        wanted = next(
            (each for each in ports if port in (each.get("port"), each.get("name", ""))), None
        )
        if wanted is None:
            raise NoEndpointError(f'no service port {port} found for service "{name}"')
        for source in (self._of_slices, self._of_endpoints, self._of_pods):
            found = list(source(namespace, name, spec, wanted))
            if found:
                return random.choice(found)
        raise NoEndpointError(f'no endpoints available for service "{name}"')

    def _of_slices(self, namespace: str, name: str, spec: Json, wanted: Json) -> Iterator[Address]:
        for each in self._list_in(ENDPOINT_SLICES, namespace):
            if labels_of(each).get(SERVICE_LABEL) != name:
                continue
            number = _port_of(each.get("ports"), wanted)
            for endpoint in each.get("endpoints") or ():
                if number and (endpoint.get("conditions") or {}).get("ready") is not False:
                    yield from ((address, number) for address in endpoint.get("addresses") or ())

    def _of_endpoints(
        self, namespace: str, name: str, spec: Json, wanted: Json
    ) -> Iterator[Address]:
        found = self._get(ENDPOINTS, namespace, name) or {}
        for subset in found.get("subsets") or ():
            number = _port_of(subset.get("ports"), wanted)
            for each in subset.get("addresses") or ():
                if number and each.get("ip"):
                    yield each["ip"], number

    def _of_pods(self, namespace: str, name: str, spec: Json, wanted: Json) -> Iterator[Address]:
        selector = _selector(spec.get("selector"))
        for pod in self._list_in(PODS, namespace):
            if not selector.matches(labels_of(pod)) or not _is_ready(pod):
                continue
            address = (pod.get("status") or {}).get("podIP")
            number = _container_port(pod, wanted.get("targetPort") or wanted.get("port"))
            if address and number:
                yield address, number


def _selector(labels: Any) -> Selector:
    if not labels:
        return NOTHING
    return parse_label_selector(",".join(f"{key}={value}" for key, value in labels.items()))


def _is_ready(pod: Json) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


def _port_of(ports: Any, wanted: Json) -> int:
    """Return the number of the port in *ports* that has the name of the Service's; or 0."""
    for each in ports or ():
        if (each.get("name") or "") == (wanted.get("name") or "") and each.get("port"):
            return int(each["port"])
    return 0


def _container_port(pod: Json, target: Any) -> int:
    """Return a pod's port by its number, or by its name in a container; or 0."""
    if isinstance(target, int):
        return target
    for container in (pod.get("spec") or {}).get("containers") or ():
        for each in container.get("ports") or ():
            if each.get("name") == target:
                return int(each.get("containerPort", 0))
    return 0
