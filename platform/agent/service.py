"""The agent as a whole: real or pretended nodes behind one door."""

import asyncio
from typing import Protocol

from ..kube.client.client import Client
from ..machinery.clock import Clock, SystemClock
from ..machinery.event_recorder import Recorder
from .real_node import RealNode
from .settings import AgentSettings, ShutdownRequest
from .simulated.simulator import Simulator


class _NodeRunner(Protocol):
    async def run(self, ready: asyncio.Event, stop: ShutdownRequest) -> None: ...


class Agent:
    """Runs the pods that are bound to its nodes."""

    def __init__(
        self,
        client: Client,
        *,
        settings: AgentSettings,
        clock: Clock | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        clock = clock or SystemClock()
        self._shutdown = ShutdownRequest()
        self._nodes: _NodeRunner
        if settings.simulation is not None:
            self._nodes = Simulator(
                client, settings=settings, simulation=settings.simulation, clock=clock
            )
        else:
            self._nodes = RealNode(client, settings=settings, clock=clock, recorder=recorder)

    def stop(self, *, stop_pods: bool = False) -> None:
        """Have `run` return; safe in a signal handler of the loop.

        With *end_pods* every container is ended first, with its pod's grace. Without, and when
        `run` is cancelled, they run on and the next agent takes them over.
        """
        self._shutdown.stop_pods = self._shutdown.stop_pods or stop_pods
        self._shutdown.requested.set()

    async def run(self, *, ready: asyncio.Event | None = None) -> None:
        """Register the nodes and run their pods until `stop`; *ready* is set when pods are taken.

        Raises:
            ApiError: the server refused to register a node.
            OSError: the log server's port is taken, or its files cannot be read.
        """
        await self._nodes.run(ready or asyncio.Event(), self._shutdown)
