"""Two nodes of one machine run the pods of one training job, and one of them is lost."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import embedded_cluster
from support.embedded_cluster import EmbeddedCluster
from support.network_namespace import second_machine
from support.polling import wait_until_equal, wait_until_true

from batholith.kube.errors import NotFoundError
from batholith.local.supervisor.datadir import DataDir
from batholith.local.supervisor.supervisor import read_state
from batholith.model.names import CONFIGMAPS, EVENTS, JOBS, NODES, PODS, REPLACE_NODES, SERVICES
from batholith.training_ctrl.frameworks import pytorch

Json = dict[str, Any]
pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

PYTORCHJOBS = pytorch.FRAMEWORK.kind.resource
SECOND, SIZE, PROGRAM = "second", 4, "program"

REDUCE = """
import os, socket, time
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
master, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
def ask(*address):
    try:
        with socket.create_connection(address, 5) as connection:
            connection.sendall(b"%d\\n" % rank)
            return connection.makefile().readline()
    except OSError:  # The master does not run yet, or has no name yet.
        return ""
if rank == 0:
    server, waiting = socket.create_server((master, port)), {}
    while len(waiting) < size - 1:
        connection = server.accept()[0]
        text = connection.makefile().readline()
        if text:
            waiting[int(text)] = connection
    total = sum(waiting)
    for connection in waiting.values():
        connection.sendall(b"%d\\n" % total)
else:
    received = ""
    while not received:
        received = ask(os.environ.get("SERVICE", master), port) or time.sleep(0.1)
    total = int(received)
print(f"rank {rank} of {size}: {total}", flush=True)
"""
"""Adds up the ranks as an all-reduce does, with the variables that `torch.distributed` reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoNodes:
    """A cluster, and the second node of its machine."""

    cluster: EmbeddedCluster
    joined: DataDir
    address: str

    async def join(self, *arguments: str) -> None:
        options = ("--address", self.address, "--data-dir", str(self.joined.root), "--detach")
        outcome = await embedded_cluster.batholith("join", *arguments, *options)
        assert outcome.code == 0, outcome.err

    async def nodes_of(self, job: str) -> Mapping[str, str]:
        """The nodes of the pods of a job that are not being deleted."""
        found = await self.cluster.client.list(PODS, namespace="default", view=dict)
        return {
            pod["metadata"]["name"]: pod["spec"]["nodeName"]
            for pod in found.items
            if pod["metadata"].get("labels", {}).get("app") == job
            and "deletionTimestamp" not in pod["metadata"]
            and pod["status"].get("phase") in ("Running", "Succeeded")
        }


@asynccontextmanager
async def two_nodes(tmp_path: Path) -> AsyncIterator[TwoNodes]:
    with second_machine() as machine:
        first, joined = tmp_path / "first", DataDir(tmp_path / "second")
        listen = ("--listen", f"{machine.first_address}:0")
        async with embedded_cluster.embedded_cluster(first, *listen) as cluster:
            created = await embedded_cluster.batholith("token", "create", "--data-dir", str(first))
            nodes = TwoNodes(cluster=cluster, joined=joined, address=machine.second_of_first)
            await nodes.join(created.out.split()[-1], "--name", SECOND)
            try:
                yield nodes
            finally:
                options = ("--data-dir", str(joined.root))
                outcome = await embedded_cluster.batholith("down", *options)
        assert outcome.code == 0, outcome.err
        assert embedded_cluster.processes_of(joined.root) == []


def template(job: str, command: list[str], **variables: str) -> Json:
    """A pod of a job whose pods are spread over the nodes that are not lost."""
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "nodeTaintsPolicy": "Honor",
        "labelSelector": {"matchLabels": {"app": job}},
    }
    container = {
        "name": "pytorch",
        "image": "python",
        "command": command,
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "volumeMounts": [{"name": PROGRAM, "mountPath": "/program"}],
    }
    lost = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "operator": "Exists"}
    spec = {
        "restartPolicy": "OnFailure",
        "terminationGracePeriodSeconds": 0,
        "topologySpreadConstraints": [spread],
        "tolerations": [{**lost, "tolerationSeconds": 0}],
        "containers": [container],
        "volumes": [{"name": PROGRAM, "configMap": {"name": PROGRAM}}],
    }
    return {"metadata": {"labels": {"app": job}}, "spec": spec}


async def create_program(cluster: EmbeddedCluster) -> None:
    body = {"metadata": {"name": PROGRAM}, "data": {"reduce.py": REDUCE}}
    await cluster.client.create(CONFIGMAPS, body, namespace="default")


