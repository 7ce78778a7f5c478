"""``batholith export``: what a user created, applied elsewhere, is the same again."""

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from support.api_servers import ServerFactory, add_namespace
from support.embedded_apiserver import MERGE, Server, embedded_server
from support.kubectl import Kubectl, needs_kubectl
from support.node_requests import claim, pod
from typer.testing import CliRunner

from batholith.cli.export import Export, collect, write
from batholith.cli.exported_objects import is_finished, notes
from batholith.cli.main import app
from batholith.model import crds
from batholith.model.names import QUEUES

Json = dict[str, Any]
TEAM = "team"
PLURALS = {
    "ConfigMap": "configmaps", "Deployment": "deployments", "Job": "jobs",
    "Namespace": "namespaces", "PersistentVolumeClaim": "persistentvolumeclaims", "Pod": "pods",
    "Role": "roles", "RoleBinding": "rolebindings", "Secret": "secrets", "Service": "services",
    "ServiceAccount": "serviceaccounts",
}  # fmt: skip


def _objects() -> list[Json]:
    """Objects as a user writes them, each with its type, in the namespace of the team."""
    container = {"name": "c", "image": "busybox"}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    labels = {"app": "web"}
    running = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}
    subjects = [{"kind": "ServiceAccount", "name": "robot", "namespace": TEAM}]
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
    rbac = "rbac.authorization.k8s.io/v1"
    task = {"name": "t", "replicas": 2, "template": template}
    selector = {"matchLabels": labels}
    return [
        _object("v1", "ServiceAccount", "robot"),
        _object(rbac, "Role", "r", rules=rules),
        _object(rbac, "RoleBinding", "r", roleRef=role, subjects=subjects),
        _object("v1", "Secret", "s", data={"k": "dg=="}),
        _object("v1", "ConfigMap", "m", data={"k": "v"}),
        _object("v1", "PersistentVolumeClaim", "data", spec=claim("data")["spec"]),
        _object("v1", "Service", "web", spec={"selector": labels, "ports": [{"port": 80}]}),
        _object("apps/v1", "Deployment", "web", spec={"selector": selector, "template": running}),
        _object("batch/v1", "Job", "j", spec={"suspend": True, "template": template}),
        _object("batch.volcano.sh/v1alpha1", "Job", "v", spec={"tasks": [task]}),
        _object("v1", "Pod", "p", spec=pod("p", "")["spec"]),
    ]


def _object(api_version: str, kind: str, name: str, **content: Any) -> Json:
    metadata = {"name": name, "namespace": TEAM}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **content}


async def _apply(server: Server, obj: Json) -> None:
    group, _, _ = obj["apiVersion"].rpartition("/")
    root = f"/apis/{obj['apiVersion']}" if group else f"/api/{obj['apiVersion']}"
    scope = f"/namespaces/{TEAM}" if "namespace" in obj["metadata"] else ""
    await server.create(f"{root}{scope}/{PLURALS[obj['kind']]}", obj)


async def _export(server: Server, **options: Any) -> Export:
    async with server.client() as client:
        return await collect(client, **{"namespaces": (), "secrets": True, **options})


