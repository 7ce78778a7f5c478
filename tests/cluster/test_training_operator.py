"""Kubeflow's training operator, from its own manifests and as a Deployment, on ``up``."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.embedded_cluster import EmbeddedCluster, ProcessResult, embedded_cluster, run
from support.go_client import needs_go_program
from support.kubectl import needs_kubectl

Json = dict[str, Any]

pytestmark = [pytest.mark.process, pytest.mark.soak]  # its program takes minutes to build

NAMESPACE, NAME = "kubeflow", "training-operator"
WEBHOOKS = "validator.training-operator.kubeflow.org"
_MOUNT, _CONFIG = "/opt/training", "/etc/config"
_LEFT_OUT = ("kustomization.yaml", "kustomizeconfig.yaml", "patch.yaml")

_WAIT_FOR_MASTER = """
- name: init-pytorch
  image: busybox
  command: [sh, -c, 'until getent hosts {{.MasterAddr}}; do sleep 0.2; done']
"""
"""The operator's own one asks a DNS server, which the embedded cluster does not have."""

_MASTER = """
import os, socket
server = socket.create_server(("", int(os.environ["MASTER_PORT"])))
ranks = []
for _ in range(int(os.environ["WORLD_SIZE"]) - 1):
    connection, _ = server.accept()
    ranks.append(connection.recv(9).decode())
print("ranks", *sorted(ranks))
"""
_WORKER = """
import os, socket
master = socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
master.send(os.environ["RANK"].encode())
print("master", os.environ["MASTER_ADDR"])
"""


def manifests(program: Path) -> list[Json]:
    """The operator's manifests as kustomize builds them, with the program of this machine."""
    found: list[Json] = [_object("v1", "Namespace", NAMESPACE)]
    for file in sorted((program.parent / "manifests").rglob("*.yaml")):
        if file.name not in _LEFT_OUT:
            found += filter(None, yaml.safe_load_all(file.read_text()))
    for obj in found:
        kind = obj["kind"]
        if kind in ("Deployment", "Service", "ServiceAccount"):
            obj["metadata"]["namespace"] = NAMESPACE
        elif kind == "ClusterRoleBinding":
            obj["subjects"][0]["namespace"] = NAMESPACE
        elif kind == "ValidatingWebhookConfiguration":
            obj["metadata"]["name"] = WEBHOOKS
            for webhook in obj["webhooks"]:
                webhook["clientConfig"]["service"].update(name=NAME, namespace=NAMESPACE)
        if kind == "Deployment":
            _use_program(obj["spec"]["template"]["spec"], program)
    config = _object("v1", "ConfigMap", "config", NAMESPACE)
    config["data"] = {"initContainer.yaml": _WAIT_FOR_MASTER}
    secret = _object("v1", "Secret", "training-operator-webhook-cert", NAMESPACE)
    return [*found, config, secret]


def _use_program(spec: Json, program: Path) -> None:
    (container,) = spec["containers"]
    container["command"] = [
        f"{_MOUNT}/{program.name}",
        f"--pytorch-init-container-template-file={_CONFIG}/initContainer.yaml",
    ]
    container["readinessProbe"].update(initialDelaySeconds=0, periodSeconds=1)
    spec["volumes"] += [
        {"name": "program", "hostPath": {"path": str(program.parent)}},
        {"name": "config", "configMap": {"name": "config"}},
    ]
    container["volumeMounts"] += [
        {"name": "program", "mountPath": _MOUNT, "readOnly": True},
        {"name": "config", "mountPath": _CONFIG},
    ]


def _object(api_version: str, kind: str, name: str, namespace: str = "") -> Json:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}


def pytorch_job(name: str, *, container: str = "pytorch") -> Json:
    def replicas(count: int, program: str) -> Json:
        main = {"name": container, "image": "python", "command": ["python3", "-c", program]}
        template = {"spec": {"containers": [main]}}
        return {"replicas": count, "restartPolicy": "OnFailure", "template": template}

    job = _object("kubeflow.org/v1", "PyTorchJob", name, "default")
    specs = {"Master": replicas(1, _MASTER), "Worker": replicas(2, _WORKER)}
    return {**job, "spec": {"pytorchReplicaSpecs": specs}}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[EmbeddedCluster]:
    needs_kubectl()
    program = needs_go_program("training")
    options = ("--controllers", "*,-training-controller", "--mount", f"{program.parent}:ro")
    async with embedded_cluster(tmp_path / "data", *options) as started:
        applied = await apply(started, *manifests(program), options=("--force-conflicts",))
        assert applied.code == 0, applied.err
        available = ("--for=condition=Available", f"deploy/{NAME}", "--timeout=120s")
        waited = await kubectl(started, "wait", "-n", NAMESPACE, *available)
        assert waited.code == 0, waited.err
        yield started


async def kubectl(cluster: EmbeddedCluster, *arguments: str) -> ProcessResult:
    return await run("kubectl", f"--kubeconfig={cluster.data_dir.kubeconfig}", *arguments)


async def apply(
    cluster: EmbeddedCluster, *objects: Json, options: tuple[str, ...] = ()
) -> ProcessResult:
    file = cluster.data_dir.root / "applied.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    return await kubectl(cluster, "apply", "--server-side", *options, "-f", str(file))


async def test_workers_find_their_master_by_name(cluster: EmbeddedCluster) -> None:
    applied = await apply(cluster, pytorch_job("greet"))
    assert applied.code == 0, applied.err
    done = ("--for=condition=Succeeded", "pytorchjob/greet", "--timeout=120s")
    waited = await kubectl(cluster, "wait", *done)
    assert waited.code == 0, (await kubectl(cluster, "describe", "pods")).out
    assert (await cluster.log("greet-master-0")).split() == ["ranks", "1", "2"]
    for index in range(2):
        assert (await cluster.log(f"greet-worker-{index}")).split() == ["master", "greet-master-0"]


async def test_its_own_webhooks_are_called(cluster: EmbeddedCluster) -> None:
    denied = await apply(cluster, pytorch_job("x", container="main"))
    assert 'admission webhook "validator.pytorchjob.training-operator.kubeflow.org"' in denied.err
    listed = await kubectl(cluster, "get", "pytorchjobs", "-o", "json")
    assert json.loads(listed.out)["items"] == []
