"""Evictions: conditions, disruption budgets, lost responses, pods that change concurrently."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from support.controller_api import ControllerApi
from support.polling import wait_for
from support.running_controller import FakeRecorder

from batholith.machinery.testing import FakeClock
from batholith.model.names import POD_DISRUPTION_BUDGETS, PODS, REPLACED_BY_SCHEDULER
from batholith.scheduler.framework.decision import Eviction
from batholith.scheduler.state.core_types import Pod
from batholith.scheduler.writers.evictor import STALE_AFTER, Evictor
from batholith.testing import RequestMatcher

EVICTION = RequestMatcher("create", "pods/eviction")
CONDITION = RequestMatcher("patch", "pods/status")
MESSAGE = "preempted by gang d/high"


class World:
    """A running pod, and the evictor of one process."""

    def __init__(self, api: ControllerApi, evictor: Evictor, clock: FakeClock) -> None:
        self.api, self.evictor, self.clock = api, evictor, clock
        self.recorder = FakeRecorder()
        self.forgotten: list[str] = []

    def evict(self, **fields: Any) -> None:
        """Evict the pod."""
        self.evictor.evict(
            [Eviction(namespace="d", name="p", uid="uid", message=MESSAGE, **fields)]
        )

    async def settle(self) -> None:
        """Let the evictor finish, with any backoff."""
        queue = self.evictor.queue
        while not self.evictor.idle:
            await wait_for(lambda: self.evictor.idle or queue.delayed_count())
            await self.clock.advance(20)

    def pod(self) -> dict[str, Any] | None:
        """The pod as stored."""
        return self.api.objects(PODS).get("d/p")

    def condition(self) -> dict[str, Any]:
        """Its condition DisruptionTarget, or nothing."""
        conditions = ((self.pod() or {}).get("status") or {}).get("conditions") or ()
        return next((each for each in conditions if each["type"] == "DisruptionTarget"), {})

    def attempts(self) -> int:
        """How often the Eviction subresource was called."""
        return sum(EVICTION.matches(each) for each in self.api.faults.requests)


def put_pod(
    api: ControllerApi,
    *,
    uid: str = "uid",
    phase: str = "Running",
    conditions: tuple[dict[str, str], ...] = (),
    **status: Any,
) -> None:
    """Store a bound, ready pod that takes its time to terminate."""
    api.put(
        PODS,
        "p",
        metadata={"uid": uid, "labels": {"app": "db"}},
        spec={
            "nodeName": "n",
            "terminationGracePeriodSeconds": 30,
            "containers": [{"name": "c", "image": "busybox"}],
        },
        status={
            "phase": phase,
            "conditions": [{"type": "Ready", "status": "True"}, *conditions],
            **status,
        },
    )


async def put_budget(api: ControllerApi, *, min_available: int) -> None:
    """Store a budget over the pod, and wait until the server has counted."""
    api.put(
        POD_DISRUPTION_BUDGETS,
        "b",
        spec={"minAvailable": min_available, "selector": {"matchLabels": {"app": "db"}}},
    )

    def counted() -> bool:
        status = api.objects(POD_DISRUPTION_BUDGETS)["d/b"].get("status") or {}
        return (status.get("currentHealthy"), status.get("desiredHealthy")) == (1, min_available)

    await wait_for(counted)


@asynccontextmanager
async def new_world(api: ControllerApi, clock: FakeClock | None = None) -> AsyncIterator[World]:
    """An evictor at work."""
    clock = clock or FakeClock()
    async with api.client() as client:
        forgotten: list[str] = []
        recorder = FakeRecorder()
        evictor = Evictor(
            client, recorder=recorder, clock=clock, max_in_flight=4, forget=forgotten.append
        )
        world = World(api, evictor, clock)
        world.recorder, world.forgotten = recorder, forgotten
        task = asyncio.create_task(evictor.run())
        yield world
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture
async def api() -> AsyncIterator[ControllerApi]:
    async with ControllerApi() as api:
        put_pod(api)
        yield api


@pytest.fixture
async def world(api: ControllerApi) -> AsyncIterator[World]:
    async with new_world(api) as created:
        yield created


async def test_condition_is_written_before_the_eviction(world: World) -> None:
    world.evict()
    await world.settle()
    evicted = world.pod()
    assert evicted is not None and evicted["metadata"]["deletionTimestamp"]
    assert evicted["metadata"]["deletionGracePeriodSeconds"] == 30
    condition = world.condition()
    assert condition["status"] == "True"
    assert condition["reason"] == "PreemptionByScheduler"
    assert condition["message"] == MESSAGE
    requests = [each for each in world.api.faults.requests if each.method != "GET"]
    assert [each.subresource for each in requests] == ["status", "eviction"]
    options = requests[1].json()["deleteOptions"]
    assert options["preconditions"]["uid"] == "uid"
    assert options["preconditions"]["resourceVersion"]
    assert world.recorder.events == [("Pod", "p", "Warning", "Evict", MESSAGE)]
    assert world.forgotten == []


async def test_grace_period_of_the_eviction_counts(world: World) -> None:
    world.evict(grace=3, reason="StrandedGang")
    await world.settle()
    evicted = world.pod()
    assert evicted is not None and evicted["metadata"]["deletionGracePeriodSeconds"] == 3
    assert world.condition()["reason"] == "StrandedGang"


async def test_budget_is_retried_and_never_forced(api: ControllerApi, world: World) -> None:
    await put_budget(api, min_available=1)
    world.evict()
    while world.attempts() < 3:
        await wait_for(world.evictor.queue.delayed_count)
        await world.clock.advance(20)
    stored = world.pod()
    assert stored is not None and not stored["metadata"].get("deletionTimestamp")
    assert [event[3] for event in world.recorder.events] == ["EvictionBlocked"]
    assert "The disruption budget b" in world.recorder.events[0][4]
    await put_budget(api, min_available=0)
    await world.settle()
    stored = world.pod()
    assert stored is not None and stored["metadata"]["deletionTimestamp"]
    assert [event[3] for event in world.recorder.events] == ["EvictionBlocked", "Evict"]
    assert world.forgotten == []


async def test_eviction_is_dropped_after_its_timeout(api: ControllerApi, world: World) -> None:
    await put_budget(api, min_available=1)
    world.evict(timeout=60.0)
    await world.settle()
    stored = world.pod()
    assert stored is not None and not stored["metadata"].get("deletionTimestamp")
    assert world.condition()["status"] == "False"
    assert world.forgotten == ["uid"]


async def test_cancelled_eviction_resets_the_condition(api: ControllerApi, world: World) -> None:
    await put_budget(api, min_available=1)
    world.evict()
    await wait_for(world.evictor.queue.delayed_count)
    world.evictor.cancel(["uid", "unknown"])
    await wait_for(lambda: world.evictor.idle)
    assert world.condition()["status"] == "False"
    assert world.forgotten == ["uid"]


async def test_missing_right_is_told_and_not_retried(api: ControllerApi, world: World) -> None:
    api.faults.error(EVICTION, 403, message="no right")
    world.evict()
    await world.settle()
    assert world.attempts() == 1
    assert world.recorder.events == [
        ("Pod", "p", "Warning", "EvictionBlocked", "cannot evict pod: no right")
    ]
    assert world.condition()["status"] == "False"
    assert world.forgotten == ["uid"]


@pytest.mark.parametrize("matcher", [CONDITION, EVICTION], ids=["condition", "eviction"])
@pytest.mark.parametrize("fault", ["lose_request", "lose_response", 500, 503, 429])
async def test_request_that_may_have_taken_effect_is_repeated(
    api: ControllerApi, world: World, matcher: RequestMatcher, fault: str | int
) -> None:
    if isinstance(fault, int):
        api.faults.error(matcher, fault)
    else:
        getattr(api.faults, fault)(matcher)
    world.evict()
    await world.settle()
    stored = world.pod()
    assert stored is not None and stored["metadata"]["deletionTimestamp"]
    assert world.condition()["status"] == "True"
    assert [event[3] for event in world.recorder.events if event[3] == "Evict"] == ["Evict"]
    assert world.forgotten == []


async def test_pod_that_finished_meanwhile_is_kept(api: ControllerApi, world: World) -> None:
    held = api.faults.hold(EVICTION)
    world.evict()
    await held.wait_held()
    put_pod(api, phase="Succeeded")
    held.release()
    await world.settle()
    stored = world.pod()
    assert stored is not None and not stored["metadata"].get("deletionTimestamp")
    assert world.recorder.events == []


async def test_pod_that_changed_meanwhile_is_evicted(api: ControllerApi, world: World) -> None:
    held = api.faults.hold(EVICTION)
    world.evict()
    await held.wait_held()
    put_pod(api, podIP="10.0.0.1")  # drops the condition, too
    held.release()
    await world.settle()
    stored = world.pod()
    assert stored is not None and stored["metadata"]["deletionTimestamp"]
    assert world.condition()["status"] == "True"


@pytest.mark.parametrize("matcher", [CONDITION, EVICTION], ids=["condition", "eviction"])
async def test_later_pod_of_that_name_is_kept(
    api: ControllerApi, world: World, matcher: RequestMatcher
) -> None:
    held = api.faults.hold(matcher)
    world.evict()
    await held.wait_held()
    api.remove(PODS, "p")
    put_pod(api, uid="other")
    held.release()
    await world.settle()
    stored = world.pod()
    assert stored is not None and stored["metadata"]["uid"] == "other"
    assert not stored["metadata"].get("deletionTimestamp")
    assert world.condition() == {}


async def test_deleted_pod_is_no_error(api: ControllerApi, world: World) -> None:
    api.remove(PODS, "p")
    world.evict()
    await world.settle()
    assert world.recorder.events == []


async def test_condition_left_by_a_crash_is_reset(api: ControllerApi) -> None:
    async with new_world(api) as first:
        held = api.faults.hold(EVICTION)
        first.evict()
        await held.wait_held()
        held.lose()
    async with new_world(api) as second:
        assert second.condition()["status"] == "True"
        second.evictor.observe(msgspec.convert(second.pod(), Pod))
        await second.clock.advance(STALE_AFTER - 1)
        assert second.condition()["status"] == "True"
        await second.clock.advance(2)
        await wait_for(lambda: second.evictor.idle)
        assert second.condition()["status"] == "False"
        stored = second.pod()
        assert stored is not None and not stored["metadata"].get("deletionTimestamp")


async def test_condition_left_by_a_crash_is_used_by_a_new_eviction(api: ControllerApi) -> None:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    put_pod(api, conditions=(condition,))
    async with new_world(api) as world:
        world.evictor.observe(msgspec.convert(world.pod(), Pod))
        world.evict()
        await world.settle()
        stored = world.pod()
        assert stored is not None and stored["metadata"]["deletionTimestamp"]
        assert world.condition()["status"] == "True"


async def test_terminating_pod_is_not_evicted_again(api: ControllerApi, world: World) -> None:
    await put_budget(api, min_available=1)
    world.evict()
    await wait_for(world.evictor.queue.delayed_count)
    terminating = msgspec.convert(world.pod(), Pod)
    meta = msgspec.structs.replace(terminating.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    world.evictor.observe(msgspec.structs.replace(terminating, metadata=meta))
    assert world.evictor.idle
    await world.clock.advance(60)
    assert world.attempts() == 1


async def test_requests_in_flight_are_bounded(api: ControllerApi, world: World) -> None:
    held = api.faults.hold(RequestMatcher("patch", "pods/status", count=None))
    world.evictor.evict(
        Eviction(namespace="d", name=f"p{index}", uid=f"u{index}", message=MESSAGE)
        for index in range(20)
    )
    await held.wait_held(4)
    assert held.held == 4
    held.release()
    await world.settle()


# Pods that are replaced.


def replaced_condition(world: World) -> str:
    """The status of the condition of pods that are replaced; empty without one."""
    conditions = ((world.pod() or {}).get("status") or {}).get("conditions") or ()
    found = (each["status"] for each in conditions if each["type"] == REPLACED_BY_SCHEDULER)
    return next(found, "")


async def test_pod_that_is_replaced_has_a_condition_of_its_own(
    api: ControllerApi, world: World
) -> None:
    """API servers replace the reason of DisruptionTarget at the eviction."""
    world.evict(replaced=True, reason="GangIncomplete")
    await world.settle()
    assert replaced_condition(world) == "True"
    assert world.condition()["reason"] == "GangIncomplete"


async def test_pod_that_is_preempted_is_not_marked_as_replaced(
    api: ControllerApi, world: World
) -> None:
    world.evict()
    await world.settle()
    assert replaced_condition(world) == ""


async def test_dropped_replacement_resets_both_conditions(api: ControllerApi, world: World) -> None:
    await put_budget(api, min_available=1)
    world.evict(replaced=True)
    await wait_for(world.evictor.queue.delayed_count)
    assert replaced_condition(world) == "True"
    world.evictor.cancel(["uid"])
    await wait_for(lambda: world.evictor.idle)
    assert (replaced_condition(world), world.condition()["status"]) == ("False", "False")
