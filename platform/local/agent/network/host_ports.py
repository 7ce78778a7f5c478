"""Host ports of pods that have a network namespace: relays from the machine to the pod."""

import asyncio
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ....kube.supervision import cancel_and_wait
from ....machinery.clock import Clock
from ....machinery.datagram_relay import DatagramRelay, Sessions
from ....machinery.relay import Address, Connections, Relay
from ...network.node_namespace import bind_datagrams_on_machine, listen_on_machine
from ..state.core_types import Pod

RETRY_INTERVAL = 10.0
"""Seconds until a port that could not be listened on is tried again."""

HOST_PORT_PROTOCOLS = ("TCP", "UDP")
"""Protocols of the host ports that lead to pods."""

_ANY = "0.0.0.0"
RecordEvent = Callable[[Pod, str, str], None]
"""Records a warning about a pod, with its reason and message."""


class HostPort(NamedTuple):
    """A port of the machine, and where it leads."""

    address: Address
    target: Address
    protocol: str


class HostPorts:
    """Listens on the host ports of pods."""

    def __init__(self, clock: Clock, record_event: RecordEvent) -> None:
        self._clock = clock
        self._record_event = record_event
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}
        self._connections = Connections(clock)
        self._sessions = Sessions(clock)

    def open(self, pod: Pod, ip: str) -> None:
        """Connect the host ports of *pod* to those at its address until `close`."""
        uid = pod.metadata.uid
        if uid not in self._tasks and (ports := list(host_ports(pod, ip))):
            self._tasks[uid] = [asyncio.ensure_future(self._serve(pod, port)) for port in ports]

    async def close(self, uid: str) -> None:
        """Listen no more for a pod; connections end with it."""
        tasks = self._tasks.pop(uid, [])
        await cancel_and_wait(*tasks)

    async def close_all(self) -> None:
        """Listen for no pod, and end all connections."""
        for uid in list(self._tasks):
            await self.close(uid)
        self._connections.abort()

    async def _serve(self, pod: Pod, port: HostPort) -> None:
        """Relay connections until cancelled; an address that is in use is tried again."""
        if port.protocol not in HOST_PORT_PROTOCOLS:
            self._warn(pod, port, f"the protocol {port.protocol} is not supported")
            return
        relay = self._relay(port)
        relay.retarget((port.target,))
        warned = False
        try:
            while True:
                try:
                    await relay.start()
                    break
                except OSError as error:
                    if not warned:
                        self._warn(pod, port, error.strerror or str(error))
                    warned = True
                await self._clock.sleep(RETRY_INTERVAL)
            await asyncio.get_running_loop().create_future()
        finally:
            await relay.abort()

    def _relay(self, port: HostPort) -> Relay | DatagramRelay:
        if port.protocol == "UDP":
            return DatagramRelay(
                port.address, sessions=self._sessions, listen=bind_datagrams_on_machine
            )
        return Relay(port.address, connections=self._connections, listen=listen_on_machine)

    def _warn(self, pod: Pod, port: HostPort, reason: str) -> None:
        host, number = port.address
        self._record_event(pod, "HostPortUnavailable", f"host port {number} of {host}: {reason}")


def host_ports(pod: Pod, ip: str) -> Iterator[HostPort]:
    """Yield the host ports of a pod with this address."""
    for container in pod.containers.values():
        for port in container.ports:
            if port.host_port:
                address = port.host_ip or _ANY, port.host_port
                yield HostPort(address, (ip, port.container_port), port.protocol)
