"""Preemption and reclaim of jobs of one pod without PodGroups, in a cluster with all components."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.running_controller import running
from support.volcano_objects import sleeping_job

from batholith.kube.client.client import Client
from batholith.kube.client.events import EventRecorder
from batholith.local.agent.settings import SimulationSettings
from batholith.machinery.clock import SystemClock
from batholith.model.names import (
    EVENTS,
    JOBS,
    PODGROUPS,
    PRIORITYCLASSES,
    QUEUES,
    SIMULATE_PREFIX,
    WHY,
)
from batholith.scheduler import conf
from batholith.scheduler.scheduler import Scheduler, SchedulerSettings
from batholith.testing import Cluster

Json = dict[str, Any]
PREEMPTING = conf.DEFAULT.replace("enqueue, allocate", "allocate, preempt, reclaim").replace(
    "name: gang", "name: gang\n    enablePreemptable: false\n    enableReclaimable: false"
)
"""Without ``enqueue``, which admits no gang beyond the capability of its queue."""


@asynccontextmanager
async def scheduling(cluster: Cluster) -> AsyncIterator[None]:
    """A scheduler that preempts, for the length of the block."""
    async with Client(cluster.credentials_of("scheduler"), user_agent="scheduler") as client:
        recorder = EventRecorder(client, component="volcano")
        scheduler = Scheduler(
            client,
            settings=SchedulerSettings(conf=PREEMPTING),
            clock=SystemClock(),
            recorder=recorder,
        )
        recording = asyncio.create_task(recorder.run())
        async with running(scheduler):
            yield
        await recorder.flush(10)
        recording.cancel()
        await asyncio.wait([recording])


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A node of two CPUs, and two priority classes."""
    nodes = SimulationSettings(nodes=1, cpus=2)
    async with Cluster(
        data_dir=tmp_path / "cluster", nodes=nodes, scheduler=False, podgroups="gangs"
    ) as started:
        for name, value in (("low", 1), ("high", 1000)):
            await started.create(PRIORITYCLASSES, {"metadata": {"name": name}, "value": value})
        yield started
        assert not started.objects(PODGROUPS)
        check_events(started)


def check_events(cluster: Cluster) -> None:
    """Each event is about an object that there is or was, not about a PodGroup without a uid."""
    about = [each["involvedObject"] for each in cluster.objects(EVENTS).values()]
    assert about
    assert all(each.get("uid") for each in about if each["kind"] != "Node"), about
    assert "PodGroup" not in {each["kind"] for each in about}


def job(name: str, *, cpu: str = "2", **spec: Any) -> Json:
    return sleeping_job(name, 1, cpu=cpu, **spec)


def uid_of(cluster: Cluster, name: str) -> str:
    return "".join(pod["metadata"]["uid"] for pod in cluster.pods_of(name))


async def wait_for_counts(cluster: Cluster, queue: str = "default", **wanted: int) -> None:
    def holds() -> bool:
        status = cluster.objects(QUEUES)[queue]["status"]
        found = {name: status.get(name, 0) for name in ("pending", "inqueue", "running", "unknown")}
        return +Counter(found) == +Counter(wanted)

    await cluster.wait_until(holds)


def events_of(cluster: Cluster, uid: str) -> set[str]:
    found = cluster.objects(EVENTS).values()
    return {each["reason"] for each in found if each["involvedObject"].get("uid") == uid}


async def wait_evicted(cluster: Cluster, name: str, uid: str) -> None:
    """Wait until the pod with *uid* is deleted, and its eviction is recorded."""
    await cluster.wait_until(lambda: uid_of(cluster, name) != uid)
    await cluster.wait_until(lambda: "Evict" in events_of(cluster, uid))


async def run_low(cluster: Cluster, **spec: Any) -> str:
    """Run a job of low priority; return the uid of its pod."""
    await cluster.create(JOBS, job("low", priorityClassName="low", **spec))
    await cluster.wait_for_phase(JOBS, "low", "Running")
    return uid_of(cluster, "low")


