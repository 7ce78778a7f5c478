"""What a gang that waits competes with, and what is reserved on nodes for whom."""

import msgspec
import pytest
from support.planned_starts import World, backfilling
from support.preemption import EvictingWorld
from support.preemption import conf as evicting_conf
from support.preemption import node as preemption_node
from support.scheduler import SchedulerWorld, node, pod, podgroup, queue

from batholith.model.meta import ObjectMeta, OwnerReference
from batholith.model.names import INSTANCE_TYPE, JOBS, TIME_LIMIT
from batholith.model.podgroup import PodGroup
from batholith.model.scheduler_questions import (
    MAX_JOBS,
    FreeAmount,
    JobRef,
    ReservedNode,
    WaitDetails,
    WaitRequest,
)
from batholith.scheduler import conf
from batholith.scheduler.simulation import reserved_nodes
from batholith.scheduler.simulation.reserved_nodes import list_reservations
from batholith.scheduler.simulation.trial import SchedulerCopy
from batholith.scheduler.simulation.wait_details import explain_wait
from batholith.scheduler.state.cache.events import ResourceQuotaEvent
from batholith.scheduler.state.cache.resource_quotas import ResourceQuota, ResourceQuotaStatus
from batholith.scheduler.state.core_types import Taint

CAPACITY = conf.DEFAULT.replace("proportion", "capacity")


def details(world: SchedulerWorld, name: str, *, time: float = 1000.0) -> WaitDetails | None:
    copy = SchedulerCopy(world.cluster, world.core, now=time, time=time)
    return explain_wait(copy, WaitRequest("ns", name))


def waits(world: SchedulerWorld, name: str, *, time: float = 1000.0) -> WaitDetails:
    found = details(world, name, time=time)
    assert found is not None
    return found


def owned(group: PodGroup, *, limit: str = "") -> PodGroup:
    """*group* as that of a job of the same name, with a time limit."""
    owner = OwnerReference(
        api_version=JOBS.api_version,
        kind=JOBS.kind,
        name=group.metadata.name,
        uid="job",
        controller=True,
    )
    annotations = {TIME_LIMIT: limit} if limit else {}
    meta = msgspec.structs.replace(
        group.metadata, owner_references=(owner,), annotations=annotations
    )
    return msgspec.structs.replace(group, metadata=meta)


def run(
    world: SchedulerWorld,
    name: str,
    count: int,
    on: str,
    *,
    limit: str = "",
    queue: str = "default",
) -> None:
    """Let a job of *count* pods of one CPU run."""
    world.upsert(owned(podgroup(name, count, phase="Running", queue=queue), limit=limit))
    world.upsert(*(pod(f"{name}-{i}", name, node_name=on, phase="Running") for i in range(count)))


def submit(
    world: SchedulerWorld, name: str, count: int, *, second: int = 0, queue: str = "default"
) -> None:
    """Add a job of *count* pods of four CPUs."""
    created = f"2026-01-01T00:00:{second:02d}Z"
    world.upsert(owned(podgroup(name, count, created=created, queue=queue)))
    world.upsert(*(pod(f"{name}-{i}", name, cpu=4) for i in range(count)))


def job(name: str) -> JobRef:
    return JobRef("ns", JOBS.api_version, JOBS.kind, name)


def test_gangs_before_it_in_its_queue_are_named_in_order_up_to_a_number() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), queue("other"))
    run(world, "running", 8, "a")
    for second in range(MAX_JOBS + 3):
        submit(world, f"w{second:02d}", 1, second=second)
    submit(world, "elsewhere", 1, queue="other")
    world.schedule()
    last = waits(world, f"w{MAX_JOBS + 2:02d}")
    assert (last.position, last.waiting) == (MAX_JOBS + 3, MAX_JOBS + 3)
    assert [each.job for each in last.ahead] == [job(f"w{n:02d}") for n in range(MAX_JOBS)]
    assert last.ahead[0].requests == {"cpu": "4"}
    next_one = waits(world, "w01")
    assert (next_one.position, [each.job.name for each in next_one.ahead]) == (2, ["w00"])
    assert waits(world, "elsewhere").ahead == ()


def test_holders_on_nodes_are_those_whose_nodes_it_may_use_the_first_to_end_first() -> None:
    world = SchedulerWorld()
    closed = Taint(key="team", value="x", effect="NoSchedule")
    world.upsert(node("a"), node("b"), node("c", taints=(closed,)))
    run(world, "later", 4, "a", limit="2h")
    run(world, "sooner", 3, "b", limit="1h")
    run(world, "endless", 4, "b")
    run(world, "separate", 8, "c", limit="1h")
    submit(world, "wide", 2)
    world.schedule()
    found = waits(world, "wide")
    assert [(each.job.name, each.held, each.nodes) for each in found.holders] == [
        ("sooner", {"cpu": "3"}, 1),
        ("later", {"cpu": "4"}, 1),
        ("endless", {"cpu": "4"}, 1),
    ]
    ends = [(each.until, each.basis) for each in found.holders]  # with the grace period
    assert ends == [(4630.0, "limit"), (8230.0, "limit"), (None, "")]
    assert found.more_holders == 0


