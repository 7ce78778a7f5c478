"""Ephemeral containers: what `kubectl debug` adds to a running pod."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.agent import PodStatusSimulator, after, container, decode_pod, manifest
from support.agent_cluster import AgentCluster, agent_cluster
from support.api_servers import EmbeddedServerFactory
from support.images import busybox, image, write_layout
from support.kubectl import Kubectl
from support.sandbox import detected_isolation
from support.terminals import read_until, terminal
from support.websockets import STDIN, open_channels

from batholith.kube.client.client import PatchType
from batholith.local.agent.images import archives
from batholith.local.agent.images.store import ImageStore
from batholith.local.agent.runtime.ids import IdMode
from batholith.local.agent.runtime.runs import IsolationLevel
from batholith.local.agent.state.pod_actions import StartContainer, StopContainer
from batholith.local.agent.state.status import Exited, PodTermination, Started
from batholith.model.names import PODS

pytestmark = [pytest.mark.asyncio(loop_scope="module")]

Json = dict[str, Any]
FOREVER = "while true; do sleep 0.05; done"


def ephemeral(*command: str, name: str = "debugger", **more: Any) -> Json:
    return container(*command, name=name, **more)


async def add(cluster: AgentCluster, added: Json, pod: str = "p") -> None:
    """Add an ephemeral container to a pod."""
    await cluster.client.patch(
        PODS,
        pod,
        {"spec": {"ephemeralContainers": [added]}},
        namespace=cluster.namespace,
        subresource="ephemeralcontainers",
        kind=PatchType.STRATEGIC,
    )


def state_of(pod: Json, name: str = "debugger") -> Json:
    statuses = pod["status"].get("ephemeralContainerStatuses") or ()
    return next((each["state"] for each in statuses if each["name"] == name), {})


def is_(kind: str, name: str = "debugger") -> Callable[[Json], bool]:
    return lambda pod: kind in state_of(pod, name)


async def run(cluster: AgentCluster, script: str = FOREVER, **spec: Any) -> Json:
    """Run a pod named ``p`` with the container ``c``."""
    await cluster.run(manifest("p", container("sh", "-c", script), **spec))
    return await cluster.phase("p", "Running")


async def log_of(cluster: AgentCluster, name: str = "debugger") -> str:
    return await cluster.logs("p", f"?container={name}")


# --- decisions ------------------------------------------------------------------------------


def debugged(**spec: Any) -> PodStatusSimulator:
    text = manifest("p", container(), **spec)
    text["spec"]["ephemeralContainers"] = [ephemeral("sh")]
    return PodStatusSimulator(decode_pod(text))


async def test_it_starts_with_the_others_and_while_init_containers_run() -> None:
    assert StartContainer("debugger") in debugged().next_actions().actions
    pod = debugged(initContainers=[container(name="first")])
    actions = pod.apply(Started("first", after(0))).next_actions().actions
    assert actions == (StartContainer("debugger"),)


@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never"])
async def test_it_is_never_restarted(policy: str) -> None:
    pod = debugged(restartPolicy=policy)
    pod.apply(Started("c", after(0)), Started("debugger", after(0)))
    pod.apply(Exited("debugger", after(1), 1))
    assert pod.next_actions(1000).actions == ()
    assert pod.status()["phase"] == "Running"
    (status,) = pod.status()["ephemeralContainerStatuses"]
    assert (status["ready"], "started" in status, status["restartCount"]) == (False, False, 0)
    assert status["state"]["terminated"]["exitCode"] == 1


async def test_it_neither_keeps_a_finished_pod_running_nor_fails_it() -> None:
    pod = debugged(restartPolicy="Never").apply(Started("c", after(0)))
    pod.apply(Started("debugger", after(0)), Exited("c", after(5), 0))
    assert pod.status()["phase"] == "Succeeded"
    (action,) = pod.next_actions(5).actions
    assert isinstance(action, StopContainer)
    assert action.name == "debugger"
    assert pod.apply(Exited("debugger", after(6), 137)).status()["phase"] == "Succeeded"


async def test_it_stops_with_the_main_containers_before_sidecars() -> None:
    sidecar = container(name="side", restartPolicy="Always")
    pod = debugged(initContainers=[sidecar])
    for name in ("side", "c", "debugger"):
        pod.apply(Started(name, after(0)))
    pod.apply(PodTermination(at=after(1), grace_period=5))
    stopped = [each.name for each in pod.next_actions(1).actions if isinstance(each, StopContainer)]
    assert stopped == ["c", "debugger"]


# --- on both servers ------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.parametrize("profile", ["legacy", "general", "baseline", "restricted"])
async def test_kubectl_debug_runs_a_shell_in_the_pod(
    cluster: AgentCluster, kubectl: Kubectl, profile: str
) -> None:
    before = await run(cluster)
    arguments = (
        "debug", "p", "-n", cluster.namespace, "-it", "--image=busybox", "-c", "debugger",
        f"--profile={profile}",
    )  # fmt: skip
    async with terminal(80, 24) as (master, end):
        process = await kubectl.start(*arguments, stdio=end)
        os.write(master, b"\n")
        os.write(master, b"test -t 0 && hostname && echo $((6 * 7))\n")
        await read_until(master, b"42\r\n")
        os.write(master, b"exit 3\n")
        await process.wait()
    pod = await cluster.wait_pod("p", is_("terminated"))
    assert state_of(pod)["terminated"]["exitCode"] == 3
    assert pod["status"]["containerStatuses"] == before["status"]["containerStatuses"]
    assert "42" in await log_of(cluster)


@pytest.mark.process
@pytest.mark.parametrize(
    ("profile", "field"), [("sysadmin", "privileged"), ("netadmin", "the capability NET_ADMIN")]
)
async def test_kubectl_debug_ends_with_the_error_of_rights_that_no_container_gets(
    cluster: AgentCluster, kubectl: Kubectl, profile: str, field: str
) -> None:
    await run(cluster)
    arguments = ("-it", "--image=busybox", "-c", "debugger", f"--profile={profile}")
    async with terminal(80, 24) as (master, end):
        process = await kubectl.start("debug", "p", "-n", cluster.namespace, *arguments, stdio=end)
        error = f"container debugger: unsupported security context: {field}"
        await read_until(master, f"cannot start: {error}".encode())
        await process.wait()
    pod = await cluster.wait_pod("p", is_("terminated"))
    ended = state_of(pod)["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (128, "StartError", error)
    assert pod["status"]["phase"] == "Running"


@pytest.mark.process
async def test_commands_and_clients_reach_it_like_other_containers(cluster: AgentCluster) -> None:
    await run(cluster)
    await add(cluster, ephemeral("sh", "-c", "read a; echo got $a; sleep 1000", stdin=True))
    await cluster.wait_pod("p", is_("running"))
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/p"
    query: Json = {"container": "debugger", "stdout": "true"}
    async with open_channels(cluster.server, f"{path}/attach", stdin="true", **query) as client:
        await client.send(STDIN, b"one\n")
        await client.wait_output(b"got one\n")
    async with open_channels(cluster.server, f"{path}/exec", command="id", **query) as client:
        assert (await client.finish())["status"] == "Success"
        await client.wait_output(b"uid=")


@pytest.mark.process
async def test_a_deleted_pod_takes_it_along(cluster: AgentCluster) -> None:
    await run(cluster)
    await add(cluster, ephemeral("sleep", "1000"))
    await cluster.wait_pod("p", is_("running"))
    await cluster.delete("p", grace=1)
    await cluster.wait_pod_deleted("p")


def needs_shared_processes() -> None:
    report = detected_isolation()
    if report.id_mode is IdMode.OWN or report.isolation is not IsolationLevel.UNSHARE:
        pytest.skip("containers share no process namespace unless the agent runs as root")


MARKED = "echo data > /tmp/mark; exec sleep 1234567"
LOOK = """
    for each in /proc/[0-9]*; do
        if tr '\\0' ' ' < $each/cmdline | grep -q '^sleep 1234567'; then
            echo found; cat $each/root/tmp/mark && kill ${each#/proc/}
        fi
    done
    echo end
"""


@pytest.mark.process
async def test_it_sees_and_signals_the_processes_of_its_target_alone(cluster: AgentCluster) -> None:
    needs_shared_processes()
    await run(cluster, MARKED)
    await add(cluster, ephemeral("sh", "-c", LOOK, name="apart"))
    await cluster.wait_pod("p", is_("terminated", "apart"))
    assert await log_of(cluster, "apart") == "end\n"
    await add(cluster, ephemeral("sh", "-c", LOOK, targetContainerName="c"))
    await cluster.wait_pod("p", lambda pod: pod["status"]["containerStatuses"][0]["restartCount"])
    assert (await log_of(cluster)).startswith("found\ndata\n")


@pytest.mark.process
async def test_it_ends_with_its_target(cluster: AgentCluster) -> None:
    needs_shared_processes()
    await run(cluster, "while [ ! -e /tmp/go ]; do sleep 0.02; done", restartPolicy="Never")
    await add(cluster, ephemeral("sh", "-c", FOREVER, targetContainerName="c"))
    await cluster.wait_pod("p", is_("running"))
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/p/exec"
    async with open_channels(
        cluster.server, path, container="c", command=["touch", "/tmp/go"], stdout="true"
    ) as client:
        await client.finish()
    pod = await cluster.wait_pod("p", is_("terminated"))
    assert state_of(pod)["terminated"]["exitCode"] == 137
    assert (await cluster.phase("p", "Succeeded"))["status"]["phase"] == "Succeeded"


@pytest.mark.process
async def test_nothing_of_it_is_left_in_its_target(cluster: AgentCluster) -> None:
    needs_shared_processes()
    await run(cluster)
    left = "trap '' HUP; (setsid sleep 7654321 &) & sleep 0.2; echo started; exit 5"
    await add(cluster, ephemeral("sh", "-c", left, targetContainerName="c"))
    pod = await cluster.wait_pod("p", is_("terminated"))
    assert state_of(pod)["terminated"]["exitCode"] == 5
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/p/exec"
    script = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; echo end"
    async with open_channels(
        cluster.server, path, container="c", command=["sh", "-c", script], stdout="true"
    ) as client:
        await client.wait_output(b"end")
    assert b"sleep 7654321" not in client.received[1]


@pytest.mark.process
async def test_a_target_that_does_not_run_is_waited_for(cluster: AgentCluster) -> None:
    script = "while [ ! -e /tmp/go ]; do sleep 0.02; done"
    body = manifest("p", container("sh", "-c", FOREVER))
    body["spec"]["initContainers"] = [container("sh", "-c", script, name="first")]
    await cluster.run(body)

    def initializes(pod: Json) -> bool:
        statuses = pod["status"].get("initContainerStatuses") or ()
        return any("running" in each["state"] for each in statuses)

    await cluster.wait_pod("p", initializes)
    await add(cluster, ephemeral("sleep", "1000", targetContainerName="c"))
    pod = await cluster.wait_pod("p", lambda pod: state_of(pod).get("waiting", {}).get("message"))
    assert state_of(pod)["waiting"]["message"] == "the target container c is not running"
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/p/exec"
    async with open_channels(
        cluster.server, path, container="first", command=["touch", "/tmp/go"], stdout="true"
    ) as client:
        await client.finish()
    await cluster.wait_pod("p", is_("running"))


@pytest.mark.process
@pytest.mark.cluster
async def test_the_next_agent_adopts_it_and_does_not_run_it_again(tmp_path: Path) -> None:
    async with agent_cluster(EmbeddedServerFactory(), tmp_path) as cluster:
        async with cluster.agent():
            await run(cluster)
            script = "while [ ! -e /tmp/go ]; do sleep 0.02; done; exit 7"
            await add(cluster, ephemeral("sh", "-c", script, targetContainerName="c"))
            await add(cluster, ephemeral("true", name="other"))
            await cluster.wait_pod("p", is_("running"))
            ended = await cluster.wait_pod("p", is_("terminated", "other"))
        async with cluster.agent():
            path = "/api/v1/namespaces/default/pods/p/exec"
            async with open_channels(
                cluster.server, path, container="debugger", command=["touch", "/tmp/go"],
                stdout="true",
            ) as client:  # fmt: skip
                assert (await client.finish())["status"] == "Success"
            pod = await cluster.wait_pod("p", is_("terminated"))
            assert state_of(pod)["terminated"]["exitCode"] == 7
            assert state_of(pod, "other") == state_of(ended, "other")


@pytest.mark.process
@pytest.mark.cluster
async def test_it_runs_its_own_image_with_a_terminal(tmp_path: Path) -> None:
    needs_shared_processes()
    async with agent_cluster(EmbeddedServerFactory(), tmp_path) as cluster:
        files = image([busybox()], {"Cmd": ["sh"]})
        layout = write_layout(tmp_path / "layout", "registry.example/tools:1", files)
        archives.load(ImageStore(cluster.settings.data_dir), layout)
        async with cluster.agent():
            await run(cluster, MARKED)
            added = ephemeral(
                image="registry.example/tools:1", stdin=True, tty=True, targetContainerName="c"
            )
            await add(cluster, added)
            await cluster.wait_pod("p", is_("running"))
            path = "/api/v1/namespaces/default/pods/p/attach"
            async with open_channels(
                cluster.server, path, container="debugger", stdin="true", stdout="true", tty="true"
            ) as client:
                await client.send(
                    STDIN, b"test -t 0 && echo $TERM; grep -l 1234567 /proc/*/cmdline\n"
                )
                await client.wait_output(b"xterm\r\n")
                await client.wait_output(b"/cmdline\r\n")
