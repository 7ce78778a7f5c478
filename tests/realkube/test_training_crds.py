"""The definitions of training jobs, and their webhooks, on both servers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from support import crd_builder
from support.api_servers import ServerFactory
from support.embedded_apiserver import DEFINITIONS, MERGE, Server
from support.kubectl import Kubectl, needs_kubectl
from support.realkube import real_server
from support.training_manifests import BY_KIND, INVALID_JOBS, training_job, valid_jobs
from support.webhooks import serve_webhooks

from batholith.admission.settings import AdmissionSettings
from batholith.admission.training import webhooks
from batholith.model import crds
from batholith.training_ctrl.frameworks import FRAMEWORKS

Json = dict[str, Any]

EXAMPLES = sorted((crd_builder.ROOT / "docs" / "examples" / "training-jobs").glob("*.yaml"))
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


@asynccontextmanager
async def started(servers: ServerFactory, directory: Path) -> AsyncIterator[Server]:
    """A server with the definitions and the webhooks."""
    rules = webhooks(AdmissionSettings(frameworks=FRAMEWORKS))
    if servers.name == "embedded":
        async with servers.start(directory, webhooks=rules, crds=crds.load_training()) as server:
            yield server
        return
    async with servers.start(directory) as server:
        await server.install_crds(*crds.load_training())
        async with serve_webhooks(server, rules):
            yield server


def path_of(kind: str, name: str = "", subresource: str = "") -> str:
    return BY_KIND[kind].kind.resource.path("default", name, subresource)


async def post(server: Server, job: Json) -> tuple[int, str, list[str]]:
    """Status, message and warnings of a dry run."""
    path = f"{path_of(job['kind'])}?dryRun=All&fieldValidation=Strict"
    response = await server.request("POST", path, job)
    return response.status, response.body.get("message", ""), response.warnings


async def test_both_servers_accept_and_refuse_the_same_jobs(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with started(servers, tmp_path) as server:
        for job in valid_jobs():
            assert await post(server, job) == (201, "", [])
            unnamed = job | {"metadata": {"generateName": "j-"}}
            assert await post(server, unnamed) == (201, "", [])
        for example in EXAMPLES:
            assert await post(server, yaml.safe_load(example.read_text())) == (201, "", [])
        for invalid in INVALID_JOBS:
            status, message, _ = await post(server, invalid.job)
            hook = BY_KIND[invalid.kind].kind.webhook_name
            denied = f'admission webhook "{hook}" denied the request: '
            if invalid.schema_first:
                name = invalid.job["metadata"]["name"]
                whose = f'{invalid.kind}.kubeflow.org "{name}" is invalid: '
                assert (status, message.startswith(whose)) == (422, True), (invalid.label, message)
            else:
                assert (status, message.startswith(denied)) == (400, True), (invalid.label, message)
                assert invalid.error in message
        for kind in BY_KIND:
            status, message, _ = await post(server, training_job(kind) | {"spec": None})
            assert (status, "spec: Required value" in message) == (422, True), message
        old = training_job("PyTorchJob", elasticPolicy={"nProcPerNode": 2})
        text = "spec.elasticPolicy.nProcPerNode is deprecated, use spec.nprocPerNode instead"
        assert await post(server, old) == (201, "", [text])


async def test_updates_scale_status_and_explanations_on_both_servers(
    servers: ServerFactory, tmp_path: Path
) -> None:
    needs_kubectl()
    async with started(servers, tmp_path / "server") as server:
        await check_explanations(Kubectl(server, tmp_path))
        for kind in BY_KIND:
            await check_updates(server, kind)
            await check_status(server, kind)
            await check_scale(server, kind)


async def check_explanations(kubectl: Kubectl) -> None:
    for framework in BY_KIND.values():
        field = framework.kind.replica_field
        text = await kubectl("explain", f"{framework.kind.resource.plural}.spec.{field}")
        assert f"FIELD: {field} <map[string]Object>" in text
        assert f"Pods of the job by replica type: {framework.kind.replica_types[0]}" in text


async def patch(server: Server, kind: str, body: Json, subresource: str = "") -> Any:
    path = path_of(kind, "j", subresource)
    return await server.request("PATCH", path, body, content_type=MERGE)


async def check_updates(server: Server, kind: str) -> None:
    policy = {"schedulingPolicy": {"queue": "a"}}
    created = await server.create(path_of(kind), training_job(kind, runPolicy=policy))
    assert created["spec"]["runPolicy"] == policy | {"suspend": False}
    for field, change in (
        ("schedulingPolicy.queue", {"schedulingPolicy": {"queue": "b"}}),
        ("managedBy", {"managedBy": "kueue.x-k8s.io/multikueue"}),
    ):
        refused = await patch(server, kind, {"spec": {"runPolicy": change}})
        assert refused.status in (400, 422)
        assert f"spec.runPolicy.{field}: Invalid value: " in refused.body["message"]
        assert "field is immutable" in refused.body["message"]
    changed = await patch(server, kind, {"spec": {"runPolicy": {"suspend": True}}})
    assert (changed.status, changed.body["metadata"]["generation"]) == (200, 2)


async def check_status(server: Server, kind: str) -> None:
    conditions = [{"type": "Created", "status": "True"}, {"type": "Running", "status": "True"}]
    status = {
        "conditions": conditions,
        "replicaStatuses": {"Worker": {"active": 2, "selector": "a=b"}},
        "startTime": "2026-01-01T00:00:00Z",
    }
    written = await patch(server, kind, {"status": status}, "status")
    assert (written.status, written.body["status"]) == (200, status)
    ignored = await patch(server, kind, {"status": {"conditions": []}})
    assert ignored.body["status"] == status
    table = await server.request("GET", path_of(kind), headers={"Accept": TABLE})
    assert [column["name"] for column in table.body["columnDefinitions"]] == [
        "Name",
        "State",
        "Age",
    ]
    (row,) = table.body["rows"]
    assert row["cells"][:2] == ["j", "Running"]


async def check_scale(server: Server, kind: str) -> None:
    scale = await server.request("GET", path_of(kind, "j", "scale"))
    if not BY_KIND[kind].kind.scalable:
        assert scale.status == 404
        return
    assert scale.body["spec"] == {"replicas": 1}
    assert scale.body["status"] == {"replicas": 2, "selector": "a=b"}
    scaled = await patch(server, kind, {"spec": {"replicas": 3}}, "scale")
    assert scaled.status == 200
    job = await server.get(path_of(kind, "j"))
    assert job["spec"][BY_KIND[kind].kind.replica_field]["Worker"]["replicas"] == 3


async def test_kubectl_installs_them_and_replaces_none_of_somebody_else(tmp_path: Path) -> None:
    needs_kubectl()
    (theirs, *_) = crds.load_training()
    theirs["metadata"]["annotations"] = {"theirs": "true"}
    name = theirs["metadata"]["name"]
    async with real_server(tmp_path / "server", crds=[theirs]) as real:
        kubectl = Kubectl(real, tmp_path)
        result = await kubectl.run("create", "-f", str(crd_builder.TRAINING))
        assert (result.code, "AlreadyExists" in result.err) == (1, True)
        assert len(result.out.splitlines()) == len(BY_KIND) - 1
        await kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        found = {each["metadata"]["name"]: each for each in (await real.get(DEFINITIONS))["items"]}
        assert len(found) == len(BY_KIND)
        assert found[name]["metadata"]["annotations"] == {"theirs": "true"}
        await check_queue_without_webhooks(real)


async def check_queue_without_webhooks(real: Server) -> None:
    kind = "JAXJob"
    policy = {"schedulingPolicy": {"queue": "a"}}
    await real.create(path_of(kind), training_job(kind, runPolicy=policy))
    other = {"schedulingPolicy": {"queue": "b"}}
    refused = await patch(real, kind, {"spec": {"runPolicy": other}})
    assert (refused.status, refused.body["message"]) == (
        422,
        'JAXJob.kubeflow.org "j" is invalid: spec.runPolicy.schedulingPolicy.queue: Invalid'
        ' value: "b": field is immutable once it is set',
    )
