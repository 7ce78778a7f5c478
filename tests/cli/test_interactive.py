"""Commands with the streams of a container: `exec` and `run --pty`."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import pytest_asyncio
from support.agent import container, manifest
from support.agent_cluster import AgentCluster, agent_cluster
from support.api_servers import ServerFactory
from support.embedded_cluster import ProcessResult, batholith, embedded_cluster
from support.terminals import read_until, terminal
from typer.testing import CliRunner

from batholith.cli.jobs.interactive import choose_pod, find_credentials
from batholith.cli.jobs.shared import CommandFailedError
from batholith.cli.main import app
from batholith.client import Client, JobHandle

pytestmark = [pytest.mark.asyncio(loop_scope="module")]


# --- streams --------------------------------------------------------------------------------

CLIENT = """
import json, sys
from batholith.cli.jobs.connection import report
from batholith.cli.jobs.interactive import find_credentials, stream

given = json.loads(sys.argv[1])
try:
    code = stream(find_credentials(given.pop("connection")), *given.pop("where"), **given)
except Exception as error:
    code = report(error)
sys.exit(code)
"""
"""What the command line does once the pod is chosen."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(
    servers: ServerFactory, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[AgentCluster]:
    """A cluster with a pod that runs."""
    directory = tmp_path_factory.mktemp("world")
    async with agent_cluster(servers, directory) as created, created.agent():
        await created.run(manifest("p", container("sleep", "1000")))
        await created.phase("p", "Running")
        yield created


def client_arguments(cluster: AgentCluster, pod: str = "p", **given: Any) -> list[str]:
    connection = {"kubeconfig": str(cluster.server.kubeconfig)}
    request = {"tty": False, "where": ["exec", ["default", pod]], "connection": connection, **given}
    return [sys.executable, "-c", CLIENT, json.dumps(request)]


async def execute(
    cluster: AgentCluster, *command: str, stdin: bytes = b"", **given: Any
) -> ProcessResult:
    """Run a command in the pod, without a terminal."""
    process = await asyncio.create_subprocess_exec(
        *client_arguments(cluster, command=command, **given),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate(stdin)
    return ProcessResult(code=process.returncode or 0, out=out.decode(), err=err.decode())


@pytest.mark.process
async def test_streams_and_exit_code_are_those_of_the_command(cluster: AgentCluster) -> None:
    script = "cat; echo problem >&2; exit 7"
    result = await execute(cluster, "sh", "-c", script, stdin=b"in\n" * 10_000)
    assert (result.code, result.out, result.err) == (7, "in\n" * 10_000, "problem\n")
    assert (await execute(cluster, "true")).code == 0


@pytest.mark.process
async def test_what_cannot_be_reached_is_explained(cluster: AgentCluster) -> None:
    missing = await execute(cluster, "true", pod="none")
    assert (missing.code, missing.out) == (4, "")
    assert "pod none does not exist" in missing.err
    wrong = await execute(cluster, "true", container="none")
    assert wrong.code == 1
    assert "has no such container" in wrong.err
    program = await execute(cluster, "no-such-program")
    assert program.code == 1
    assert "no-such-program" in program.err
    nowhere = {"url": "http://127.0.0.1:1"}
    refused = await execute(cluster, "true", connection=nowhere)
    assert refused.code == 3
    assert "give --kubeconfig, --context or --data-dir" in refused.err


@pytest.mark.process
async def test_a_terminal_has_the_size_of_this_one_and_is_left_as_it_was(
    cluster: AgentCluster,
) -> None:
    script = "read line; stty size; echo got $line; exit 3"
    arguments = client_arguments(cluster, command=["sh", "-c", script], tty=True)
    async with terminal(91, 33) as (master, end):
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", '"$@"; echo "code $?"; stty -a', "sh", *arguments,
            stdin=end, stdout=end, stderr=end,
        )  # fmt: skip
        os.write(master, b"one\n")
        output = await read_until(master, b"echoctl")
        assert b"33 91\r\ngot one\r\ncode 3\r\n" in output
        assert b" icanon" in output
        await process.wait()


async def test_the_kubeconfig_of_a_data_directory_is_used(tmp_path: Path) -> None:
    text = """
        apiVersion: v1
        kind: Config
        current-context: c
        contexts: [{name: c, context: {cluster: c, user: u}}]
        clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
        users: [{name: u, user: {token: t}}]
    """
    (tmp_path / "kubeconfig").write_text(text)
    (tmp_path / "kubeconfig").chmod(0o600)
    assert find_credentials({"data_dir": tmp_path}).server == "http://127.0.0.1:1"
    with pytest.raises(CommandFailedError, match="no Kubernetes API"):
        find_credentials({"data_dir": tmp_path / "absent"})


# --- pods of jobs ---------------------------------------------------------------------------


def job_of(*pods: tuple[str, str, int, str]) -> JobHandle:
    """A job with pods of a name, task, index and phase."""
    found = [
        SimpleNamespace(name=name, task=task, index=index, phase=phase)
        for name, task, index, phase in pods
    ]
    tasks = [SimpleNamespace(name=name) for name in ("driver", "worker")]
    handle = SimpleNamespace(
        pods=lambda: found, info=SimpleNamespace(tasks=tasks), kind="jobs", name="train"
    )
    return cast("JobHandle", handle)


async def test_the_pod_is_the_first_that_runs_or_the_chosen_one() -> None:
    job = job_of(
        ("w-1", "worker", 1, "Running"),
        ("w-0", "worker", 0, "Running"),
        ("d-0", "driver", 0, "Pending"),
    )
    assert choose_pod(job).name == "w-0"
    assert choose_pod(job, task="driver").name == "d-0"
    assert choose_pod(job, task="worker", index=1).name == "w-1"
    assert choose_pod(job, pod="w-1").name == "w-1"


async def test_a_missing_pod_is_named() -> None:
    job = job_of(("w-0", "worker", 0, "Running"))
    with pytest.raises(CommandFailedError, match="no pod for --task worker --index 9"):
        choose_pod(job, task="worker", index=9)
    with pytest.raises(CommandFailedError, match="jobs/train has no pods"):
        choose_pod(job_of())


async def test_a_command_is_required() -> None:
    assert CliRunner().invoke(app, ["exec", "train"]).exit_code == 2


# --- as a user calls them -------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.timeout(500)
async def test_run_connects_its_terminal_to_a_job_and_exec_reaches_it(tmp_path: Path) -> None:
    root = tmp_path / "data"
    where = ("--data-dir", str(root))
    async with embedded_cluster(root):
        async with terminal(91, 33) as (master, end):
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "batholith", "run", *where, "--pty", "--job-name=shell",
                "--image=busybox", "--", "sh",
                stdin=end, stdout=end, stderr=end,
            )  # fmt: skip
            name = (await read_until(master, b"\n")).decode().split("/")[1].strip()
            os.write(master, b"stty size; echo $((6 * 7))\n")
            assert b"33 91" in await read_until(master, b"42\r\n")
            inside = await batholith("exec", *where, name, "--", "sh", "-c", "exit 5")
            assert inside.code == 5, inside.err
            os.write(master, b"exit 3\n")
            await read_until(master, b"Failed")
            assert await process.wait() == 3
        refused = await batholith("run", *where, "--pty", "--image=busybox", "--", "sh")
        assert refused.code == 2
        assert "--pty: input and output are no terminal here" in refused.err
        with Client(data_dir=root) as client:
            assert len(list(client.jobs.list())) == 1
