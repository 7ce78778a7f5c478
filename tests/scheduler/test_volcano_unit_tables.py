"""Examples from the tables in the tests of Volcano's scheduler: one session on equal objects.

``tests/data/volcano-scheduler-unit.jsonl`` has one on each line: the configuration, the objects,
and what Volcano evicts, binds and pipelines. Tables that run ``preempt`` or ``reclaim`` alone have
``allocate`` before them. ``DIFFERENT`` has the reason where Batholith decides otherwise on purpose.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.scheduler import SchedulerWorld

from batholith.model.names import GROUP_NAME
from batholith.model.podgroup import PodGroup
from batholith.model.queue import Queue
from batholith.scheduler.state.core_types import Node, Pod, PriorityClass

DATA = Path(__file__).parents[1] / "data" / "volcano-scheduler-unit.jsonl"
EXAMPLES: list[dict[str, Any]] = [json.loads(line) for line in DATA.read_text().splitlines()]
KINDS = {"nodes": Node, "queues": Queue, "podgroups": PodGroup, "pods": Pod}


@dataclass(frozen=True)
class Result:
    """What a session decides."""

    evicted: tuple[str, ...]
    binds: dict[str, str]
    pipelined: dict[str, list[str]]
    """Nodes by gang."""


IN_VAIN = "Reclaim succeeds for second task when first task has PreemptionPolicy=Never"
BEST_EFFORT = "BestEffort high-priority pod preempt BestEffort low-priority pod in same queue"

DIFFERENT = {
    ("TestReclaim", IN_VAIN): (
        "The gang needs two pods, of which one may not preempt: it would not start, and the "
        "eviction for the other one would be in vain.",
        Result(evicted=(), binds={}, pipelined={}),
    ),
    ("TestPreempt", BEST_EFFORT): (
        "Pods that request nothing are scheduled by backfill, which the configuration lacks: the "
        "eviction would be in vain.",
        Result(evicted=(), binds={}, pipelined={}),
    ),
}
"""What Batholith does instead, and why, by table and name."""


def identity(example: dict[str, Any]) -> tuple[str, str]:
    return example["table"], example["name"]


def decide(example: dict[str, Any]) -> Result:
    """Run a session."""
    world = SchedulerWorld(json.dumps(example["configuration"]))
    for each in example["objects"].get("priorityClasses", ()):
        found = msgspec.convert(each, PriorityClass, strict=False)
        world.cluster.update_priority_class(None, found)
    for kind, type_ in KINDS.items():
        for each in example["objects"].get(kind, ()):
            world.upsert(msgspec.convert(each, type_, strict=False))
    decision = world.decision()
    pipelined: dict[str, list[str]] = {}
    for nomination in decision.nominations:
        annotations = world.pod_objects[nomination.uid].metadata.annotations
        key = f"{nomination.namespace}/{annotations[GROUP_NAME]}"
        pipelined.setdefault(key, []).append(nomination.node)
    return Result(
        tuple(sorted(f"{each.namespace}/{each.name}" for each in decision.evictions)),
        {f"{each.namespace}/{each.name}": each.node for each in decision.placements},
        pipelined,
    )


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: " ".join(identity(example)))
def test_a_session_decides_as_volcano_does(example: dict[str, Any]) -> None:
    result, expected = decide(example), example["expected"]
    if identity(example) in DIFFERENT:
        assert result == DIFFERENT[identity(example)][1]
        return
    assert result.evicted == tuple(sorted(expected.get("evicted", ())))
    if example["bindsCompared"]:
        assert result.binds == expected.get("binds", {})
    if "pipelined" in expected:
        assert result.pipelined == expected["pipelined"]


@pytest.mark.parametrize("difference", DIFFERENT)
def test_a_difference_is_one(difference: tuple[str, str]) -> None:
    """What is listed must be in the tables, and expected otherwise there."""
    (example,) = [each for each in EXAMPLES if identity(each) == difference]
    assert tuple(example["expected"]["evicted"]) != DIFFERENT[difference][1].evicted
