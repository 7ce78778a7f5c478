"""Explanations of waiting gangs: the annotation ``batholith.io/why``."""

import json
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from support.examples import examples
from support.scheduler import SchedulerWorld, node, pod, podgroup, queue

from batholith.model.meta import ObjectMeta
from batholith.scheduler.framework.explanations import MAX_BYTES, GangExplanation
from batholith.scheduler.state.core_types import PriorityClass
from batholith.scheduler.state.gangs.diagnosis import (
    Diagnosis,
    FitError,
    NearestNode,
    NodeFit,
    Shortage,
    Stage,
)

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
    explanation = GangExplanation(
        diagnosis, error, message, "q" * 253, 1, 2, 3, position=4, waiting=5
    )
    encoded = explanation.encode()
    assert len(encoded.encode()) <= MAX_BYTES
    assert json.loads(encoded)["stage"] == stage
    moved = replace(explanation, position=2**31, waiting=2**31)
    assert moved == explanation and moved.is_shown_by(encoded)
    assert len(moved.encode().encode()) <= MAX_BYTES
    assert not replace(explanation, ready=4).is_shown_by(encoded)


@pytest.mark.parametrize("annotation", ["", "{", "[]", "{}", '{"queue": 1}', "[" * 100_000])
def test_annotation_that_somebody_else_wrote_is_another_one(annotation: str) -> None:
    explanation = GangExplanation(Diagnosis("r", "m"), None, "m", "q", 1, 1, 0)
    assert not explanation.is_shown_by(annotation)


def why(world: SchedulerWorld, group: str = "g") -> Any:
    """The explanation after a cycle."""
    report = world.report(group, now=100.0)
    assert report.why is not None
    encoded = report.why.encode()
    found = json.loads(encoded)
    message = next(
        each for each in report.status.conditions if each.type == "Unschedulable"
    ).message
    assert found["message"] == message
    return found


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
    world.report("g")
    found = why(world)
    assert found["stage"] == "gang" and found["pods"]["existing"] == 1


def test_position_is_that_in_the_order_of_scheduling() -> None:
    world = SchedulerWorld()
    world.upsert(node("a", cpu=2))
    high = PriorityClass(metadata=ObjectMeta(name="high"), value=5)
    world.cluster.update_priority_class(None, high)
    for number, name in enumerate(("first", "second", "third")):
        created = f"2026-01-01T00:00:0{number}Z"
        priority = "high" if name == "third" else ""
        world.upsert(podgroup(name, 1, created=created, priority_class=priority))
        world.upsert(pod(f"{name}-0", name, cpu=4))
    positions = {name: why(world, name)["queue"] for name in ("first", "second", "third")}
    assert {name: each["position"] for name, each in positions.items()} == {
        "third": 1,
        "first": 2,
        "second": 3,
    }
    assert {each["waiting"] for each in positions.values()} == {3}


def test_gang_that_runs_has_no_explanation() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 1), pod("g-0", "g"))
    world.schedule()
    assert world.report("g").why is None


def message_of(world: SchedulerWorld, gang: str = "g") -> str:
    report = world.report(gang)
    (condition,) = (each for each in report.status.conditions if each.type == "Unschedulable")
    assert report.why is not None
    assert json.loads(report.why.encode())["message"] == condition.message
    return condition.message


def test_a_gang_that_requests_what_no_node_has_says_so_alone() -> None:
    world = SchedulerWorld()
    world.upsert(node("a", cpu=4), podgroup("g", 1, phase="", resources={"nvidia.com/gpu": 1}))
    world.upsert(pod("p", "g", extra={"nvidia.com/gpu": 1}))
    assert message_of(world) == (
        "1 of 1 pods cannot be scheduled: it needs 1 nvidia.com/gpu, and no node has any"
    )
    world.upsert(node("b", cpu=4, extra={"nvidia.com/gpu": 1}))
    assert world.report("g").why is None


def test_a_gang_that_is_larger_than_all_nodes_together_says_so_first() -> None:
    world = SchedulerWorld()
    world.upsert(node("a", cpu=4), node("b", cpu=4))
    world.upsert(podgroup("g", 3, phase="", resources={"cpu": 9}))
    world.upsert(*(pod(f"p{index}", "g", cpu=3) for index in range(3)))
    start = "pods cannot be scheduled: it needs 9 cpu, more than the 8 of all nodes together: "
    assert start in message_of(world)
    world.upsert(pod("other", node_name="a", phase="Running", cpu=4))
    assert start in message_of(world)


def test_a_gang_that_waits_for_others_is_not_called_impossible() -> None:
    world = SchedulerWorld()
    world.upsert(node("a", cpu=4), pod("other", node_name="a", phase="Running", cpu=4))
    world.upsert(podgroup("g", 1, phase="", resources={"cpu": 4}), pod("p", "g", cpu=4))
    assert "all nodes together" not in message_of(world)


def test_a_gang_that_is_larger_than_the_capability_of_its_queue_says_so_first() -> None:
    world = SchedulerWorld()
    world.upsert(node("a", cpu=64), queue("q", capability={"cpu": "8"}))
    world.upsert(podgroup("g", 1, queue="q", phase="", resources={"cpu": 9}), pod("p", "g", cpu=9))
    start = "pods cannot be scheduled: it needs 9 cpu, more than the capability 8 of queue 'q': "
    assert start in message_of(world)
