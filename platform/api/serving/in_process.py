"""The REST API within the process of a command line: for clusters where none is installed.

It reads and writes with the credentials and rights of the user, and listens nowhere.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import sqlalchemy as sa

from ...httpserver.asgi import AsgiApp
from ...kube.client.client import Client
from ...kube.supervision import supervise
from ...machinery.clock import Clock
from ...store.commands import METADATA
from ...store.database import Database
from ..identity.own_rights import find_own_user
from .app import create_app
from .server import ApiSettings, InProcess, new_state

_STORE_TIMEOUT = 30.0
"""Seconds; the database has one user, and the disk of a busy machine may be slow."""


class _NewSchema:
    """Creates all tables in an empty database."""

    def upgrade(self, db: sa.Connection) -> None:
        METADATA.create_all(db)


@asynccontextmanager
async def application(
    client: Client, namespace: str, directory: Path, *, clock: Clock
) -> AsyncIterator[AsgiApp]:
    """Run the application for the user of *client* until the block ends, and yield it.

    Args:
        client: has the user's credentials.
        namespace: the only one that is read; empty for all.
        directory: where what lasts as long as the block is stored.
        clock: of the application.

    Raises:
        ApiError: the API server rejects the user.
        ConnectionLostError: it does not respond.
    """
    user = await find_own_user(client)
    with socket.socket() as unused:
        settings = ApiSettings(
            store_url=f"sqlite:///{directory / 'api.db'}",
            store_timeout=_STORE_TIMEOUT,
            listener=unused,
        )
    database = Database(settings.store_url, timeout=settings.store_timeout)
    in_process = InProcess(user=user, namespace=namespace)
    state = new_state(client, database, settings, clock, in_process)
    try:
        await database.migrate(_NewSchema())
        async with asyncio.TaskGroup() as tasks:
            ready = asyncio.Event()
            running = [
                tasks.create_task(supervise("caches", state.caches.run)),
                tasks.create_task(supervise("commands", lambda: state.outcomes.run(ready=ready))),
                tasks.create_task(supervise("streams", state.streams.run)),
            ]
            await state.caches.wait_synced()
            try:
                yield create_app(state)
            finally:
                state.streams.stop()
                state.waits.stop()
                for task in running:
                    task.cancel()
    finally:
        await database.close()
