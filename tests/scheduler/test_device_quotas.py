"""Limits of queues on devices of claims: ``deviceclass/NAME`` in their capability."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from scheduler.test_device_claims import (
    add,
    allocated,
    claim,
    claiming,
    device_class,
    device_slice,
    gpu,
    request,
    results,
    using,
)
from support.preemption import EvictingWorld, conf
from support.scheduler import SchedulerWorld, node, pod, podgroup, queue
from support.scheduler_queues import queue as queue_of

from batholith.scheduler.state.cache.events import ResourceClaimEvent
from batholith.scheduler.state.devices.types import ResourceClaim

Json = dict[str, Any]
GPUS = [gpu(f"gpu{index}") for index in range(8)]


def limited_world(limit: int, world: SchedulerWorld | None = None) -> SchedulerWorld:
    """A node with eight GPUs, and a queue that may have *limit* of them."""
    world = world or SchedulerWorld()
    add(world, device_class(), device_class(name="other"), device_slice("a", *GPUS))
    world.upsert(node("a", cpu=16), team(limit))
    return world


def team(limit: int, **options: Any) -> Any:
    return queue("team", capability={"deviceclass/gpu": str(limit)}, **options)


def gang(world: SchedulerWorld, name: str, size: int, *claims: Json, **options: Any) -> None:
    """A gang of *size* pods, each with another claim for one GPU, or for *claims*."""
    world.upsert(podgroup(name, size, queue=options.pop("queue", "team")))
    for index in range(size):
        own = f"{name}-{index}"
        add(world, claim(own, *claims))
        world.upsert(using(pod(own, name, **options), own))


def store(world: SchedulerWorld, found: dict[str, tuple[str, list[str]]]) -> None:
    """The claims are written, with what they have got."""
    for name, (host, devices) in found.items():
        old = known(world, name)
        each = {"request": "r", "driver": "gpu.example.com", "pool": host}
        allocation = {"devices": {"results": [{**each, "device": device} for device in devices]}}
        body = msgspec.to_builtins(old) | {"status": {"allocation": allocation}}
        world.cluster.apply(ResourceClaimEvent(old, msgspec.convert(body, ResourceClaim)))


def known(world: SchedulerWorld, name: str) -> ResourceClaim:
    return world.cluster.pod_classes.device_claims.claims[f"ns/{name}"]


def test_a_queue_has_no_more_devices_than_its_capability() -> None:
    world = limited_world(3)
    gang(world, "g", 2)
    gang(world, "h", 2)
    gang(world, "free", 4, queue="default")
    found = results(world.decision())
    assert sorted(found) == ["free-0", "free-1", "free-2", "free-3", "g-0", "g-1"]
    expected = "queue resource quota insufficient: insufficient deviceclass/gpu (requested 1, free"
    assert expected in world.fit_message("h")
    world.upsert(team(4))
    assert sorted(results(world.decision())) == ["h-0", "h-1"]


def test_a_gang_waits_until_claims_are_not_allocated_any_more() -> None:
    world = limited_world(2)
    gang(world, "g", 2)
    store(world, results(world.decision()))
    gang(world, "h", 1)
    assert results(world.decision()) == {}
    world.remove(world.pod_objects["uid-g-0"])
    world.cluster.apply(ResourceClaimEvent(known(world, "g-0"), None))
    assert sorted(results(world.decision())) == ["h-0"]


def test_a_shared_claim_counts_once() -> None:
    world = limited_world(1)
    add(world, claim("shared"))
    world.upsert(podgroup("g", 3, queue="team"))
    world.upsert(*(using(pod(f"g-{index}", "g"), "shared") for index in range(3)))
    decision = world.decision()
    assert len(decision.placements) == 3
    store(world, results(decision))
    gang(world, "h", 1)
    assert results(world.decision()) == {}
    world.upsert(podgroup("late", 1, queue="team"), using(pod("late-0", "late"), "shared"))
    assert [each.name for each in world.decision().placements] == ["late-0"]


def test_pods_without_requests_are_limited_too() -> None:
    world = limited_world(1)
    gang(world, "g", 1, cpu=0)
    gang(world, "h", 1, cpu=0)
    gang(world, "many", 2, queue="default", cpu=0)
    assert sorted(results(world.decision())) == ["g-0", "many-0", "many-1"]
    assert "insufficient deviceclass/gpu" in world.fit_message("h")


def test_limits_of_ancestors_apply() -> None:
    world = limited_world(8)
    parent = queue("parent", capability={"deviceclass/gpu": "1"})
    child = msgspec.structs.replace(
        team(8), spec=msgspec.structs.replace(team(8).spec, parent="parent")
    )
    world.upsert(parent, child)
    gang(world, "g", 2)
    assert results(world.decision()) == {}
    assert 'queue "parent" resource quota insufficient' in world.fit_message("g")


@pytest.mark.parametrize(
    ("asked", "limit", "message"),
    [
        (request(count=3), 3, ""),
        (request(count=4), 3, "requested 4, free 3 of 3"),
        (request(deviceClassName="other", count=8), 0, ""),
        (request(allocationMode="All"), 8, "claims for all devices cannot be counted"),
        ({"name": "r", "firstAvailable": [
            {"name": "a", "deviceClassName": "other", "count": 1},
            {"name": "b", "deviceClassName": "gpu", "count": 2},
        ]}, 1, "requested 2, free 1 of 1"),
    ],
)  # fmt: skip
def test_what_a_claim_needs_at_most_counts(asked: Json, limit: int, message: str) -> None:
    world = limited_world(limit)
    gang(world, "g", 1, asked)
    assert bool(results(world.decision())) is not bool(message)
    assert message in (world.fit_message("g") if message else "")


def test_no_pod_is_evicted_because_the_limit_is_reached() -> None:
    world = limited_world(1, EvictingWorld(conf(gang=False)))
    assert isinstance(world, EvictingWorld)
    gang(world, "low", 1, priority=1)
    store(world, results(world.run()))
    gang(world, "high", 1, priority=100)
    for _ in range(3):
        world.run()
    assert world.evicted == []
    world.remove(world.pod_objects["uid-low-0"])
    world.cluster.apply(ResourceClaimEvent(known(world, "low-0"), None))
    assert sorted(results(world.run())) == ["high-0"]


# -- capacities and guarantees ---------------------------------------------------------------------


def memory(amount: str) -> Json:
    return {"capacity": {"requests": {"memory": amount}}}


def with_memory_limit(limit: str) -> SchedulerWorld:
    """A node with eight devices of which claims may share the memory, and a queue with a limit."""
    world = SchedulerWorld()
    shared: Json = {"allowMultipleAllocations": True, "capacity": {"memory": {"value": "16Gi"}}}
    add(world, device_class(), device_slice("a", *(gpu(f"gpu{i}", **shared) for i in range(8))))
    capability: Any = {"memory.deviceclass/gpu": limit}
    world.upsert(node("a", cpu=16), queue("team", capability=capability))
    return world


def test_a_queue_has_no_more_of_a_capacity_than_its_capability() -> None:
    world = with_memory_limit("10Gi")
    gang(world, "g", 2, request(**memory("4Gi")))
    gang(world, "h", 1, request(**memory("4Gi")))
    gang(world, "two", 1, request(count=2, **memory("1Gi")))
    assert {each.name for each in world.decision().placements} == {"g-0", "g-1", "two-0"}
    assert "insufficient memory.deviceclass/gpu" in world.fit_message("h")


def test_an_allocated_claim_counts_with_what_it_consumes() -> None:
    world = with_memory_limit("8Gi")
    gang(world, "g", 1, request(**memory("3Gi")))
    assert len(world.decision().placements) == 1
    old = known(world, "g-0")
    result: Json = {"request": "r", "driver": "gpu.example.com", "pool": "a", "device": "gpu0"}
    result |= {"shareID": "s", "consumedCapacity": {"memory": "5Gi"}}
    body = msgspec.to_builtins(old) | {"status": {"allocation": {"devices": {"results": [result]}}}}
    world.cluster.apply(ResourceClaimEvent(old, msgspec.convert(body, ResourceClaim)))
    gang(world, "h", 1, request(**memory("4Gi")))
    assert world.decision().placements == ()
    gang(world, "i", 1, request(**memory("3Gi")))
    assert [each.name for each in world.decision().placements] == ["i-0"]


def test_a_claim_for_any_capacity_waits_where_that_is_limited() -> None:
    world = with_memory_limit("8Gi")
    gang(world, "g", 1)
    assert world.decision().placements == ()
    assert "claims for any capacity cannot be counted" in world.fit_message("g")


def guaranteed(name: str, units: str, *, parent: str = "") -> Any:
    found = queue(name)
    resource: Any = {"resource": {"deviceclass/gpu": units}}
    spec = msgspec.structs.replace(
        found.spec, guarantee=msgspec.convert(resource, type(found.spec.guarantee)), parent=parent
    )
    return msgspec.structs.replace(found, spec=spec)


def test_other_queues_leave_what_a_queue_is_guaranteed_of_its_parent() -> None:
    world = limited_world(8)
    world.upsert(queue("root", capability={"deviceclass/gpu": "6"}), guaranteed("own", "4"))
    gang(world, "g", 3)
    gang(world, "h", 2)
    assert len(results(world.decision())) == 2
    assert "insufficient deviceclass/gpu" in world.fit_message("g")
    gang(world, "mine", 4, queue="own")
    assert len(results(world.decision())) == 4
    gang(world, "more", 1, queue="own")
    assert results(world.decision()) == {}
    assert 'queue "root" resource quota insufficient' in world.fit_message("more")
    world.upsert(guaranteed("own", "3"), queue("root", capability={"deviceclass/gpu": "9"}))
    assert len(results(world.decision())) == 1


def test_a_guarantee_is_within_the_parent_alone() -> None:
    world = limited_world(8)
    parent = queue("parent", capability={"deviceclass/gpu": "4"})
    world.upsert(
        parent, guaranteed("own", "3", parent="parent"), guaranteed("next", "0", parent="parent")
    )
    gang(world, "g", 5)
    gang(world, "h", 2, queue="next")
    gang(world, "i", 1, queue="next")
    found = results(world.decision())
    assert sorted({name.split("-")[0] for name in found}) == ["g", "i"]


# -- what queues deserve ---------------------------------------------------------------------------

FLAT, TREE = (
    conf(gang=False, more=f"  - name: capacity\n{flags}").replace("  - name: proportion\n", "")
    for flags in ("", "    enableHierarchy: true\n")
)


def reclaiming_world(
    text: str, running: int, *, deserved: Mapping[str, int | str], **fields: Any
) -> EvictingWorld:
    """A node whose devices the pods of the queue *one* have, each another one; a second queue
    deserves the same."""
    world = EvictingWorld(text)
    world.upsert(node("a", cpu=80), queue_of("root"))
    world.upsert(*(queue_of(name, deserved=deserved) for name in ("one", "two")))
    add(world, device_class())
    add(world, device_slice("a", *(gpu(f"gpu{index}", **fields) for index in range(running))))
    for index in range(running):
        name = f"one{index}"
        world.gang(name, 1, minimum=0, nodes=("a",), queue_name="one")
        found = allocated("a", f"gpu{index}")
        add(world, claim(name, allocation=found, reserved_for=(f"uid-{name}-t-0",)))
        claiming(world, f"{name}-t-0", name)
    return world


def wait_for_devices(world: EvictingWorld, *names: str, **asked: Any) -> None:
    """Gangs of the queue *two* with a pod each, which has a claim."""
    for name in names:
        world.gang(name, 1, queue_name="two")
        add(world, claim(f"{name}-c", request(**asked)))
        claiming(world, f"{name}-t-0", f"{name}-c")


def free_devices(world: EvictingWorld) -> None:
    """Evicted pods end, and their claims are not allocated any more."""
    ended = {each.partition("-")[0] for each in world.evicted}
    world.finish_termination()
    for name in ended & {each.partition("/")[2] for each in claims(world)}:
        world.cluster.apply(ResourceClaimEvent(known(world, name), None))


def claims(world: SchedulerWorld) -> Json:
    return world.cluster.pod_classes.device_claims.claims


@pytest.mark.parametrize("text", [FLAT, TREE])
def test_a_queue_reclaims_the_devices_that_it_deserves(text: str) -> None:
    world = reclaiming_world(text, 4, deserved={"deviceclass/gpu": 2})
    wait_for_devices(world, "x", "y", "z")
    for _ in range(4):
        world.run()
    assert len(world.evicted) == 2
    free_devices(world)
    allotted: set[str] = set()
    for _ in range(4):
        found = results(world.run())
        store(world, found)
        allotted |= found.keys()
    assert len(allotted) == 2 and len(world.evicted) == 2


def test_devices_that_no_queue_deserves_are_not_reclaimed() -> None:
    world = reclaiming_world(FLAT, 2, deserved={"deviceclass/other": 2})
    wait_for_devices(world, "x")
    world.run()
    assert world.evicted == []


def test_a_queue_keeps_the_devices_that_it_deserves() -> None:
    world = reclaiming_world(FLAT, 2, deserved={"deviceclass/gpu": 2})
    wait_for_devices(world, "x")
    world.run()
    assert world.evicted == []


def test_a_shared_claim_counts_once_for_what_a_queue_deserves() -> None:
    world = reclaiming_world(FLAT, 1, deserved={"deviceclass/gpu": 1})
    world.gang("other", 1, minimum=0, nodes=("a",), queue_name="one")
    claiming(world, "other-t-0", "one0")
    wait_for_devices(world, "x")
    world.run()
    assert world.evicted == []
    world.upsert(queue_of("one"))
    world.run()
    assert sorted(world.evicted) == ["one0-t-0", "other-t-0"]


def test_a_queue_reclaims_the_capacity_of_devices_that_it_deserves() -> None:
    shared: Json = {"allowMultipleAllocations": True, "capacity": {"memory": {"value": "16Gi"}}}
    name = "memory.deviceclass/gpu"
    world = reclaiming_world(FLAT, 0, deserved={name: "8Gi"})
    add(world, device_slice("a", gpu("gpu", **shared)))
    for index in range(2):
        own = f"one{index}"
        world.gang(own, 1, minimum=0, nodes=("a",), queue_name="one")
        share = {"shareID": str(index), "consumedCapacity": {"memory": "8Gi"}}
        found = allocated("a", "gpu", **share)
        asked = request(**memory("8Gi"))
        add(world, claim(own, asked, allocation=found, reserved_for=(f"uid-{own}-t-0",)))
        claiming(world, f"{own}-t-0", own)
    wait_for_devices(world, "x", **memory("8Gi"))
    world.run()
    assert len(world.evicted) == 1
