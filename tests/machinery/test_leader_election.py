"""Leader election: acquisition, renewal, loss, and at most one leader."""

import asyncio
import math
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from support.examples import examples
from support.lease_simulation import LeaseSimulation, SimulatedCandidate

from batholith.kube.client.events import EventType
from batholith.kube.client.lease import LeaderElectionRecord, LeaseLock
from batholith.kube.errors import NotLeaderError, ServerError
from batholith.machinery.leader_election import (
    JITTER_FACTOR,
    LeaderElectionConfig,
    LeaderElectionConfigError,
    LeadershipLostError,
)
from batholith.model.meta import ObjectReference

RETRY = 2 * (1 + JITTER_FACTOR)
"""Maximum delay of a candidate, with the default retry period."""


@pytest.fixture
async def world() -> AsyncIterator[LeaseSimulation]:
    simulation = LeaseSimulation()
    try:
        yield simulation
        simulation.check_invariants()
        simulation.check_transitions()
    finally:
        await simulation.stop()


class FakeRecorder:
    """Keeps recorded events."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str]] = []

    def record(
        self,
        regarding: ObjectReference,
        *,
        type: EventType,  # noqa: A002 - the API's name
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


# Regular operation.


async def test_first_candidate_creates_the_lease_and_leads(world: LeaseSimulation) -> None:
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


async def test_leader_renews_with_one_write_per_retry_period(world: LeaseSimulation) -> None:
    first = world.add()
    await world.clock.advance(0.1)
    acquired = world.server.spec["acquireTime"]
    before = len(first.client.requests)
    await world.clock.advance(20.2)
    assert set(first.client.requests[before:]) == {"PUT"}
    assert len(first.client.requests) - before == 10
    assert world.server.spec["acquireTime"] == acquired
    assert world.server.spec["renewTime"] > acquired


async def test_standby_waits_and_observes_the_holder(world: LeaseSimulation) -> None:
    leader, standby = await leader_and_standby(world)
    await world.clock.advance(120)
    assert not standby.elector.elected.is_set()
    assert standby.elector.holder == leader.name
    assert standby.metrics.status.labels("vc-controller-manager")._value.get() == 0
    assert world.leaders == [leader]


async def test_a_slow_process_keeps_a_lease_that_faster_ones_renew(world: LeaseSimulation) -> None:
    """Each of its updates conflicts; the renewals that it reads are as good as its own."""
    slow = world.add(group="group")
    await world.clock.advance(1)
    slow.network.request_delay = slow.network.response_delay = 1.1
    for _ in range(3):
        world.add(group="group", random=random.Random(1).random)
        await world.clock.advance(0.7)
    await world.clock.advance(120)
    assert world.leaders == world.candidates


async def test_processes_that_share_a_lease_write_it_about_once_per_retry_period(
    world: LeaseSimulation,
) -> None:
    for number in range(8):
        world.add(group="group")
        await world.clock.advance(0.03 * number)
    await world.clock.advance(10)
    before = len(world.server.lease_history)
    requests = sum(len(each.client.requests) for each in world.candidates)
    await world.clock.advance(100)
    assert 20 <= len(world.server.lease_history) - before <= 60
    spent = sum(len(each.client.requests) for each in world.candidates) - requests
    assert spent <= 8 * 50 + 2 * 60
    assert world.leaders == world.candidates


async def test_a_process_that_shares_a_lease_loses_it_without_a_connection(
    world: LeaseSimulation,
) -> None:
    cut_off, other = world.add(group="group"), world.add(group="group")
    await world.clock.advance(5)
    cut_off.network.delivers_requests = False
    await world.clock.advance(12.1)
    assert "no renewal for 10 s" in await has_lost(cut_off)
    assert world.leaders == [other]


async def test_the_lease_of_a_dead_group_is_acquired_once_it_has_expired(
    world: LeaseSimulation,
) -> None:
    group = [world.add(group="group") for _ in range(2)]
    await world.clock.advance(5)
    single = world.add()
    await world.clock.advance(20)
    assert world.leaders == group
    for each in group:
        each.kill()
    await world.clock.advance(15 + RETRY + 2)
    assert world.leaders == [single]


async def test_identities_are_unique() -> None:
    """A leader restarted on its host must wait like any other candidate."""
    assert LeaderElectionConfig(name="x").identity != LeaderElectionConfig(name="x").identity


# Loss and release.


async def test_inv_le_2_killed_leader_is_replaced_after_lease_expiry(
    world: LeaseSimulation,
) -> None:
    leader, standby = await leader_and_standby(world)
    leader.kill()
    await world.clock.advance(13)
    assert not world.leaders
    await world.clock.advance(2 + 2 * RETRY)
    assert world.leaders == [standby]
    assert world.server.spec["leaseTransitions"] == 1


async def test_released_lease_is_acquired_immediately(world: LeaseSimulation) -> None:
    leader, standby = await leader_and_standby(world)
    leader.task.cancel()
    await world.clock.advance(0.2)
    assert leader.task.cancelled()
    assert world.leaders == [standby]
    released = world.server.lease_history[-2][1]
    assert (released["holderIdentity"], released["leaseDurationSeconds"]) == ("", 1)
    assert world.server.spec["leaseTransitions"] == 1


async def test_release_is_retried_after_a_conflict(world: LeaseSimulation) -> None:
    leader, standby = await leader_and_standby(world)
    standby.kill()
    world.server.update_labels(seen="yes")
    leader.task.cancel()
    await world.clock.advance(0.2)
    assert world.server.spec["holderIdentity"] == ""
    assert world.server.get()["metadata"]["labels"] == {"seen": "yes"}


async def test_release_without_response_times_out(world: LeaseSimulation) -> None:
    leader, _ = await leader_and_standby(world)
    leader.network.delivers_requests = False
    leader.task.cancel()
    await world.clock.advance(0.1)
    assert not leader.may_write
    assert not leader.task.done()
    await world.clock.advance(2)
    assert leader.task.cancelled()


async def test_cancelled_standby_does_not_write_the_lease(world: LeaseSimulation) -> None:
    leader, standby = await leader_and_standby(world)
    standby.task.cancel()
    await world.clock.advance(1)
    assert standby.task.cancelled()
    assert "PUT" not in standby.client.requests
    assert world.leaders == [leader]


@pytest.mark.parametrize("loses_response", [False, True])
async def test_a_lease_is_released_whose_acquisition_was_not_confirmed(
    world: LeaseSimulation, loses_response: bool
) -> None:
    leader, standby = await leader_and_standby(world)
    standby.network.response_delay = 3.0
    leader.task.cancel()
    await world.clock.advance(1)  # the standby reads that the Lease is free
    standby.network.delivers_responses = not loses_response
    await world.clock.advance(2.1)
    assert world.server.spec["holderIdentity"] == standby.elector.identity
    assert not standby.elector.elected.is_set()
    if loses_response:
        await world.clock.advance(5)
    standby.network.delivers_responses, standby.network.response_delay = True, 0.01
    standby.task.cancel()
    await world.clock.advance(1)
    assert standby.task.cancelled()
    assert world.server.spec["holderIdentity"] == ""


async def test_stopped_leading_event_precedes_the_release(world: LeaseSimulation) -> None:
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
async def test_leader_without_responses_stops_at_the_renew_deadline(
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


async def test_standby_acquires_the_lease_of_a_disconnected_leader(world: LeaseSimulation) -> None:
    leader, standby = await leader_and_standby(world)
    leader.network.delivers_requests = False
    await world.clock.advance(15 + 2 * RETRY)
    assert world.leaders == [standby]
    await has_lost(leader)


async def test_one_lost_request_does_not_lose_the_lease(world: LeaseSimulation) -> None:
    """The first connection is dead and the next one is not: half of the deadline is left for it."""
    leader = world.add()
    await world.clock.advance(0.1)
    leader.network.delivers_requests = False
    await world.clock.advance(3)
    leader.network.delivers_requests = True
    await world.clock.advance(30)
    assert world.leaders == [leader]
    assert leader.metrics.slow_path.labels("vc-controller-manager")._value.get() == 1


async def test_frozen_leader_loses_the_lease_on_wake_up(world: LeaseSimulation) -> None:
    """SIGSTOP for longer than the lease duration: no write is sent after SIGCONT."""
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


async def test_frozen_leader_ignores_an_outdated_renewal(world: LeaseSimulation) -> None:
    leader = world.add()
    await world.clock.advance(1.5)
    leader.network.response_delay = 1.0
    await world.clock.advance(1)  # a renewal is under way
    leader.clock.frozen = True
    await world.clock.advance(10)
    leader.clock.thaw()
    await world.clock.advance(0)
    await has_lost(leader)


async def test_leader_stops_when_another_holds_the_lease(world: LeaseSimulation) -> None:
    leader = world.add()
    await world.clock.advance(0.1)
    body = world.server.get()
    body["spec"]["holderIdentity"] = "other"
    body["spec"]["leaseTransitions"] += 1
    world.server.replace(body)
    world.clock.on_advance = lambda: None  # such a theft is what no candidate would do
    await world.clock.advance(2.1)
    assert "held by other" in await has_lost(leader)


async def test_label_change_on_the_lease_does_not_affect_renewal(world: LeaseSimulation) -> None:
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


# Writes of others to the Lease.


async def test_deleted_lease_is_not_acquired_before_its_expiry(
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


async def test_leader_recreates_a_deleted_lease(world: LeaseSimulation) -> None:
    leader, _ = await leader_and_standby(world)
    world.server.delete()
    await world.clock.advance(10)
    assert world.leaders == [leader]
    assert world.server.spec["leaseTransitions"] == 0


async def test_duration_of_the_observed_record_applies(world: LeaseSimulation) -> None:
    leader = world.add(lease_duration=40)
    await world.clock.advance(1)
    standby = world.add()
    leader.kill()
    await world.clock.advance(38)
    assert not standby.may_write
    await world.clock.advance(3 + 2 * RETRY)
    assert world.leaders == [standby]


async def test_clock_of_the_holder_is_ignored(world: LeaseSimulation) -> None:
    """The holder's wall clock may be years off, and step while it leads."""
    leader, standby = await leader_and_standby(world)
    leader.clock.wall_jump = -3e7
    await world.clock.advance(30)
    leader.clock.wall_jump = 3e7
    standby.clock.wall_jump = -9e7
    await world.clock.advance(30)
    assert world.leaders == [leader]