def test_what_is_requested_is_compared_with_what_is_free_in_each_group_of_nodes() -> None:
    world = SchedulerWorld()
    large, closed = {INSTANCE_TYPE: "large"}, Taint(key="x", value="", effect="NoSchedule")
    world.upsert(node("a", labels=large), node("b", labels=large), node("c", taints=(closed,)))
    run(world, "r", 6, "a")
    submit(world, "wide", 4)
    world.schedule()
    assert waits(world, "wide").free == (
        FreeAmount("cpu", "16", "10", "16", group="large", nodes=2, usable=2, largest="8"),
        FreeAmount("cpu", "16", "0", "0", group="", nodes=1, usable=0, largest="0"),
    )


def test_a_full_queue_is_held_by_its_own_jobs() -> None:
    world = SchedulerWorld(CAPACITY)
    world.upsert(node("a", cpu=64), queue("small", capability={"cpu": 6}))
    run(world, "inside", 4, "a", queue="small")
    run(world, "outside", 4, "a")
    submit(world, "wide", 1, queue="small")
    world.schedule()
    found = waits(world, "wide")
    assert found.free[0] == FreeAmount("cpu", "4", "2", "6", queue="small")
    assert [(each.job.name, each.queue) for each in found.holders] == [("inside", "small")]


@pytest.mark.parametrize("name", ["cpu", "limits.cpu"])
def test_a_quota_is_used_up_by_jobs_of_its_namespace(name: str) -> None:
    text = conf.DEFAULT.replace("- name: gang", "- name: gang\n  - name: resourcequota")
    world = SchedulerWorld(text)
    world.upsert(node("a", cpu=64))
    run(world, "inside", 4, "a")
    world.upsert(
        owned(podgroup("inside", 4, phase="Running", resources={"cpu": 4, "limits.cpu": 4})),
        owned(podgroup("no-pods", 1, phase="", resources={"cpu": 90, "limits.cpu": 90})),
    )
    quota = ResourceQuota(
        metadata=ObjectMeta(name="alice", namespace="ns"),
        status=ResourceQuotaStatus(hard={name: "5"}, used={name: "4"}),
    )
    world.cluster.apply(ResourceQuotaEvent(None, quota))
    world.upsert(owned(podgroup("new", 1, phase="", resources={"cpu": 3, name: 3})))
    world.schedule()
    found = waits(world, "new")
    (holder,) = found.holders
    assert (holder.job.name, holder.held, holder.nodes) == ("inside", {name: "4"}, 1)
    assert [each.group or each.queue for each in found.free] == [""]


def test_a_gang_may_ask_for_what_no_node_has() -> None:
    world = SchedulerWorld(CAPACITY)
    world.upsert(node("a"))
    minimum: dict[str, str | int | float] = {"example.com/fpga": 2}
    world.upsert(owned(podgroup("new", 1, phase="Pending", resources=minimum)))
    world.schedule()
    (free,) = waits(world, "new").free
    assert (free.resource, free.asked, free.free, free.total) == ("example.com/fpga", "2", "0", "0")


def test_a_gang_that_no_resource_is_missing_for_has_no_holders() -> None:
    world = SchedulerWorld()
    world.upsert(node("a", cpu=64))
    run(world, "r", 4, "a")
    world.upsert(owned(podgroup("picky", 1)), pod("picky-0", "picky", selector={"zone": "none"}))
    world.schedule()
    found = waits(world, "picky")
    assert found.holders == ()
    assert [(each.nodes, each.usable) for each in found.free] == [(1, 0)]


def test_a_gang_that_is_not_admitted_competes_with_what_its_minimum_requests() -> None:
    world = SchedulerWorld(CAPACITY)
    world.upsert(node("a", cpu=64), queue("small", capability={"cpu": 6}))
    run(world, "inside", 4, "a", queue="small")
    group = podgroup("new", 3, phase="Pending", queue="small", resources={"cpu": "3"})
    world.upsert(owned(group))
    world.schedule()
    found = waits(world, "new")
    assert found.free[0] == FreeAmount("cpu", "3", "2", "6", queue="small")
    assert [each.job.name for each in found.holders] == ["inside"]


def test_nothing_is_known_of_a_gang_that_does_not_wait() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"))
    run(world, "r", 1, "a")
    world.schedule()
    assert details(world, "r") is None
    assert details(world, "missing") is None


def test_planned_starts_are_reservations_with_their_nodes_and_time() -> None:
    world = World(backfilling("conservative"))
    world.submit("a", 2)
    world.submit("large", 4)
    world.run()
    (planned,) = list_reservations(SchedulerCopy(world.cluster, world.core, now=1, time=1)).items
    assert (planned.job.name, planned.purpose, planned.start) == ("large", "start", 100.0)
    assert len(planned.nodes) == 4
    assert all(each.amounts for each in planned.nodes)


def test_what_is_held_for_a_gang_is_a_reservation_until_it_expires(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = EvictingWorld(evicting_conf(gang=False))
    world.upsert(preemption_node("a", cpu=2))
    world.gang("low", 2, minimum=1, nodes=("a", "a"), grace=10)
    world.gang("high", 2, priority="high", cpu=1)
    world.run(time=1000.0)
    copy = SchedulerCopy(world.cluster, world.core, now=1000, time=1000)
    found = list_reservations(copy)
    (held,) = found.items
    assert (held.job.name, held.purpose, held.until) == ("high", "preemption", 1040.0)
    assert held.nodes == (ReservedNode("a", {"cpu": "2"}),)
    assert found.is_complete
    monkeypatch.setattr(reserved_nodes, "MAX_RESERVED_NODES", 0)
    assert list_reservations(copy).is_complete is False
