"""Transactions of the recorder while few or many changes arrive."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import cast

import msgspec
from pytest import mark
from support.history_world import JOBS, RECORDED, REGISTERED

from batholith.api.history.stream import BUSY_BATCH, RecordedStream
from batholith.kube.client.client import Client
from batholith.kube.client.codec import ListScope, ObjectList
from batholith.machinery.testing import FakeClock
from batholith.store.recording import Batch, Position, Recording
from batholith.store.records import to_micros

pytestmark = mark.asyncio


class _Watch:
    """A client whose only watch returns all lines that have arrived since the last read."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._arrived = asyncio.Event()
        self._version = 1

    def add_jobs(self, count: int) -> None:
        for _ in range(count):
            self._version += 1
            meta = {"uid": f"u{self._version}", "resourceVersion": str(self._version)}
            job = {"metadata": meta, "spec": {}, "status": {}}
            self._lines.append(json.dumps({"type": "ADDED", "object": job}).encode())
        self._arrived.set()

    async def list_pages(
        self, scope: ListScope, *, size: int
    ) -> AsyncIterator[ObjectList[msgspec.Raw]]:
        yield ObjectList([], str(self._version))

    @asynccontextmanager
    async def watch_lines(
        self, path: str, *, buffer_limit: int
    ) -> AsyncIterator[AsyncIterator[Sequence[bytes]]]:
        yield self._batches()

    async def _batches(self) -> AsyncIterator[Sequence[bytes]]:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            lines, self._lines = self._lines, []
            yield lines


class _Transactions:
    """A recording that notes when how many records were written."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.written: list[tuple[float, int]] = []

    async def position(self, resource: str) -> Position:
        return Position("1", to_micros(self._clock.now()))

    async def write(self, batch: Batch) -> None:
        self.written.append((round(self._clock.monotonic(), 1), len(batch.records)))


async def test_many_changes_are_written_once_a_second_and_few_sooner() -> None:
    clock, watch = FakeClock(), _Watch()
    transactions = _Transactions(clock)
    stream = RecordedStream(
        cast(Client, watch),
        RECORDED[JOBS],
        cast(Recording, transactions),
        clock=clock,
        metrics=REGISTERED,
    )
    running = asyncio.create_task(stream.run())
    for _ in range(20):
        watch.add_jobs(BUSY_BATCH)
        await clock.advance(0.1)
    await clock.advance(1)
    for _ in range(3):
        watch.add_jobs(1)
        await clock.advance(0.15)
    running.cancel()
    many = [(0.0, BUSY_BATCH), (1.0, 10 * BUSY_BATCH), (2.0, 9 * BUSY_BATCH)]
    few = [(3.0, 1), (3.2, 1), (3.4, 1)]
    assert transactions.written == [*many, *few]
