"""An agent may die at any moment; its pods don't notice, and none runs twice."""

import asyncio
import json
import os
import random
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

from batholith.agent.pods.records import PodDir, PodRecord
from batholith.agent.runtime import shim
from batholith.agent.runtime.ids import IdMode
from batholith.agent.runtime.runs import IsolationLevel, LaunchSpec, detect_isolation
from batholith.model.names import PODS

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
    """A pod that may write into *shared*."""
    mounts = [{"name": "v", "mountPath": "/shared"}]
    full = f"R=$BATHOLITH_ROOT/shared; {script}"
    return manifest(
        name,
        container("sh", "-c", full, volumeMounts=mounts),
        restartPolicy="Never",
        volumes=[{"name": "v", "hostPath": {"path": str(shared)}}],
    )


async def test_a_killed_agent_s_pods_run_on_and_are_adopted(
    servers: ServerFactory, tmp_path: Path
) -> None:
    shared = make_world_writable(tmp_path / "shared")
    script = "echo begun >> $R/log; until test -f $R/go; do sleep 0.02; done; echo done; exit 3"
    async with agent_cluster(servers, tmp_path) as w:
        async with agent_process(w, shared):
            await w.run(writer("p", shared, script))
            await w.run(writer("late", shared, "until test -f $R/go; do sleep 0.02; done"))
            await w.phase("p", "Running")
            await w.phase("late", "Running")
        (shared / "go").touch()
        (folder,) = [f for f, record in PodDir.all(w.settings.data_dir) if record.name == "p"]
        await wait_for(lambda: folder.runs("c")[0].exit_record())
        assert (await w.pod("p"))["status"]["phase"] == "Running", "nobody could tell yet"
        async with w.agent(host_paths=(str(shared),)):
            pod = await w.phase("p", "Succeeded", "Failed")
            state = pod["status"]["containerStatuses"][0]
            assert state["state"]["terminated"]["exitCode"] == 3
            assert state["restartCount"] == 0
            assert await w.logs("p") == "done\n"
            await w.phase("late", "Succeeded")
        assert (shared / "log").read_text() == "begun\n"


async def test_no_pod_runs_twice_or_is_lost_wherever_the_agent_is_killed(
    servers: ServerFactory, tmp_path: Path
) -> None:
    shared = make_world_writable(tmp_path / "shared")
    draw = random.Random(7)
    names = [f"p{number}" for number in range(10)]
    async with agent_cluster(servers, tmp_path) as w:
        for turn in range(2):
            async with agent_process(w, shared):
                for name in names[turn * 5 : turn * 5 + 5]:
                    await w.run(writer(name, shared, f"echo {name} >> $R/log; sleep 0.1"))
                await asyncio.sleep(draw.uniform(0, 0.25))
        async with w.agent(host_paths=(str(shared),)):
            for name in names:
                pod = await w.phase(name, "Succeeded", "Failed")
                assert pod["status"]["phase"] == "Succeeded", pod["status"]
    assert sorted((shared / "log").read_text().split()) == sorted(names)


async def test_an_intent_without_a_claim_is_called_off_and_tried_anew(
    servers: ServerFactory, tmp_path: Path
) -> None:
    """The agent died between writing the intent and the shim's claim; the shim comes late."""
    shared = make_world_writable(tmp_path / "shared")
    async with agent_cluster(servers, tmp_path, host_paths=(str(shared),)) as w:
        made = await w.run(writer("p", shared, "echo run >> $R/log"))
        folder = PodDir.of(w.settings.data_dir, decode_pod(made))
        record = PodRecord(
            uid=made["metadata"]["uid"],
            namespace="default",
            name="p",
            ip="127.64.0.77",
            accepted_at="2026-01-01T00:00:00Z",
        )
        folder.write_record(record)
        stale = folder.new_run("c")
        argv = ["sh", "-c", f"echo stale >> {shared}/log"]
        stale.prepare(LaunchSpec(argv=argv, env={}, cwd="/", log=folder.log_path(stale)))
        async with w.agent():
            pod = await w.phase("p", "Succeeded", "Failed")
            assert pod["status"]["podIP"] == "127.64.0.77"
            await asyncio.to_thread(os.waitpid, stale.start(), 0)
        assert (shared / "log").read_text() == "run\n"
        assert pod["status"]["containerStatuses"][0]["restartCount"] == 0


