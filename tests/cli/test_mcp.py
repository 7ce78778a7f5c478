"""``batholith mcp`` on a cluster in the process of the test."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import mcp
import pytest
from support.shell import Shell
from support.simulations import leading

from batholith.cli.jobs.mcp_server import server_of
from batholith.model.job import Job
from batholith.model.simulation import NodePods, SimulationResult

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]


PROGRAM = "from batholith.cli.main import app; app()"


class ToolClient:
    """A program that calls the tools."""

    def __init__(self, client: mcp.Client) -> None:
        self._client = client

    async def names(self) -> set[str]:
        return {each.name for each in (await self._client.list_tools()).tools}

    async def __call__(self, tool: str, /, **arguments: Any) -> Any:
        """The result of a tool, or the text of its error."""
        result = await self._client.call_tool(tool, arguments)
        if result.is_error:
            return "; ".join(getattr(each, "text", "") for each in result.content)
        content = result.structured_content
        return content["result"] if content and content.keys() == {"result"} else content


@asynccontextmanager
async def tools_of(shell: Shell, *, may_submit: bool = False) -> AsyncIterator[ToolClient]:
    """The tools, with the identity of *shell*."""
    async with mcp.Client(server_of(shell.client, may_submit=may_submit)) as client:
        yield ToolClient(client)


def manifest(name: str, image: str = "busybox") -> dict[str, Any]:
    """A job with one pod."""
    container = {"name": "main", "image": image, "command": ["true"]}
    task = {"name": "main", "replicas": 1, "template": {"spec": {"containers": [container]}}}
    kind = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job"}
    return {**kind, "metadata": {"name": name}, "spec": {"tasks": [task]}}


async def test_jobs_are_listed_and_shown_with_their_pods(shell: Shell) -> None:
    await shell.running("train")
    async with tools_of(shell) as tools:
        assert await tools.names() == {
            *("list_jobs", "job", "why", "logs", "history", "simulate", "submit"),
        }
        (found,) = await tools("list_jobs", phase="Running")
        assert (found["name"], found["phase"]) == ("train", "Running")
        assert await tools("list_jobs", phase="Failed") == []
        shown = await tools("job", name="jobs/train")
        assert [each["task"] for each in shown["pods"]] == ["helper", "worker"]


async def test_errors_say_what_is_wrong(shell: Shell) -> None:
    async with tools_of(shell) as tools:
        assert "no job 'absent' in namespace" in await tools("job", name="absent")
        assert "phase" in await tools("list_jobs", phase="Sleeping")
        assert "'yesterday'" in await tools("history", since="yesterday")


async def test_job_is_only_checked_unless_creation_is_asked_for_and_permitted(
    shell: Shell,
) -> None:
    async with tools_of(shell) as tools:
        assert "valid" in await tools("submit", manifest=manifest("a"))
        assert "--may-submit" in await tools("submit", manifest=manifest("a"), dry_run=False)
        assert "image" in await tools("submit", manifest=manifest("a", image=""))
        assert await tools("list_jobs") == []
    async with tools_of(shell, may_submit=True) as tools:
        assert "valid" in await tools("submit", manifest=manifest("a"))
        assert await tools("submit", manifest=manifest("a"), dry_run=False) == "created jobs/a"
        assert (await tools("job", name="a"))["name"] == "a"


async def test_a_job_is_simulated_and_not_created(shell: Shell) -> None:
    async def simulate(_: Job) -> SimulationResult:
        return SimulationResult(starts_now=True, nodes=(NodePods("a", 1),))

    async with (
        shell.rest.cluster.client() as client,
        leading(client, simulate),
        tools_of(shell) as tools,
    ):
        found = await tools("simulate", manifest=manifest("a"))
        assert (found["starts_now"], found["nodes"]) == (True, [{"node": "a", "pods": 1}])
        assert await tools("list_jobs") == []


@pytest.mark.process
async def test_command_speaks_the_protocol_on_stdin_and_stdout(shell: Shell) -> None:
    await shell.running("train")
    command = mcp.StdioServerParameters(
        command=sys.executable,
        args=["-c", PROGRAM, "mcp", *shell.connection],
        env=dict(os.environ),
    )
    async with mcp.Client(command) as client:
        (found,) = await ToolClient(client)("list_jobs")
        assert found["name"] == "train"


@pytest.mark.process
async def test_missing_package_is_named(shell: Shell) -> None:
    program = f"import sys; sys.modules['mcp'] = None; {PROGRAM}"
    command = [sys.executable, "-c", program, "mcp", *shell.connection]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'batholith[mcp]'" in done.stderr


@pytest.mark.process
async def test_it_ends_at_once_when_it_is_interrupted(shell: Shell) -> None:
    process = await asyncio.create_subprocess_exec(
        "env", "--default-signal=INT", sys.executable, "-c", PROGRAM, "mcp", *shell.connection,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
    await process.stdout.readline()  # it has started
    process.send_signal(signal.SIGINT)
    assert await process.wait() == -signal.SIGINT  # although its input has not ended
