"""System namespaces, and the ``kubernetes`` Service with the address of the API server."""

import ipaddress
from collections.abc import Collection

from ....model import names
from ....model.names import Resource
from ..http.requests import Json
from ..kinds.info import KindInfo
from ..storage.resource_store import ResourceStore
from ..storage.stored_objects import WatchEvent
from .base import Controller, ControllerContext

SERVICE = "kubernetes"
SERVICE_NAMESPACE = "default"
_ENDPOINTS = Resource("", "v1", "endpoints", "Endpoints")
_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
_LOOPBACK = "127.0.0.1"


class KubernetesServiceController(Controller):
    """Restores these objects when they are deleted or changed; the key is a namespace."""

    name = "kubernetes-service"

    def __init__(
        self,
        context: ControllerContext,
        *,
        address: str,
        service_address: tuple[str, int] | None,
        namespaces: Collection[str],
    ) -> None:
        """Maintain *namespaces*, and publish *address* (``host:port``) as the endpoint of the
        Service. *service_address*: its own address and port, if they are others."""
        super().__init__(context)
        self._names = namespaces
        self._namespaces = context.resource_store(names.NAMESPACES)
        self._desired = {
            context.catalog.require(resource): obj
            for resource, obj in _service_objects(address, service_address).items()
        }

    @property
    def is_synced(self) -> bool:
        """Whether the Service publishes the address; it is written last."""
        services = self.context.resource_store(names.SERVICES)
        entry = services.get(SERVICE_NAMESPACE, SERVICE)
        if entry is None or entry.deleting:
            return entry is not None
        current = entry.parse()
        return _with_content(current, self._desired[services.kind]) == current

    def on_event(self, resource_store: ResourceStore, event: WatchEvent) -> None:
        """Enqueue the namespace of a change to one of these objects."""
        entry = event.entry
        if resource_store is self._namespaces and entry.name in self._names:
            self.queue.add(entry.name)
        elif entry.key == (SERVICE_NAMESPACE, SERVICE) and resource_store.kind in self._desired:
            self.queue.add(SERVICE_NAMESPACE)

    def enqueue_all(self) -> None:
        """Enqueue all namespaces."""
        for name in self._names:
            self.queue.add(name)

    async def reconcile(self, key: str) -> float | None:
        """Create or restore the objects of one namespace."""
        if self._namespaces.latest("", key) is None:
            await self.context.create(names.NAMESPACES, "", _named(key)).committed()
        if key == SERVICE_NAMESPACE:
            for kind, obj in self._desired.items():
                await self._ensure(kind, obj)
        return None

    async def _ensure(self, kind: KindInfo, obj: Json) -> None:
        found = self.context.writer.store.resource_store(kind).latest(SERVICE_NAMESPACE, SERVICE)
        if found is None:
            body = {**obj, "metadata": dict(obj["metadata"])}
            await self.context.create(kind.resource, SERVICE_NAMESPACE, body).committed()
        elif not found.deleting:
            written = self.context.update_unchecked(
                kind, found.key, lambda now: _with_content(now, obj)
            )
            await written.committed()


def _with_content(current: Json, desired: Json) -> Json:
    """Return *current* with the content of *desired*; its metadata and other spec fields stay."""
    changed = {key: value for key, value in desired.items() if key not in ("metadata", "spec")}
    if "spec" in desired:
        changed["spec"] = {**(current.get("spec") or {}), **desired["spec"]}
    return {**current, **changed}


def _named(name: str, **labels: str) -> Json:
    return {"metadata": {"name": name, **({"labels": labels} if labels else {})}}


def _service_objects(address: str, service_address: tuple[str, int] | None) -> dict[Resource, Json]:
    """Return the objects that publish *address*."""
    host, _, number = address.rpartition(":")
    ip, port = _advertise_address(host.strip("[]")), int(number)
    family = f"IPv{ip.version}"
    https = {"name": "https", "port": port, "protocol": "TCP"}
    cluster_ip, service_port = service_address or (str(ip), port)
    service = {
        **_named(SERVICE, component="apiserver", provider="kubernetes"),
        "spec": {
            "type": "ClusterIP",
            "clusterIP": cluster_ip,
            "clusterIPs": [cluster_ip],
            "ipFamilies": [family],
            "ports": [{**https, "port": service_port, "targetPort": port}],
        },
    }
    endpoints = {
        **_named(SERVICE, **{"endpointslice.kubernetes.io/skip-mirror": "true"}),
        "subsets": [{"addresses": [{"ip": str(ip)}], "ports": [https]}],
    }
    slice_ = {
        **_named(SERVICE, **{"kubernetes.io/service-name": SERVICE}),
        "addressType": family,
        "endpoints": [{"addresses": [str(ip)], "conditions": {"ready": True}}],
        "ports": [https],
    }
    return {_ENDPOINTS: endpoints, _SLICES: slice_, names.SERVICES: service}


def _advertise_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the address at which this machine reaches a server listening on *host*."""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return ipaddress.IPv4Address(_LOOPBACK)
    return ipaddress.IPv4Address(_LOOPBACK) if ip.is_unspecified else ip
