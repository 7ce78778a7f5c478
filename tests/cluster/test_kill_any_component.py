"""SIGKILL of any component at any time: every job completes, and each pod runs once."""

import asyncio
import os
import signal
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import embedded_cluster
from support.embedded_cluster import EmbeddedCluster
from support.polling import wait_for

from batholith.kube.informer.informer import Informer
from batholith.model.base import ApiStruct
from batholith.model.job import Job
from batholith.model.meta import ObjectMeta
from batholith.model.names import JOB_VERSION, JOBS, PODS

pytestmark = [
    pytest.mark.timeout(600),  # a hundred processes on a busy machine
    pytest.mark.process,
]

COMPONENTS = ("controllers", "workloads", "scheduler", "agent", "apiserver", "proxy", "api")
NUMBER = 50


class Pod(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


def job(name: str, pods: int) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "busybox",
        "command": ["sh", "-c", "echo ran; sleep 2"],
        "resources": {"requests": {"cpu": "50m"}},
    }
    spec = {"restartPolicy": "Never", "containers": [container]}
    task = {"name": "t", "replicas": pods, "template": {"spec": spec}}
    return {
        "metadata": {"name": name},
        "spec": {"schedulerName": "volcano", "minAvailable": pods, "tasks": [task]},
    }


class ObservedJobs:
    """Jobs and pods as observed by informers."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self.uids: dict[tuple[str, str], set[str]] = defaultdict(set)
        self.jobs = Informer(cluster.client, JOBS, Job)
        self.pods = Informer(cluster.client, PODS, Pod)
        self.pods.add_event_handler(self._on_pod)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if old is None and new is not None:
            version = new.metadata.annotations.get(JOB_VERSION, "")
            self.uids[new.metadata.name, version].add(new.metadata.uid)

    def completed(self) -> int:
        return sum(job.status.state.phase == "Completed" for job in self.jobs)


async def test_jobs_complete_while_each_component_is_killed_once(tmp_path: Path) -> None:
    async with (
        embedded_cluster.embedded_cluster(tmp_path / "data") as cluster,
        asyncio.TaskGroup() as tasks,
    ):
        watched = ObservedJobs(cluster)
        informers: list[Informer[Any]] = [watched.jobs, watched.pods]
        running = [tasks.create_task(informer.run()) for informer in informers]
        for informer in informers:
            await informer.wait_synced()
        for number in range(NUMBER):
            body = job(f"j{number}", 1 + number % 3)
            await cluster.client.create(JOBS, body, namespace="default")
        for component in COMPONENTS:
            cluster.kill(component)
            await wait_for(
                lambda component=component: (
                    cluster.state.components[component].restarts > 0  # type: ignore[misc]
                    and cluster.state.components[component].ready
                ),
                f"{component} is ready again",
            )
        await wait_for(lambda: watched.completed() == NUMBER, seconds=400)

        pods = [(1 + number % 3) for number in range(NUMBER)]
        await wait_for(lambda: len(watched.uids) >= sum(pods))
        assert len(watched.uids) == sum(pods)
        assert {len(uids) for uids in watched.uids.values()} == {1}
        for name, _ in watched.uids:
            log = await cluster.client.get_path(PODS.path("default", name, "log"), view=msgspec.Raw)
            assert bytes(log) == b"ran\n", name
        for task in running:
            task.cancel()


async def test_next_up_recovers_from_a_killed_supervisor(tmp_path: Path) -> None:
    root = tmp_path / "data"
    async with embedded_cluster.embedded_cluster(root) as cluster:
        await cluster.client.create(JOBS, job("kept", 1), namespace="default")
        processes = [each.process for each in cluster.state.components.values()]
        os.kill(cluster.state.supervisor.pid, signal.SIGKILL)
        await wait_for(lambda: not any(each is not None and each.is_alive for each in processes))
        outcome = await embedded_cluster.batholith("status", "--data-dir", str(root))
        assert outcome.code == 3

        await embedded_cluster.start(root)
        async with embedded_cluster.connect(root) as again, asyncio.TaskGroup() as tasks:
            watched = ObservedJobs(again)
            running = tasks.create_task(watched.jobs.run())
            await watched.jobs.wait_synced()
            await wait_for(lambda: watched.completed() == 1)
            running.cancel()