async def test_a_victim_is_created_again_and_waits_for_its_turn(cluster: Cluster) -> None:
    async with scheduling(cluster):
        first = await run_low(cluster)
        await cluster.create(JOBS, job("high", priorityClassName="high"))
        await wait_evicted(cluster, "low", first)
        await cluster.wait_for_phase(JOBS, "high", "Running")
        await wait_for_counts(cluster, running=1, pending=1)
        shown = await cluster.wait_for(
            JOBS, "low", lambda it: it["status"]["state"].get("reason") == "PodGroupPending"
        )
        assert "insufficient cpu" in shown["status"]["state"]["message"].lower()
        (pod,) = cluster.pods_of("low")
        assert pod["metadata"]["uid"] != first
        assert json.loads(pod["metadata"]["annotations"][WHY])["queue"]["name"] == "default"
        assert shown["status"].get("retryCount", 0) == 0
        await cluster.set_pod_phase("high-t-0", "Succeeded")
        await cluster.wait_for_phase(JOBS, "high", "Completed")
        await cluster.wait_for(JOBS, "low", lambda it: it["status"].get("running") == 1)
        await wait_for_counts(cluster, running=1)


@pytest.mark.parametrize(
    ("policies", "phase", "retries"),
    [
        ([{"event": "PodEvicted", "action": "RestartJob"}], "Pending", 1),
        ([{"event": "PodEvicted", "action": "AbortJob"}], "Aborted", 0),
        ([{"event": "PodEvicted", "action": "TerminateJob"}], "Terminated", 0),
    ],
    ids=["restart", "abort", "terminate"],
)
async def test_policies_of_a_victim_apply(
    cluster: Cluster, policies: list[Json], phase: str, retries: int
) -> None:
    async with scheduling(cluster):
        first = await run_low(cluster, policies=policies)
        await cluster.create(JOBS, job("high", priorityClassName="high"))
        await wait_evicted(cluster, "low", first)
        await cluster.wait_for_phase(JOBS, "high", "Running")
        shown = await cluster.wait_for_phase(JOBS, "low", phase)
        assert shown["status"].get("retryCount", 0) == retries
        pending = int(phase == "Pending")
        await wait_for_counts(cluster, running=1, pending=pending)


async def test_a_pod_for_which_another_is_evicted_is_nominated(cluster: Cluster) -> None:
    """The victim takes long to end; the scheduler is restarted before that."""
    slow = job("low", priorityClassName="low")
    template = slow["spec"]["tasks"][0]["template"]
    template["metadata"] = {"annotations": {f"{SIMULATE_PREFIX}ignore-term": "true"}}
    template["spec"]["terminationGracePeriodSeconds"] = 2
    async with scheduling(cluster):
        await cluster.create(JOBS, slow)
        await cluster.wait_for_phase(JOBS, "low", "Running")
        first = uid_of(cluster, "low")
        await cluster.create(JOBS, job("high", priorityClassName="high"))
        await cluster.create(JOBS, job("other", priorityClassName="low"))
        await cluster.wait_until(
            lambda: any(pod["metadata"].get("deletionTimestamp") for pod in cluster.pods_of("low"))
        )
        (pod,) = cluster.pods_of("high")
        assert pod["status"]["nominatedNodeName"] == "sim-0"
    async with scheduling(cluster):
        await cluster.wait_for_phase(JOBS, "high", "Running")
        await wait_evicted(cluster, "low", first)
        await wait_for_counts(cluster, running=1, pending=2)
        assert uid_of(cluster, "high") == pod["metadata"]["uid"]


async def test_a_queue_gets_back_what_it_deserves(cluster: Cluster) -> None:
    for name in ("a", "b"):
        spec = {"weight": 1, "reclaimable": True}
        await cluster.create(QUEUES, {"metadata": {"name": name}, "spec": spec})
        await cluster.wait_for_phase(QUEUES, name, "Open")
    async with scheduling(cluster):
        for number in range(2):
            await cluster.create(JOBS, job(f"a{number}", cpu="1", queue="a"))
            await cluster.wait_for_phase(JOBS, f"a{number}", "Running")
        await wait_for_counts(cluster, "a", running=2)
        await cluster.create(JOBS, job("b0", cpu="1", queue="b"))
        await cluster.wait_for_phase(JOBS, "b0", "Running")
        await wait_for_counts(cluster, "a", running=1, pending=1)
        await wait_for_counts(cluster, "b", running=1)
