"""Moves Services to the current range of cluster IPs.

The range depends on the network of pods, which may change between two starts of a cluster.
"""

from ipaddress import IPv4Network

from ....model import names
from ....model.service_network import HEADLESS, is_in
from ..http.requests import Json
from ..storage.resource_store import ResourceStore
from ..storage.stored_objects import WatchEvent
from ..verbs.service_addresses import API_SERVER, free_address
from .base import Controller, ControllerContext


class ServiceAddressController(Controller):
    """Gives Services that were created in another range a new address; keys are theirs."""

    name = "service-addresses"

    def __init__(self, context: ControllerContext, cluster_ips: IPv4Network) -> None:
        super().__init__(context)
        self._cluster_ips = cluster_ips
        self._services = context.resource_store(names.SERVICES)

    def on_event(self, resource_store: ResourceStore, event: WatchEvent) -> None:
        """No write creates such a Service."""

    def enqueue_all(self) -> None:
        """Enqueue all Services."""
        for entry in self._services.latest_entries():
            self.queue.add("/".join(entry.key))

    async def reconcile(self, key: str) -> float | None:
        """Change the address of one Service, if it is not in the range."""
        namespace, _, name = key.partition("/")
        entry = self._services.latest(namespace, name)
        if entry is None or entry.key == API_SERVER or not self._is_outside(entry.shared()):
            return None
        kind = self._services.kind
        await self.context.update_unchecked(kind, entry.key, self._moved).committed()
        return None

    def _is_outside(self, service: Json) -> bool:
        address = (service.get("spec") or {}).get("clusterIP") or HEADLESS
        return address != HEADLESS and not is_in(self._cluster_ips, address)

    def _moved(self, service: Json) -> Json:
        if not self._is_outside(service):
            return service
        others = (each.shared() for each in self._services.latest_entries())
        taken = {(each.get("spec") or {}).get("clusterIP") for each in others}
        address = free_address(taken, self._cluster_ips)
        spec = {**service["spec"], "clusterIP": address, "clusterIPs": [address]}
        return {**service, "spec": spec}
