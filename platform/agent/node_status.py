"""The nodes that the agent stands for: registering them, and saying that they live.

A Lease in ``kube-node-lease`` is renewed often, the Node's status seldom. Pretended nodes share
one round of renewals, spread over its time.
"""

import asyncio
import logging
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ..kube.client.client import Client, PatchKind
from ..kube.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    ConnectionLostError,
    ForbiddenError,
    NotFoundError,
)
from ..machinery.clock import Clock
from ..model import times
from ..model.names import LEASES, NAMESPACES, NODES
from .state.core_types import Node

log = logging.getLogger(__name__)

NOT_READY = "node.kubernetes.io/not-ready"
LEASE_NAMESPACE = "kube-node-lease"
STATUS_EVERY = 300.0
"""Seconds between reports of a node's unchanged status."""

_IN_FLIGHT = 32
_HEALTHY = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What a node says of itself."""

    name: str
    cpus: int
    memory: str
    pods: int
    runtime: str
    """Name of what runs the containers, such as ``unshare`` or ``simulated``."""

    labels: Mapping[str, str] = field(default_factory=dict)
    address: str = "127.0.0.1"
    log_port: int = 0
    """Port of the log server, 0 for none."""

    @property
    def capacity(self) -> dict[str, str]:
        """Capacity, all of it allocatable."""
        return {
            "cpu": str(self.cpus),
            "memory": self.memory,
            "pods": str(self.pods),
            "ephemeral-storage": "100Gi",
        }


def machine_memory() -> str:
    """The machine's memory as a quantity."""
    return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') // 1024}Ki"


def node_object(facts: NodeFacts) -> dict[str, Any]:
    """The Node to create, without status."""
    labels = {
        "kubernetes.io/hostname": facts.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": _architecture(),
        "batholith.io/runtime": facts.runtime,
        **facts.labels,
    }
    return {"metadata": {"name": facts.name, "labels": labels}}


def node_status(facts: NodeFacts, *, now: datetime, since: datetime) -> dict[str, Any]:
    """The status of a healthy node; *since* is when it came up."""
    conditions = [
        {
            "type": kind,
            "status": value,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": times.format(now),
            "lastTransitionTime": times.format(since),
        }
        for kind, value, reason, message in _HEALTHY
    ]
    return {
        "capacity": facts.capacity,
        "allocatable": facts.capacity,
        "conditions": conditions,
        "addresses": [
            {"type": "InternalIP", "address": facts.address},
            {"type": "Hostname", "address": facts.name},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": facts.log_port}},
        "nodeInfo": _node_info(facts),
    }


def _node_info(facts: NodeFacts) -> dict[str, str]:
    own = _own_version()
    return {
        "machineID": facts.name,
        "systemUUID": facts.name,
        "bootID": facts.name,
        "kernelVersion": platform.release(),
        "osImage": "Linux",
        "containerRuntimeVersion": f"{facts.runtime}://{own}",
        "kubeletVersion": f"v{own}",
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


class NodeKeeper:
    """Registers nodes and keeps them alive."""

    def __init__(self, client: Client, nodes: Sequence[NodeFacts], *, clock: Clock) -> None:
        self._client = client
        self._nodes = nodes
        self._clock = clock
        self._since = clock.now()
        # A thousand pretended nodes need not all speak every ten seconds.
        self._lease_seconds = 40 if len(nodes) == 1 else 200

    async def register(self) -> None:
        """Create or update every node and its lease.

        Raises:
            ApiError, ConnectionLostError: the server refused or could not be reached.
        """
        await self._ensure_lease_namespace()
        turn = asyncio.Semaphore(_IN_FLIGHT)

        async def one(facts: NodeFacts) -> None:
            async with turn:
                await self._register(facts)

        results = await asyncio.gather(*map(one, self._nodes), return_exceptions=True)
        for failed in filter(None, results):
            raise failed

    async def _ensure_lease_namespace(self) -> None:
        try:
            await self._client.create(NAMESPACES, {"metadata": {"name": LEASE_NAMESPACE}})
        except (AlreadyExistsError, ForbiddenError):
            return  # a real cluster brings it, and lets nodes make none

    async def _register(self, facts: NodeFacts) -> None:
        node = node_object(facts)
        try:
            made = await self._client.create(NODES, node, view=Node)
        except AlreadyExistsError:
            made = await self._client.patch(NODES, facts.name, node, view=Node)
        await self._report(facts)
        await self._let_pods_come(facts.name)
        await self._make_lease(facts.name, owner=made.metadata.uid)

    async def _let_pods_come(self, name: str) -> None:
        """Take off the taint that a new node has; controllers that do so may forbid us to."""
        while True:
            node = await self._client.get(NODES, name, view=Node)
            kept = [taint for taint in node.spec.taints if taint.key != NOT_READY]
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

    async def _report(self, facts: NodeFacts) -> None:
        status = node_status(facts, now=self._clock.now(), since=self._since)
        body = {"status": status}
        kind = PatchKind.STRATEGIC
        await self._client.patch(NODES, facts.name, body, subresource="status", kind=kind)

    async def _make_lease(self, name: str, *, owner: str) -> None:
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

    async def keep_alive(self) -> None:
        """Renew leases and repeat the status, until cancelled; failures are logged and passed."""
        period = self._lease_seconds / 4
        reported = self._clock.monotonic()
        while True:
            start = self._clock.monotonic()
            due = start - reported >= STATUS_EVERY
            reported = start if due else reported
            for number, facts in enumerate(self._nodes, 1):
                await self._beat(facts, report=due)
                ahead = start + period * number / len(self._nodes) - self._clock.monotonic()
                if number % _IN_FLIGHT == 0 or number == len(self._nodes):
                    await self._clock.sleep(max(ahead, 0.0))

    async def _beat(self, facts: NodeFacts, *, report: bool) -> None:
        renewed = {"spec": {"renewTime": times.format_micros(self._clock.now())}}
        try:
            await self._client.patch(LEASES, facts.name, renewed, namespace=LEASE_NAMESPACE)
            if report:
                await self._report(facts)
        except NotFoundError:
            await self._again(facts)
        except (ApiError, ConnectionLostError) as error:
            log.warning("a heartbeat failed", extra={"node": facts.name, "error": str(error)})

    async def _again(self, facts: NodeFacts) -> None:
        """Somebody deleted the node or its lease: both come back."""
        try:
            await self._register(facts)
        except (ApiError, ConnectionLostError) as error:
            log.warning("a node is missing", extra={"node": facts.name, "error": str(error)})
