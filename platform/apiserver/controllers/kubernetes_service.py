"""What every cluster has: its own namespaces, and the Service that leads to the API server."""

import ipaddress
from collections.abc import Collection

from ...model import names
from ...model.names import Resource
from ..http.requests import Json
from ..kinds.info import KindInfo
from ..storage.object_store import Shelf
from ..storage.stored_objects import Event
from .base import Keeper, Tools

SERVICE = "kubernetes"
HOME = "default"
_ENDPOINTS = Resource("", "v1", "endpoints", "Endpoints")
_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
_LOOPBACK = "127.0.0.1"


class Standing(Keeper):
    """Makes these again when they are deleted or changed; the key is the namespace."""

    name = "standing"

    def __init__(self, tools: Tools, *, address: str, namespaces: Collection[str]) -> None:
        """Keep *namespaces*, and tell clients that the server is at *address*, ``host:port``."""
        super().__init__(tools)
        self._names = namespaces
        self._namespaces = tools.shelf(names.NAMESPACES)
        self._wanted = {
            tools.catalog.known(resource): obj for resource, obj in _published(address).items()
        }

    @property
    def complete(self) -> bool:
        """Whether the Service is there, which comes last."""
        return self.tools.shelf(names.SERVICES).get(HOME, SERVICE) is not None

    def observe(self, shelf: Shelf, event: Event) -> None:
        """Queue the namespace of what changes of these."""
        entry = event.entry
        if shelf is self._namespaces and entry.name in self._names:
            self.queue.add(entry.name)
        elif entry.key == (HOME, SERVICE) and shelf.kind in self._wanted:
            self.queue.add(HOME)

    def start(self) -> None:
        """Queue all."""
        for name in self._names:
            self.queue.add(name)

    async def reconcile(self, key: str) -> float | None:
        """Make or mend what is in one namespace."""
        if self._namespaces.latest("", key) is None:
            await self.tools.create(names.NAMESPACES, "", _named(key)).settled()
        if key == HOME:
            for kind, obj in self._wanted.items():
                await self._keep(kind, obj)
        return None

    async def _keep(self, kind: KindInfo, obj: Json) -> None:
        found = self.tools.writer.registry.shelf(kind).latest(HOME, SERVICE)
        if found is None:
            body = {**obj, "metadata": dict(obj["metadata"])}
            await self.tools.create(kind.resource, HOME, body).settled()
        elif not found.deleting:
            written = self.tools.change(kind, found.key, lambda now: _with_content(now, obj))
            await written.settled()


def _with_content(current: Json, wanted: Json) -> Json:
    """*current* with what *wanted* says beside its metadata; parts of the spec are kept."""
    changed = {key: value for key, value in wanted.items() if key not in ("metadata", "spec")}
    if "spec" in wanted:
        changed["spec"] = {**(current.get("spec") or {}), **wanted["spec"]}
    return {**current, **changed}


def _named(name: str, **labels: str) -> Json:
    return {"metadata": {"name": name, **({"labels": labels} if labels else {})}}


def _published(address: str) -> dict[Resource, Json]:
    """The objects that lead to *address*.

    There is no proxy: the Service's own address is the server's, so that it can be reached.
    """
    host, _, number = address.rpartition(":")
    ip, port = _reachable(host.strip("[]")), int(number)
    family = f"IPv{ip.version}"
    https = {"name": "https", "port": port, "protocol": "TCP"}
    service = {
        **_named(SERVICE, component="apiserver", provider="kubernetes"),
        "spec": {
            "type": "ClusterIP",
            "clusterIP": str(ip),
            "clusterIPs": [str(ip)],
            "ipFamilies": [family],
            "ports": [{**https, "targetPort": port}],
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


def _reachable(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The address by which this machine reaches a server that listens at *host*."""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return ipaddress.IPv4Address(_LOOPBACK)
    return ipaddress.IPv4Address(_LOOPBACK) if ip.is_unspecified else ip
