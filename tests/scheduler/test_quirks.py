"""What surprises in Volcano's scheduler, and what Batholith does: docs/scheduler-quirks.md."""

import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
from support.scheduler import SchedulerWorld, node, pod, podgroup, queue

from batholith.model.job import NetworkTopology
from batholith.model.queue import Queue
from batholith.scheduler import conf
from batholith.scheduler.plugins.extension_points import NodeAmounts
from batholith.scheduler.plugins.nodeorder import NodeOrderPlugin

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "scheduler-quirks.md"
LAST = 59
_ROW = re.compile(r"^\| (\d+) \| (.+?) \| (.+?) \| (.+?) \|$")


def rows() -> dict[int, str]:
    """Return the last column of the page by number."""
    return {int(row[1]): row[4] for row in map(_ROW.match, PAGE.read_text().splitlines()) if row}


def test_the_page_has_every_number_once() -> None:
    lines = [line for line in PAGE.read_text().splitlines() if re.match(r"\| \d+", line)]
    assert list(rows()) == list(range(1, LAST + 1))
    assert len(lines) == LAST


@pytest.mark.parametrize("number", range(1, LAST + 1))
def test_each_row_names_tests_that_exist_or_a_reason(number: int) -> None:
    column = rows()[number]
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", column)
    assert named or column.startswith("not applicable: ")
    for file, name in named:
        text = (ROOT / "tests" / file).read_text()
        assert re.search(rf"^(?:(?:async )?def {name}\(|{name} = )", text, re.MULTILINE), name


def test_each_test_of_a_quirk_is_on_the_page() -> None:
    for path in sorted((ROOT / "tests" / "scheduler").glob("*.py")):
        for name in re.findall(
            r"^(?:async )?def (test_quirks?_\d\w*)", path.read_text(), re.MULTILINE
        ):
            numbers = [int(each) for each in re.findall(r"\d+", name.split("_a_", 1)[0])]
            assert f"::{name}`" in rows()[numbers[0]], name


# -- cycles and statements -------------------------------------------------------------------------


def test_quirk_1_a_gang_that_waits_for_terminating_pods_holds_nothing() -> None:
    world = SchedulerWorld()
    world.upsert(node("a", cpu=8), podgroup("old", 1))
    world.upsert(pod("old-0", "old", cpu=4, node_name="a", terminating=True))
    world.upsert(podgroup("large", 1, created="2026-01-01T00:00:00Z"))
    world.upsert(podgroup("small", 1, created="2026-01-01T00:00:01Z"))
    world.upsert(pod("large-0", "large", cpu=8), pod("small-0", "small", cpu=4))
    assert world.schedule() == {"small-0": "a"}


def test_quirk_6_placing_leaves_the_pod_object_as_it_is() -> None:
    world = SchedulerWorld()
    task = pod("g-0", "g")
    world.upsert(node("a"), podgroup("g", 1), task)
    assert world.schedule() == {"g-0": "a"}
    assert task == pod("g-0", "g")
    with pytest.raises(AttributeError):
        task.spec.node_name = "a"  # type: ignore[misc]


def test_quirk_10_pods_that_were_not_tried_name_the_one_that_does_not_fit() -> None:
    world = SchedulerWorld()
    world.upsert(node("a", cpu=8), podgroup("g", 2))
    world.upsert(pod("g-x-0", "g", role="x", cpu=9), pod("g-y-1", "g", role="y", cpu=10))
    conditions = {each.name: each.message for each in world.report("g").pod_conditions}
    assert "Insufficient cpu" in conditions["g-x-0"]
    assert "g-x-0" in conditions["g-y-1"] or "Insufficient cpu" in conditions["g-y-1"]


# -- queues ----------------------------------------------------------------------------------------


def test_quirk_15_hierarchical_drf_beside_proportion_is_rejected_in_any_tier() -> None:
    text = conf.DEFAULT.replace("- name: drf", "- name: drf\n    enableHierarchy: true")
    with pytest.raises(conf.ConfError, match="exclude each other"):
        conf.load(text.replace("  - name: proportion", "- plugins:\n  - name: proportion"))


def test_quirk_17_what_a_gang_has_is_not_reserved_again() -> None:
    world = SchedulerWorld()
    world.upsert(node("a", cpu=10), podgroup("g", 8, resources={"cpu": 8}))
    world.upsert(*(pod(f"g-t-{i}", "g", node_name="a") for i in range(8)))
    world.upsert(podgroup("h", 2, phase="Pending", resources={"cpu": 2}))
    assert [each.key for each in world.decision().enqueued] == ["ns/h"]


