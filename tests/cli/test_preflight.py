"""``batholith preflight`` finds what would prevent an installation, before anything is stopped."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from support.api_servers import EmbeddedServerFactory, ServerFactory
from support.embedded_apiserver import Server
from support.polling import wait_until_true
from support.realkube import USERS, RealKubeOptions, real_server
from support.volcano_objects import deployment, webhook
from typer.testing import CliRunner

from batholith.cli.deployment_check import DEPLOYMENTS
from batholith.cli.main import app
from batholith.cli.preflight import run_checks
from batholith.cli.preflight_checks import (
    VOLCANO_CONF,
    VOLCANO_CONFIGMAP,
    CheckResult,
    DefinedKind,
    Plan,
    check_version,
    compare_definition,
)
from batholith.cli.preflight_image import ImageOptions, check_image, compare_version
from batholith.kube.client.client import Client
from batholith.kube.client.lease import format_micro_time
from batholith.kube.errors import ConnectionLostError, ForbiddenError
from batholith.model import crds
from batholith.model.names import CONFIGMAPS, CRDS, LEASES, NAMESPACES, PODS, Resource

Json = dict[str, Any]

NAMESPACE = "volcano-system"
RBAC = "rbac.authorization.k8s.io"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1"
IMAGE = ImageOptions(
    image="registry.test/batholith:1", namespace=NAMESPACE, pull_secret="", timeout=30
)


async def check(server: Server, *, from_volcano: bool = False) -> dict[str, CheckResult]:
    """Results by name, without that of the image."""
    async with server.client() as client:
        plan = Plan(namespace=NAMESPACE, from_volcano=from_volcano)
        return {each.name: each async for each in run_checks(client, plan, None)}


def failed(results: Mapping[str, CheckResult]) -> set[str]:
    assert all(each.action for each in results.values() if each.outcome == "failed")
    return {name for name, each in results.items() if each.outcome == "failed"}


async def install_volcano(server: Server, **changes: Any) -> None:
    admission = deployment(
        name="volcano-admission", app="volcano-admission", image="volcanosh/vc-webhook-manager:v1"
    )
    for body in (deployment("controllers"), deployment("scheduler"), admission):
        body["spec"] |= changes
        typed = {"apiVersion": "apps/v1", "kind": "Deployment", **body}
        await server.create(DEPLOYMENTS.path(NAMESPACE), typed)
    for kind, path in (("Mutating", "/jobs/mutate"), ("Validating", "/jobs/validate")):
        plural = f"{kind.lower()}webhookconfigurations"
        await server.create(f"{CONFIGURATIONS}/{plural}", webhook(kind, path))


async def test_a_cluster_without_other_systems_is_ready(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with servers.start(tmp_path, crds=crds.load()) as server:
        results = await check(server)
    assert {each.outcome for each in results.values()} <= {"ok", "skipped"}, results
    installed = [each for name, each in results.items() if name.startswith("crd ")]
    assert {each.message for each in installed} <= {"is that of this version"}
    assert results["image"].outcome == "skipped"


async def test_missing_crds_will_be_created(tmp_path: Path) -> None:
    one, *others = crds.load()
    async with EmbeddedServerFactory().start(tmp_path, crds=[one]) as server:
        results = await check(server)
    assert results[f"crd {one['metadata']['name']}"].outcome == "ok"
    for other in others:
        assert other["metadata"]["name"] in results["crds"].message


async def test_a_running_volcano_is_accepted_only_if_it_is_to_be_replaced(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with servers.start(tmp_path, crds=crds.load()) as server:
        await install_volcano(server)
        added, replaced = await check(server), await check(server, from_volcano=True)
    volcano = {"vc-controller-manager", "vc-scheduler", "vc-webhook-manager", "webhooks"}
    assert failed(added) == volcano
    assert failed(replaced) == set()
    assert "2 configurations, to be deleted" in replaced["webhooks"].message
    assert "Deployment volcano-scheduler in volcano-system" in replaced["vc-scheduler"].message


@pytest.mark.parametrize("from_volcano", [True, False])
async def test_webhooks_without_volcanos_admission_are_found(
    servers: ServerFactory, tmp_path: Path, *, from_volcano: bool
) -> None:
    async with servers.start(tmp_path, crds=crds.load()) as server:
        await install_volcano(server, replicas=0)
        results = await check(server, from_volcano=from_volcano)
    assert failed(results) == {"webhooks"}
    configuration = "mutatingwebhookconfigurations/volcano-admission-service-jobs-mutate"
    assert configuration in results["webhooks"].action


@pytest.mark.parametrize(
    ("age", "installed", "outcome"), [(5, False, "failed"), (60, False, "ok"), (5, True, "ok")]
)
async def test_a_lease_that_another_process_renews_is_found(
    servers: ServerFactory, tmp_path: Path, *, age: int, installed: bool, outcome: str
) -> None:
    renewed = datetime.now(UTC) - timedelta(seconds=age)
    spec = {
        "holderIdentity": "another",
        "leaseDurationSeconds": 30,
        "renewTime": format_micro_time(renewed),
    }
    lease = {"metadata": {"name": "volcano", "namespace": NAMESPACE}, "spec": spec}
    async with servers.start(tmp_path, crds=crds.load()) as server:
        await server.create(LEASES.path(NAMESPACE), lease)
        if installed:
            ours = deployment(name="batholith-scheduler", app="batholith", image="batholith:0.1.0")
            typed = {"apiVersion": "apps/v1", "kind": "Deployment", **ours}
            await server.create(DEPLOYMENTS.path(NAMESPACE), typed)
        results = await check(server)
    assert results["lease volcano"].outcome == outcome


@pytest.mark.parametrize(
    ("text", "outcome"),
    [('actions: "allocate"\n', "ok"), ('actions: "dance"\n', "failed"), (None, "skipped")],
)
async def test_the_scheduler_configuration_of_volcano_is_checked(
    servers: ServerFactory, tmp_path: Path, text: str | None, outcome: str
) -> None:
    async with servers.start(tmp_path, crds=crds.load()) as server:
        if text is not None:
            body = {"metadata": {"name": VOLCANO_CONFIGMAP}, "data": {VOLCANO_CONF: text}}
            await server.create(CONFIGMAPS.path(NAMESPACE), body)
        results = await check(server, from_volcano=True)
    assert results["scheduler configuration"].outcome == outcome


@pytest.mark.parametrize(
    ("version", "outcome"),
    [("v1.30.0", "ok"), ("v1.36.3+batholith", "ok"), ("v2.0", "ok"), ("v1.29.9", "failed"),
     ("v1.9.3", "failed"), ("", "failed")],
)  # fmt: skip
def test_old_versions_of_kubernetes_are_found(version: str, outcome: str) -> None:
    assert check_version(version).outcome == outcome


def _definition(**changes: Any) -> DefinedKind:
    body = crds.load()[0]
    body["status"] = {"storedVersions": ["v1alpha1"]} | changes.pop("status", {})
    body["metadata"] |= changes.pop("metadata", {})
    body["spec"] |= changes
    return msgspec.convert(body, DefinedKind)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, ""),
        ({"versions": [{"name": "v1alpha1", "schema": {}}]}, ""),
        ({"status": {"storedVersions": ["v1alpha1", "v2"]}}, "may be stored as v2"),
        ({"conversion": {"strategy": "Webhook"}}, "converted by a Webhook"),
        ({"scope": "Cluster"}, "it is Cluster and has the kind Job"),
        ({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, "is being deleted"),
    ],
)
def test_crds_that_cannot_be_replaced_are_found(changes: Json, problem: str) -> None:
    result = compare_definition(_definition(**changes), crds.load()[0])
    assert result.outcome == ("failed" if problem else "ok")
    assert problem in result.message
    assert ("is replaced" in result.message) == ("versions" in changes)


PODS_OF_NAMESPACE = PODS.path(NAMESPACE)


async def play_kubelet(server: Server, status: Json) -> None:
    """Give the pod that preflight creates its *status*."""

    async def created() -> bool:
        return bool((await server.get(PODS_OF_NAMESPACE))["items"])

    await wait_until_true(created)
    (pod,) = (await server.get(PODS_OF_NAMESPACE))["items"]
    async with server.client() as client:
        await client.patch(
            PODS, pod["metadata"]["name"], {"status": status},
            namespace=NAMESPACE, subresource="status",
        )  # fmt: skip


def _container(**state: Json) -> Json:
    return {"containerStatuses": [{"name": "main", "image": "", "imageID": "", "ready": False,
                                   "restartCount": 0, "state": state}]}  # fmt: skip


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (_container(waiting={"reason": "ErrImagePull", "message": "not found"}), "not found"),
        (_container(terminated={"exitCode": 2, "message": "no such file"}), "no such file"),
        (_container(terminated={"exitCode": 0}), "does not contain Batholith: it printed ''"),
        ({"phase": "Failed", "reason": "Evicted"}, "Evicted"),
    ],
    ids=["not-pulled", "fails", "prints-nothing", "evicted"],
)
async def test_an_image_that_cannot_be_run_is_found_and_its_pod_deleted(
    servers: ServerFactory, tmp_path: Path, status: Json, text: str
) -> None:
    async with servers.start(tmp_path, crds=crds.load()) as server, server.client() as client:
        kubelet = asyncio.create_task(play_kubelet(server, status))
        result = await check_image(client, IMAGE)
        await kubelet
        assert (result.outcome, text in result.message) == ("failed", True), result
        assert (await server.get(PODS_OF_NAMESPACE))["items"] == []


async def test_an_unscheduled_pod_is_reported_with_its_reason_and_deleted(
    servers: ServerFactory, tmp_path: Path
) -> None:
    condition = {"type": "PodScheduled", "status": "False", "message": "no nodes available"}
    async with servers.start(tmp_path, crds=crds.load()) as server, server.client() as client:
        kubelet = asyncio.create_task(play_kubelet(server, {"conditions": [condition]}))
        short = ImageOptions(image="i", namespace=NAMESPACE, pull_secret="key", timeout=2)
        result = await check_image(client, short)
        await kubelet
        assert (result.outcome, "no nodes available" in result.message) == ("failed", True)
        assert (await server.get(PODS_OF_NAMESPACE))["items"] == []


class PodClient:
    """Creates one pod, whose image cannot be pulled; *created* and *deleted* may be errors."""

    def __init__(
        self, *, created: Exception | None = None, deleted: Exception | None = None
    ) -> None:
        self._created, self._deleted = created, deleted
        self.deletions = 0

    async def create(self, resource: Resource, body: Json, *, namespace: str) -> None:
        if self._created:
            raise self._created

    async def get(self, resource: Resource, name: str, *, view: type[Any], **_: str) -> Any:
        return msgspec.convert({"status": _container(waiting={"reason": "ErrImagePull"})}, view)

    async def delete(self, resource: Resource, name: str, **_: Any) -> None:
        self.deletions += 1
        if self._deleted:
            raise self._deleted


async def test_a_pod_that_cannot_be_deleted_is_named() -> None:
    client = PodClient(deleted=ForbiddenError("no", status=403))
    result = await check_image(cast(Client, client), IMAGE)
    assert result.outcome == "failed"
    assert "could not be deleted: 403" in result.message
    assert "build and push the image" in result.action
    assert f"kubectl -n {NAMESPACE} delete pod batholith-preflight-" in result.action


async def test_a_pod_whose_creation_has_no_response_is_deleted() -> None:
    client = PodClient(created=ConnectionLostError("reset"))
    with pytest.raises(ConnectionLostError):
        await check_image(cast(Client, client), IMAGE)
    assert client.deletions == 1


class LogClient:
    """Serves the log of the pod."""

    def __init__(self, log: bytes | None) -> None:
        self._log = log

    @asynccontextmanager
    async def stream_path(
        self, path: str, *, idle_timeout: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        assert path.endswith("/pods/p/log")

        async def chunks(log: bytes) -> AsyncIterator[bytes]:
            yield log[:5]
            yield log[5:]

        if self._log is None:
            raise ConnectionLostError("the kubelet does not respond")
        yield chunks(self._log)


@pytest.mark.parametrize(
    ("log", "outcome"),
    [
        (f"batholith {metadata.version('batholith')}\n", "ok"),
        ("batholith 9.9.9\n", "warning"),
        ("hello from another image\n", "failed"),
        (None, "warning"),
    ],
)
async def test_the_version_of_the_image_is_compared(log: str | None, outcome: str) -> None:
    client = cast(Client, LogClient(None if log is None else log.encode()))
    assert (await compare_version(client, "p", NAMESPACE, "i")).outcome == outcome


async def run_command(server: Server, *arguments: str) -> tuple[int, str]:
    """Run the command in a thread, as the server may be in this loop."""
    command = ["preflight", "--kubeconfig", str(server.kubeconfig), *arguments]
    result = await asyncio.to_thread(CliRunner().invoke, app, command)
    return result.exit_code, result.output


async def test_the_command_exits_with_one_and_lists_what_to_do(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with servers.start(tmp_path, crds=crds.load()) as server:
        code, text = await run_command(server, "--skip-image")
        assert code == 0, text
        await install_volcano(server)
        code, text = await run_command(server, "--skip-image", "-o", "json")
        assert code == 1
        document = json.loads(text)
        assert document["ready"] is False
        found = {each["name"]: each for each in document["checks"]}
        assert "--from volcano" in found["vc-scheduler"]["action"]
        code, text = await run_command(server, "--skip-image", "--from", "volcano")
        assert (code, "ready to be installed" in text) == (0, True), text


@pytest.mark.process
async def test_missing_permissions_are_named(tmp_path: Path) -> None:
    options = RealKubeOptions(users={**USERS, "guest": (), "owner": ()}, crds=crds.load())
    plan = Plan(namespace=NAMESPACE, from_volcano=True)
    async with (
        real_server(tmp_path, options) as server,
        server.client("guest") as client,
        server.client("owner") as owner,
    ):
        results = {each.name: each async for each in run_checks(client, plan, IMAGE)}
        await server.create(NAMESPACES.path(), {"metadata": {"name": NAMESPACE}})
        role = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"}
        binding = {
            "metadata": {"name": "owner"},
            "roleRef": role,
            "subjects": [{"apiGroup": RBAC, "kind": "User", "name": "owner"}],
        }
        await server.create(f"/apis/{RBAC}/v1/namespaces/{NAMESPACE}/rolebindings", binding)

        async def owned() -> bool:
            found = {each.name: each async for each in run_checks(owner, plan, None)}
            text = found["permissions"].message
            assert "create clusterroles" in text
            return "create deployments" not in text

        await wait_until_true(owned)  # the authorizer reads a cache
    assert failed(results) == {
        "permissions", "crds", "other systems", "scheduler configuration", "image",
    }  # fmt: skip
    named = results["permissions"].message
    assert "create customresourcedefinitions.apiextensions.k8s.io" in named
    assert "patch deployments/scale.apps" in named
    assert "cannot create a pod" in results["image"].message
    assert CRDS.plural in results["crds"].message