async def test_unknown_fields_of_the_lease_are_preserved(world: LeaseSimulation) -> None:
    leader = world.add()
    await world.clock.advance(0.1)
    body = world.server.get()
    body["spec"]["strategy"] = "OldestEmulationVersion"
    world.server.replace(body)
    await world.clock.advance(30)
    assert world.leaders == [leader]
    assert world.server.spec["strategy"] == "OldestEmulationVersion"


async def test_lease_duration_is_rounded_up_to_seconds(world: LeaseSimulation) -> None:
    world.add(lease_duration=2.2, renew_deadline=1.5, retry_period=0.5)
    await world.clock.advance(1)
    assert world.server.spec["leaseDurationSeconds"] == 3


# Writes without a response.


async def test_inv_le_4_write_without_response_is_not_trusted_until_observed(
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


async def test_missing_namespace_is_logged_and_retried(
    world: LeaseSimulation, caplog: pytest.LogCaptureFixture
) -> None:
    world.server.namespace = False
    first = world.add()
    await world.clock.advance(30)
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1, "once is enough"
    assert "namespace volcano-system not found" in str(vars(warnings[0])["error"])
    assert "--leader-elect-resource-namespace" in str(vars(warnings[0])["error"])
    world.server.namespace = True
    await world.clock.advance(RETRY)
    assert world.leaders == [first]


async def test_leader_is_unhealthy_only_long_after_lease_expiry(world: LeaseSimulation) -> None:
    leader, standby = await leader_and_standby(world)
    await world.clock.advance(100)
    assert leader.elector.healthy()
    assert standby.elector.healthy()
    leader.clock.frozen = True  # as if the loop hangs
    await world.clock.advance(30)
    assert leader.elector.healthy()
    await world.clock.advance(8)
    assert not leader.elector.healthy()


# Configuration.


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
def test_invalid_configuration_is_rejected(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(LeaderElectionConfigError) as caught:
        LeaderElectionConfig(**{"name": "x", **wrong})
    assert text in str(caught.value)


def test_request_timeout_is_half_of_the_renew_deadline() -> None:
    assert LeaderElectionConfig(name="x").request_timeout == 5
    short = LeaderElectionConfig(name="x", lease_duration=2, renew_deadline=1.5, retry_period=0.2)
    assert short.request_timeout == 1


# Random histories.

RATES = st.floats(0.9, 1.1)
WHICH = st.integers(0, 3)


def _restore_network(candidate: SimulatedCandidate) -> None:
    network = candidate.network
    network.request_delay = network.response_delay = 0.01
    network.delivers_requests = network.delivers_responses = True
    network.error = None


class ElectionMachine(RuleBasedStateMachine):
    """INV-LE-1 to INV-LE-4 with any clocks, delays, lost messages, errors, freezes and ends.

    The simulation checks its invariants after every event.
    """

    @initialize()
    def start(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.world: LeaseSimulation = self._run(self._world)

    async def _world(self) -> LeaseSimulation:
        return LeaseSimulation()

    def _run(self, call: Any, *args: Any) -> Any:
        return self.loop.run_until_complete(call(*args))

    def _candidate(self, which: int) -> SimulatedCandidate | None:
        living = [each for each in self.world.candidates if not each.ended]
        return living[which % len(living)] if living else None

    @precondition(lambda self: sum(not each.ended for each in self.world.candidates) < 4)
    @rule(
        rate=RATES,
        start=st.floats(0, 1e5),
        seed=st.integers(0, 99),
        group=st.sampled_from(["", "group"]),
    )
    def add_candidate(self, rate: float, start: float, seed: int, group: str) -> None:
        async def add() -> None:
            jitter = random.Random(seed).random
            self.world.add(rate=rate, start=start, random=jitter, group=group)

        self._run(add)

    @rule(seconds=st.sampled_from([0.005, 0.5, 1.0, 2.0, 5.0, 9.0, 16.0]))
    def wait(self, seconds: float) -> None:
        self._run(self.world.clock.advance, seconds)

    @rule(
        which=WHICH,
        out=st.sampled_from([0.001, 0.1, 3.0, 30.0]),
        back=st.sampled_from([0.001, 0.1, 3.0, 30.0]),
        reaches=st.booleans(),
        responds=st.booleans(),
    )
    def disturb(self, which: int, out: float, back: float, reaches: bool, responds: bool) -> None:
        if one := self._candidate(which):
            one.network.request_delay, one.network.response_delay = out, back
            one.network.delivers_requests, one.network.delivers_responses = reaches, responds

    @rule(which=WHICH)
    def refuse(self, which: int) -> None:
        if one := self._candidate(which):
            one.network.error = ServerError("etcd has a bad day", status=500)

    @rule(which=WHICH)
    def restore_network(self, which: int) -> None:
        if one := self._candidate(which):
            _restore_network(one)

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
            self.world.server.update_labels(seen="yes")

    @rule()
    def all_is_well(self) -> None:
        """INV-LE-2, after any history."""
        for each in self.world.candidates:
            if not each.ended:
                _restore_network(each)
                self._run(self._thaw, each)
        self._run(self.world.clock.advance, 31)  # requests in flight have arrived
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
    max_examples=examples(10), stateful_step_count=30, deadline=None
)


async def test_candidate_with_failing_watch_still_observes_a_release(
    world: LeaseSimulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [asyncio.CancelledError(), RuntimeError("a mistake")]
    leader = world.add()
    await world.clock.advance(1)
    watch = LeaseLock.watch

    async def failing(self: LeaseLock) -> AsyncIterator[LeaderElectionRecord]:
        if errors:
            raise errors.pop()
        async for record in watch(self):
            yield record

    monkeypatch.setattr(LeaseLock, "watch", failing)
    standby = world.add()
    await world.clock.advance(20)
    leader.task.cancel()
    await world.clock.advance(0.2)
    assert standby.elector.elected.is_set()
