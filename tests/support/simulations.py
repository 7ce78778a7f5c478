"""A server of simulations, as the leading scheduler has one."""

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from support.polling import wait_until_true

from batholith.kube.client.client import Client
from batholith.kube.errors import NotFoundError
from batholith.machinery.clock import SystemClock
from batholith.model.job import Job
from batholith.model.names import SECRETS
from batholith.model.scheduler_questions import Reservations, WaitDetails, WaitRequest
from batholith.model.simulation import ENDPOINT, NodePods, SimulationResult
from batholith.scheduler.simulation.server import SimulationAddress, SimulationServer

NAMESPACE = "volcano-system"
STARTS = SimulationResult(starts_now=True, nodes=(NodePods("a", 2), NodePods("b", 1)))
Simulate = Callable[[Job], Awaitable[SimulationResult]]
ExplainWait = Callable[[WaitRequest], Awaitable[WaitDetails | None]]


NOTHING_RESERVED = Reservations()


async def start_now(_: Job) -> SimulationResult:
    return STARTS


async def nothing_waits(_: WaitRequest) -> WaitDetails | None:
    return None


@dataclass
class Responses:
    """What a scheduler responds."""

    simulated: Simulate
    explained: ExplainWait
    reserved: Reservations

    async def simulate(self, job: Job) -> SimulationResult:
        return await self.simulated(job)

    async def explain_wait(self, request: WaitRequest) -> WaitDetails | None:
        return await self.explained(request)

    async def list_reservations(self) -> Reservations:
        return self.reserved


async def published(client: Client) -> dict[str, str]:
    """What the Secret contains, which the cluster creates empty."""
    try:
        found = await client.get(SECRETS, ENDPOINT, namespace=NAMESPACE, view=dict[str, Any])
    except NotFoundError:
        return {}
    return {key: b64decode(value).decode() for key, value in found.get("data", {}).items()}


@asynccontextmanager
async def leading(
    client: Client,
    simulate: Simulate = start_now,
    *,
    explain_wait: ExplainWait = nothing_waits,
    reservations: Reservations = NOTHING_RESERVED,
) -> AsyncIterator[dict[str, str]]:
    """Serve simulations, and what a scheduler knows; yield what is published."""
    before = await published(client)
    address = SimulationAddress(host="127.0.0.1", port=0, namespace=NAMESPACE)
    handler = Responses(simulate, explain_wait, reservations)
    server = SimulationServer(handler, client, SystemClock(), address)
    running = asyncio.create_task(server.run())

    async def is_published() -> bool:
        assert not running.done(), running.result()
        return await published(client) != before

    try:
        await wait_until_true(is_published)
        yield await published(client)
    finally:
        running.cancel()
        await asyncio.wait((running,))
