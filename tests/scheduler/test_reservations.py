"""What evicted pods release is held for the gang for which they were evicted."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.preemption import EvictingWorld, conf, member, node, podgroup
from support.scheduler import pod

from batholith.model.meta import ObjectMeta
from batholith.scheduler.state.cache.events import EvictionForgotten
from batholith.scheduler.state.core_types import Pod, PriorityClass
from batholith.scheduler.state.planning.reservations import Purpose, Reservations
from batholith.scheduler.state.queue.scheduling_queue import ANY

NOW = 1_000_000.0


@pytest.fixture
def world() -> EvictingWorld:
    """A high gang waits until two low pods have terminated."""
    world = EvictingWorld(conf(gang=False))
    world.upsert(node("a", cpu=2), node("b", cpu=2))
    world.gang("low", 4, minimum=1, nodes=("a", "a", "b", "b"), grace=10)
    world.gang("high", 2, priority="high", cpu=1)
    world.run(time=NOW)
    assert len(world.evicted) == 2
    return world


def test_released_resources_are_for_the_preemptor_quirk_3(world: EvictingWorld) -> None:
    """Reference quirk 3: there any gang may take them in the next cycle."""
    world.finish_termination(world.evicted[0])
    world.gang("greedy", 1, priority="high", policy="Never")  # of equal claim, and it fits now
    world.run(time=NOW + 5)
    assert world.node_of("greedy-t-0") == ""
    assert world.node_of("high-t-0") == ""
    world.finish_termination(world.evicted[1])
    world.run(time=NOW + 6)
    assert world.node_of("high-t-0")
    assert world.node_of("high-t-1")
    assert world.node_of("greedy-t-0") == ""
    assert not world.cluster.reservations
    assert not world.cluster.node_matrix.pipelined.any()


def test_preemptor_waits_without_further_evictions(world: EvictingWorld) -> None:
    for second in range(1, 5):
        world.cluster.scheduling_queue.publish(ANY)
        assert world.run(time=NOW + second).evictions == ()
    assert len(world.evicted) == 2
    diagnosis = world.cluster.gangs["ns/high"].diagnosis
    assert diagnosis is not None
    assert diagnosis.message == "waits until the pods that are evicted for it have terminated"


def test_reservation_expires_after_grace_period_and_margin(world: EvictingWorld) -> None:
    world.finish_termination(world.evicted[0])
    world.gang("greedy", 1, priority="high", policy="Never")
    world.run(time=NOW + 39)
    assert world.node_of("greedy-t-0") == ""
    world.cluster.scheduling_queue.publish(ANY)
    world.run(time=NOW + 40)
    assert world.node_of("greedy-t-0")


def test_gang_with_a_higher_claim_takes_what_is_held(world: EvictingWorld) -> None:
    top = PriorityClass(metadata=ObjectMeta(name="top"), value=1000)
    world.cluster.update_priority_class(None, top)
    world.gang("urgent", 2, priority="top")
    decision = world.run(time=NOW + 1)
    # What is held is enough for the gang; others are evicted for the gang that has lost it.
    assert not [each for each in decision.evictions if "urgent" in each.message]
    assert {"urgent-t-0", "urgent-t-1"} <= {each.name for each in decision.nominations}
    world.finish_termination()
    world.run(time=NOW + 2)
    assert world.node_of("urgent-t-0")
    assert world.node_of("urgent-t-1")
    assert len(world.evicted) == 4
    world.finish_termination()
    world.run(time=NOW + 3)
    assert world.node_of("high-t-0")
    assert world.node_of("high-t-1")


def test_refused_eviction_leads_to_another_victim() -> None:
    world = EvictingWorld(conf(gang=False))
    world.upsert(node("a", cpu=2))
    world.gang("low", 2, minimum=1, nodes=("a",))
    world.gang("high", 1, priority="high")
    world.time = NOW
    (refused,) = world.decision().evictions
    world.cluster.apply(EvictionForgotten(refused.uid, NOW + 300))
    (other,) = world.decision().evictions
    assert other.name != refused.name
    world.cluster.apply(EvictionForgotten(other.uid, NOW + 300))
    decision = world.decision()
    assert decision.evictions == ()
    assert not world.cluster.reservations
    assert not world.cluster.node_matrix.pipelined.any()


def test_deleted_preemptor_releases_what_is_held(world: EvictingWorld) -> None:
    for index in range(2):
        world.remove(world.pod_objects[f"uid-high-t-{index}"])
    assert not world.cluster.reservations
    assert not world.cluster.node_matrix.pipelined.any()


def test_removed_node_releases_what_is_held(world: EvictingWorld) -> None:
    held = {hold.node_index for each in world.cluster.reservations for hold in each.holds.values()}
    assert held
    for name in ("a", "b"):
        world.remove(node(name))
    assert not world.cluster.reservations
    world.validate()


def test_single_pods_preempt_as_gangs_of_one() -> None:
    world = EvictingWorld(conf(gang=False), single="default-scheduler")
    world.upsert(node("a", cpu=1))

    def bare(name: str, node_name: str, priority: int) -> None:
        built = member(name, "", node_name, priority=priority)
        spec = msgspec.structs.replace(built.spec, scheduler_name="default-scheduler")
        world.upsert(msgspec.structs.replace(built, spec=spec))

    bare("victim", "a", 5)
    bare("equal", "", 5)
    world.run()
    assert world.evicted == []
    bare("important", "", 6)
    world.run()
    assert world.evicted == ["victim"]
    world.finish_termination()
    world.run()
    assert world.node_of("important") == "a"
    assert world.node_of("equal") == ""


def test_preemption_policy_never_is_respected() -> None:
    world = EvictingWorld(conf(gang=False))
    world.upsert(node("a", cpu=1))
    world.gang("low", 1, nodes=("a",))
    world.gang("high", 1, priority="high", policy="Never")
    world.run()
    assert world.evicted == []


def test_pod_that_is_not_preemptable_is_spared() -> None:
    world = EvictingWorld(conf(gang=False))
    world.upsert(node("a", cpu=1))
    world.gang("low", 1, nodes=("a",), preemptable="false")
    world.gang("high", 1, priority="high")
    world.run()
    assert world.evicted == []


def test_latest_start_is_evicted_first() -> None:
    world = EvictingWorld(conf(gang=False))
    world.upsert(node("a", cpu=3), podgroup("low", 1, phase="Running", priority_class="low"))
    for index, day in enumerate((2, 3, 1)):
        world.upsert(member(f"low-t-{index}", "low", "a", started=f"2026-01-0{day}T00:00:00Z"))
    world.gang("high", 1, priority="high")
    world.run()
    assert world.evicted == ["low-t-1"]


def test_lower_priority_is_evicted_before_latest_start() -> None:
    world = EvictingWorld(conf(gang=False))
    world.upsert(node("a", cpu=2))
    world.gang("mid", 1, nodes=("a",), priority="mid", started="2026-01-09T00:00:00Z")
    world.gang("low", 1, nodes=("a",), started="2026-01-01T00:00:00Z")
    world.gang("high", 1, priority="high")
    world.run()
    assert world.evicted == ["low-t-0"]


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["hold", "drop", "lend", "allocate"]), st.integers(0, 2)), max_size=12
)


@settings(max_examples=100, deadline=None)
@given(OPERATIONS)
def test_what_is_held_is_counted_exactly(operations: list[tuple[str, int]]) -> None:
    """The node matrix has the requests of all holds, and nothing else, after any history."""
    world = EvictingWorld(conf(gang=False))
    world.upsert(node("a", cpu=4), node("b", cpu=4))
    for index in range(3):
        world.gang(f"g{index}", 2)
    reservations: Reservations = world.cluster.reservations
    for operation, index in operations:
        gang = world.cluster.gangs[f"ns/g{index}"]
        match operation:
            case "hold":
                nodes = {f"uid-g{index}-t-{pod}": pod for pod in range(2)}
                reservations.hold(gang, nodes, until=NOW, purpose=Purpose.PREEMPTION)
            case "drop":
                reservations.drop(gang.key)
            case "lend":
                with reservations.lent([f"ns/g{each}" for each in range(index)]):
                    pass
            case _:
                world.started(f"g{index}-t-0", "a")
        held = sum(len(each.holds) for each in reservations)
        assert int(world.cluster.node_matrix.pipelined[0].sum()) == 1000 * held
        for each in reservations:
            for uid in each.holds:
                task = world.cluster.task(uid)
                assert task is not None and not task.node
        world.validate()


def nominated(name: str, node_name: str, *, cpu: int) -> Pod:
    """A pending pod of another scheduler, which has evicted pods on a node for it."""
    built = pod(name, scheduler="other", priority=50, cpu=cpu)
    status = msgspec.structs.replace(built.status, nominated_node_name=node_name)
    return msgspec.structs.replace(built, status=status)


def test_what_another_scheduler_has_freed_is_for_its_pod_or_a_higher_priority() -> None:
    world = EvictingWorld(conf(gang=False))
    world.upsert(node("a", cpu=4), node("b", cpu=1))
    vip = nominated("vip", "a", cpu=3)
    world.upsert(vip)
    world.gang("equal", 1, priority="mid", cpu=2)
    world.run(time=NOW)
    assert world.node_of("equal-t-0") == ""
    world.gang("fitting", 1, priority="low", cpu=1)
    world.run(time=NOW + 1)
    assert world.node_of("fitting-t-0") != ""
    world.gang("higher", 1, priority="high", cpu=3)
    world.run(time=NOW + 2)
    assert world.node_of("higher-t-0") == "a"
    assert world.evicted == []


@pytest.mark.parametrize("end", ["bound", "deleted", "terminating", "cleared", "moved"])
def test_the_reservation_for_a_nominated_pod_ends_with_its_nomination(end: str) -> None:
    world = EvictingWorld(conf(gang=False))
    world.upsert(node("a", cpu=2), node("b", cpu=1), node("c", cpu=2))
    world.gang("other", 1, nodes=("c",), cpu=2)
    vip = nominated("vip", "a", cpu=2)
    world.upsert(vip)
    world.gang("waits", 1, priority="mid", cpu=2)
    world.run(time=NOW)
    assert world.node_of("waits-t-0") == ""
    replace = msgspec.structs.replace
    if end == "bound":
        world.upsert(replace(vip, spec=replace(vip.spec, node_name="a")))
        world.upsert(node("a", cpu=4))
    elif end == "deleted":
        world.remove(vip)
    elif end == "terminating":
        deleted = replace(vip.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
        world.upsert(replace(vip, metadata=deleted))
    else:
        now = "c" if end == "moved" else ""
        world.upsert(replace(vip, status=replace(vip.status, nominated_node_name=now)))
    world.run(time=NOW + 1)
    assert world.node_of("waits-t-0") == "a"
    assert bool(world.cluster.reservations) is (end == "moved")
    assert world.cluster.node_matrix.pipelined.any() == (end == "moved")
    world.validate()
