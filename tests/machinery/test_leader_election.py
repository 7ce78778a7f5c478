"""Who leads, when a leader stops, and that there are never two."""

import asyncio
import math
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from support.lease_simulation import LeaseSimulation, SimulatedCandidate

from batholith.kube.client.events import EventType
from batholith.kube.client.lease import LeaseRecord, LeaseStore
from batholith.kube.errors import NotLeaderError, ServerError
from batholith.machinery.leader_election import (
    JITTER_FACTOR,
    LeaderElectionConfig,
    LeaderElectionConfigError,
    LeadershipLostError,
)
from batholith.model.meta import ObjectReference

RETRY = 2 * (1 + JITTER_FACTOR)
"""Longest pause of a candidate, with the default retry period."""


@pytest.fixture
async def world() -> AsyncIterator[LeaseSimulation]:
    made = LeaseSimulation()
    try:
        yield made
        made.check_invariants()
        made.check_transitions()
    finally:
        await made.stop()


class FakeRecorder:
    """Keeps what was recorded."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []

    def record(
        self,
        regarding: ObjectReference,
        *,
        type: EventType,  # noqa: A002 - the word of the API
        reason: str,
        message: str,
    ) -> None:
        assert type == "Normal"
        self.events.append(
            (f"{regarding.kind} {regarding.namespace}/{regarding.name}", reason, message)
        )


async def leader_and_standby(
    world: LeaseSimulation,
) -> tuple[SimulatedCandidate, SimulatedCandidate]:
    leader = world.add()
    await world.clock.advance(1)
    standby = world.add()
    await world.clock.advance(1)
    assert world.leaders == [leader]
    return leader, standby


async def has_lost(candidate: SimulatedCandidate) -> str:
    assert candidate.task.done()
    with pytest.raises(LeadershipLostError) as caught:
        await candidate.task
    with pytest.raises(NotLeaderError):
        candidate.elector.check_fence()
    return str(caught.value)


# A quiet life.


async def test_the_first_candidate_makes_the_lease_and_leads(world: LeaseSimulation) -> None:
    recorder = FakeRecorder()
    first = world.add(recorder=recorder)
    with pytest.raises(NotLeaderError):
        first.elector.check_fence()
    await world.clock.advance(0.1)
    assert first.elector.elected.is_set()
    first.elector.check_fence()
    assert world.server.spec == {
        "holderIdentity": "host_0",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-01-01T00:00:00.020000Z",
        "renewTime": "2026-01-01T00:00:00.020000Z",
        "leaseTransitions": 0,
    }
    assert recorder.events == [
        ("Lease volcano-system/vc-controller-manager", "LeaderElection", "host_0 became leader")
    ]
    assert first.metrics.status.labels("vc-controller-manager")._value.get() == 1


async def test_a_leader_renews_by_one_write_every_retry_period(world: LeaseSimulation) -> None:
    first = world.add()
    await world.clock.advance(0.1)
    acquired = world.server.spec["acquireTime"]
    before = len(first.client.requests)
    await world.clock.advance(20.2)
    assert set(first.client.requests[before:]) == {"PUT"}
    assert len(first.client.requests) - before == 10
    assert world.server.spec["acquireTime"] == acquired
    assert world.server.spec["renewTime"] > acquired


async def test_a_standby_waits_and_knows_the_holder(world: LeaseSimulation) -> None:
    leader, standby = await leader_and_standby(world)
    await world.clock.advance(120)
    assert not standby.elector.elected.is_set()
    assert standby.elector.holder == leader.name
    assert standby.metrics.status.labels("vc-controller-manager")._value.get() == 0
    assert world.leaders == [leader]


async def test_identities_are_never_used_twice() -> None:
    """A leader that is started again on its host must wait like all others."""
    assert LeaderElectionConfig(name="x").identity != LeaderElectionConfig(name="x").identity


# The end of a leader.


async def test_inv_le_2_a_killed_leader_is_followed_in_time(world: LeaseSimulation) -> None:
    leader, standby = await leader_and_standby(world)
    leader.kill()
    await world.clock.advance(13)
    assert not world.leaders
    await world.clock.advance(2 + 2 * RETRY)
    assert world.leaders == [standby]
    assert world.server.spec["leaseTransitions"] == 1


async def test_a_leader_that_ends_in_order_is_followed_at_once(world: LeaseSimulation) -> None:
    leader, standby = await leader_and_standby(world)
    leader.task.cancel()
    await world.clock.advance(0.2)
    assert leader.task.cancelled()
    assert world.leaders == [standby]
    released = world.server.lease_history[-2][1]
    assert (released["holderIdentity"], released["leaseDurationSeconds"]) == ("", 1)
    assert world.server.spec["leaseTransitions"] == 1


async def test_a_release_is_tried_again_after_a_conflict(world: LeaseSimulation) -> None:
    leader, standby = await leader_and_standby(world)
    standby.kill()
    world.server.update_labels(seen="yes")
    leader.task.cancel()
    await world.clock.advance(0.2)
    assert world.server.spec["holderIdentity"] == ""
    assert world.server.get()["metadata"]["labels"] == {"seen": "yes"}


async def test_a_release_that_nobody_answers_ends_nevertheless(world: LeaseSimulation) -> None:
    leader, _ = await leader_and_standby(world)
    leader.network.delivers_requests = False
    leader.task.cancel()
    await world.clock.advance(0.1)
    assert not leader.may_write
    assert not leader.task.done()
    await world.clock.advance(2)
    assert leader.task.cancelled()


async def test_a_standby_that_ends_leaves_the_lease_alone(world: LeaseSimulation) -> None:
    leader, standby = await leader_and_standby(world)
    standby.task.cancel()
    await world.clock.advance(1)
    assert standby.task.cancelled()
    assert "PUT" not in standby.client.requests
    assert world.leaders == [leader]


async def test_an_end_in_order_is_recorded_before_the_release(world: LeaseSimulation) -> None:
    recorder = FakeRecorder()
    leader = world.add(recorder=recorder)
    await world.clock.advance(1)
    leader.task.cancel()
    await world.clock.advance(1)
    assert [event[2] for event in recorder.events] == [
        "host_0 became leader",
        "host_0 stopped leading",
    ]


@pytest.mark.parametrize("fault", ["hangs", "no way", "refuses"])
async def test_a_leader_without_answers_stops_at_its_deadline(
    world: LeaseSimulation, fault: str
) -> None:
    leader = world.add()
    await world.clock.advance(0.1)
    renewed = math.floor(world.clock.monotonic() * 10) / 10
    leader.network.delivers_responses = fault != "hangs"
    leader.network.delivers_requests = fault != "no way"
    leader.network.error = ServerError("no", status=500) if fault == "refuses" else None
    await world.clock.advance(renewed + 9.8 - world.clock.monotonic())
    assert leader.may_write
    await world.clock.advance(0.3)
    assert "no renewal for 10 s" in await has_lost(leader)


async def test_a_standby_takes_over_from_a_leader_that_is_cut_off(world: LeaseSimulation) -> None:
    leader, standby = await leader_and_standby(world)
    leader.network.delivers_requests = False
    await world.clock.advance(15 + 2 * RETRY)
    assert world.leaders == [standby]
    await has_lost(leader)


async def test_one_request_without_an_answer_is_no_loss(world: LeaseSimulation) -> None:
    """The connection is dead, and the next one is not: half the deadline is kept for it."""
    leader = world.add()
    await world.clock.advance(0.1)
    leader.network.delivers_requests = False
    await world.clock.advance(3)
    leader.network.delivers_requests = True
    await world.clock.advance(30)
    assert world.leaders == [leader]
    assert leader.metrics.slow_path.labels("vc-controller-manager")._value.get() == 1


async def test_a_frozen_leader_finds_its_time_over(world: LeaseSimulation) -> None:
    """SIGSTOP for longer than the Lease: not one write passes after SIGCONT."""
    leader, standby = await leader_and_standby(world)
    leader.clock.frozen = True
    await world.clock.advance(60)
    assert world.leaders == [standby]
    with pytest.raises(NotLeaderError):
        leader.elector.check_fence()
    leader.clock.thaw()
    await world.clock.advance(0)
    await has_lost(leader)
    assert world.server.spec["holderIdentity"] == standby.name


async def test_a_frozen_leader_does_not_rejoice_at_an_old_answer(world: LeaseSimulation) -> None:
    leader = world.add()
    await world.clock.advance(1.5)
    leader.network.response_delay = 1.0
    await world.clock.advance(1)  # a renewal is under way
    leader.clock.frozen = True
    await world.clock.advance(10)
    leader.clock.thaw()
    await world.clock.advance(0)
    await has_lost(leader)


async def test_a_leader_whose_lease_another_holds_ends_at_once(world: LeaseSimulation) -> None:
    leader = world.add()
    await world.clock.advance(0.1)
    body = world.server.get()
    body["spec"]["holderIdentity"] = "somebody"
    body["spec"]["leaseTransitions"] += 1
    world.server.replace(body)
    world.clock.on_advance = lambda: None  # such a theft is what no candidate would do
    await world.clock.advance(2.1)
    assert "held by somebody" in await has_lost(leader)


async def test_a_label_on_the_lease_harms_nobody(world: LeaseSimulation) -> None:
    leader, standby = await leader_and_standby(world)
    for number in range(10):
        world.server.update_labels(number=str(number))
        await world.clock.advance(3)
    assert world.leaders == [leader]
    leader.kill()
    await world.clock.advance(1)
    world.server.update_labels(number="after")
    await world.clock.advance(14 + 2 * RETRY)
    assert world.leaders == [standby]


# What others write into the Lease.


async def test_a_deleted_lease_is_not_taken_before_its_holder_must_have_stopped(
    world: LeaseSimulation,
) -> None:
    leader, standby = await leader_and_standby(world)
    await world.clock.advance(8)
    leader.network.delivers_requests = False
    world.server.delete()
    await world.clock.advance(9)
    assert not standby.may_write
    await world.clock.advance(6 + 2 * RETRY)
    assert world.leaders == [standby]
    await has_lost(leader)


async def test_a_leader_makes_a_deleted_lease_again(world: LeaseSimulation) -> None:
    leader, _ = await leader_and_standby(world)
    world.server.delete()
    await world.clock.advance(10)
    assert world.leaders == [leader]
    assert world.server.spec["leaseTransitions"] == 0


async def test_the_records_own_duration_counts(world: LeaseSimulation) -> None:
    leader = world.add(lease_duration=40)
    await world.clock.advance(1)
    standby = world.add()
    leader.kill()
    await world.clock.advance(38)
    assert not standby.may_write
    await world.clock.advance(3 + 2 * RETRY)
    assert world.leaders == [standby]


async def test_the_holders_clock_means_nothing(world: LeaseSimulation) -> None:
    """Its wall clock may be years off, and step while it leads."""
    leader, standby = await leader_and_standby(world)
    leader.clock.wall_jump = -3e7
    await world.clock.advance(30)
    leader.clock.wall_jump = 3e7
    standby.clock.wall_jump = -9e7
    await world.clock.advance(30)
    assert world.leaders == [leader]


async def test_fields_of_others_in_the_lease_stay(world: LeaseSimulation) -> None:
    leader = world.add()
    await world.clock.advance(0.1)
    body = world.server.get()
    body["spec"]["strategy"] = "OldestEmulationVersion"
    world.server.replace(body)
    await world.clock.advance(30)
    assert world.leaders == [leader]
    assert world.server.spec["strategy"] == "OldestEmulationVersion"


async def test_a_fraction_of_a_second_is_rounded_up(world: LeaseSimulation) -> None:
    world.add(lease_duration=2.2, renew_deadline=1.5, retry_period=0.5)
    await world.clock.advance(1)
    assert world.server.spec["leaseDurationSeconds"] == 3


# Doubtful writes.


async def test_inv_le_4_an_unanswered_write_is_not_believed_and_found_later(
    world: LeaseSimulation,
) -> None:
    first = world.add()
    first.network.delivers_responses = False
    await world.clock.advance(0.01)
    first.network.delivers_responses = True
    await world.clock.advance(4.9)  # the read was not answered; the next try begins
    first.network.delivers_responses = False
    await world.clock.advance(RETRY + 4)
    assert not first.may_write
    first.network.delivers_responses = True
    await world.clock.advance(20)
    assert world.leaders == [first]


async def test_a_missing_namespace_is_named_and_waited_for(
    world: LeaseSimulation, caplog: pytest.LogCaptureFixture
) -> None:
    world.server.namespace = False
    first = world.add()
    await world.clock.advance(30)
    told = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 1, "once is enough"
    assert "namespace volcano-system not found" in str(vars(told[0])["error"])
    assert "--leader-elect-resource-namespace" in str(vars(told[0])["error"])
    world.server.namespace = True
    await world.clock.advance(RETRY)
    assert world.leaders == [first]


async def test_health_is_lost_only_long_after_the_lease(world: LeaseSimulation) -> None:
    leader, standby = await leader_and_standby(world)
    await world.clock.advance(100)
    assert leader.elector.healthy()
    assert standby.elector.healthy()
    leader.clock.frozen = True  # say, the loop hangs
    await world.clock.advance(30)
    assert leader.elector.healthy()
    await world.clock.advance(8)
    assert not leader.elector.healthy()


# Settings.


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"lease_duration": 10}, "--leader-elect-lease-duration (10s) must be longer than"),
        ({"renew_deadline": 2.4}, "--leader-elect-renew-deadline (2.4s) must be longer than 1.2"),
        ({"retry_period": 0}, "--leader-elect-retry-period must be more than 0"),
        ({"lease_duration": -1}, "--leader-elect-lease-duration must be more than 0"),
        ({"renew_deadline": 0}, "--leader-elect-renew-deadline must be more than 0"),
        ({"name": ""}, "--leader-elect-resource-name"),
        ({"namespace": ""}, "--leader-elect-resource-namespace"),
        ({"identity": ""}, "must be given"),
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(LeaderElectionConfigError) as caught:
        LeaderElectionConfig(**{"name": "x", **wrong})
    assert text in str(caught.value)


def test_a_request_gets_half_of_the_deadline() -> None:
    assert LeaderElectionConfig(name="x").request_timeout == 5
    short = LeaderElectionConfig(name="x", lease_duration=2, renew_deadline=1.5, retry_period=0.2)
    assert short.request_timeout == 1


# Anything at all.

RATES = st.floats(0.9, 1.1)
WHICH = st.integers(0, 3)


class ElectionMachine(RuleBasedStateMachine):
    """INV-LE-1 to INV-LE-4 with any clocks, delays, silences, refusals, freezes and ends.

    The world checks itself whenever anything has happened in it.
    """

    @initialize()
    def start(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.world = self._run(self._world)

    async def _world(self) -> LeaseSimulation:
        return LeaseSimulation()

    def _run(self, call: Any, *args: Any) -> Any:
        return self.loop.run_until_complete(call(*args))

    def _candidate(self, which: int) -> SimulatedCandidate | None:
        living = [each for each in self.world.candidates if not each.ended]
        return living[which % len(living)] if living else None

    @precondition(lambda self: sum(not each.ended for each in self.world.candidates) < 4)
    @rule(rate=RATES, start=st.floats(0, 1e5), seed=st.integers(0, 99))
    def come(self, rate: float, start: float, seed: int) -> None:
        async def add() -> None:
            self.world.add(rate=rate, start=start, random=random.Random(seed).random)

        self._run(add)

    @rule(seconds=st.sampled_from([0.005, 0.5, 1.0, 2.0, 5.0, 9.0, 16.0]))
    def wait(self, seconds: float) -> None:
        self._run(self.world.clock.advance, seconds)

    @rule(
        which=WHICH,
        out=st.sampled_from([0.001, 0.1, 3.0, 30.0]),
        back=st.sampled_from([0.001, 0.1, 3.0, 30.0]),
        reaches=st.booleans(),
        answers=st.booleans(),
    )
    def disturb(self, which: int, out: float, back: float, reaches: bool, answers: bool) -> None:
        if one := self._candidate(which):
            one.network.request_delay, one.network.response_delay = out, back
            one.network.delivers_requests, one.network.delivers_responses = reaches, answers

    @rule(which=WHICH)
    def refuse(self, which: int) -> None:
        if one := self._candidate(which):
            one.network.error = ServerError("etcd has a bad day", status=500)

    @rule(which=WHICH)
    def mend(self, which: int) -> None:
        if one := self._candidate(which):
            wire = one.network
            (
                wire.request_delay,
                wire.response_delay,
                wire.delivers_requests,
                wire.delivers_responses,
            ) = 0.01, 0.01, True, True
            wire.error = None

    @rule(which=WHICH)
    def freeze(self, which: int) -> None:
        if one := self._candidate(which):
            one.clock.frozen = True

    @rule(which=WHICH)
    def thaw(self, which: int) -> None:
        if one := self._candidate(which):
            self._run(self._thaw, one)

    async def _thaw(self, one: SimulatedCandidate) -> None:
        one.clock.thaw()
        await self.world.clock.advance(0)

    @rule(which=WHICH)
    def kill(self, which: int) -> None:
        if one := self._candidate(which):
            one.kill()

    @rule(which=WHICH)
    def end(self, which: int) -> None:
        if one := self._candidate(which):
            one.task.cancel()
            self._run(self.world.clock.advance, 0)

    @rule()
    def label(self) -> None:
        if self.world.server.lease is not None:
            self.world.server.touch(seen="yes")

    @rule()
    def all_is_well(self) -> None:
        """INV-LE-2, whatever came before."""
        for each in self.world.candidates:
            if not each.ended:
                wire = each.wire
                wire.out, wire.back, wire.reaches, wire.answers = 0.01, 0.01, True, True
                wire.refusal = None
                self._run(self._thaw, each)
        self._run(self.world.clock.advance, 31)  # what was on its way has come
        self._run(self.world.clock.advance, (15 + 2 * RETRY) / 0.9)
        living = [each for each in self.world.candidates if not each.ended]
        assert not living or self.world.leaders

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.check_transitions()
            self._run(self.world.stop)
            self.loop.close()


TestElectionMachine = ElectionMachine.TestCase
TestElectionMachine.settings = hypothesis_settings(
    max_examples=10, stateful_step_count=30, deadline=None
)


async def test_a_candidate_whose_watch_fails_still_hears_of_a_lease_that_is_given_back(
    world: LeaseSimulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [asyncio.CancelledError(), RuntimeError("a mistake")]
    leader = world.add()
    await world.clock.advance(1)
    watch = LeaseStore.watch

    async def failing(self: LeaseStore) -> AsyncIterator[LeaseRecord]:
        if errors:
            raise errors.pop()
        async for record in watch(self):
            yield record

    monkeypatch.setattr(LeaseStore, "watch", failing)
    standby = world.add()
    await world.clock.advance(20)
    leader.task.cancel()
    await world.clock.advance(0.2)
    assert standby.elector.elected.is_set()
