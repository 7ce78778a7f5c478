"""Jobs of one pod without a PodGroup, in a cluster with all components."""

import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from batholith.model.names import JOBS, PODGROUP, PODGROUPS, PODS, QUEUES, WHY
from batholith.testing import Cluster

Json = dict[str, Any]


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(nodes=2, podgroups="gangs") as started:
        yield started


def job(name: str, *, replicas: int = 1, cpu: str = "1", **more: Any) -> Json:
    container = {
        "name": "main",
        "image": "busybox",
        "command": more.pop("command", ["sleep", "600"]),
        "resources": {"requests": {"cpu": cpu}},
    }
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    task = {"name": "t", "replicas": replicas, "template": template}
    metadata = {"name": name, **more.pop("metadata", {})}
    spec = {"schedulerName": "volcano", "minAvailable": replicas, "tasks": [task], **more}
    return {"apiVersion": JOBS.api_version, "kind": "Job", "metadata": metadata, "spec": spec}


def writes(cluster: Cluster) -> Counter[str]:
    """The writes of controllers and scheduler, without Events."""
    found: Counter[str] = Counter()
    for each in cluster.faults.requests:
        by = each.user_agent.removeprefix("batholith-")
        if by in ("controllers", "scheduler") and each.verb not in ("get", "list", "watch"):
            found[f"{each.verb} {each.resource}"] += each.resource != "events"
    return +found


async def test_a_job_of_one_pod_runs_and_completes_without_a_podgroup(cluster: Cluster) -> None:
    await cluster.create(JOBS, job("j", command=["sleep", "0.1"]))
    await cluster.wait_for_phase(JOBS, "j", "Completed")
    assert not cluster.objects(PODGROUPS)
    print(writes(cluster))


async def test_a_job_that_waits_shows_why(cluster: Cluster) -> None:
    await cluster.create(JOBS, job("j", cpu="1000"))
    await cluster.wait_for(
        JOBS, "j", lambda it: it["status"]["state"]["reason"] == "PodGroupPending"
    )
    print(cluster.get)
    pod = cluster.pods_of("j")[0]
    print(json.dumps(pod, indent=1))
    assert json.loads(pod["metadata"]["annotations"][WHY])["queue"]["name"] == "default"
