"""Crashes of the agent: pods keep running, are adopted, and run at most once."""

import asyncio
import json
import os
import random
import select
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.agent import container, decode_pod, manifest
from support.agent_cluster import NODE, AgentCluster, agent_cluster, make_world_writable
from support.api_servers import ServerFactory
from support.polling import wait_for
from support.sandbox import detected_isolation

from batholith.local.agent.pods.records import PodDir, PodRecord
from batholith.local.agent.runtime import shim
from batholith.local.agent.runtime.ids import IdMode
from batholith.local.agent.runtime.runs import IsolationLevel, LaunchSpec
from batholith.local.agent.volumes.host_dirs import HostDir
from batholith.model.names import PODS

pytestmark = pytest.mark.process

HERE = Path(__file__).parents[1]


@asynccontextmanager
async def agent_process(
    cluster: AgentCluster, shared: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A real agent, killed with SIGKILL at the end of the block."""
    given = {
        "server": cluster.server.url,
        "ca": str(cluster.server.pki.ca),
        "token": cluster.server.tokens["agent"],
        "token of extensions": cluster.server.tokens["node-extensions"],
        "data": str(cluster.settings.data_dir),
        "node": NODE,
        "shared": str(shared),
    }
    source = f"{HERE.parent / 'src'}:{HERE}"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "support.agent_process",
        json.dumps(given),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": source},
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()


def writer(name: str, shared: Path, script: str) -> dict[str, Any]:
    """Return a pod that may write to *shared*."""
    mounts = [{"name": "v", "mountPath": "/shared"}]
    full = f"R=$BATHOLITH_ROOT/shared; {script}"
    return manifest(
        name,
        container("sh", "-c", full, volumeMounts=mounts),
        restartPolicy="Never",
        volumes=[{"name": "v", "hostPath": {"path": str(shared)}}],
    )


async def test_pods_of_a_killed_agent_keep_running_and_are_adopted(
    servers: ServerFactory, tmp_path: Path
) -> None:
    shared = make_world_writable(tmp_path / "shared")
    script = "echo begun >> $R/log; until test -f $R/go; do sleep 0.02; done; echo done; exit 3"
    async with agent_cluster(servers, tmp_path) as w:
        async with agent_process(w, shared):
            await w.run(writer("p", shared, script))
            await w.run(writer("other", shared, "until test -f $R/go; do sleep 0.02; done"))
            await w.phase("p", "Running")
            await w.phase("other", "Running")
        (shared / "go").touch()
        (pod_dir,) = [f for f, record in PodDir.all(w.settings.data_dir) if record.name == "p"]
        await wait_for(lambda: pod_dir.runs("c")[0].exit_record())
        assert (await w.pod("p"))["status"]["phase"] == "Running", "no agent has reported it"
        async with w.agent(host_dirs=(HostDir(str(shared)),)):
            pod = await w.phase("p", "Succeeded", "Failed")
            state = pod["status"]["containerStatuses"][0]
            assert state["state"]["terminated"]["exitCode"] == 3
            assert state["restartCount"] == 0
            assert await w.logs("p") == "done\n"
            await w.phase("other", "Succeeded")
        assert (shared / "log").read_text() == "begun\n"


async def test_each_pod_runs_once_wherever_the_agent_is_killed(
    servers: ServerFactory, tmp_path: Path
) -> None:
    shared = make_world_writable(tmp_path / "shared")
    draw = random.Random(7)
    names = [f"p{number}" for number in range(10)]
    async with agent_cluster(servers, tmp_path) as w:
        for attempt in range(2):
            async with agent_process(w, shared):
                for name in names[attempt * 5 : attempt * 5 + 5]:
                    await w.run(writer(name, shared, f"echo {name} >> $R/log; sleep 0.1"))
                await asyncio.sleep(draw.uniform(0, 0.25))
        async with w.agent(host_dirs=(HostDir(str(shared)),)):
            for name in names:
                pod = await w.phase(name, "Succeeded", "Failed")
                assert pod["status"]["phase"] == "Succeeded", pod["status"]
    assert sorted((shared / "log").read_text().split()) == sorted(names)


async def test_prepared_run_without_claim_is_cancelled_and_replaced(
    servers: ServerFactory, tmp_path: Path
) -> None:
    """The agent died between `launch.json` and the claim of the shim, which starts afterwards."""
    shared = make_world_writable(tmp_path / "shared")
    async with agent_cluster(servers, tmp_path, host_dirs=(HostDir(str(shared)),)) as w:
        created = await w.run(writer("p", shared, "echo run >> $R/log"))
        pod_dir = PodDir.of(w.settings.data_dir, decode_pod(created))
        record = PodRecord(
            uid=created["metadata"]["uid"],
            namespace="default",
            name="p",
            ip="127.64.0.77",
            accepted_at="2026-01-01T00:00:00Z",
        )
        pod_dir.write_record(record)
        stale = pod_dir.new_run("c")
        argv = ["sh", "-c", f"echo stale >> {shared}/log"]
        stale.prepare(LaunchSpec(argv=argv, env={}, cwd="/", log=pod_dir.log_path(stale)))
        async with w.agent():
            pod = await w.phase("p", "Succeeded", "Failed")
            assert pod["status"]["podIP"] == "127.64.0.77"
            await asyncio.to_thread(os.waitpid, stale.start(), 0)
        assert (shared / "log").read_text() == "run\n"
        assert pod["status"]["containerStatuses"][0]["restartCount"] == 0


async def test_lost_run_follows_the_restart_policy(servers: ServerFactory, tmp_path: Path) -> None:
    async with agent_cluster(servers, tmp_path) as w:
        async with w.agent():
            for name, policy in (("once", "Never"), ("again", "Always")):
                await w.run(manifest(name, container("sleep", "60"), restartPolicy=policy))
                await w.phase(name, "Running")
        for pod_dir, _ in PodDir.all(w.settings.data_dir):
            run = pod_dir.runs("c")[0]
            shim_process = run.open_shim()
            assert shim_process is not None
            os.kill(shim_process.pid, signal.SIGKILL)
            await asyncio.to_thread(select.select, [shim_process.pidfd], [], [])
            os.close(shim_process.pidfd)
        async with w.agent():
            once = await w.phase("once", "Succeeded", "Failed")
            ended = once["status"]["containerStatuses"][0]["state"]["terminated"]
            assert (ended["exitCode"], ended["reason"]) == (137, "ContainerStatusUnknown")
            again = await w.wait_pod(
                "again",
                lambda pod: (
                    pod["status"]["containerStatuses"][0]["restartCount"] == 1
                    and pod["status"]["containerStatuses"][0]["state"].get("running")
                ),
            )
            last = again["status"]["containerStatuses"][0]["lastState"]["terminated"]
            assert last["reason"] == "ContainerStatusUnknown"


async def test_orphan_is_killed_by_the_next_agent(servers: ServerFactory, tmp_path: Path) -> None:
    async with agent_cluster(servers, tmp_path) as w:
        async with w.agent():
            await w.run(manifest("p", container("sleep", "60")))
            await w.phase("p", "Running")
        ((pod_dir, _),) = PodDir.all(w.settings.data_dir)
        pid = pod_dir.runs("c")[0].shim_pid()
        assert pid is not None
        await w.delete("p", grace=0)
        async with w.agent():
            await wait_for(lambda: shim.start_time(pid) is None)
            await wait_for(lambda: not pod_dir.path.exists())


async def test_next_agent_cleans_up_unrecorded_and_terminated_pods(
    servers: ServerFactory, tmp_path: Path
) -> None:
    """It died while it accepted a pod; another pod is Failed, but its container runs."""
    volumes = [{"name": "v", "emptyDir": {}}]
    async with agent_cluster(servers, tmp_path) as w:
        half = w.settings.data_dir / "pods" / "half"
        half.mkdir(parents=True)
        (half / "pod.json.new").write_text("{")
        async with w.agent():
            await w.run(manifest("p", container("sleep", "60"), volumes=volumes))
            await w.phase("p", "Running")
        ((pod_dir, _),) = PodDir.all(w.settings.data_dir)
        assert not half.exists()
        pid = pod_dir.runs("c")[0].shim_pid()
        assert pid is not None
        failed = {"status": {"phase": "Failed"}}
        await w.client.patch(PODS, "p", failed, namespace="default", subresource="status")
        async with w.agent():
            await wait_for(lambda: shim.start_time(pid) is None)
            await wait_for(lambda: not (pod_dir.path / "volumes").exists())
        assert pod_dir.read_record() is not None


async def test_next_agent_continues_probes_without_restarting_containers(
    servers: ServerFactory, tmp_path: Path
) -> None:
    def command(script: str) -> dict[str, Any]:
        return {"exec": {"command": ["sh", "-c", f"R=$BATHOLITH_ROOT/shared; {script}"]}}

    def ready(seen: dict[str, Any]) -> bool:
        return all(one["ready"] for one in seen["status"].get("containerStatuses", [{"ready": 0}]))

    shared = make_world_writable(tmp_path / "shared")
    (shared / "ok").touch()
    created = writer("p", shared, "sleep 60")
    created["spec"]["containers"][0] |= {
        "lifecycle": {"postStart": command("echo post >> $R/log")},
        "readinessProbe": {
            **command("test -f $R/ok"),
            "periodSeconds": 1,
            "failureThreshold": 1,
            "timeoutSeconds": 10,
        },
    }
    async with agent_cluster(servers, tmp_path, host_dirs=(HostDir(str(shared)),)) as w:
        async with w.agent():
            await w.run(created)
            await w.wait_pod("p", ready)
        async with w.agent():
            assert ready(await w.pod("p"))
            (shared / "ok").unlink()
            seen = await w.wait_pod("p", lambda seen: not ready(seen))
            assert seen["status"]["containerStatuses"][0]["restartCount"] == 0
    assert (shared / "log").read_text() == "post\n"


async def test_container_with_unreported_start_is_ready_under_the_next_agent(
    servers: ServerFactory, tmp_path: Path
) -> None:
    """The agent died between the start and the write of the status."""
    async with agent_cluster(servers, tmp_path) as w:
        async with w.agent():
            await w.run(manifest("p", container("sleep", "60")))
            await w.phase("p", "Running")
        forgotten = {"status": {"containerStatuses": None, "conditions": None, "phase": "Pending"}}
        await w.client.patch(PODS, "p", forgotten, namespace="default", subresource="status")
        async with w.agent():
            seen = await w.phase("p", "Running")
            (status,) = seen["status"]["containerStatuses"]
            assert (status["ready"], status["started"], status["restartCount"]) == (True, True, 0)


async def test_terminated_pod_keeps_its_logs_but_not_its_volumes(
    servers: ServerFactory, tmp_path: Path
) -> None:
    mounts = [{"name": "v", "mountPath": "/v"}]
    one = container("sh", "-c", "echo x | tee $BATHOLITH_ROOT/v/file", volumeMounts=mounts)
    volumes = [{"name": "v", "emptyDir": {}}]
    async with agent_cluster(servers, tmp_path) as w, w.agent():
        await w.run(manifest("p", one, restartPolicy="Never", volumes=volumes))
        await w.phase("p", "Succeeded")
        ((pod_dir, _),) = PodDir.all(w.settings.data_dir)
        await wait_for(lambda: not (pod_dir.path / "volumes").exists())
        assert await w.logs("p") == "x\n"


async def test_shutdown_with_pods_stops_them_and_the_next_agent_applies_restart_policies(
    servers: ServerFactory,
    tmp_path: Path,
) -> None:
    async with agent_cluster(servers, tmp_path) as w:
        async with w.agent() as agent:
            for name, policy in (("once", "Never"), ("again", "Always")):
                await w.run(manifest(name, container("sleep", "60"), restartPolicy=policy))
                await w.phase(name, "Running")
            agent.stop(stop_pods=True)
            runs = [pod_dir.runs("c")[0] for pod_dir, _ in PodDir.all(w.settings.data_dir)]
            await wait_for(
                lambda: all(run.exit_record() and run.shim_pid() is None for run in runs)
            )
            assert (await w.pod("once"))["status"]["phase"] == "Running"
        async with w.agent():
            once = await w.phase("once", "Succeeded", "Failed")
            ended = once["status"]["containerStatuses"][0]["state"]["terminated"]
            assert ended["exitCode"] == 143
            await w.wait_pod(
                "again", lambda pod: pod["status"]["containerStatuses"][0]["restartCount"] == 1
            )


async def test_shutdown_without_pods_leaves_them_to_the_next_agent(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with agent_cluster(servers, tmp_path) as w:
        async with w.agent() as agent:
            await w.run(manifest("p", container("sleep", "60")))
            before = await w.phase("p", "Running")
            agent.stop()
        ((pod_dir, _),) = PodDir.all(w.settings.data_dir)
        assert pod_dir.runs("c")[0].shim_pid() is not None
        async with w.agent():
            await w.delete("p", grace=1)
            await w.wait_pod_deleted("p")
        assert before["status"]["containerStatuses"][0]["restartCount"] == 0


def test_uid_cannot_lead_out_of_the_data_directory(tmp_path: Path) -> None:
    pod = decode_pod({"metadata": {"uid": "../x"}})
    with pytest.raises(ValueError, match="not a uid"):
        PodDir.of(tmp_path, pod)


def test_truncated_pod_record_counts_as_missing(tmp_path: Path) -> None:
    pod_dir = PodDir.of(tmp_path, decode_pod({"metadata": {"uid": "u"}}))
    pod_dir.path.mkdir(parents=True)
    (pod_dir.path / "pod.json").write_bytes(b'{"uid"')
    assert pod_dir.read_record() is None
    assert list(PodDir.all(tmp_path)) == []
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode((pod_dir.path / "pod.json").read_bytes())


async def test_pod_of_an_agent_without_id_ranges_gets_one_on_restart(
    servers: ServerFactory, tmp_path: Path
) -> None:
    """It owns its files after the restart of a container, which runs as another user."""
    if detected_isolation().id_mode is not IdMode.RANGE:
        pytest.skip("pods have no ranges of user ids on this machine")
    script = "umask 077; cat /v/n 2>/dev/null; echo run >> /v/n; test -f /v/go || sleep 60"
    mounts = [{"name": "v", "mountPath": "/v"}]
    volumes = [{"name": "v", "emptyDir": {}}]
    body = manifest("p", container("sh", "-c", script, volumeMounts=mounts), volumes=volumes)
    async with agent_cluster(servers, tmp_path) as w:
        async with w.agent(sandbox=IsolationLevel.UNSHARE):
            created = await w.run({**body, "spec": {**body["spec"], "restartPolicy": "OnFailure"}})
            pod_dir = PodDir.of(w.settings.data_dir, decode_pod(created))
            await wait_for(lambda: (pod_dir.path / "volumes" / "v" / "n").exists())
        record = pod_dir.read_record()
        assert record is not None
        pod_dir.write_record(msgspec.structs.replace(record, ids=0))
        for path in (pod_dir.path / "volumes" / "v", *(pod_dir.path / "volumes" / "v").iterdir()):
            os.chown(path, 0, 0)
        (pod_dir.path / "volumes" / "v" / "go").touch()
        w.kill_orphaned_pods()  # the next agent restarts the container
        async with w.agent(sandbox=IsolationLevel.UNSHARE):
            done = await w.phase("p", "Succeeded", "Failed")
            assert done["status"]["phase"] == "Succeeded"
            assert await w.logs("p") == "run\n"
        now = pod_dir.read_record()
        assert now is not None
        assert now.ids == record.ids
