"""One timer for the deadlines of all exchanges."""

import asyncio
from typing import cast

from batholith.kube.http.deadlines import Deadlines
from batholith.kube.http.http1 import Exchange


class Expiring:
    """An exchange that reports its end."""

    def __init__(self) -> None:
        self.expired = asyncio.Event()

    def expire(self) -> None:
        assert not self.expired.is_set()
        self.expired.set()


def exchanges(number: int) -> list[Exchange]:
    return [cast(Exchange, Expiring()) for _ in range(number)]


async def wait_expired(exchange: Exchange) -> None:
    await cast(Expiring, exchange).expired.wait()


def has_expired(exchange: Exchange) -> bool:
    return cast(Expiring, exchange).expired.is_set()


async def test_each_exchange_expires_at_its_own_deadline() -> None:
    deadlines = Deadlines()
    late, early, never, cleared = exchanges(4)
    now = deadlines.now()
    deadlines.set(never, now + 1000)
    deadlines.set(late, now + 0.05)
    deadlines.set(early, now + 0.02)
    deadlines.set(cleared, now + 0.01)
    deadlines.clear(cleared)
    await wait_expired(early)
    assert deadlines.now() >= now + 0.02
    await wait_expired(late)
    assert deadlines.now() >= now + 0.05
    assert not has_expired(never)
    assert not has_expired(cleared)


async def test_a_deadline_may_be_set_again() -> None:
    deadlines = Deadlines()
    (exchange,) = exchanges(1)
    now = deadlines.now()
    deadlines.set(exchange, now + 0.01)
    deadlines.set(exchange, now + 0.04)
    await wait_expired(exchange)
    assert deadlines.now() >= now + 0.04


async def test_nothing_expires_after_close() -> None:
    deadlines = Deadlines()
    (exchange,) = exchanges(1)
    deadlines.set(exchange, deadlines.now() + 0.01)
    deadlines.close()
    deadlines.clear(exchange)
    await asyncio.sleep(0.03)
    assert not has_expired(exchange)
