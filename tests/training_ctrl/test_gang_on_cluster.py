"""A training job whose gang the scheduler admits and binds, on simulated nodes."""

import asyncio

import pytest
from support.training_harness import PYTORCHJOBS, definition, job, replica

from batholith.model.names import PODGROUPS, PODS
from batholith.testing import Cluster
from batholith.training_ctrl.controller import TrainingController
from batholith.training_ctrl.settings import TrainingSettings


@pytest.mark.cluster
async def test_gang_is_admitted_runs_and_completes() -> None:
    """INV-TJ-5: with the scheduler's own PodGroup phases."""
    async with (
        Cluster(nodes=2, crds=[definition(PYTORCHJOBS)]) as cluster,
        cluster.client() as client,
    ):
        settings = TrainingSettings(gang_scheduler_name="volcano")
        task = asyncio.create_task(TrainingController(client, settings=settings).run())
        body = job(
            "PyTorchJob",
            run_policy={"cleanPodPolicy": "All"},
            Master=replica("PyTorchJob"),
            Worker=replica("PyTorchJob", 2),
        )
        body["metadata"]["namespace"] = "default"
        for spec in body["spec"]["pytorchReplicaSpecs"].values():
            spec["template"]["spec"]["containers"][0]["command"] = ["sleep", "1"]
        await cluster.create(PYTORCHJOBS, body)
        await cluster.wait_for(
            PYTORCHJOBS,
            "j",
            lambda found: found["status"]["conditions"][-1]["type"] == "Succeeded",
        )
        await cluster.wait_until(lambda: not (cluster.objects(PODS) or cluster.objects(PODGROUPS)))
        first_pod = next(
            number
            for number, change in enumerate(cluster.changes)
            if change.resource == PODS and change.type == "ADDED"
        )
        phases = [
            change.object.get("status", {}).get("phase")
            for change in cluster.changes[:first_pod]
            if change.resource == PODGROUPS
        ]
        assert phases[-1] == "Inqueue"
        task.cancel()
        await asyncio.wait([task])
