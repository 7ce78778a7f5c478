"""The agent: a real node, or simulated nodes."""

import asyncio
from typing import Protocol

from ...kube.client.client import Client
from ...machinery.clock import Clock, SystemClock
from ...machinery.event_recorder import Recorder
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
        extensions: Client | None = None,
    ) -> None:
        """*extensions* may read what a kubelet may not: claims, policies; default: *client*."""
        clock = clock or SystemClock()
        self._shutdown = ShutdownRequest()
        self._nodes: _NodeRunner
        if settings.simulation is not None:
            self._nodes = Simulator(
                client, settings=settings, simulation=settings.simulation, clock=clock
            )
        else:
            self._nodes = RealNode(
                client, settings=settings, clock=clock, recorder=recorder, extensions=extensions
            )

    def stop(self, *, stop_pods: bool = False) -> None:
        """Request that `run` return; safe in a signal handler of the loop.

        *stop_pods* stops every container first, with its pod's grace period. Otherwise, and when
        `run` is cancelled, containers keep running and the next agent adopts them.
        """
        self._shutdown.stop_pods = self._shutdown.stop_pods or stop_pods
        self._shutdown.requested.set()

    async def run(self, *, ready: asyncio.Event | None = None) -> None:
        """Register the nodes and run their pods until `stop`; set *ready* after synchronisation.

        Raises:
            ApiError: the API server rejected the registration of a node.
            OSError: the files of the log server cannot be read.
        """
        await self._nodes.run(ready or asyncio.Event(), self._shutdown)
