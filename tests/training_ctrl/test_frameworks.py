"""Frameworks are found by their modules; autoscalers of elastic jobs."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import msgspec
from support.polling import wait_for, wait_until_equal
from support.running_controller import running
from support.training_harness import (
    PYTORCHJOBS,
    TrainingApi,
    TrainingHarness,
    definition,
    job,
    replica,
    template,
)
from support.training_jobs import decided, typed

from batholith.machinery.reconcile.events import Event
from batholith.training_ctrl import effects as fx
from batholith.training_ctrl.controller import TrainingController
from batholith.training_ctrl.core_types import DependentObject
from batholith.training_ctrl.dependents import changes
from batholith.training_ctrl.frameworks.pytorch import HORIZONTAL_POD_AUTOSCALERS
from batholith.training_ctrl.settings import TrainingSettings

PYTORCH = "PyTorchJob"

SEVENTH = '''
"""Ring: RingJob, whose nodes know their successor."""

import msgspec

from batholith.model.names import TRAINING_GROUP, Resource
from batholith.model.training.kinds import TrainingKind
from batholith.model.training.types import ReplicaSpec, RestartPolicy, TrainingJob, TrainingSpec
from batholith.training_ctrl.frameworks.base import Framework, add_env, replicas


class RingSpec(TrainingSpec, frozen=True):
    """``spec`` of a RingJob."""

    replica_specs: dict[str, ReplicaSpec] = msgspec.field(default={}, name="ringReplicaSpecs")


class Ring(Framework[RingSpec]):
    """RingJob."""

    kind = TrainingKind(
        resource=Resource(TRAINING_GROUP, "v1", "ringjobs", "RingJob"),
        description="A ring of nodes.",
        framework="ring",
        replica_field="ringReplicaSpecs",
        replica_types=("Node",),
        main_container="node",
        port_name="ring-port",
        port=7000,
        restart_policy=RestartPolicy.ON_FAILURE,
    )
    job_type = TrainingJob[RingSpec]

    def shape_pod(self, pod, member):
        """Name the successor."""
        number = replicas(member.job.spec.replica_specs["Node"])
        successor = (member.index + 1) % number
        address = self.pod_name(member.job.metadata.name, "Node", successor)
        add_env(pod, [("NEXT", f"{address}:{self.port(member.job, 'Node')}")])


FRAMEWORK = Ring()
'''


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("ring_framework", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ring_framework"] = module  # type hints are resolved in it
    spec.loader.exec_module(module)
    return module.FRAMEWORK


async def test_seventh_framework_is_one_file(tmp_path: Path) -> None:
    path = tmp_path / "ring.py"
    path.write_text(SEVENTH)
    framework = _load(path)
    crd = msgspec.json.decode(
        msgspec.json.encode(definition(PYTORCHJOBS))
        .replace(b"pytorchjob", b"ringjob")
        .replace(b"PyTorchJob", b"RingJob")
        .replace(b"pytorchReplicaSpecs", b"ringReplicaSpecs")
    )
    async with TrainingApi(definitions=[crd]) as api, api.client() as client:
        world = TrainingHarness(api, client)
        controller = TrainingController(
            client,
            settings=TrainingSettings(),
            clock=world.clock,
            recorder=world.recorder,
            frameworks=[framework],
        )
        node = {"replicas": 3, "template": template("node")}
        body = {"metadata": {"name": "r"}, "spec": {"ringReplicaSpecs": {"Node": node}}}
        resource = framework.kind.resource
        async with running(controller):
            await api.create(resource, body, namespace="d")
            await wait_for(lambda: len(world.pods) == len(world.services) == 3)
            await world.phase("Running")
            old = world.pod("r-node-1")["metadata"]["uid"]
            await world.phase("Failed", "r-node-1", code=1)
            await wait_for(lambda: "RingJobRestarting" in world.reasons())
            await wait_for(lambda: "r-node-1" in world.pods and world.uid("r-node-1") != old)
            await world.phase("Succeeded")
            await world.api.wait_for(
                resource,
                "r",
                lambda found: found["status"]["conditions"][-1]["type"] == "Succeeded",
                namespace="d",
            )
        assert world.env("r-node-2")["NEXT"] == "r-node-0:7000"
    del sys.modules["ring_framework"]


# Autoscalers.

METRIC = {
    "type": "Resource",
    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}},
}


def elastic(**policy: Any) -> Any:
    ranged = {"minReplicas": 1, "maxReplicas": 4, **policy}
    return job(PYTORCH, elasticPolicy=ranged, Worker=replica(PYTORCH, 2))


async def test_autoscaler_of_an_elastic_job(world: TrainingHarness) -> None:
    def autoscalers() -> dict[str, Any]:
        return world.api.objects(HORIZONTAL_POD_AUTOSCALERS)

    async with running(world.controller()):
        await world.create(elastic(metrics=[METRIC]))
        await wait_for(lambda: "d/j" in autoscalers())
        spec = autoscalers()["d/j"]["spec"]
        assert spec["scaleTargetRef"] == {
            "apiVersion": "kubeflow.org/v1",
            "kind": PYTORCH,
            "name": "j",
        }
        assert (spec["minReplicas"], spec["maxReplicas"]) == (1, 4)
        await world.patch(PYTORCH, {"elasticPolicy": {"maxReplicas": 6}})
        await wait_for(lambda: autoscalers()["d/j"]["spec"]["maxReplicas"] == 6)
        await world.patch(PYTORCH, {"runPolicy": {"suspend": True}})
        await wait_for(lambda: not autoscalers())
        await world.patch(PYTORCH, {"runPolicy": {"suspend": False}})
        await wait_for(lambda: "d/j" in autoscalers())
        await world.patch(PYTORCH, {"elasticPolicy": {"metrics": None}})
        await wait_for(lambda: not autoscalers())


async def test_scale_changes_the_workers(world: TrainingHarness) -> None:
    async with running(world.controller()):
        await world.create(elastic())
        await wait_for(lambda: len(world.pods) == 2)
        await world.phase("Running")
        await wait_for(lambda: world.count(PYTORCH, "Worker", "active") == 2)
        path = PYTORCHJOBS.path("d", "j", "scale")

        async def scale() -> dict[str, Any]:
            return await world.client.get_path(path, view=dict[str, Any])

        async def replicas() -> object:
            found = await scale()
            return (found["spec"]["replicas"], found["status"]["replicas"])

        await wait_until_equal(replicas, (2, 2))
        assert "training.kubeflow.org/job-name=j" in (await scale())["status"]["selector"]
        await world.api.patch(
            PYTORCHJOBS, "j", {"spec": {"replicas": 3}}, namespace="d", subresource="scale"
        )
        await wait_for(lambda: len(world.pods) == 3)
        await world.api.patch(
            PYTORCHJOBS, "j", {"spec": {"replicas": 1}}, namespace="d", subresource="scale"
        )
        await wait_for(lambda: world.pods == ["j-worker-0"])


def test_autoscaler_that_is_not_served_is_reported_and_does_not_block() -> None:
    body = elastic(metrics=[METRIC])["spec"]
    found = typed(PYTORCH, elasticPolicy=body["elasticPolicy"], Worker=replica(PYTORCH))
    result = decided(found, served=lambda resource: False)
    kinds = [type(each) for each in result.writes]
    assert kinds == [Event, fx.CreatePods, fx.CreateServices]


def test_defaults_of_the_server_are_no_difference() -> None:
    desired = decided(
        typed(
            PYTORCH,
            elasticPolicy={"minReplicas": 1, "maxReplicas": 2, "metrics": [METRIC]},
            Worker=replica(PYTORCH),
        )
    ).writes[0]
    assert isinstance(desired, fx.CreateObject)
    spec = dict(desired.desired.content["spec"])
    assert not changes(DependentObject(spec={**spec, "behavior": {"a": 1}}), desired.desired)
    assert changes(DependentObject(spec={**spec, "metrics": []}), desired.desired)
