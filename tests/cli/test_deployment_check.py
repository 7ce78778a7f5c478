"""Controllers and scheduler do not start while those of another system are running."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.components import component
from support.controller_api import ControllerApi
from support.embedded_apiserver import EmbeddedServer, embedded_server
from support.polling import wait_until_equal
from support.volcano_objects import NAMES, deployment

from batholith.cli.deployment_check import (
    CONTROLLERS,
    DEPLOYMENTS,
    SCHEDULER,
    TRAINING_OPERATOR,
    Deployment,
    running_deployments,
)
from batholith.model import crds
from batholith.model.names import COMMANDS, JOBS, PODGROUPS, QUEUES

Json = dict[str, Any]

KINDS = (JOBS, QUEUES, PODGROUPS, COMMANDS)


@pytest.mark.parametrize(
    ("changes", "evidence"),
    [
        ({}, "image docker.io/volcanosh/vc-controller-manager:v1.15.0, 1 replica"),
        ({"app": "x", "name": "x", "replicas": 3}, "v1.15.0, 3 replicas"),
        ({"image": "mirror:5000/a/vc-controller-manager-arm64@sha256:00"}, "arm64@sha256:00"),
        ({"image": "corp/batch:7", "args": ["/usr/bin/vc-controller-manager", "-v=3"]}, "runs vc-"),
        ({"image": "corp/batch:7"}, "label app=volcano-controller"),
        ({"replicas": 0}, ""),
        ({"image": "corp/batch:7", "app": "batch"}, ""),
        ({"image": "registry/batholith:0.1"}, ""),
        ({"image": "docker.io/volcanosh/vc-scheduler:v1.15.0", "app": "volcano-scheduler"}, ""),
    ],
)
def test_deployments_of_volcanos_controllers_are_detected(changes: Json, evidence: str) -> None:
    one = msgspec.convert(deployment(**changes), Deployment)
    found = running_deployments([one], CONTROLLERS, host="node-1")
    assert bool(found) is bool(evidence)
    assert evidence in "".join(found)


OPERATOR = {"image": "corp/train:7", "name": "operator", "app": "operator"}
OPERATOR_IMAGE = "kubeflow/training-operator:v1-855e096"


@pytest.mark.parametrize(
    ("changes", "labels", "evidence"),
    [
        ({"image": OPERATOR_IMAGE}, {}, f"image {OPERATOR_IMAGE}, 1 replica"),
        ({"args": ["/manager/training-operator"]}, {}, "runs training-operator"),
        ({}, {"control-plane": "kubeflow-training-operator"}, "label control-plane="),
        ({}, {"app.kubernetes.io/name": "training-operator"}, "label app.kubernetes.io/name="),
        ({"image": OPERATOR_IMAGE, "replicas": 0}, {}, ""),
        ({}, {}, ""),
        ({"image": "r/batholith:1"}, {"app.kubernetes.io/name": "training-operator"}, ""),
        ({"name": "batholith-controllers"}, {"app.kubernetes.io/name": "batholith"}, ""),
    ],
)
def test_deployments_of_kubeflows_training_operator_are_detected(
    changes: Json, labels: Json, evidence: str
) -> None:
    body = deployment(**OPERATOR | changes)
    body["metadata"]["labels"] |= labels
    one = msgspec.convert(body, Deployment)
    found = running_deployments([one], TRAINING_OPERATOR, host="node-1")
    assert bool(found) is bool(evidence)
    assert evidence in "".join(found)


def test_volcanos_deployment_with_batholiths_image_is_not_detected() -> None:
    """Its image may have any name."""
    one = msgspec.convert(deployment(image="corp/batch:7"), Deployment)
    assert not running_deployments([one], CONTROLLERS, host="volcano-controllers-5d4f8c7b9-x2x7k")
    assert running_deployments([one], CONTROLLERS, host="volcano-controllers")
    old = msgspec.convert(deployment(), Deployment)
    assert running_deployments([old], CONTROLLERS, host="volcano-controllers-5d4f8c7b9-x2x7k")


def test_unset_replicas_count_as_one() -> None:
    body = deployment("scheduler")
    del body["spec"]["replicas"]
    assert running_deployments([msgspec.convert(body, Deployment)], SCHEDULER, host="here")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    async with embedded_server(tmp_path / "server", crds=crds.load()) as running:
        yield running


async def install(server: EmbeddedServer, body: Json) -> None:
    async with server.client() as client:
        await client.create(DEPLOYMENTS, body, namespace="volcano-system")


@pytest.mark.process
@pytest.mark.parametrize("role", ["controllers", "scheduler"])
async def test_the_error_is_one_line_with_advice(server: EmbeddedServer, role: str) -> None:
    await install(server, deployment(role))
    async with component(role, "--kubeconfig", str(server.kubeconfig)) as one:
        assert await one.wait_exit() == 1
        *_, line = one.text.splitlines()
    assert f"Deployment {NAMES[role]} in volcano-system" in line
    assert "Scale it to 0 first" in line
    assert "--force-beside-volcano" in line
    assert "Traceback" not in one.text


@pytest.mark.process
async def test_only_the_training_controller_is_refused_where_the_training_operator_runs(
    server: EmbeddedServer,
) -> None:
    await install(server, deployment(**OPERATOR | {"image": OPERATOR_IMAGE}))
    config = ["--kubeconfig", str(server.kubeconfig)]
    enabled = [*config, "--controllers=*,training-controller"]
    async with component("controllers", *enabled) as one:
        assert await one.wait_exit() == 1
        *_, line = one.text.splitlines()
    assert "Kubeflow's training operator is running in this cluster: Deployment operator" in line
    assert "docs/training-jobs.md" in line
    assert "--force-beside-training-operator" in line
    async with component("controllers", *config) as one:
        await one.wait_ready()
    async with component("controllers", *enabled, "--force-beside-training-operator") as one:
        await one.wait_ready()


@pytest.mark.process
@pytest.mark.parametrize("role", ["controllers", "scheduler"])
async def test_it_starts_if_volcano_is_scaled_down_or_the_check_is_disabled(
    server: EmbeddedServer, role: str
) -> None:
    config = ["--kubeconfig", str(server.kubeconfig)]
    await install(server, deployment(role))
    async with component(role, *config, "--force-beside-volcano") as one:
        await one.wait_ready()
    async with server.client() as client:
        scaled = {"spec": {"replicas": 0}}
        await client.patch(DEPLOYMENTS, NAMES[role], scaled, namespace="volcano-system")
    async with component(role, *config) as one:
        await one.wait_ready()


@pytest.mark.process
async def test_without_permission_to_list_it_logs_a_warning_and_starts() -> None:
    async with ControllerApi(*KINDS) as api:
        api.fail(403, path=DEPLOYMENTS.path())
        async with component("controllers", "--kubeconfig", str(api.kubeconfig)) as one:
            await one.wait_ready()
    [warning] = [entry for entry in one.log if entry["level"] == "WARNING"]
    assert warning["program"] == "vc-controller-manager"


@pytest.mark.process
@pytest.mark.parametrize("status", [503, 401], ids=["starting", "does not know us"])
async def test_it_waits_for_an_unavailable_server(status: int) -> None:
    async with ControllerApi(*KINDS) as api:
        api.fail(status)
        config = str(api.kubeconfig)
        async with component(
            "controllers", "--kubeconfig", config, "--healthz-address=127.0.0.1:0"
        ) as one:
            await one.wait_line("waiting for the API server")
            assert (await one.get("health", "/livez"))[0] == 200
            await one.wait_ready()
            # Readiness does not imply leadership, which follows a little later.
            await wait_until_equal(lambda: one.get("health", "/readyz"), (200, "ok"))
