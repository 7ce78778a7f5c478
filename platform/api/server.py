"""The process ``batholith api``: the application on uvicorn, and the task that follows Commands."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field

import uvicorn

from ..httpserver.figures import ListenerFigures
from ..httpserver.limits import Limits
from ..kube.client import Client
from ..store.commands import CommandStore
from ..store.database import Database
from ..store.migrations import MIGRATIONS
from .app import Parts, create_app
from .auth import Gate, Monotonic
from .commands import Commands
from .listening import LimitedServer

DRAIN_SECONDS = 5
"""How long a stop waits for answers that are under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """Where the REST API listens and keeps its history."""

    store_url: str
    """An SQLAlchemy URL; each replica of one installation takes the same."""

    listener: socket.socket
    """A bound socket; its owner chose the address (loopback unless asked)."""

    limits: Limits = field(default_factory=Limits)
    """What clients may take of the listener."""

    listeners: ListenerFigures = field(default_factory=ListenerFigures)
    """Counts what is refused."""


class _Server(LimitedServer):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # The process stops by cancelling its tasks; a server that takes the signals hides them.
        yield


async def serve(
    client: Client,
    settings: ApiSettings,
    *,
    clock: Monotonic,
    ready: asyncio.Event | None = None,
) -> None:
    """Serve until cancelled; *ready* is set when requests are answered and Commands followed.

    Raises:
        StoreError: the store cannot be used, or was written by a newer version.
    """
    database = Database(settings.store_url)
    try:
        await database.migrate(MIGRATIONS)
        store = CommandStore(database)
        commands = Commands(client, store)
        parts = Parts(client=client, gate=Gate(client, clock=clock), commands=commands, store=store)
        config = uvicorn.Config(
            create_app(parts),
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=DRAIN_SECONDS,
        )
        server = _Server(config, limits=settings.limits, figures=settings.listeners)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(commands.run(ready=ready))
            serving = asyncio.create_task(server.serve(sockets=[settings.listener]))
            try:
                await asyncio.shield(serving)
            finally:
                # Answers under way are finished before the listener goes.
                server.should_exit = True
                await serving
    finally:
        await database.close()
