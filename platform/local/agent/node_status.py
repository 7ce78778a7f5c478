"""Registration and heartbeats of nodes.

A Lease in ``kube-node-lease`` is renewed often, the Node's status rarely, and at once when another
client has changed its Ready condition: the node lifecycle controller does if renewals were missing.
The renewals of simulated nodes are spread over the renewal period.
"""

import asyncio
import logging
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ...kube.client.client import Client, PatchType
from ...kube.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    ConnectionLostError,
    ForbiddenError,
    NotFoundError,
    ServerError,
)
from ...kube.informer.informer import Informer
from ...kube.supervision import supervise
from ...machinery.clock import Clock
from ...model import times
from ...model.names import LEASES, NODES
from .state.core_types import Node

log = logging.getLogger(__name__)

NOT_READY_TAINT = "node.kubernetes.io/not-ready"
LEASE_NAMESPACE = "kube-node-lease"
STATUS_INTERVAL = 300.0
"""Seconds between writes of a node's unchanged status."""

_MAX_IN_FLIGHT = 32
DeviceCounts = tuple[Mapping[str, str], Mapping[str, str]]
"""Capacity and allocatable of extended resources."""

_HEALTHY_CONDITIONS = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """Name, capacity and addresses of a node."""

    name: str
    cpus: int
    memory: str
    pods: int
    runtime: str
    """Name of the container runtime, such as ``unshare`` or ``simulated``."""

    labels: Mapping[str, str] = field(default_factory=dict)
    address: str = "127.0.0.1"
    log_port: int = 0
    """Port of the log server, 0 for none."""

    images: Callable[[], Sequence[Mapping[str, Any]]] | None = None
    """Returns the entries of ``status.images``, if the agent reports them."""

    devices: Callable[[], DeviceCounts] | None = None
    """Returns how many devices there are, and how many of them work, if there can be any."""

    @property
    def image_status(self) -> dict[str, Any]:
        """The images as they are in the status."""
        return {} if self.images is None else {"images": self.images()}

    @property
    def capacity(self) -> dict[str, str]:
        """Capacity, with all devices."""
        return {**self._capacity, **(self.devices()[0] if self.devices else {})}

    @property
    def allocatable(self) -> dict[str, str]:
        """The capacity but for devices that do not work."""
        return {**self._capacity, **(self.devices()[1] if self.devices else {})}

    @property
    def _capacity(self) -> dict[str, str]:
        return {
            "cpu": str(self.cpus),
            "memory": self.memory,
            "pods": str(self.pods),
            "ephemeral-storage": "100Gi",
        }

    @property
    def changing_status(self) -> dict[str, Any]:
        """What of the status changes while the agent runs."""
        amounts = {"capacity": self.capacity, "allocatable": self.allocatable}
        return {**self.image_status, **(amounts if self.devices else {})}


def machine_memory() -> str:
    """Return the machine's memory as a quantity."""
    return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') // 1024}Ki"


def node_object(config: NodeConfig) -> dict[str, Any]:
    """Return the Node to create, without status."""
    labels = {
        "kubernetes.io/hostname": config.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": _architecture(),
        "batholith.io/runtime": config.runtime,
        **config.labels,
    }
    return {"metadata": {"name": config.name, "labels": labels}}


