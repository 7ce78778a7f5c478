"""Who may enter a queue, who goes first, and how queues share the cluster."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scheduler import SchedulerWorld, node, pod, podgroup, queue

from batholith.model.meta import ObjectMeta
from batholith.scheduler import conf
from batholith.scheduler.plugins.proportion import QueueAttr, compute_deserved
from batholith.scheduler.state.core_types import PriorityClass


def phase(world: SchedulerWorld, name: str) -> str:
    return world.cluster.gangs[f"ns/{name}"].phase


def test_a_new_group_enters_its_queue_before_it_has_pods() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 3, phase="", resources={"cpu": 3, "count/pods": 3}))
    world.schedule()
    assert phase(world, "g") == "Inqueue"


def test_a_group_that_asks_for_more_than_is_free_waits_and_is_told_the_numbers() -> None:
    world = SchedulerWorld()
    world.upsert(*(node(f"n{i}", cpu=32) for i in range(4)))
    world.upsert(podgroup("g", 3, phase="", resources={"cpu": 180, "memory": "192Mi", "pods": 3}))
    world.schedule()
    assert phase(world, "g") == ""
    told = "resource in cluster is overused: overused cpu (requested 180, free 153.6)"
    assert world.fit_message("g") == told


def test_a_refused_group_does_not_bar_a_smaller_one() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("big", 1, phase="", resources={"cpu": 100}))
    world.upsert(podgroup("small", 1, phase="", resources={"cpu": 1}))
    world.schedule()
    assert (phase(world, "big"), phase(world, "small")) == ("", "Inqueue")


def test_groups_enter_only_as_long_as_there_is_hope() -> None:
    world = SchedulerWorld()
    world.upsert(node("a", cpu=10))
    world.upsert(*(podgroup(f"g{i}", 1, phase="Pending", resources={"cpu": 5}) for i in range(4)))
    world.schedule()
    assert [phase(world, f"g{i}") for i in range(4)] == ["Inqueue", "Inqueue", "Pending", "Pending"]


def test_room_that_comes_free_lets_a_waiting_group_enter() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), pod("x", node_name="a", cpu=8, scheduler="other", phase="Running"))
    world.upsert(podgroup("g", 1, phase="", resources={"cpu": 4}))
    world.schedule()
    assert phase(world, "g") == ""
    world.remove(pod("x", node_name="a", cpu=8, scheduler="other", phase="Running"))
    world.schedule()
    assert phase(world, "g") == "Inqueue"


@pytest.mark.parametrize("state", ["Closed", "Closing", "Unknown", ""])
def test_nobody_enters_a_queue_that_is_not_open(state: str) -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), queue("shut", state=state), podgroup("g", 1, phase="", queue="shut"))
    world.upsert(pod("g-0", "g"))
    assert world.schedule() == {}
    assert phase(world, "g") == ""
    assert world.fit_message("g").startswith('queue "shut" takes no jobs')
    world.upsert(queue("shut"))
    assert world.schedule() == {"g-0": "a"}


WITHOUT_ENQUEUE = conf.DEFAULT.replace("enqueue, ", "")


def test_allocate_admits_groups_where_enqueue_is_not_configured() -> None:
    """A group that enqueue would refuse, as in the reference, which asks no plugin then."""
    world = SchedulerWorld(WITHOUT_ENQUEUE)
    world.upsert(node("a"), podgroup("g", 1, phase="", resources={"cpu": 180}))
    world.schedule()
    assert phase(world, "g") == "Inqueue"
    world.upsert(pod("g-0", "g"))
    assert world.schedule() == {"g-0": "a"}


@pytest.mark.parametrize("state", ["Closed", "Closing", "Unknown", ""])
def test_allocate_admits_no_group_to_a_queue_that_is_not_open(state: str) -> None:
    world = SchedulerWorld(WITHOUT_ENQUEUE)
    world.upsert(node("a"), queue(state=state), podgroup("g", 1, phase=""), pod("g-0", "g"))
    assert world.schedule() == {}
    assert phase(world, "g") == "" and "takes no jobs" in world.fit_message("g")
    world.upsert(queue())
    assert world.schedule() == {"g-0": "a"}


def test_a_group_of_a_queue_that_does_not_exist_is_told_so() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 1, phase="", queue="nowhere"), pod("g-0", "g"))
    assert world.schedule() == {}
    finding = world.cluster.gangs["ns/g"].diagnosis
    assert finding is not None
    assert (finding.reason, finding.message) == ("QueueNotFound", 'queue "nowhere" does not exist')
    world.upsert(queue("nowhere"))
    assert world.schedule() == {"g-0": "a"}


def test_a_queue_never_gets_more_than_its_capability() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), queue("s", capability={"cpu": 1}))
    for name in ("one", "two"):
        world.upsert(podgroup(name, 1, phase="", queue="s", resources={"cpu": "600m"}))
    world.schedule()
    assert (phase(world, "one"), phase(world, "two")) == ("Inqueue", "")
    told = "queue resource quota insufficient: insufficient cpu (requested 600m, free 400m of 1)"
    assert world.fit_message("two") == told


def test_pods_beyond_the_capability_stay_out_though_nodes_are_free() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), queue("s", capability={"cpu": 2}), podgroup("g", 1, queue="s"))
    world.upsert(*(pod(f"g-t-{i}", "g") for i in range(4)))
    assert set(world.schedule()) == {"g-t-0", "g-t-1"}
    assert world.fit_message("g").startswith("queue resource quota insufficient")


def test_higher_priority_goes_first_whatever_its_age() -> None:
    world = SchedulerWorld()
    gold = PriorityClass(metadata=ObjectMeta(name="gold"), value=1000)
    world.upsert(node("a"), podgroup("old", 1, created="2025-01-01T00:00:00Z"))
    world.upsert(podgroup("new", 1, priority_class="gold"))
    world.cluster.update_priority_class(None, gold)
    world.upsert(pod("old-0", "old", cpu=8), pod("new-0", "new", cpu=8))
    assert set(world.schedule()) == {"new-0"}


def test_groups_without_a_class_have_the_default_one() -> None:
    world = SchedulerWorld()
    usual = PriorityClass(metadata=ObjectMeta(name="usual"), value=7, global_default=True)
    world.upsert(podgroup("g", 1))
    world.cluster.update_priority_class(None, usual)
    assert world.cluster.gangs["ns/g"].priority == 7
    world.cluster.update_priority_class(usual, None)
    assert world.cluster.gangs["ns/g"].priority == 0


def test_pods_of_higher_priority_in_a_gang_go_first() -> None:
    world = SchedulerWorld()
    world.upsert(node("a", cpu=1), podgroup("g", 1))
    world.upsert(pod("g-t-0", "g"), pod("g-t-1", "g", priority=100))
    assert world.schedule() == {"g-t-1": "a"}


def test_a_gang_that_does_not_run_yet_goes_before_more_pods_of_one_that_does() -> None:
    world = SchedulerWorld()
    world.upsert(
        node("a", cpu=3), podgroup("old", 1, created="2025-01-01T00:00:00Z"), podgroup("new", 1)
    )
    world.upsert(*(pod(f"old-{i}", "old") for i in range(3)), pod("new-0", "new"))
    assert set(world.schedule()) == {"old-0", "old-1", "new-0"}


def test_queues_share_by_weight() -> None:
    world = SchedulerWorld()
    world.upsert(node("a", cpu=9), queue("one", weight=1), queue("two", weight=2))
    for name in ("one", "two"):
        world.upsert(podgroup(name, 1, queue=name), *(pod(f"{name}-t-{i}", name) for i in range(9)))
    placed = world.schedule()
    assert sum(name.startswith("one") for name in placed) == 3
    assert sum(name.startswith("two") for name in placed) == 6


@pytest.mark.parametrize("pods", [4, 110])
def test_a_gang_whose_queue_has_had_its_share_is_told_so(pods: int) -> None:
    """With few places for pods the queue as a whole is turned away, else each of its gangs."""
    world = SchedulerWorld()
    world.upsert(node("a", cpu=4, pods=pods), queue("one"), queue("two"))
    world.upsert(podgroup("big", 5, queue="two"), *(pod(f"big-t-{i}", "big") for i in range(5)))
    for name in ("one", "more"):
        world.upsert(
            podgroup(name, 2, queue="one"), *(pod(f"{name}-t-{i}", name) for i in range(2))
        )
    assert len(world.schedule()) == 2
    told = {world.fit_message(name) for name in ("one", "more")}
    lacks = "queue resource quota insufficient: insufficient cpu (requested 1, free 0 of 2)"
    assert told == {"", lacks}


def test_the_queue_of_higher_priority_is_served_first() -> None:
    world = SchedulerWorld(
        'actions: "allocate"\ntiers:\n- plugins: [{name: gang}, {name: proportion}]'
    )
    world.upsert(node("a", cpu=2, pods=1), queue("b", priority=5), queue("a"))
    for name in ("a", "b"):
        world.upsert(podgroup(name, 1, queue=name), pod(f"{name}-0", name))
    assert set(world.schedule()) == {"b-0"}


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.integers(0, 50), st.integers(0, 30)),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 100),
)
def test_a_division_keeps_to_what_there_is_and_to_every_limit(
    queues: list[tuple[int, int, int]], there: int
) -> None:
    portions = [QueueAttr(w, {"cpu": asked}, {}, {"cpu": most}) for w, asked, most in queues]
    compute_deserved(portions, {"cpu": there})
    given_out = [portion.deserved.get("cpu", 0) for portion in portions]
    assert sum(given_out) <= there
    wanted = [min(asked, most) for _, asked, most in queues]
    assert all(got <= want for got, want in zip(given_out, wanted, strict=True))
    assert given_out == wanted or sum(given_out) == there


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('actions: "enqueue, dance"', "dance"),
        ("tiers: []", "actions"),
        ('actions: "allocate"\ntiers:\n- plugins: [{name: voodoo}]', "voodoo"),
        ('actions: "allocate"\ntiers: {}', "tiers"),
        ("actions: [", "no YAML"),
    ],
)
def test_a_configuration_that_means_nothing_is_refused_clearly(text: str, word: str) -> None:
    with pytest.raises(conf.ConfError, match=word):
        conf.load(text)


def test_names_of_the_reference_that_are_not_built_are_passed_over() -> None:
    text = 'actions: "allocate, preempt"\ntiers:\n- plugins: [{name: sla}, {name: gang}]'
    read = conf.load(text)
    assert read.actions == ("allocate",)
    assert [each.name for each in read.tiers[0]] == ["gang"]


def test_a_plugin_can_be_told_to_leave_something_alone() -> None:
    text = "\n- plugins:\n  - {name: gang}\n  - {name: predicates, enablePredicate: false}"
    world = SchedulerWorld('actions: "allocate"\ntiers:' + text)
    world.upsert(node("a", cordoned=True), podgroup("g", 1), pod("g-0", "g"))
    assert world.schedule() == {"g-0": "a"}