async def test_a_run_that_vanished_is_lost_and_follows_the_restart_policy(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with agent_cluster(servers, tmp_path) as w:
        async with w.agent():
            for name, policy in (("once", "Never"), ("again", "Always")):
                await w.run(manifest(name, container("sleep", "60"), restartPolicy=policy))
                await w.phase(name, "Running")
        for folder, _ in PodDir.all(w.settings.data_dir):
            pid = folder.runs("c")[0].shim_pid()
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await asyncio.to_thread(os.waitpid, pid, 0)
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


async def test_an_orphan_is_ended_when_the_agent_comes_back(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with agent_cluster(servers, tmp_path) as w:
        async with w.agent():
            await w.run(manifest("p", container("sleep", "60")))
            await w.phase("p", "Running")
        ((folder, _),) = PodDir.all(w.settings.data_dir)
        pid = folder.runs("c")[0].shim_pid()
        assert pid is not None
        await w.delete("p", grace=0)
        async with w.agent():
            await wait_for(lambda: shim.start_time(pid) is None)
            await wait_for(lambda: not folder.path.exists())


async def test_what_an_agent_left_half_done_is_tidied_up(
    servers: ServerFactory, tmp_path: Path
) -> None:
    """It died while it took a pod on, and another pod ended, says the API, while one still ran."""
    volumes = [{"name": "v", "emptyDir": {}}]
    async with agent_cluster(servers, tmp_path) as w:
        half = w.settings.data_dir / "pods" / "half"
        half.mkdir(parents=True)
        (half / "pod.json.new").write_text("{")
        async with w.agent():
            await w.run(manifest("p", container("sleep", "60"), volumes=volumes))
            await w.phase("p", "Running")
        ((folder, _),) = PodDir.all(w.settings.data_dir)
        assert not half.exists()
        pid = folder.runs("c")[0].shim_pid()
        assert pid is not None
        failed = {"status": {"phase": "Failed"}}
        await w.client.patch(PODS, "p", failed, namespace="default", subresource="status")
        async with w.agent():
            await wait_for(lambda: shim.start_time(pid) is None)
            await wait_for(lambda: not (folder.path / "volumes").exists())
        assert folder.read_record() is not None


async def test_an_agent_that_comes_back_asks_on_and_does_not_begin_again(
    servers: ServerFactory, tmp_path: Path
) -> None:
    def command(script: str) -> dict[str, Any]:
        return {"exec": {"command": ["sh", "-c", f"R=$BATHOLITH_ROOT/shared; {script}"]}}

    def ready(seen: dict[str, Any]) -> bool:
        return all(one["ready"] for one in seen["status"].get("containerStatuses", [{"ready": 0}]))

    shared = make_world_writable(tmp_path / "shared")
    (shared / "ok").touch()
    made = writer("p", shared, "sleep 60")
    made["spec"]["containers"][0] |= {
        "lifecycle": {"postStart": command("echo post >> $R/log")},
        "readinessProbe": {
            **command("test -f $R/ok"),
            "periodSeconds": 1,
            "failureThreshold": 1,
            "timeoutSeconds": 10,
        },
    }
    async with agent_cluster(servers, tmp_path, host_paths=(str(shared),)) as w:
        async with w.agent():
            await w.run(made)
            await w.wait_pod("p", ready)
        async with w.agent():
            assert ready(await w.pod("p"))
            (shared / "ok").unlink()
            seen = await w.wait_pod("p", lambda seen: not ready(seen))
            assert seen["status"]["containerStatuses"][0]["restartCount"] == 0
    assert (shared / "log").read_text() == "post\n"


async def test_a_container_whose_start_nobody_was_told_of_is_ready(
    servers: ServerFactory, tmp_path: Path
) -> None:
    """The agent died between the start and the status that tells of it."""
    async with agent_cluster(servers, tmp_path) as w:
        async with w.agent():
            await w.run(manifest("p", container("sleep", "60")))
            await w.phase("p", "Running")
        forgotten = {"status": {"containerStatuses": None, "conditions": None, "phase": "Pending"}}
        await w.client.patch(PODS, "p", forgotten, namespace="default", subresource="status")
        async with w.agent():
            seen = await w.phase("p", "Running")
            (told,) = seen["status"]["containerStatuses"]
            assert (told["ready"], told["started"], told["restartCount"]) == (True, True, 0)


async def test_a_pod_that_is_over_keeps_its_logs_but_not_its_volumes(
    servers: ServerFactory, tmp_path: Path
) -> None:
    mounts = [{"name": "v", "mountPath": "/v"}]
    one = container("sh", "-c", "echo x | tee $BATHOLITH_ROOT/v/file", volumeMounts=mounts)
    volumes = [{"name": "v", "emptyDir": {}}]
    async with agent_cluster(servers, tmp_path) as w, w.agent():
        await w.run(manifest("p", one, restartPolicy="Never", volumes=volumes))
        await w.phase("p", "Succeeded")
        ((folder, _),) = PodDir.all(w.settings.data_dir)
        await wait_for(lambda: not (folder.path / "volumes").exists())
        assert await w.logs("p") == "x\n"


async def test_stopping_with_the_pods_ends_them_and_the_next_agent_applies_the_policy(
    servers: ServerFactory,
    tmp_path: Path,
) -> None:
    async with agent_cluster(servers, tmp_path) as w:
        async with w.agent() as agent:
            for name, policy in (("once", "Never"), ("again", "Always")):
                await w.run(manifest(name, container("sleep", "60"), restartPolicy=policy))
                await w.phase(name, "Running")
            agent.stop(stop_pods=True)
            runs = [folder.runs("c")[0] for folder, _ in PodDir.all(w.settings.data_dir)]
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


async def test_stopping_alone_leaves_the_pods_to_the_next_agent(
    servers: ServerFactory, tmp_path: Path
) -> None:
    async with agent_cluster(servers, tmp_path) as w:
        async with w.agent() as agent:
            await w.run(manifest("p", container("sleep", "60")))
            before = await w.phase("p", "Running")
            agent.stop()
        ((folder, _),) = PodDir.all(w.settings.data_dir)
        assert folder.runs("c")[0].shim_pid() is not None
        async with w.agent():
            await w.delete("p", grace=1)
            await w.wait_pod_deleted("p")
        assert before["status"]["containerStatuses"][0]["restartCount"] == 0


def test_a_uid_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    pod = decode_pod({"metadata": {"uid": "../x"}})
    with pytest.raises(ValueError, match="not a uid"):
        PodDir.of(tmp_path, pod)


def test_a_record_that_was_cut_short_counts_as_none(tmp_path: Path) -> None:
    folder = PodDir.of(tmp_path, decode_pod({"metadata": {"uid": "u"}}))
    folder.path.mkdir(parents=True)
    (folder.path / "pod.json").write_bytes(b'{"uid"')
    assert folder.read_record() is None
    assert list(PodDir.all(tmp_path)) == []
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode((folder.path / "pod.json").read_bytes())


async def test_a_pod_of_an_agent_without_ranges_goes_on_with_one(
    servers: ServerFactory, tmp_path: Path
) -> None:
    """Its files are its own after the restart of a container, though it is another user then."""
    if detect_isolation().id_mode is not IdMode.RANGE:
        pytest.skip("pods have no ranges of ids here")
    script = "umask 077; cat /v/n 2>/dev/null; echo run >> /v/n; test -f /v/go || sleep 60"
    mounts = [{"name": "v", "mountPath": "/v"}]
    volumes = [{"name": "v", "emptyDir": {}}]
    body = manifest("p", container("sh", "-c", script, volumeMounts=mounts), volumes=volumes)
    async with agent_cluster(servers, tmp_path) as w:
        async with w.agent(sandbox=IsolationLevel.UNSHARE):
            made = await w.run({**body, "spec": {**body["spec"], "restartPolicy": "OnFailure"}})
            folder = PodDir.of(w.settings.data_dir, decode_pod(made))
            await wait_for(lambda: (folder.path / "volumes" / "v" / "n").exists())
        record = folder.read_record()
        assert record is not None
        folder.write_record(msgspec.structs.replace(record, ids=0))
        for path in (folder.path / "volumes" / "v", *(folder.path / "volumes" / "v").iterdir()):
            os.chown(path, 0, 0)
        (folder.path / "volumes" / "v" / "go").touch()
        w.kill_leftover_pods()  # the container ends, and the next agent starts it again
        async with w.agent(sandbox=IsolationLevel.UNSHARE):
            done = await w.phase("p", "Succeeded", "Failed")
            assert done["status"]["phase"] == "Succeeded"
            assert await w.logs("p") == "run\n"
        now = folder.read_record()
        assert now is not None
        assert now.ids == record.ids