def test_quirk_19_a_gang_larger_than_its_queue_deserves_waits_and_is_told() -> None:
    world = SchedulerWorld()
    world.upsert(node("a", cpu=8), queue("q"), podgroup("large", 6, queue="q"), podgroup("g", 1))
    world.upsert(*(pod(f"large-t-{i}", "large") for i in range(6)))
    world.upsert(*(pod(f"g-t-{i}", "g") for i in range(8)))
    assert sorted(world.schedule()) == [f"g-t-{i}" for i in range(4)]
    assert "insufficient cpu (requested 1, free 0 of 4)" in world.fit_message("large")


def test_quirk_20_a_gang_counts_once_in_each_ancestor() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), queue("root"), _with_parent(queue("child"), "missing"))
    world.upsert(podgroup("g", 1, queue="child"), pod("g-0", "g"))
    world.upsert(podgroup("r", 1, queue="root"), pod("r-0", "r"))
    allocations = {
        each.queue.metadata.name: each.allocated["cpu"]
        for each in world.decision().queue_allocations
        if each.allocated
    }
    assert allocations == {"child": 1000, "root": 2000}


def test_quirk_22_backfill_ignores_limits_and_respects_admission() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), queue("q", capability={"cpu": 1}), queue("closed", state="Closed"))
    world.upsert(podgroup("g", 1, queue="q"), pod("g-0", "g"))
    world.upsert(podgroup("b", 1, queue="q"), pod("b-0", "b", cpu=0))
    world.upsert(podgroup("c", 1, queue="closed", phase="Pending"), pod("c-0", "c", cpu=0))
    assert world.schedule() == {"g-0": "a", "b-0": "a"}


def test_quirk_23_the_number_of_pods_may_be_dominant() -> None:
    """The gang with fewer pods is first, though it requests more CPU."""
    world = SchedulerWorld()
    world.upsert(node("a", cpu=100, pods=10), podgroup("many", 1), podgroup("one", 1))
    world.upsert(*(pod(f"many-t-{i}", "many", node_name="a") for i in range(4)))
    world.upsert(pod("one-t-0", "one", cpu=20, node_name="a"))
    world.upsert(*(pod(f"many-t-{i}", "many") for i in range(4, 10)))
    world.upsert(*(pod(f"one-t-{i}", "one", cpu=1) for i in range(1, 10)))
    nodes = list(world.schedule())
    assert nodes[0] == "one-t-1"


# -- scores ----------------------------------------------------------------------------------------


def test_quirk_25_equal_nodes_are_taken_by_name() -> None:
    text = conf.DEFAULT + "  - name: binpack\n"
    for _ in range(2):
        world = SchedulerWorld(text)
        world.upsert(node("b"), node("a"), podgroup("g", 1), pod("g-0", "g", memory="2Gi"))
        assert world.schedule() == {"g-0": "a"}


def test_quirk_26_a_pod_that_changes_no_balance_scores_75() -> None:
    plugin = NodeOrderPlugin({"leastrequested.weight": 0})
    request, allocatable = np.array([1000, 2**30, 1]), np.array([[8000], [2**33], [110]])
    amounts = NodeAmounts(request, np.array([0]), allocatable, np.zeros((3, 1), np.int64))
    eq_class = SchedulerWorld().cluster.pod_classes.get(pod("p"))
    assert plugin.score(eq_class, amounts) == [75]


# -- configuration ---------------------------------------------------------------------------------


# -- status ----------------------------------------------------------------------------------------


def test_quirk_44_conditions_are_kept_with_their_transition_times() -> None:
    world = SchedulerWorld()
    world.upsert(podgroup("g", 1), pod("g-0", "g"))
    (refused,) = world.report("g").status.conditions
    world.upsert(node("a"))
    world.schedule()
    world.upsert(pod("g-0", "g", node_name="a", phase="Running"))
    conditions = {each.type: each for each in world.report("g").status.conditions}
    assert conditions["Unschedulable"] == refused
    assert conditions["Scheduled"].status == "True"


def test_quirk_46_a_group_without_pods_is_not_completed() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 0))
    assert world.report("g").status.phase == "Inqueue"


def test_quirk_47_a_gang_without_changes_is_not_reported() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 1), pod("g-0", "g", cpu=9))
    assert [each.key for each in world.decision(now=1.0).reports] == ["ns/g"]
    world.upsert(podgroup("h", 1), pod("h-0", "h"))
    assert [each.key for each in world.decision(now=2.0).reports] == ["ns/h"]


def test_quirk_59_a_gang_with_a_topology_is_placed() -> None:
    world = SchedulerWorld()
    group = podgroup("g", 1)
    topology = NetworkTopology(mode="hard", highest_tier_allowed=1)
    spec = msgspec.structs.replace(group.spec, network_topology=topology)
    world.upsert(node("a"), msgspec.structs.replace(group, spec=spec), pod("g-0", "g"))
    assert world.schedule() == {"g-0": "a"}


def _with_parent(child: Queue, parent: str) -> Queue:
    return msgspec.structs.replace(child, spec=msgspec.structs.replace(child.spec, parent=parent))
