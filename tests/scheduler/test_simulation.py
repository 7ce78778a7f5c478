"""Simulations of jobs that do not exist."""

import asyncio
import json
import math
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.scheduler import SchedulerWorld, node, pod, podgroup, queue
from support.topologies import hypernode

from batholith.machinery.testing import FakeClock
from batholith.model.job import Job
from batholith.model.meta import ObjectMeta
from batholith.model.simulation import Forecast, NodePods, SimulationResult, TriedChange
from batholith.scheduler import conf
from batholith.scheduler.simulation.forked import CopyFailedError, result_of, start_copy
from batholith.scheduler.simulation.proposed_gang import CannotSimulateError
from batholith.scheduler.simulation.simulation import (
    JobSimulation,
    Simulations,
    decode_result,
)
from batholith.scheduler.simulation.trial import SchedulerCopy
from batholith.scheduler.state.core_types import PriorityClass

pytestmark = pytest.mark.process


def job(*tasks: tuple[int, dict[str, str]], **spec: Any) -> Job:
    """A job of *tasks*, each with a number of pods and their requests."""
    manifest = {
        "metadata": {"name": "new", "namespace": "ns"},
        "spec": {
            "schedulerName": "volcano",
            "queue": "default",
            "minAvailable": sum(replicas for replicas, _ in tasks),
            "tasks": [
                {
                    "name": f"task{number}",
                    "replicas": replicas,
                    "template": {
                        "spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]}
                    },
                }
                for number, (replicas, requests) in enumerate(tasks)
            ],
            **spec,
        },
    }
    return msgspec.json.decode(json.dumps(manifest), type=Job)


async def simulate(
    world: SchedulerWorld, proposed: Job, *, max_seconds: float = math.inf
) -> SimulationResult:
    """Simulate in a copy, after a cycle as the scheduler does."""
    world.schedule()
    copy = SchedulerCopy(world.cluster, world.core, now=1.0, time=1.0)
    simulation = JobSimulation(copy, proposed, "2026-01-02T00:00:00Z", max_seconds)
    return decode_result(await result_of(*start_copy(simulation.compute), timeout=30))


def world_of(*names: str, text: str = conf.DEFAULT) -> SchedulerWorld:
    """A cluster with nodes of 8 CPU."""
    world = SchedulerWorld(text)
    world.upsert(*(node(name) for name in names))
    return world


def run(
    world: SchedulerWorld, name: str, count: int, node_name: str, minimum: int | None = None
) -> None:
    """Let a gang of *count* pods of one CPU run."""
    world.upsert(podgroup(name, count if minimum is None else minimum, phase="Running"))
    world.upsert(
        *(pod(f"{name}-{i}", name, node_name=node_name, phase="Running") for i in range(count))
    )


async def test_partitions_are_simulated_as_gangs_inside_the_gang() -> None:
    """The nodes take six pods, but only one partition of four."""
    world = world_of()
    world.upsert(
        node("a", cpu=4), node("b", cpu=2), *(hypernode(f"rack-{at}", [at]) for at in "ab")
    )
    task = {
        "name": "t",
        "replicas": 8,
        "minAvailable": 4,
        "template": {
            "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
        },
        "partitionPolicy": {
            "totalPartitions": 2,
            "partitionSize": 4,
            "minPartitions": 1,
            "networkTopology": {"mode": "hard", "highestTierAllowed": 1},
        },
    }
    result = await simulate(world, job(tasks=[task], minAvailable=4))
    assert result.starts_now
    assert result.nodes == (NodePods("a", 4),)


