"""Jobs with a network topology, in a cluster with all components."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from support.admission import hypernode, member
from support.running_controller import running

from batholith.hypernode_ctrl.configuration import KEY, parse
from batholith.hypernode_ctrl.discovery import discover
from batholith.model.names import (
    ALLOCATED_HYPERNODE,
    HYPERNODES,
    JOBS,
    PARTITION_ID,
    PODGROUPS,
    PODS,
    WHY,
)
from batholith.scheduler.scheduler import Scheduler
from batholith.testing import Cluster

Json = dict[str, Any]


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """Four nodes of 32 CPUs in two racks."""
    async with Cluster(nodes=4) as started:
        for rack in range(2):
            nodes = (member(f"sim-{2 * rack + index}") for index in range(2))
            await started.create(HYPERNODES, hypernode(f"rack-{rack}", *nodes, tierName="rack"))
        yield started


def job(name: str, pods: int, **topology: Any) -> Json:
    """A job, each pod of which needs most of a node."""
    resources = {"requests": {"cpu": "20"}}
    container = {"name": "c", "image": "x", "command": ["sleep", "600"], "resources": resources}
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    return {
        "apiVersion": JOBS.api_version,
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "schedulerName": "volcano",
            "minAvailable": pods,
            "networkTopology": topology,
            "tasks": [{"name": "t", "replicas": pods, "template": template}],
        },
    }


def example(name: str) -> list[Json]:
    """The objects of an example of the documentation."""
    text = (Path(__file__).parents[2] / "docs" / "examples" / name).read_text()
    return list(yaml.safe_load_all(text))


def podgroup(cluster: Cluster, name: str) -> Json:
    groups = cluster.objects(PODGROUPS).values()
    found: Json = {each["metadata"]["ownerReferences"][0]["name"]: each for each in groups}[name]
    return found


def racks(cluster: Cluster, name: str) -> set[int]:
    return {
        int(each["spec"]["nodeName"].removeprefix("sim-")) // 2
        for each in cluster.objects(PODS).values()
        if each["metadata"]["name"].startswith(f"{name}-") and each["spec"].get("nodeName")
    }


async def test_a_job_runs_in_one_rack_which_its_podgroup_names(cluster: Cluster) -> None:
    await cluster.create(JOBS, job("a", 2, mode="hard", highestTierName="rack"))
    await cluster.wait_for_phase(JOBS, "a", "Running")
    (rack,) = racks(cluster, "a")

    def is_named() -> bool:
        annotations = podgroup(cluster, "a")["metadata"].get("annotations", {})
        return bool(annotations.get(ALLOCATED_HYPERNODE) == f"rack-{rack}")

    await cluster.wait_until(is_named)


async def test_a_job_that_fits_no_rack_explains_that_and_starts_when_there_is_one(
    cluster: Cluster,
) -> None:
    await cluster.create(JOBS, job("a", 3, mode="hard", highestTierAllowed=1))

    def why() -> Json:
        annotation = podgroup(cluster, "a")["metadata"].get("annotations", {}).get(WHY, "{}")
        found: Json = json.loads(annotation)
        return found

    await cluster.wait_until(lambda: "topology" in why())
    nearest = {"name": "rack-0", "needed": 3, "fitting": 2}
    assert why()["topology"] == {"highestTier": "1", "nearest": nearest}
    assert "no HyperNode of tier 1 or lower fits 3 more pods" in why()["message"]
    conditions = podgroup(cluster, "a")["status"]["conditions"]
    assert any(why()["message"] == each["message"] for each in conditions)
    wide = (member(f"sim-{index}") for index in range(4))
    await cluster.create(HYPERNODES, hypernode("wide", *wide))
    await cluster.wait_for_phase(JOBS, "a", "Running")


async def test_the_examples_run_in_a_rack_and_in_a_spine_or_wait() -> None:
    racks_and_spines = {
        f"sim-{index}": {
            "example.com/rack": f"rack-{index // 2}",
            "example.com/spine": f"spine-{index // 4}",
        }
        for index in range(8)
    }
    (configmap,) = example("topology-discovery.yaml")
    types = parse(configmap["data"][KEY], "volcano-system").types
    async with Cluster(nodes=8, scheduler=False) as cluster, cluster.client("volcano") as client:
        for each in discover(types, racks_and_spines, ()):
            metadata = {"name": each.name, "labels": dict(each.labels)}
            spec = msgspec.to_builtins(each.spec)
            await cluster.create(HYPERNODES, {"metadata": metadata, "spec": spec})
        # It lists the HyperNodes before it schedules.
        async with running(Scheduler(client)):
            for manifest in example("topology-jobs.yaml"):
                await cluster.create(JOBS, manifest)
            await cluster.wait_for_phase(JOBS, "one-rack", "Running")
            await cluster.wait_for_phase(JOBS, "one-spine", "Running")
            assert len(racks(cluster, "one-rack")) == 1
            assert racks(cluster, "one-spine") in ({0, 1}, {2, 3})

            def explained() -> bool:
                annotations = podgroup(cluster, "no-rack")["metadata"].get("annotations", {})
                return "fits 3 more pods" in annotations.get(WHY, "")

            await cluster.wait_until(explained)
            assert not racks(cluster, "no-rack")


async def test_the_partitions_of_a_job_run_in_one_rack_each(cluster: Cluster) -> None:
    partitioned = job("a", 4)
    del partitioned["spec"]["networkTopology"]
    policy = {
        "totalPartitions": 2,
        "partitionSize": 2,
        "minPartitions": 2,
        "networkTopology": {"mode": "hard", "highestTierAllowed": 1},
    }
    partitioned["spec"]["tasks"][0]["partitionPolicy"] = policy
    await cluster.create(JOBS, partitioned)
    await cluster.wait_for_phase(JOBS, "a", "Running")
    partitions: dict[str, set[int]] = {}
    for each in cluster.pods_of("a"):
        rack = int(each["spec"]["nodeName"].removeprefix("sim-")) // 2
        partitions.setdefault(each["metadata"]["labels"][PARTITION_ID], set()).add(rack)
    assert sorted(map(sorted, partitions.values())) == [[0], [1]]


async def test_a_partition_that_fits_no_rack_is_named(cluster: Cluster) -> None:
    partitioned = job("a", 3)
    del partitioned["spec"]["networkTopology"]
    policy = {
        "totalPartitions": 1,
        "partitionSize": 3,
        "networkTopology": {"mode": "hard", "highestTierAllowed": 1},
    }
    partitioned["spec"]["tasks"][0]["partitionPolicy"] = policy
    await cluster.create(JOBS, partitioned)

    def why() -> Json:
        annotation = podgroup(cluster, "a")["metadata"].get("annotations", {}).get(WHY, "{}")
        found: Json = json.loads(annotation)
        return found

    await cluster.wait_until(lambda: "subGroup" in why())
    assert why()["subGroup"] == "t-0"
    assert "sub-group t-0: no HyperNode of tier 1 or lower fits 3 more pods" in why()["message"]
