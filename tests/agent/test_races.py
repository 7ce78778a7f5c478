"""Concurrent events and unexpected errors neither lose a pod nor leak a process."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.agent import container, manifest
from support.agent_cluster import FAST, NODE
from support.controller_api import ControllerApi, Json
from support.polling import wait_for

from batholith.kube.client.events import EventType
from batholith.local.agent.pods.records import PodDir
from batholith.local.agent.runtime import shim
from batholith.local.agent.runtime.logs import LogRotation, punch_log_head
from batholith.local.agent.runtime.runs import IsolationLevel, RunDir, kill_tagged
from batholith.local.agent.service import Agent
from batholith.local.agent.settings import AgentSettings
from batholith.local.agent.volumes.host_dirs import HostDir
from batholith.machinery.event_recorder import Recorder
from batholith.model import times
from batholith.model.meta import ObjectReference
from batholith.model.names import PODS

pytestmark = pytest.mark.process


@dataclass(slots=True)
class AgentNode:
    """A node without sandboxes, and its API server."""

    api: ControllerApi
    settings: AgentSettings

    def run(self, name: str, script: str, *, more: Json | None = None, **spec: Any) -> None:
        """Create a pod of one container that is bound to the node."""
        created = manifest(name, container("sh", "-c", script, **(more or {})), **spec)
        spec_with_node = {"nodeName": NODE, "terminationGracePeriodSeconds": 5, **created["spec"]}
        self.api.put(PODS, name, spec=spec_with_node)

    def request_delete(self, name: str, *, grace: int) -> None:
        """Mark a pod as being deleted, like an API server."""
        deadline = times.format(datetime.fromtimestamp(datetime.now(UTC).timestamp() + grace, UTC))
        deletion = {"deletionTimestamp": deadline, "deletionGracePeriodSeconds": grace}
        self.api.put(PODS, name, metadata=deletion)

    def last_status(self, name: str) -> Json:
        """Return the last written status of the pod, even if it is deleted."""
        pods = (each.object for each in reversed(self.api.changes) if each.resource == PODS)
        versions = (pod for pod in pods if pod["metadata"]["name"] == name)
        status: Json = next(versions, {}).get("status", {})
        return status

    def phase(self, name: str) -> object:
        return self.last_status(name).get("phase")

    def container(self, name: str) -> Json:
        """Return the status of the pod's container."""
        (reported,) = self.last_status(name).get("containerStatuses") or [{}]
        status: Json = reported
        return status

    @property
    def pod_dirs(self) -> list[PodDir]:
        return [pod_dir for pod_dir, _ in PodDir.all(self.settings.data_dir)]

    @asynccontextmanager
    async def agent(
        self, recorder: Recorder | None = None
    ) -> AsyncIterator[tuple[Agent, asyncio.Task[None]]]:
        """Run an agent for the block; yield it with its task."""
        async with self.api.client() as client:
            created = Agent(client, settings=self.settings, recorder=recorder)
            ready = asyncio.Event()
            running = asyncio.create_task(created.run(ready=ready))
            try:
                await wait_for(lambda: ready.is_set() or running.done())
                yield created, running
            finally:
                running.cancel()
                with suppress(asyncio.CancelledError):
                    await running


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[AgentNode]:
    settings = AgentSettings(
        data_dir=tmp_path / "agent",
        node_name=NODE,
        back_off=FAST,
        sandbox=IsolationLevel.PLAIN,
        host_dirs=(HostDir(str(tmp_path)),),
    )
    async with ControllerApi() as api:
        yield AgentNode(api, settings)
    for path in (settings.data_dir / "pods").iterdir():
        while kill_tagged(path.name):
            continue


def running(pod_dir: PodDir) -> Iterator[int]:
    """Yield the running shims of a pod."""
    for name in pod_dir.containers():
        yield from filter(None, (run.shim_pid() for run in pod_dir.runs(name)))


