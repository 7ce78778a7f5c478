"""What the scheduler keeps over restarts, in a ConfigMap."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.controller_api import NAMESPACE, ControllerApi
from support.polling import wait_for

from batholith.kube.client.client import Client
from batholith.machinery.testing import FakeClock
from batholith.model.names import CONFIGMAPS
from batholith.scheduler.writers.kept_state import MAX_CHARACTERS, WRITE_INTERVAL, KeptState


class Number:
    """A number that is kept."""

    def __init__(self, value: int = 0) -> None:
        self.value = value
        self.version = 0

    def encode(self) -> str:
        return str(self.value)

    def restore(self, text: str) -> None:
        self.value = int(text)

    def set(self, value: int) -> None:
        self.value = value
        self.version += 1


class CountingClock(FakeClock):
    """A clock that counts its sleeps."""

    sleeps = 0

    async def sleep(self, seconds: float) -> None:
        self.sleeps += 1
        await super().sleep(seconds)


@pytest.fixture
async def api() -> AsyncIterator[ControllerApi]:
    async with ControllerApi() as api:
        yield api


@asynccontextmanager
async def keeping(
    api: ControllerApi, clock: CountingClock, **numbers: Number
) -> AsyncIterator[None]:
    """Keep *numbers* until the block ends, as a process does that is shut down."""
    async with api.client() as client:
        running = asyncio.create_task(_kept(client, clock, **numbers).run())
        await wait_for(lambda: clock.sleeps == 1)  # all is restored
        try:
            yield
        finally:
            running.cancel()
            await asyncio.wait((running,))


def _kept(client: Client, clock: CountingClock, **numbers: Number) -> KeptState:
    return KeptState(client, clock, NAMESPACE, "kept", numbers)


def stored(api: ControllerApi) -> dict[str, str]:
    data: dict[str, str] = api.objects(CONFIGMAPS).get(f"{NAMESPACE}/kept", {}).get("data", {})
    return data


async def test_what_was_kept_is_restored_after_a_restart(api: ControllerApi) -> None:
    one, other = Number(), Number()
    async with keeping(api, CountingClock(), one=one, other=other):
        one.set(5)
    assert stored(api) == {"one": "5"}
    one, other = Number(), Number(7)
    async with keeping(api, CountingClock(), one=one, other=other):
        await wait_for(lambda: one.value == 5)
        assert other.value == 7


async def test_changes_are_written_once_a_minute_and_nothing_without_any(
    api: ControllerApi,
) -> None:
    number, clock = Number(), CountingClock()
    async with keeping(api, clock, number=number):
        for value in range(10):
            number.set(value)
            await clock.advance(WRITE_INTERVAL / 10 - 0.1)
        assert stored(api) == {}
        await clock.advance(WRITE_INTERVAL)
        await wait_for(lambda: stored(api) == {"number": "9"})
        # The response is received: a write whose outcome is not known is repeated at the end.
        await wait_for(lambda: clock.sleeps == 2)
        before = api.writes()
        await clock.advance(WRITE_INTERVAL * 5)
    assert api.writes() == before


async def test_malformed_part_is_ignored_and_others_are_restored(
    api: ControllerApi, caplog: pytest.LogCaptureFixture
) -> None:
    api.put(CONFIGMAPS, "kept", data={"one": "x", "other": "3", "unknown": "y"})
    one, other = Number(1), Number()
    async with keeping(api, CountingClock(), one=one, other=other):
        await wait_for(lambda: other.value == 3)
    assert one.value == 1
    assert "cannot use what was kept of one" in caplog.text


async def test_failed_write_is_repeated(api: ControllerApi) -> None:
    number, clock = Number(), CountingClock()
    async with keeping(api, clock, number=number):
        api.fail(403, "PATCH", count=1)
        number.set(1)
        await clock.advance(WRITE_INTERVAL)
        await wait_for(lambda: clock.sleeps == 2)
        assert (api.count("PATCH"), stored(api)) == (1, {})
        await clock.advance(WRITE_INTERVAL)
        await wait_for(lambda: stored(api) == {"number": "1"})


async def test_too_much_is_not_written_and_other_entries_are(
    api: ControllerApi, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, small = Number(), Number()
    monkeypatch.setattr(large, "encode", lambda: "x" * (MAX_CHARACTERS + 1))
    async with keeping(api, CountingClock(), large=large, small=small):
        large.set(1)
        small.set(2)
    assert stored(api) == {"small": "2"}
    assert "too large" in caplog.text


async def test_entries_are_not_written_that_are_too_large_together(api: ControllerApi) -> None:
    api.put(CONFIGMAPS, "kept", data={"one": "1" * (MAX_CHARACTERS - 10), "other": "2"})
    one, other = Number(), Number()
    one.restore = lambda text: None  # type: ignore[method-assign]  # an integer has fewer digits
    async with keeping(api, CountingClock(), one=one, other=other):
        await wait_for(lambda: other.value == 2)
        other.set(10**11)
    assert stored(api)["other"] == "2"


async def test_waiting_for_what_is_restored_ends_even_if_it_cannot_be_read(
    api: ControllerApi,
) -> None:
    api.fail(403, "GET", count=1)
    async with api.client() as client:
        kept = _kept(client, CountingClock(), number=Number())
        running = asyncio.create_task(kept.run())
        await asyncio.wait_for(kept.restored.wait(), 60)
        running.cancel()
        await asyncio.wait((running,))
