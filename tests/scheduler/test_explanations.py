"""Explanations of waiting gangs: the annotation ``batholith.io/why``."""

import json
from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings
from support.examples import examples
from support.scheduler import SchedulerWorld, node, pod, podgroup, queue

from batholith.scheduler.framework.explanations import MAX_BYTES, QueuePosition, encode
from batholith.scheduler.state.diagnosis import (
    Diagnosis,
    FitError,
    NearestNode,
    NodeFit,
    Shortage,
    Stage,
)
from batholith.scheduler.state.gangs import Gang

TEXT = st.text(max_size=2000)
AMOUNT = st.integers(0, 2**60)
NODES = st.builds(
    NodeFit,
    TEXT,
    st.integers(0, 5000),
    st.dictionaries(TEXT, st.integers(1, 5000), max_size=30),
    st.none()
    | st.builds(
        NearestNode, TEXT, st.dictionaries(TEXT, st.tuples(AMOUNT, AMOUNT), max_size=30), TEXT
    ),
)
SHORTAGES = st.lists(
    st.builds(Shortage, TEXT, AMOUNT, AMOUNT, AMOUNT, st.floats(1, 5)), max_size=20
).map(tuple)


@settings(max_examples=examples(60), deadline=None)
@given(
    message=TEXT,
    reason=TEXT,
    shortages=SHORTAGES,
    nodes=st.none() | NODES,
    stage=st.sampled_from(Stage),
)
def test_explanation_is_json_of_limited_length(
    message: str, reason: str, shortages: tuple[Shortage, ...], nodes: NodeFit | None, stage: Stage
) -> None:
    error = FitError("p" * 253, "u", message, stage, nodes, shortages)
    diagnosis = Diagnosis(reason, "", {"role": error}, frozenset({"a"}), stage, shortages)
    encoded = encode(Gang("ns/g"), diagnosis, message, QueuePosition("q" * 253, 1, 2))
    assert len(encoded.encode()) <= MAX_BYTES
    assert json.loads(encoded)["stage"] == stage


def why(world: SchedulerWorld, group: str = "g") -> Any:
    """The explanation after a cycle."""
    world.schedule()
    gang = world.cluster.gangs[f"ns/{group}"]
    assert gang.diagnosis is not None
    return json.loads(encode(gang, gang.diagnosis, "message", QueuePosition("default", 1, 1)))


def test_gang_that_fits_no_node_names_filters_and_the_nearest_node() -> None:
    world = SchedulerWorld()
    world.upsert(node("a", cpu=2), node("b", cpu=3), node("c", cpu=8, cordoned=True))
    world.upsert(podgroup("g", 2), pod("g-0", "g", cpu=2), pod("g-1", "g", cpu=4))
    found = why(world)
    assert found["stage"] == "nodes" and found["pod"] == "g-1"
    assert found["pods"] == {"needed": 2, "existing": 2, "ready": 0, "fitting": 1}
    assert found["nodes"] == {
        "total": 3,
        "excluded": {"Insufficient cpu": 2, "node(s) were unschedulable": 1},
        "nearest": {"name": "a", "lacks": {"cpu": {"requested": "4", "free": "2"}}},
    }


def test_gang_whose_nodes_are_all_excluded_names_the_reason_of_the_nearest() -> None:
    world = SchedulerWorld()
    world.upsert(node("a", cpu=1, cordoned=True), node("b", cpu=8, cordoned=True))
    world.upsert(podgroup("g", 1), pod("g-0", "g", cpu=4))
    nearest = why(world)["nodes"]["nearest"]
    assert nearest == {"name": "b", "reason": "node(s) were unschedulable"}


def test_gang_beyond_the_overcommit_limit_names_the_factor() -> None:
    world = SchedulerWorld()
    world.upsert(node("a", cpu=10), podgroup("g", 1, phase="Pending", resources={"cpu": "13"}))
    found = why(world)
    assert found["stage"] == "quota"
    limits = {"requested": "13", "limit": "12", "used": "0", "overcommitFactor": 1.2}
    assert found["limits"] == {"cpu": limits}


def test_gang_beyond_the_limit_of_its_queue_names_what_is_used() -> None:
    world = SchedulerWorld()
    world.upsert(queue(capability={"cpu": 4}), node("a", cpu=10))
    world.upsert(podgroup("f", 1), pod("f-0", "f", cpu=3))
    world.schedule()
    world.upsert(podgroup("g", 1), pod("g-0", "g", cpu=2))
    found = why(world)
    assert found["stage"] == "quota" and found["pod"] == "g-0"
    assert found["limits"] == {"cpu": {"requested": "2", "limit": "4", "used": "3"}}


def test_gang_in_a_closed_queue_is_at_stage_queue() -> None:
    world = SchedulerWorld()
    world.upsert(queue(state="Closed"), node("a"), podgroup("g", 1, phase="Pending"))
    assert why(world)["stage"] == "queue"


def test_gang_with_missing_members_is_at_stage_gang() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 3), pod("g-0", "g"))
    found = why(world)
    assert found["stage"] == "gang" and found["pods"]["existing"] == 1