async def test_concurrent_events_of_a_pod_start_it_once(node: AgentNode, tmp_path: Path) -> None:
    async with node.agent():
        node.run("p", f"echo run >> {tmp_path}/log; sleep 0.3", restartPolicy="Never")
        node.api.put(PODS, "p", metadata={"labels": {"a": "b"}})
        await wait_for(lambda: node.phase("p") in ("Succeeded", "Failed"))
    assert node.phase("p") == "Succeeded"
    assert (tmp_path / "log").read_text() == "run\n"


async def test_pod_deleted_right_after_its_creation_is_cleaned_up(node: AgentNode) -> None:
    async with node.agent():
        node.run("p", "sleep 600")
        node.api.remove(PODS, "p")
        node.run("q", "true", restartPolicy="Never")
        await wait_for(lambda: node.phase("q") == "Succeeded")
        await wait_for(lambda: len(node.pod_dirs) == 1)


async def test_pod_deleted_while_its_worker_is_down_leaves_no_process(node: AgentNode) -> None:
    node.run("p", "sleep 600")
    async with node.agent():
        await wait_for(lambda: node.phase("p") == "Running")
    (pod_dir,) = node.pod_dirs
    (shim_pid,) = running(pod_dir)
    damaged = pod_dir.path / "containers" / "c" / "1"
    damaged.mkdir()
    (damaged / shim.LAUNCH).write_text("{")
    (damaged / shim.CLAIM).write_text('{"pid": 1, "start": 0, "boot": "another"}')
    async with node.agent():
        node.api.remove(PODS, "p")
        await wait_for(lambda: not pod_dir.path.exists())
        await wait_for(lambda: shim.start_time(shim_pid) is None)


