"""System namespaces, and the Services with the addresses of API server and name server.

These are ``kubernetes`` and ``kube-system/kube-dns``.
"""

import ipaddress
from collections.abc import Collection

from ....model import names
from ....model.names import Resource
from ....model.service_network import is_dns_ip
from ..http.requests import Json
from ..kinds.info import KindInfo
from ..storage.resource_store import ResourceStore
from ..storage.stored_objects import WatchEvent
from ..verbs.options import DeleteOptions
from ..verbs.service_addresses import API_SERVER, NAME_SERVER
from .base import Controller, ControllerContext, internal_request

SERVICE = API_SERVER[1]
_ENDPOINTS = Resource("", "v1", "endpoints", "Endpoints")
_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
_LOOPBACK = "127.0.0.1"
_DNS_LABELS = {"k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true"}


class SystemServicesController(Controller):
    """Restores these objects when they are deleted or changed; the key is a namespace."""

    name = "system-services"

    def __init__(
        self,
        context: ControllerContext,
        *,
        address: str,
        service_address: tuple[str, int] | None,
        dns_address: str,
        namespaces: Collection[str],
    ) -> None:
        """Maintain *namespaces*, and publish *address* (``host:port``) as the endpoint of the
        Service. *service_address*: its own address and port, if they are others.

        *dns_address* is that of the name server, empty if the cluster has none.
        """
        super().__init__(context)
        self._names = namespaces
        self._namespaces = context.resource_store(names.NAMESPACES)
        self._services = context.resource_store(names.SERVICES)
        self._has_name_server = bool(dns_address)
        desired = {API_SERVER: _service_objects(address, service_address)}
        if dns_address:
            desired[NAME_SERVER] = {names.SERVICES: _name_server(dns_address)}
        self._desired = {
            key: {context.catalog.require(resource): obj for resource, obj in objects.items()}
            for key, objects in desired.items()
        }

    @property
    def is_synced(self) -> bool:
        """Whether the Services publish the addresses; they are written last."""
        return all(
            self._is_current(key, objects[self._services.kind])
            for key, objects in self._desired.items()
        )

    def _is_current(self, key: tuple[str, str], desired: Json) -> bool:
        entry = self._services.get(*key)
        if entry is None or entry.deleting:
            return entry is not None
        current = entry.parse()
        return _with_content(current, desired) == current

    def on_event(self, resource_store: ResourceStore, event: WatchEvent) -> None:
        """Enqueue the namespace of a change to one of these objects."""
        entry = event.entry
        if resource_store is self._namespaces and entry.name in self._names:
            self.queue.add(entry.name)
        elif resource_store.kind in self._desired.get(entry.key, ()):
            self.queue.add(entry.namespace)

    def enqueue_all(self) -> None:
        """Enqueue all namespaces."""
        for name in self._names:
            self.queue.add(name)

    async def reconcile(self, key: str) -> float | None:
        """Create or restore the objects of one namespace."""
        if self._namespaces.latest("", key) is None:
            await self.context.create(names.NAMESPACES, "", _named(key)).committed()
        for (namespace, name), objects in self._desired.items():
            if namespace == key:
                for kind, obj in objects.items():
                    await self._ensure(kind, namespace, name, obj)
        if key == NAME_SERVER[0] and not self._has_name_server:
            await self._remove_name_server()
        return None

    async def _ensure(self, kind: KindInfo, namespace: str, name: str, obj: Json) -> None:
        found = self.context.writer.store.resource_store(kind).latest(namespace, name)
        if found is None:
            body = {**obj, "metadata": dict(obj["metadata"])}
            await self.context.create(kind.resource, namespace, body).committed()
        elif not found.deleting:
            written = self.context.update_unchecked(
                kind, found.key, lambda now: _with_content(now, obj)
            )
            await written.committed()

    async def _remove_name_server(self) -> None:
        """Delete the Service of a name server that this cluster had before."""
        found = self._services.latest(*NAME_SERVER)
        if found is None or not is_dns_ip(found.shared()["spec"].get("clusterIP", "")):
            return
        call = internal_request(self._services.kind, found.key)
        await self.context.deleter.delete(call, DeleteOptions()).committed()


def _with_content(current: Json, desired: Json) -> Json:
    """Return *current* with the content of *desired*; its metadata and other spec fields stay."""
    changed = {key: value for key, value in desired.items() if key not in ("metadata", "spec")}
    if "spec" in desired:
        changed["spec"] = {**(current.get("spec") or {}), **desired["spec"]}
    return {**current, **changed}


def _named(name: str, **labels: str) -> Json:
    return {"metadata": {"name": name, **({"labels": labels} if labels else {})}}


def _name_server(address: str) -> Json:
    """Return the Service of the name server, which listens at *address* itself."""
    ports = [("dns", "UDP"), ("dns-tcp", "TCP")]
    return {
        **_named(NAME_SERVER[1], **_DNS_LABELS),
        "spec": {
            "type": "ClusterIP",
            "clusterIP": address,
            "clusterIPs": [address],
            "ipFamilies": ["IPv4"],
            "ports": [
                {"name": name, "port": 53, "protocol": protocol, "targetPort": 53}
                for name, protocol in ports
            ],
        },
    }


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