def volcano_job(name: str, command: list[str], **variables: str) -> Json:
    pods = template(name, command, **variables)
    tasks = [
        {"name": "master", "replicas": 1, "template": pods},
        {"name": "worker", "replicas": SIZE - 1, "template": pods},
    ]
    plugins = {"pytorch": ["--port=23458"], "svc": []}
    return {
        "metadata": {"name": name, "annotations": {REPLACE_NODES: "true"}},
        "spec": {"minAvailable": SIZE, "plugins": plugins, "tasks": tasks},
    }


async def check_ranks(nodes: TwoNodes, job: str, first: str) -> None:
    """All ranks of a job have the sum, and half of them were on each node."""
    pods = [f"{job}-master-0", *(f"{job}-worker-{number}" for number in range(SIZE - 1))]

    async def logs() -> list[str]:
        return [await nodes.cluster.log(pod) for pod in pods]

    await wait_until_equal(logs, [f"rank {rank} of {SIZE}: 6\n" for rank in range(SIZE)])
    on = await nodes.nodes_of(job)
    assert on.keys() == set(pods)
    assert sorted(on.values()) == sorted([first, SECOND] * 2)


async def test_training_jobs_span_two_nodes_of_one_machine(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as nodes:
        client = nodes.cluster.client
        found = (await client.list(NODES, view=dict)).items
        (first,) = {each["metadata"]["name"] for each in found} - {SECOND}
        await create_program(nodes.cluster)
        # The pods of one job reach the master by the address of a Service, which only one of the
        # two proxies can serve, those of the other one by its name.
        spec = {"selector": {"volcano.sh/task-spec": "master"}, "ports": [{"port": 23458}]}
        service = {"metadata": {"name": "rendezvous"}, "spec": spec}
        await client.create(SERVICES, service, namespace="default")
        command = ["python3", "/program/reduce.py"]
        job = volcano_job("gang", command, SERVICE="rendezvous")
        await client.create(JOBS, job, namespace="default")
        pods = template("torch", command)
        port = {"name": "pytorchjob-port", "containerPort": 23459}  # not that of the other job
        pods["spec"]["containers"][0]["ports"] = [port]
        replicas = {"restartPolicy": "OnFailure", "template": pods}
        specs = {
            "Master": {**replicas, "replicas": 1},
            "Worker": {**replicas, "replicas": SIZE - 1},
        }
        body = {"metadata": {"name": "torch"}, "spec": {"pytorchReplicaSpecs": specs}}
        await client.create(PYTORCHJOBS, body, namespace="default")
        await check_ranks(nodes, "gang", first)
        await check_ranks(nodes, "torch", first)
        events = (await client.list(EVENTS, namespace="default", view=dict)).items
        assert [each for each in events if each["reason"] == "ProxyCannotListen"] == []


@pytest.mark.soak  # A node counts as lost after 50 seconds.
async def test_pods_of_a_lost_node_are_replaced_and_it_may_return(tmp_path: Path) -> None:
    async with two_nodes(tmp_path) as nodes:
        client = nodes.cluster.client
        found = (await client.list(NODES, view=dict)).items
        (first,) = {each["metadata"]["name"] for each in found} - {SECOND}
        await create_program(nodes.cluster)
        job = volcano_job("gang", ["sleep", "36000"])
        await client.create(JOBS, job, namespace="default")

        async def where() -> list[str]:
            return sorted((await nodes.nodes_of("gang")).values())

        await wait_until_equal(where, sorted([first, SECOND] * 2))
        lost = read_state(nodes.joined)
        assert lost is not None
        os.kill(lost.supervisor.pid, 9)
        await wait_until_equal(where, [first] * SIZE)
        before = embedded_cluster.processes_of(nodes.joined.root)
        assert before != [], "the pods of the lost node run on"
        await nodes.join()

        async def is_ready() -> bool:
            node = await client.get(NODES, SECOND, view=dict)
            conditions = {each["type"]: each["status"] for each in node["status"]["conditions"]}
            return conditions["Ready"] == "True" and "taints" not in node["spec"]

        await wait_until_true(is_ready)

        async def pods_have_ended() -> bool:
            return not any(
                "shim" in each for each in embedded_cluster.processes_of(nodes.joined.root)
            )

        await wait_until_true(pods_have_ended)
        assert await where() == [first] * SIZE
        options = ("--data-dir", str(nodes.cluster.data_dir.root))
        outcome = await embedded_cluster.batholith("nodes", "revoke", SECOND, *options)
        assert outcome.code == 0, outcome.err
        with pytest.raises(NotFoundError):
            await client.get(NODES, SECOND, view=dict)
        log = nodes.joined.logs / "agent.log"

        async def is_refused() -> bool:
            return "401 Unauthorized" in log.read_text()

        await wait_until_true(is_refused)
        with pytest.raises(NotFoundError):
            await client.get(NODES, SECOND, view=dict)
