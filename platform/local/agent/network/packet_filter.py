"""Keeps the rules of the pods' network as the NetworkPolicies and the pods of this node are."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

from ....kube.client.client import Client
from ....kube.informer.informer import Informer
from ....machinery.clock import Clock
from ....model.names import NAMESPACES, NETWORKPOLICIES
from ...network.packet_rules import remove_datagram_flows
from ..state.core_types import MetadataOnly, Pod
from .host_ports import host_ports
from .namespaces import NamespaceNetwork
from .pod_rules import NO_RULES, PodRules
from .policies import FilteredPod, isolate, name_server
from .policy_types import NetworkPolicy

log = logging.getLogger(__name__)

RETRY_INTERVAL = 5.0
"""Seconds until rules that could not be applied are tried again."""


class RunningPods(Protocol):
    """The pods of the node."""

    def pods_with_address(self) -> list[tuple[Pod, str]]:
        """Return those that have a network namespace, with their addresses."""
        ...


class PacketFilter:
    """Writes the rules whenever they change."""

    def __init__(
        self,
        client: Client,
        network: NamespaceNetwork,
        node: Callable[[], RunningPods | None],
        *,
        clock: Clock,
    ) -> None:
        """*client* may read namespaces and NetworkPolicies; *node* returns ``None`` at first."""
        self._network = network
        self._node = node
        self._clock = clock
        self._servers = [name_server(network.dns_ip)] if network.dns_ip else []
        self._policies = Informer(client, NETWORKPOLICIES, NetworkPolicy)
        self._namespaces = Informer(client, NAMESPACES, MetadataOnly)
        self.caches: list[Informer[Any]] = [self._policies, self._namespaces]
        """The informers, which have to be synced before the rules are applied."""
        for cache in self.caches:
            cache.add_event_handler(lambda old, new: self.mark_changed())
        self._changed = asyncio.Event()
        self._changes = 1
        self._applied_changes = 0
        self._applied: PodRules | None = None
        self._lock = asyncio.Lock()

    def mark_changed(self) -> None:
        """Apply the rules soon, because something has changed that they may depend on."""
        self._changes += 1
        self._changed.set()

    async def run(self) -> None:
        """Apply changed rules until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self.apply()
            except OSError as error:
                log.warning("cannot apply network policies", extra={"error": str(error)})
                await self._clock.sleep(RETRY_INTERVAL)
                self._changed.set()

    async def apply(self) -> None:
        """Apply the rules for all that is known now.

        Raises:
            OSError: that is not possible; the earlier rules apply.
        """
        wanted = self._changes
        async with self._lock:
            if self._applied_changes >= wanted:
                return  # another call has done it while this one waited
            changes, rules = self._changes, self._rules()
            if rules != self._applied:
                await asyncio.to_thread(self._network.apply, rules)
            before = _datagram_targets(self._applied) if self._applied else set()
            for ip in sorted(before - _datagram_targets(rules)):
                await asyncio.to_thread(remove_datagram_flows, ip)
            self._applied, self._applied_changes = rules, changes

    def _rules(self) -> PodRules:
        node = self._node()
        pods = node.pods_with_address() if node is not None else []
        ports = tuple(port for pod, ip in pods for port in host_ports(pod, ip))
        if not len(self._policies):
            return PodRules(NO_RULES.isolated, ports)
        filtered = [_filtered(pod, ip) for pod, ip in pods]
        namespaces = {each.metadata.name: each.metadata.labels for each in self._namespaces}
        return PodRules(isolate(filtered, namespaces, self._policies, self._servers), ports)


def _datagram_targets(rules: PodRules) -> set[str]:
    """Return the addresses of the pods that have host ports of UDP."""
    return {port.target[0] for port in rules.host_ports if port.protocol == "UDP"}


def _filtered(pod: Pod, ip: str) -> FilteredPod:
    meta = pod.metadata
    ports = {
        (port.protocol, port.name): port.container_port
        for container in reversed(pod.containers.values())
        for port in container.ports
        if port.name
    }
    return FilteredPod(meta.namespace, ip, meta.labels, ports)
