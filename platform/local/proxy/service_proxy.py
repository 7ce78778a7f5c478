"""The service proxy: listens on the cluster IPs and node ports of all Services.

It runs in a separate process, so that the traffic of pods delays neither the node agent nor a
controller, and with the rights of kube-proxy: to read Services and EndpointSlices.
"""

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import assert_never

from ...kube.client.client import Client
from ...kube.informer.informer import Informer, KindSource
from ...machinery.clock import Clock
from ...machinery.datagram_relay import DatagramRelay, Sessions
from ...machinery.event_recorder import Recorder
from ...machinery.reconcile.controller import Controller, ControllerSettings, Sync
from ...machinery.reconcile.events import Event, Events, Notices
from ...machinery.relay import Address, Connections, Relay
from ...model.meta import ObjectMeta
from ...model.names import ENDPOINTSLICES, SERVICES
from ...model.service_network import HOST_RANGES, AddressRanges
from ..network.node_namespace import (
    bind_datagrams,
    bind_datagrams_on_machine,
    listen_on_machine,
)
from .backends import LOOPBACK, ListenAddress, by_address
from .dns.records import endpoint_addresses, service_addresses
from .service_rules import ServiceRules, Translation
from .types import EndpointSlice, Service

log = logging.getLogger(__name__)

RETRY_INTERVAL = 10.0
"""Seconds until an address that could not be listened on is tried again."""

_REASON = "ProxyCannotListen"


AnyRelay = Relay | DatagramRelay


@dataclass(frozen=True, slots=True)
class ProxyView:
    """What a Service needs, and what its relays have."""

    meta: ObjectMeta | None
    """None: the Service is deleted."""
    affinity_seconds: int
    wanted: Mapping[ListenAddress, tuple[Address, ...]]
    """Endpoints by listening address."""
    current: Mapping[ListenAddress, AnyRelay]


@dataclass(frozen=True, slots=True)
class Listen:
    """Listen on an address."""

    address: ListenAddress
    targets: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class Retarget:
    """Use other endpoints for new connections."""

    relay: AnyRelay
    targets: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class Close:
    """Listen on an address no more: clients are refused, as by a Service without endpoints."""

    address: ListenAddress


@dataclass(frozen=True, slots=True)
class ApplyRules:
    """Translate the connections of pods with network namespaces to the endpoints."""


Effect = Listen | Retarget | Close | ApplyRules