def children_and_descriptors() -> tuple[str, list[str]]:
    """The children and the open descriptors of this process."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return children, os.listdir("/proc/self/fd")


async def test_job_that_fits_would_start_on_the_nodes_that_it_then_gets() -> None:
    world = world_of("a", "b")
    run(world, "running", 6, "a")
    result = await simulate(world, job((3, {"cpu": "4"}), minAvailable=2))
    assert result == SimulationResult(starts_now=True, nodes=(NodePods("b", 2),))
    world.upsert(podgroup("real", 2))
    world.upsert(*(pod(f"real-{i}", "real", cpu=4) for i in range(2)))
    assert set(world.schedule().values()) == {"b"}


async def test_of_an_array_only_as_many_pods_start_as_may_run_at_a_time() -> None:
    array = job((5, {"cpu": "1"}), minAvailable=1)
    array.metadata.annotations["batholith.io/max-parallel"] = "2"
    result = await simulate(world_of("a"), array)
    assert result == SimulationResult(starts_now=True, nodes=(NodePods("a", 2),))


async def test_simulation_changes_nothing() -> None:
    world = world_of("a")
    run(world, "running", 6, "a")
    world.upsert(podgroup("waiting", 1), pod("waiting-0", "waiting", cpu=3))
    await simulate(world, job((1, {"cpu": "2"})))
    assert "ns/new-simulated" not in world.cluster.gangs
    assert not world.cluster.has_changes()
    world.validate()
    run(world, "running", 5, "a")
    world.remove(pod("running-5", "running", node_name="a", phase="Running"))
    assert world.schedule() == {"waiting-0": "a"}


async def test_job_that_does_not_fit_has_the_explanation_and_changes_with_which_it_would() -> None:
    world = world_of("a", "b")
    world.upsert(queue("other"), queue("shut", state="Closed"))
    run(world, "running", 6, "a")
    result = await simulate(world, job((4, {"cpu": "4"})))
    assert not result.starts_now
    why = json.loads(result.why)
    assert why["pods"]["needed"] == 4
    assert result.is_complete
    assert result.changes == (
        TriedChange("pods", starts_now=True, pods=2),
        TriedChange("queue", starts_now=False, queue="other"),
        TriedChange("requests", starts_now=True, requests={"cpu": "2"}),
    )


async def test_queue_with_a_limit_names_another_queue() -> None:
    world = world_of("a")
    world.upsert(queue("small", capability={"cpu": 1}))
    result = await simulate(world, job((1, {"cpu": "2"}), queue="small"))
    assert json.loads(result.why)["stage"] == "quota"
    assert result.changes == (
        TriedChange("queue", starts_now=True, queue="default"),
        TriedChange("requests", starts_now=True, requests={"cpu": "1"}),
    )


async def test_job_that_could_never_start_is_told_from_one_that_waits() -> None:
    world = world_of("a")
    run(world, "running", 8, "a")
    assert not (await simulate(world, job((1, {"cpu": "2"})))).impossible
    result = await simulate(world, job((1, {"cpu": "1", "nvidia.com/gpu": "2"})))
    assert result.impossible
    assert result.changes == (
        TriedChange("requests", starts_now=False, requests={"nvidia.com/gpu": "1"}),
    )


async def test_pods_that_would_be_evicted_are_counted() -> None:
    text = conf.DEFAULT.replace('"enqueue, allocate', '"allocate, preempt')
    assert "preempt" in text
    world = world_of("a", text=text)
    high = PriorityClass(metadata=ObjectMeta(name="high"), value=100)
    world.cluster.update_priority_class(None, high)
    run(world, "running", 7, "a", minimum=1)
    result = await simulate(world, job((1, {"cpu": "2500m"}), priorityClassName="high"))
    assert (result.starts_now, result.evictions, result.nodes) == (True, 2, (NodePods("a", 1),))


@pytest.mark.parametrize(
    ("proposed", "text"),
    [
        (job(), "spec.tasks: a job without tasks"),
        (job((20_001, {})), "spec.tasks: more than 20,000 pods"),
        (job((1, {"cpu": "one"})), "spec.tasks: "),
    ],
)
async def test_malformed_job_is_an_error_that_names_the_field(proposed: Job, text: str) -> None:
    with pytest.raises(CannotSimulateError, match=text):
        await simulate(world_of("a"), proposed)


def run_until(world: SchedulerWorld, name: str, limit: str, node_name: str, count: int) -> None:
    """Let a gang run that ends *limit* and its grace period after it has started, in second 1."""
    group = podgroup(name, count, phase="Running")
    key = "running-estimate" if limit.startswith("~") else "time-limit"
    annotations = {f"batholith.io/{key}": limit.removeprefix("~")} if limit else {}
    metadata = msgspec.structs.replace(group.metadata, annotations=annotations)
    world.upsert(msgspec.structs.replace(group, metadata=metadata))
    for number in range(count):
        found = pod(f"{name}-{number}", name, node_name=node_name, phase="Running")
        status = msgspec.structs.replace(found.status, start_time="1970-01-01T00:00:01Z")
        world.upsert(msgspec.structs.replace(found, status=status))


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (("1m", "10m"), Forecast(start=1 + 600 + 30, basis="limit")),
        (("1m", "~10m"), Forecast(start=1 + 600, basis="estimate")),
        (("1m", ""), Forecast(basis="unknown")),
    ],
)
async def test_job_that_waits_starts_when_what_it_needs_has_ended(
    limits: tuple[str, str], expected: Forecast
) -> None:
    world = world_of("a", "b")
    run_until(world, "first", limits[0], "a", 8)
    run_until(world, "second", limits[1], "b", 8)
    result = await simulate(world, job((4, {"cpu": "3"})))
    assert not result.starts_now
    assert result.forecast == expected


async def test_gangs_that_wait_start_before_a_job_that_is_submitted_later() -> None:
    world = world_of("a")
    run_until(world, "running", "1m", "a", 8)
    waiting = podgroup("waiting", 8, phase="Inqueue")
    annotations = {"batholith.io/time-limit": "5m"}
    metadata = msgspec.structs.replace(waiting.metadata, annotations=annotations)
    world.upsert(msgspec.structs.replace(waiting, metadata=metadata))
    world.upsert(*(pod(f"waiting-{number}", "waiting") for number in range(8)))
    result = await simulate(world, job((8, {"cpu": "1"})))
    assert result.forecast == Forecast(start=(1 + 60 + 30) + 300 + 30, basis="limit")


async def test_copy_that_fails_or_takes_too_long_leaves_no_process() -> None:
    def fail() -> bytes:
        raise ValueError

    def hang() -> bytes:
        while True:
            pass

    with pytest.raises(CopyFailedError, match="status"):
        await result_of(*start_copy(fail), timeout=30)
    pid, read = start_copy(hang)
    with pytest.raises(CopyFailedError, match="more than"):
        await result_of(pid, read, timeout=0.01)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_request_that_is_cancelled_once_its_copy_has_started_leaves_no_process() -> None:
    world = world_of("a")
    simulations = Simulations(FakeClock(), lambda: None)
    waiting = asyncio.create_task(simulations.simulate(job((1, {"cpu": "1"}))))
    await asyncio.sleep(0)
    world.schedule()
    before = children_and_descriptors()
    simulations.start_waiting(world.cluster, world.core)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert children_and_descriptors() == before


async def test_result_of_any_size_arrives() -> None:
    result = await result_of(*start_copy(lambda: b"x" * 1_000_000), timeout=30)
    assert len(result) == 1_000_000
    await asyncio.sleep(0)


async def test_changes_that_were_not_tried_are_not_reported() -> None:
    world = world_of("a")
    run(world, "other", 6, "a")
    found = await simulate(world, job((4, {"cpu": "1"})), max_seconds=0)
    assert not found.starts_now
    assert (found.changes, found.is_complete) == ((), False)
