"""Maintains the ServiceCIDR ``kubernetes``, and an IPAddress for the cluster IP of each Service.

The range depends on the network of pods, which may change between two starts of a cluster; Services
are then moved to the new one. Which address a Service has is decided when it is written, by what
other Services have: the IPAddresses of Services follow.
"""

import random
from ipaddress import IPv4Network

from ....model import names
from ....model.service_network import HEADLESS, is_in
from ..current_time import now
from ..errors.status import StatusError
from ..http.requests import Json
from ..kinds.info import KindInfo
from ..storage.resource_store import ResourceStore
from ..storage.stored_objects import WatchEvent
from ..verbs.options import DeleteOptions
from ..verbs.service_addresses import (
    API_SERVER,
    DEFAULT_SERVICE_CIDR,
    MANAGED_BY_SERVER,
    NAME_SERVER,
    free_address,
    is_of_service,
    reserved_addresses,
)
from ..verbs.writes import UpdateFunc
from .base import Controller, ControllerContext, internal_request

_READY = {
    "type": "Ready",
    "status": "True",
    "reason": "",
    "message": "Kubernetes default Service CIDR is ready",
}
_RETRY_DELAY = 1.0
"""Seconds between attempts to replace an IPAddress that a finalizer keeps."""


class ServiceAddressController(Controller):
    """The key is the ServiceCIDR's name, that of an IPAddress, or namespace and name of a Service.

    Services that were created in another range get a new address.
    """

    name = "service-addresses"

    def __init__(self, context: ControllerContext, cluster_ips: IPv4Network) -> None:
        super().__init__(context)
        self._cluster_ips = cluster_ips
        self._services = context.resource_store(names.SERVICES)
        self._addresses = context.resource_store(names.IP_ADDRESSES)
        self._ranges = context.resource_store(names.SERVICE_CIDRS)
        self.observed = (self._services, self._addresses, self._ranges)

    def on_event(self, resource_store: ResourceStore, event: WatchEvent) -> None:
        """Enqueue a changed object, and what it refers to."""
        entry = event.entry
        if resource_store is self._ranges and entry.name == DEFAULT_SERVICE_CIDR:
            self.queue.add(entry.name)
        elif resource_store is self._services:
            self.queue.add("/".join(entry.key))
            last = event.previous or entry
            if address := _cluster_ip(last.shared()):
                self.queue.add(address)
        elif resource_store is self._addresses:
            self.queue.add(entry.name)
            parent = entry.shared()["spec"]["parentRef"]
            self.queue.add(f"{parent.get('namespace', '')}/{parent['name']}")

    def enqueue_all(self) -> None:
        """Enqueue the ServiceCIDR, all Services and all IPAddresses."""
        self.queue.add(DEFAULT_SERVICE_CIDR)
        for resource_store in (self._services, self._addresses):
            for entry in resource_store.latest_entries():
                self.queue.add("/".join(filter(None, entry.key)))

    async def reconcile(self, key: str) -> float | None:
        """Reconcile one object."""
        if key == DEFAULT_SERVICE_CIDR:
            await self._reconcile_range()
            return None
        namespace, separator, name = key.partition("/")
        if separator:
            return await self._reconcile_service(namespace, name)
        await self._reconcile_address(key)
        return None

    async def _reconcile_range(self) -> None:
        spec = {"cidrs": [str(self._cluster_ips)]}
        found = self._ranges.latest("", DEFAULT_SERVICE_CIDR)
        if found is None:
            body = {"metadata": {"name": DEFAULT_SERVICE_CIDR}, "spec": spec}
            await self.context.create(names.SERVICE_CIDRS, "", body).committed()
        elif not found.deleting:
            await self._update(
                self._ranges.kind, found.key, lambda obj: _with_ready({**obj, "spec": spec})
            )

    async def _reconcile_service(self, namespace: str, name: str) -> float | None:
        entry = self._services.latest(namespace, name)
        if entry is None:
            return None
        if self._is_outside(entry.shared()):
            if entry.key not in (API_SERVER, NAME_SERVER):
                await self._update(self._services.kind, entry.key, self._moved)
            return None
        address = _cluster_ip(entry.shared())
        if not address:
            return None
        body = _ip_address(address, namespace, name)
        found = self._addresses.latest("", address)
        if found is not None:
            if _has_content(found.shared(), body):
                return None
            # The spec of an IPAddress is immutable.
            await self._delete_address(address)
            if self._addresses.latest("", address) is not None:
                return _RETRY_DELAY
        await self.context.create(names.IP_ADDRESSES, "", body).committed()
        return None

    async def _reconcile_address(self, address: str) -> None:
        """Delete the IPAddress of a Service that does not have the address any more."""
        found = self._addresses.latest("", address)
        if found is None or found.deleting or not is_of_service(found.shared()):
            return
        parent = found.shared()["spec"]["parentRef"]
        service = None
        if (parent.get("group", ""), parent["resource"]) == ("", "services"):
            service = self._services.latest(parent.get("namespace", ""), parent["name"])
        if service is None or _cluster_ip(service.shared()) != address:
            await self._delete_address(address)

    async def _delete_address(self, address: str) -> None:
        request = internal_request(self._addresses.kind, ("", address))
        try:
            await self.context.deleter.delete(request, DeleteOptions()).committed()
        except StatusError as error:
            if error.reason != "NotFound":
                raise

    async def _update(self, kind: KindInfo, key: tuple[str, str], change: UpdateFunc) -> None:
        await self.context.update_unchecked(kind, key, change).committed()

    def _is_outside(self, service: Json) -> bool:
        address = _cluster_ip(service)
        return bool(address) and not is_in(self._cluster_ips, address)

    def _moved(self, service: Json) -> Json:
        if not self._is_outside(service):
            return service
        taken: set[str | None] = {
            _cluster_ip(each.shared()) for each in self._services.latest_entries()
        }
        taken |= reserved_addresses(each.shared() for each in self._addresses.latest_entries())
        address = free_address(taken, self._cluster_ips, random.Random())
        spec = {**service["spec"], "clusterIP": address, "clusterIPs": [address]}
        return {**service, "spec": spec}


def _cluster_ip(service: Json) -> str:
    """Return the address of a Service, empty if it has none."""
    address: str = (service.get("spec") or {}).get("clusterIP") or ""
    return "" if address == HEADLESS else address


def _ip_address(address: str, namespace: str, name: str) -> Json:
    parent = {"resource": names.SERVICES.plural, "namespace": namespace, "name": name}
    return {
        "metadata": {"name": address, "labels": dict(MANAGED_BY_SERVER)},
        "spec": {"parentRef": parent},
    }


def _has_content(ip_address: Json, desired: Json) -> bool:
    """Whether an IPAddress has the spec and at least the labels of another one."""
    labels = ip_address["metadata"].get("labels") or {}
    return bool(
        ip_address["spec"] == desired["spec"]
        and desired["metadata"]["labels"].items() <= labels.items()
    )


def _with_ready(service_cidr: Json) -> Json:
    """Return the ServiceCIDR with the condition Ready."""
    conditions = (service_cidr.get("status") or {}).get("conditions") or []
    if any(_READY.items() <= each.items() for each in conditions):
        return service_cidr
    others = [each for each in conditions if each["type"] != _READY["type"]]
    ready = {**_READY, "lastTransitionTime": now()}
    return {**service_cidr, "status": {"conditions": [*others, ready]}}