async def test_exported_objects_can_be_applied_and_are_exported_the_same_again(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with embedded_server(tmp_path / "first", crds=crds.load()) as server:
        await add_namespace(server, TEAM)
        for obj in _objects():
            await _apply(server, obj)
        first = await _export(server)
    kinds = [each["kind"] for each in first.manifests]
    wanted = ["Namespace", *(each["kind"] for each in _objects())]
    assert sorted(kinds) == sorted(wanted)
    assert kinds[0] == "Namespace"
    async with servers.start(tmp_path / "second", crds=crds.load()) as server:
        for obj in first.manifests:
            await _apply(server, obj)
        second = await _export(server, namespaces=(TEAM,))
    # The real server sets the account of pods as the embedded one does, and mounts its token.
    assert second.manifests == [each for each in first.manifests if each["kind"] != "Namespace"]


UNLIKE_TEXTS = (
    "1e3", "+1", "-", ".inf", "010", "0x1f", "1_000", "12:30", "2024-01-01", "y", "N", "off",
    "null", "~", "=", "", " x", "# x", "a: b", "a\nb\n", "a \n b", "\r\n\t",
    "\u0085\u2028\U0001f600",
)  # fmt: skip
"""Texts that parsers of YAML may read as another value."""


async def test_kubectl_applies_what_is_printed(servers: ServerFactory, tmp_path: Path) -> None:
    needs_kubectl()
    data = {f"k{number}": text for number, text in enumerate(UNLIKE_TEXTS)}
    data |= dict.fromkeys(("y", "1e3", "on", "null", "010"), "a key")
    claim_spec = claim("data")["spec"]
    volume = {"mountPath": "/d", "volumeClaim": claim_spec, "volumeClaimName": "v-pvc-0"}
    template = {"spec": pod("p", "")["spec"]}
    job = {"tasks": [{"name": "t", "replicas": 2, "template": template}], "volumes": [volume]}
    queues = [
        {
            "apiVersion": QUEUES.api_version,
            "kind": "Queue",
            "metadata": {"name": name},
            "spec": {"parent": parent},
        }
        for name, parent in (("root-of-all", "root"), ("b", "root-of-all"), ("a", "b"))
    ]
    async with embedded_server(tmp_path / "first", crds=crds.load()) as server:
        await add_namespace(server, TEAM)
        await _apply(server, _object("v1", "ConfigMap", "m", data=data))
        await _apply(server, _object("batch.volcano.sh/v1alpha1", "Job", "v", spec=job))
        for queue in queues:
            await server.create(QUEUES.path(), queue)
        exported = (await _export(server)).manifests
    found = [each["metadata"]["name"] for each in exported if each["kind"] == "Queue"]
    assert found == ["root-of-all", "b", "a"]
    printed = StringIO()
    write(exported, printed)
    async with servers.start(tmp_path / "second", crds=crds.load()) as server:
        kubectl = Kubectl(server, tmp_path)
        await kubectl("apply", "-f", "-", stdin=printed.getvalue())
        stored = await server.get(f"/api/v1/namespaces/{TEAM}/configmaps/m")
        assert stored["data"] == data
        jobs = f"/apis/batch.volcano.sh/v1alpha1/namespaces/{TEAM}/jobs"
        stored = await server.get(f"{jobs}/v")
        # Webhooks reject both; the controller creates the claim, and names it.
        assert stored["spec"]["volumes"] == [{"mountPath": "/d", "volumeClaim": claim_spec}]


async def test_only_what_a_user_created_and_may_still_run_is_exported(tmp_path: Path) -> None:
    async with embedded_server(tmp_path, crds=crds.load()) as server:
        assert (await _export(server)).manifests == []
        created = await server.create("/api/v1/namespaces/default/configmaps", _map("owner"))
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner"}
        reference = {**owner, "uid": created["metadata"]["uid"], "controller": True}
        owned = _map("owned", ownerReferences=[reference])
        await server.create("/api/v1/namespaces/default/configmaps", owned)
        await server.create("/api/v1/namespaces/kube-system/configmaps", _map("of-the-system"))
        await server.create("/api/v1/namespaces/default/secrets", _map("s"))
        await server.create("/api/v1/namespaces/default/pods", pod("done", "n"))
        path, done = "/api/v1/namespaces/default/pods/done/status", {"phase": "Succeeded"}
        await server.request("PATCH", path, {"status": done}, content_type=MERGE)
        found = await _export(server, secrets=False)
    assert [each["metadata"]["name"] for each in found.manifests] == ["owner"]
    assert found.manifests[0] == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "owner", "namespace": "default"},
    }
    assert dict(found.left_out) == {
        "Secrets: export them with --secrets": 1,
        "jobs and pods that have ended": 1,
    }


def _map(name: str, **metadata: Any) -> Json:
    return {"metadata": {"name": name, **metadata}}


@pytest.mark.parametrize(
    ("kind", "status", "finished"),
    [
        ("Job", {"state": {"phase": "Completed"}}, True),
        ("Job", {"state": {"phase": "Aborted"}}, False),
        ("Job", {"conditions": [{"type": "Failed", "status": "True"}]}, True),
        ("Job", {"conditions": [{"type": "Suspended", "status": "True"}]}, False),
        ("PyTorchJob", {"conditions": [{"type": "Succeeded", "status": "True"}]}, True),
        ("JobFlow", {"state": {"phase": "Succeed"}}, True),
        (
            "JobFlow",
            {"state": {"phase": "Running"}, "conditions": {"j": {"phase": "Failed"}}},
            False,
        ),
        ("Deployment", {"conditions": [{"type": "Failed", "status": "True"}]}, False),
    ],
)
def test_ended_jobs_are_recognised(kind: str, status: Json, finished: bool) -> None:
    assert is_finished({"kind": kind, "status": status}) == finished


def test_directories_of_this_machine_are_noted() -> None:
    volumes = [{"name": "v", "hostPath": {"path": "/data"}}]
    assert notes({"kind": "Pod", "spec": {"volumes": volumes}}) == [
        "mounts a directory of this machine (hostPath)"
    ]
    assert notes({"kind": "Pod", "spec": {"volumes": []}}) == []


def test_without_a_cluster_the_command_fails(tmp_path: Path) -> None:
    outcome = CliRunner().invoke(app, ["export", "--data-dir", str(tmp_path / "none")])
    assert outcome.exit_code == 1
    assert "start the cluster with `batholith up`" in outcome.output
