"""An Idempotency-Key has one response, in spite of crashes and repeated requests."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.examples import examples
from support.postgres import postgres

from batholith.store.database import Database
from batholith.store.idempotency import (
    RETENTION,
    SWEEP_SIZE,
    Claim,
    ClaimResult,
    IdempotencyStore,
    StoredResponse,
)
from batholith.store.migrations import MIGRATIONS

T = TypeVar("T")
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
LEASE = timedelta(seconds=20)


def claim(owner: str, *, key: str = "k", at: float = 0, fingerprint: str = "f") -> Claim:
    return Claim(
        key=key,
        operation=f"operation of {owner}",
        fingerprint=fingerprint,
        owner=owner,
        now=NOON + timedelta(seconds=at),
        lease=LEASE,
    )


def response(text: str) -> StoredResponse:
    return StoredResponse(status=202, body=text.encode(), media_type="application/json")


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    with postgres() as started:
        yield started.url


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.process)])
async def databases(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[tuple[Database, Database]]:
    """The same database, opened by two replicas."""
    url = f"sqlite:///{tmp_path / 'api.db'}"
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    opened = Database(url, timeout=60), Database(url, timeout=60)
    for each in opened:
        await each.migrate(MIGRATIONS)
    await opened[0].run(lambda db: db.execute(sa.text("DELETE FROM idempotency_keys")))
    yield opened
    for each in opened:
        await each.close()


async def test_one_of_many_concurrent_requests_is_executed(
    databases: tuple[Database, Database],
) -> None:
    stores = [IdempotencyStore(each) for each in databases]
    results = await asyncio.gather(
        *(store.claim(claim(f"{n}-{m}")) for n in range(10) for m, store in enumerate(stores))
    )
    assert sum(result.is_owner for result in results) == 1
    assert len({result.operation for result in results}) == 1


async def test_response_is_kept_for_a_day_and_its_key_is_free_afterwards(
    databases: tuple[Database, Database],
) -> None:
    store, other = (IdempotencyStore(each) for each in databases)
    first = await store.claim(claim("a"))
    assert await store.complete("k", "a", response("first"))
    day = RETENTION.total_seconds()
    assert (await other.claim(claim("b", at=day))).response == response("first")
    late = await other.claim(claim("c", at=day + 1))
    assert late == ClaimResult(operation="operation of c", is_owner=True)
    assert late.operation != first.operation, "what it creates has other names"


async def test_request_of_a_crashed_replica_is_taken_over_with_its_operation(
    databases: tuple[Database, Database],
) -> None:
    store, other = (IdempotencyStore(each) for each in databases)
    await store.claim(claim("a"))
    assert await store.set_plan("k", "a", b"plan")
    assert not (await other.claim(claim("b", at=20))).is_owner
    taken = await other.claim(claim("c", at=21))
    assert taken == ClaimResult(operation="operation of a", is_owner=True, plan=b"plan")
    assert not await store.complete("k", "a", response("late"))
    assert not await store.set_plan("k", "a", b"late")
    assert await other.complete("k", "c", response("second"))
    assert (await store.claim(claim("d"))).response == response("second")


async def test_renewed_lease_is_not_taken_over(databases: tuple[Database, Database]) -> None:
    store, other = (IdempotencyStore(each) for each in databases)
    await store.claim(claim("a"))
    await store.renew([("k", "a"), ("none", "a")], until=NOON + timedelta(seconds=60))
    assert not (await other.claim(claim("b", at=60))).is_owner
    assert (await other.claim(claim("b", at=61))).is_owner


async def test_released_request_can_be_repeated_at_once(
    databases: tuple[Database, Database],
) -> None:
    store, other = (IdempotencyStore(each) for each in databases)
    await store.claim(claim("a"))
    await store.release("k", "a")
    assert (await other.claim(claim("b"))).operation == "operation of a"


async def test_other_request_with_the_key_is_noticed(
    databases: tuple[Database, Database],
) -> None:
    store, other = (IdempotencyStore(each) for each in databases)
    await store.claim(claim("a"))
    changed = claim("b", fingerprint="g", at=100)
    assert not (await other.claim(changed)).is_same_request
    await store.complete("k", "a", response("first"))
    found = await other.claim(changed)
    assert (found.is_same_request, found.response) == (False, None)


async def test_sweep_deletes_expired_rows_by_an_index(
    databases: tuple[Database, Database],
) -> None:
    store, _ = (IdempotencyStore(each) for each in databases)
    for number, (age, done) in enumerate([(0, True), (90_000, True), (90_000, False)]):
        await store.claim(claim("a", key=str(number), at=-age))
        if done:
            await store.complete(str(number), "a", response(""))
    await store.renew([("2", "a")], until=NOON + LEASE)
    assert await store.sweep(NOON) == 1
    rows = await databases[0].read(
        lambda db: (
            db.execute(sa.text("SELECT key FROM idempotency_keys ORDER BY key")).scalars().all()
        )
    )
    assert list(rows) == ["0", "2"]
    if databases[0]._engine.dialect.name == "sqlite":
        text = "EXPLAIN QUERY PLAN SELECT key FROM idempotency_keys WHERE received_at < 'x'"
        text += f" ORDER BY received_at LIMIT {SWEEP_SIZE}"
        plan = await databases[0].read(lambda db: db.execute(sa.text(text)).all())
        assert "idempotency_keys_by_time" in str(plan)


class Crashes(RuleBasedStateMachine):
    """Clients repeat one request, attempts are interrupted at each step, and time passes.

    The world that a request changes executes an operation once; that is what names derived from
    the operation are for. Then: one key, one operation, one response.
    """

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.database = Database("sqlite://")
        self.store = IdempotencyStore(self.database)
        self.run(self.database.migrate(MIGRATIONS))
        self.now = 0.0
        self.serial = 0
        self.running: dict[str, str] = {}
        self.executed: list[str] = []
        self.sent: set[bytes] = set()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @rule()
    def repeat(self) -> None:
        """A client sends the request."""
        self.serial += 1
        owner = str(self.serial)
        result: ClaimResult = self.run(self.store.claim(claim(owner, at=self.now)))
        if result.is_owner:
            self.running[owner] = result.operation
        elif result.response is not None:
            self.sent.add(result.response.body)

    @rule(data=st.data())
    def execute(self, data: st.DataObject) -> None:
        """An attempt does what the request asks for, unless that is done."""
        if self.running:
            owner = data.draw(st.sampled_from(sorted(self.running)))
            if self.running[owner] not in self.executed:
                self.executed.append(self.running[owner])

    @rule(data=st.data(), is_sent=st.booleans())
    def complete(self, data: st.DataObject, is_sent: bool) -> None:
        """An attempt that has done its work stores its response; it may crash before it sends."""
        done = sorted(each for each in self.running if self.running[each] in self.executed)
        if done:
            owner = data.draw(st.sampled_from(done))
            body = f"{self.running.pop(owner)} by {owner}"
            if self.run(self.store.complete("k", owner, response(body))) and is_sent:
                self.sent.add(body.encode())

    @rule(data=st.data(), is_graceful=st.booleans())
    def crash(self, data: st.DataObject, is_graceful: bool) -> None:
        """An attempt ends at some point, by kill -9 or by an error."""
        if self.running:
            owner = data.draw(st.sampled_from(sorted(self.running)))
            del self.running[owner]
            if is_graceful:
                self.run(self.store.release("k", owner))

    @rule(seconds=st.floats(min_value=0.1, max_value=30))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def sweep(self) -> None:
        self.run(self.store.sweep(NOON + timedelta(seconds=self.now)))

    @invariant()
    def one_operation_and_one_response(self) -> None:
        assert len(self.executed) <= 1
        assert len(self.sent) <= 1

    def teardown(self) -> None:
        self.run(self.database.close())
        self.loop.close()


TestCrashes = Crashes.TestCase
TestCrashes.settings = settings(
    max_examples=examples(20),
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