def node_status(config: NodeConfig, *, now: datetime, started_at: datetime) -> dict[str, Any]:
    """Return the status of a node that has been healthy since *started_at*."""
    conditions = [
        {
            "type": kind,
            "status": value,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": times.format(now),
            "lastTransitionTime": times.format(started_at),
        }
        for kind, value, reason, message in _HEALTHY_CONDITIONS
    ]
    return {
        "capacity": config.capacity,
        "allocatable": config.allocatable,
        "conditions": conditions,
        "addresses": [
            {"type": "InternalIP", "address": config.address},
            {"type": "Hostname", "address": config.name},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": config.log_port}},
        "nodeInfo": _node_info(config),
        **config.image_status,
    }


def _node_info(config: NodeConfig) -> dict[str, str]:
    own_version = _own_version()
    return {
        "machineID": config.name,
        "systemUUID": config.name,
        "bootID": config.name,
        "kernelVersion": platform.release(),
        "osImage": "Linux",
        "containerRuntimeVersion": f"{config.runtime}://{own_version}",
        "kubeletVersion": f"v{own_version}",
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": _architecture(),
    }


def _architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def _own_version() -> str:
    try:
        return version("batholith")
    except PackageNotFoundError:
        return "0.0.0"


class NodeStatusManager:
    """Registers nodes, and renews their leases and statuses."""

    def __init__(
        self,
        client: Client,
        nodes: Sequence[NodeConfig],
        *,
        clock: Clock,
        on_stop: Callable[[str, bool], None] | None = None,
        lease_seconds: int = 0,
    ) -> None:
        """Manage *nodes*, whose Leases have a duration of *lease_seconds*.

        If *on_stop* is given, an annotation stops a node (:attr:`Node.is_stopped`): it is called
        with the node's name and whether it is stopped now.
        """
        self._client = client
        self._nodes = nodes
        self._clock = clock
        self._on_stop = on_stop
        self._started_at = clock.now()
        # Limits the request rate of a thousand simulated nodes.
        self._lease_seconds = lease_seconds or (40 if len(nodes) == 1 else 200)
        self._configs = {config.name: config for config in nodes}
        self._stopped: set[str] = set()
        self._unregistered: set[str] = set()
        self._unready: dict[str, None] = {}
        self._reported: dict[str, dict[str, Any]] = {}
        self._has_unready = asyncio.Event()
        selector = f"metadata.name={nodes[0].name}" if len(nodes) == 1 else ""
        self._informer = Informer(client, NODES, Node, field_selector=selector)
        self._informer.add_event_handler(self._on_node_event)

    async def register(self) -> None:
        """Create or update every node and its lease.

        On a full disk the API server writes deletions only. Pods of an existing node can be deleted
        nevertheless, so its registration is then left to the heartbeats.

        Raises:
            ApiError, ConnectionLostError: a request failed.
        """
        slots = asyncio.Semaphore(_MAX_IN_FLIGHT)

        async def register_one(config: NodeConfig) -> None:
            async with slots:
                try:
                    await self._register(config)
                except ServerError as error:
                    if error.status != HTTPStatus.INSUFFICIENT_STORAGE or not await self._exists(
                        config.name
                    ):
                        raise
                    log.warning("cannot update node, retrying", extra={"error": str(error)})
                    self._unregistered.add(config.name)

        results = await asyncio.gather(*map(register_one, self._nodes), return_exceptions=True)
        for failed in filter(None, results):
            raise failed

    async def _exists(self, name: str) -> bool:
        try:
            await self._client.get(NODES, name, view=Node)
        except NotFoundError:
            return False
        return True

    async def _register(self, config: NodeConfig) -> None:
        node = node_object(config)
        try:
            created = await self._client.create(NODES, node, view=Node)
        except AlreadyExistsError:
            created = await self._client.patch(NODES, config.name, node, view=Node)
        if self._on_stop is not None and created.is_stopped:
            return
        await self._update_status(config)
        await self._remove_not_ready_taint(config.name)
        await self._create_lease(config.name, owner=created.metadata.uid)
        self._unregistered.discard(config.name)

    async def _remove_not_ready_taint(self, name: str) -> None:
        """Remove the taint of a new node, unless the agent may not."""
        while True:
            node = await self._client.get(NODES, name, view=Node)
            kept = [taint for taint in node.spec.taints if taint.key != NOT_READY_TAINT]
            if len(kept) == len(node.spec.taints):
                return
            version = {"resourceVersion": node.metadata.resource_version}
            body = {"metadata": version, "spec": {"taints": kept or None}}
            try:
                await self._client.patch(NODES, name, body)
            except ConflictError:
                continue
            except ForbiddenError:
                return

    async def _update_status(self, config: NodeConfig) -> None:
        reported = config.changing_status
        status = node_status(config, now=self._clock.now(), started_at=self._started_at)
        body = {"status": status}
        kind = PatchType.STRATEGIC
        await self._client.patch(NODES, config.name, body, subresource="status", kind=kind)
        self._reported[config.name] = reported

    async def _create_lease(self, name: str, *, owner: str) -> None:
        reference = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": owner}
        lease = {
            "metadata": {"name": name, "ownerReferences": [reference]},
            "spec": {
                "holderIdentity": name,
                "leaseDurationSeconds": self._lease_seconds,
                "renewTime": times.format_micros(self._clock.now()),
            },
        }
        try:
            await self._client.create(LEASES, lease, namespace=LEASE_NAMESPACE)
        except AlreadyExistsError:
            await self._client.patch(LEASES, name, lease, namespace=LEASE_NAMESPACE)
        except NotFoundError:  # a new API server has not created the namespace yet
            log.info("cannot create node lease, retrying with the heartbeat", extra={"node": name})

    async def run(self) -> None:
        """Renew leases and statuses, until cancelled; errors are logged."""
        timing = self._client.timing
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._informer.run())
            # A group does not notice a task that ends as if it had been cancelled.
            for work in (self._report_unready, self._send_heartbeats):
                tasks.create_task(supervise("node heartbeat", work, timing=timing))

    def write_soon(self, name: str) -> None:
        """Write the status of a node, of which something has changed, without a delay."""
        self._unready[name] = None
        self._has_unready.set()

    def _on_node_event(self, old: Node | None, new: Node | None) -> None:
        if new is None or new.metadata.name not in self._configs:
            return  # a deleted node that is stopped does not register again
        name = new.metadata.name
        stopped = self._on_stop is not None and new.is_stopped
        if self._on_stop is not None and stopped != (name in self._stopped):
            (self._stopped.add if stopped else self._stopped.discard)(name)
            self._on_stop(name, stopped)
        if not stopped and not new.is_reported_ready:
            self.write_soon(name)

    async def _report_unready(self) -> None:
        """Write the status of nodes that are not reported as ready."""
        while True:
            await self._has_unready.wait()
            self._has_unready.clear()
            while self._unready:
                name = next(iter(self._unready))
                del self._unready[name]
                if name not in self._stopped:
                    await self._heartbeat(self._configs[name], update_status=True)

    async def _send_heartbeats(self) -> None:
        period = self._lease_seconds / 4
        reported = self._clock.monotonic()
        while True:
            start = self._clock.monotonic()
            due = start - reported >= STATUS_INTERVAL
            reported = start if due else reported
            for number, config in enumerate(self._nodes, 1):
                if config.name not in self._stopped:
                    changed = config.changing_status != self._reported.get(config.name, {})
                    await self._heartbeat(config, update_status=due or changed)
                delay = start + period * number / len(self._nodes) - self._clock.monotonic()
                if number % _MAX_IN_FLIGHT == 0 or number == len(self._nodes):
                    await self._clock.sleep(max(delay, 0.0))

    async def _heartbeat(self, config: NodeConfig, *, update_status: bool) -> None:
        if config.name in self._unregistered:
            await self._reregister(config)
            return
        renewed = {"spec": {"renewTime": times.format_micros(self._clock.now())}}
        try:
            await self._client.patch(LEASES, config.name, renewed, namespace=LEASE_NAMESPACE)
            if update_status:
                await self._update_status(config)
        except NotFoundError:
            await self._reregister(config)
        except (ApiError, ConnectionLostError) as error:
            log.warning("cannot renew node lease", extra={"node": config.name, "error": str(error)})

    async def _reregister(self, config: NodeConfig) -> None:
        """Register a node that was deleted, or whose Lease was, or that could not be updated."""
        try:
            await self._register(config)
        except (ApiError, ConnectionLostError) as error:
            log.warning("cannot register node", extra={"node": config.name, "error": str(error)})