class FailOnceRecorder:
    """A recorder that raises at the first event with *reason*."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def record(
        self,
        regarding: ObjectReference,
        *,
        type: EventType,  # noqa: A002 - as in the protocol
        reason: str,
        message: str,
    ) -> None:
        if reason == self.reason:
            self.reason = ""
            raise RuntimeError("as planned")


@pytest.mark.parametrize("reason", ["Started", "BackOff"])
async def test_unexpected_error_in_a_pod_worker_loses_no_pod(node: AgentNode, reason: str) -> None:
    broken = FailOnceRecorder(reason)
    node.run("p", "exit 1")
    async with node.agent(broken):
        await wait_for(lambda: node.container("p").get("restartCount", 0) >= 3)
    assert broken.reason == ""


@pytest.mark.parametrize(
    "probe",
    [
        {"tcpSocket": {"host": "a..b", "port": 1}},
        {"httpGet": {"host": "127.0.0.1", "httpHeaders": [{"name": "X", "value": "a\nb"}]}},
    ],
    ids=["host", "header"],
)
async def test_invalid_probe_request_counts_as_failed(node: AgentNode, probe: Json) -> None:
    if "httpGet" in probe:  # without a server the header is not checked
        port = int(node.api.credentials.server.rpartition(":")[2])
        probe = {"httpGet": {**probe["httpGet"], "port": port}}
    probe = {**probe, "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 100}
    node.run("p", "sleep 600", more={"livenessProbe": probe})
    async with node.agent():
        await wait_for(lambda: node.container("p").get("restartCount"))


@pytest.mark.parametrize(
    ("odd", "code"),
    [
        ("mkdir $R/termination-log", 3),
        ("mkfifo $R/termination-log", 3),
        ("mkdir $R/exit.json", 137),
        ("ln -s exit.json $R/exit.json", 3),
    ],
)
async def test_exit_is_detected_whatever_a_container_leaves_in_its_run_directory(
    node: AgentNode, odd: str, code: int
) -> None:
    node.run("p", f"R=$BATHOLITH_ROOT/..; {odd}; exit 3", restartPolicy="Never")
    async with node.agent():
        await wait_for(lambda: node.phase("p") == "Failed")
    assert node.container("p")["state"]["terminated"]["exitCode"] == code


@pytest.mark.parametrize("name", [shim.EXIT, shim.CLAIM, shim.LAUNCH])
def test_pipe_in_the_place_of_a_record_does_not_block_the_agent(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    run = RunDir(tmp_path)
    if name == shim.EXIT:
        assert run.exit_record() is None
        return
    with pytest.raises(OSError, match="not a regular file"):
        run.read_claim() if name == shim.CLAIM else run.argv()


def test_directory_at_the_path_of_a_log_is_not_truncated(tmp_path: Path) -> None:
    (tmp_path / "0.log").mkdir()
    assert not punch_log_head(tmp_path / "0.log", LogRotation())


async def test_pods_created_during_shutdown_are_left_to_the_next_agent(
    node: AgentNode,
) -> None:
    node.run("p", "trap '' TERM; while :; do sleep 0.1; done", terminationGracePeriodSeconds=2)
    async with node.agent() as (agent, life):
        await wait_for(lambda: node.phase("p") == "Running")
        agent.stop(stop_pods=True)
        node.run("q", "sleep 600")
        await life
    assert not [pid for pod_dir in node.pod_dirs for pid in running(pod_dir)]
    async with node.agent():
        await wait_for(lambda: node.phase("q") == "Running")


async def test_shortened_grace_period_still_sends_sigterm_after_the_hook(
    node: AgentNode, tmp_path: Path
) -> None:
    hook = {"exec": {"command": ["sh", "-c", f"touch {tmp_path}/asked; sleep 1"]}}
    script = f"trap 'exit 7' TERM; touch {tmp_path}/up; while :; do sleep 0.05; done"
    node.run("p", script, more={"lifecycle": {"preStop": hook}})
    async with node.agent():
        await wait_for((tmp_path / "up").exists)
        node.request_delete("p", grace=600)
        await wait_for((tmp_path / "asked").exists)
        node.request_delete("p", grace=300)
        await wait_for(lambda: "d/p" not in node.api.objects(PODS))
    assert node.container("p")["state"]["terminated"]["exitCode"] == 7


async def test_last_written_status_includes_the_exits_of_sidecars(node: AgentNode) -> None:
    sidecar = container(
        "sh", "-c", "trap 'sleep 1; exit 5' TERM; while :; do sleep 0.05; done", name="s"
    )
    sidecar["restartPolicy"] = "Always"
    node.run("p", "exit 0", restartPolicy="Never", initContainers=[sidecar])

    def ended() -> object:
        (reported,) = node.last_status("p").get("initContainerStatuses") or [{"state": {}}]
        return reported["state"].get("terminated")

    async with node.agent():
        await wait_for(ended)
    assert node.phase("p") == "Succeeded"


async def test_memory_limit_is_enforced_despite_errors_of_another_pod(node: AgentNode) -> None:
    take = "exec python3 -c 'import time; x = b\"1\" * (256 << 20); time.sleep(600)'"
    limit = {"resources": {"limits": {"memory": "64Mi"}}}
    node.run("a", f"until test -f $BATHOLITH_ROOT/../go; do sleep 0.05; done; {take}", more=limit)
    async with node.agent():
        await wait_for(lambda: node.phase("a") == "Running")
        (pod_dir,) = node.pod_dirs
        (run,) = pod_dir.runs("c")
        (run.path / "out-of-memory").symlink_to(run.path / "no" / "such" / "directory")
        (run.path / "go").touch()
        node.run("b", take, more=limit, restartPolicy="Never")
        await wait_for(lambda: node.phase("b") == "Failed")
    assert node.container("b")["state"]["terminated"]["reason"] == "OOMKilled"


async def test_pod_with_forbidden_status_can_be_deleted(node: AgentNode) -> None:
    async with node.agent():
        node.run("p", "sleep 600")
        await wait_for(lambda: node.phase("p") == "Running")
        node.api.fail(403, "PATCH", "/status", count=1000)
        node.request_delete("p", grace=1)
        await wait_for(lambda: "d/p" not in node.api.objects(PODS))