class ServiceProxy(Controller[ProxyView, Effect]):
    """Keeps the relays of each Service; the key is that of the Service."""

    def __init__(
        self,
        client: Client,
        *,
        clock: Clock | None = None,
        recorder: Recorder | None = None,
        ranges: AddressRanges = HOST_RANGES,
        rules: ServiceRules | None = None,
        listens: bool = True,
    ) -> None:
        """*recorder* records on a Service which of its ports cannot be listened on.

        *rules* are given if pods have network namespaces. Unless it *listens*, the proxy only
        watches Services, for a name server.
        """
        super().__init__("service-proxy", ControllerSettings(workers=1), clock=clock)
        self.services = Informer(
            client,
            SERVICES,
            Service,
            indexes={"namespace": _namespace, "address": service_addresses},
        )
        self.slices = Informer(
            client,
            ENDPOINTSLICES,
            EndpointSlice,
            indexes={"service": _service_keys, "address": endpoint_addresses},
        )
        self._ranges = ranges
        self._listens = listens
        self._rules = rules
        self._relays: dict[str, dict[ListenAddress, AnyRelay]] = {}
        self._changed = True
        """Whether the rules may have to change."""
        self._connections = Connections(self.clock)
        self._sessions = Sessions(self.clock)
        self._notices = Notices(Events(recorder, SERVICES))
        self.keep(self._notices)
        self.sources = [
            KindSource(self.slices, self._on_slice),
            KindSource(self.services, self._on_service),
        ]

    def _on_service(self, old: Service | None, new: Service | None) -> None:
        service = new or old
        if service is not None:
            self._changed = True
            self.queue.add(service.metadata.key)

    def _on_slice(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        for each in (old, new):
            if each is not None:
                self._changed = True
                for key in _service_keys(each):
                    self.queue.add(key)

    async def run(
        self, *, ready: asyncio.Event | None = None, elected: asyncio.Event | None = None
    ) -> None:
        """Serve until cancelled."""
        try:
            await super().run(ready=ready, elected=elected)
        finally:
            for relays in self._relays.values():
                for relay in relays.values():
                    await relay.abort()
            self._connections.abort()
            if self._rules is not None:
                self._rules.remove()

    async def observe(self, sync: Sync) -> ProxyView | None:
        """Return the addresses of a Service; None if it is deleted and has none left."""
        service, current = self.services.get(sync.key), self._relays.get(sync.key, {})
        if service is None:
            is_left = current or (self._rules is not None and self._changed)
            return ProxyView(None, 0, {}, current) if is_left else None
        wanted = self._endpoints(service)
        return ProxyView(service.metadata, service.spec.affinity_seconds, wanted, current)

    def decide(self, view: ProxyView) -> Iterator[Effect]:
        """Yield what to close, then what to change and to open.

        In between the rules: a pod whose connections they translate reaches no relay, which would
        connect to the endpoint with the address of the node.
        """
        for address in list(view.current):
            if address not in view.wanted:
                yield Close(address)
        yield ApplyRules()
        for address, targets in view.wanted.items():
            found = view.current.get(address)
            if found is None:
                yield Listen(address, targets)
            else:
                yield Retarget(found, targets)

    async def execute(self, sync: Sync, view: ProxyView, effect: Effect) -> None:
        """Change one relay."""
        match effect:
            case Close():
                view.current[effect.address].stop()
                self._drop(sync.key, effect.address)
                sync.again = view.meta is None  # then nothing is kept of the Service any more
            case Retarget():
                effect.relay.retarget(effect.targets, affinity_seconds=view.affinity_seconds)
            case Listen():
                await self._listen(sync, view, effect)
            case ApplyRules():
                await self._apply_rules()
            case _:
                assert_never(effect)

    async def _apply_rules(self) -> None:
        if self._rules is None or not self._changed:
            return
        self._changed = False
        translations = {
            address: Translation(targets, service.spec.affinity_seconds > 0)
            for service in self.services
            for address, targets in self._endpoints(service).items()
        }
        listening = (address for relays in self._relays.values() for address in relays)
        node_ports = {
            (each.protocol, each.port)
            for each in (*translations, *listening)
            if each.host == self._ranges.node_ip
        }
        try:
            await self._rules.apply(translations, node_ports)
        except BaseException:
            self._changed = True
            raise

    def _endpoints(self, service: Service) -> Mapping[ListenAddress, tuple[Address, ...]]:
        if not self._listens:
            return {}
        slices = list(self.slices.by_index("service", service.metadata.key))
        return by_address(service, slices, self._ranges)

    async def _listen(self, sync: Sync, view: ProxyView, effect: Listen) -> None:
        relay = self._relay(effect.address)
        relay.retarget(effect.targets, affinity_seconds=view.affinity_seconds)
        try:
            await relay.start()
        except OSError as error:
            sync.after(RETRY_INTERVAL)
            self._warn(sync.key, view, effect.address, error)
            return
        self._relays.setdefault(sync.key, {})[effect.address] = relay

    def _relay(self, listen: ListenAddress) -> AnyRelay:
        is_of_machine = listen.host == LOOPBACK
        if listen.protocol == "UDP":
            bind = bind_datagrams_on_machine if is_of_machine else bind_datagrams
            return DatagramRelay(listen.address, sessions=self._sessions, listen=bind)
        create = listen_on_machine if is_of_machine else socket.create_server
        return Relay(listen.address, connections=self._connections, listen=create)

    def _warn(self, key: str, view: ProxyView, address: ListenAddress, error: OSError) -> None:
        host, port, protocol = address
        why = error.strerror or str(error)
        if error.errno in (errno.EACCES, errno.EPERM):
            why += (
                ": only root may use this port; start the cluster as root, or lower the sysctl "
                "net.ipv4.ip_unprivileged_port_start"
            )
        elif error.errno == errno.EADDRINUSE:
            why = (
                f"{os.strerror(error.errno)}: another program listens on this port, perhaps that "
                "of a pod on all addresses: start the cluster with --pod-network=namespaces, or "
                "choose another port"
            )
        where = f"{host}:{port}/{protocol}"
        message = f"cannot listen on {where}: {why}"
        log.warning("cannot listen for service", extra={"service": key, "reason": message})
        if view.meta is not None:
            event = Event(_REASON, message, warning=True, about=where)
            self._notices.add(view.meta, event)

    def _drop(self, key: str, address: ListenAddress) -> None:
        relays = self._relays[key]
        del relays[address]
        if not relays:
            del self._relays[key]


def _namespace(service: Service) -> tuple[str]:
    return (service.metadata.namespace,)


def _service_keys(found: EndpointSlice) -> Iterator[str]:
    if found.service:
        yield f"{found.metadata.namespace}/{found.service}"
