"""Clients that attach to the program of a container; containers with an input or a terminal."""

import asyncio
import os
import select
import socket
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from support.agent import container, manifest
from support.agent_cluster import AgentCluster
from support.kubectl import Kubectl
from support.polling import wait_for
from support.terminals import read_until, terminal
from support.websockets import CLOSE, STDERR, STDIN, STDOUT, ChannelSocket, open_channels

from batholith.local.agent.pods.attachments import Attachment
from batholith.local.agent.runtime import attach
from batholith.local.agent.runtime.attach import STALL_TIMEOUT, AttachServer, socket_path
from batholith.local.agent.runtime.runs import RunDir
from batholith.local.agent.state.core_types import Container
from batholith.local.agent.streaming.command_streams import CommandStreams, StreamOptions
from batholith.machinery.clock import SystemClock

pytestmark = [pytest.mark.asyncio(loop_scope="module")]

Json = dict[str, Any]


async def run_shell(cluster: AgentCluster, script: str, **more: Any) -> None:
    """Run a pod named ``p`` until it is running."""
    body = manifest("p", container("sh", "-c", script, **more), restartPolicy="Never")
    await cluster.run(body)
    await cluster.phase("p", "Running")


def attached(cluster: AgentCluster, **more: Any) -> AbstractAsyncContextManager[ChannelSocket]:
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/p/attach"
    query = {"stdout": "true", "stderr": "true", "protocol": "v5.channel.k8s.io", **more}
    return open_channels(cluster.server, path, **query)


@pytest.mark.process
async def test_client_sees_the_output_of_a_container_without_input(cluster: AgentCluster) -> None:
    script = "while [ ! -e /tmp/go ]; do sleep 0.02; done; echo out; echo err >&2"
    await run_shell(cluster, f"echo before; {script}")
    await cluster.wait_log("p", "before")
    async with attached(cluster) as socket_:
        path = f"/api/v1/namespaces/{cluster.namespace}/pods/p/exec"
        query: Json = {"command": ["touch", "/tmp/go"], "stdout": "true"}
        async with open_channels(cluster.server, path, **query) as command:
            assert (await command.finish())["status"] == "Success"
        assert (await socket_.finish())["status"] == "Success"
    assert socket_.received[STDOUT] == b"out\n"
    assert socket_.received[STDERR] == b"err\n"


@pytest.mark.process
async def test_input_of_a_container_stays_open_for_later_clients(cluster: AgentCluster) -> None:
    await run_shell(cluster, "while read line; do echo got $line; done; echo end", stdin=True)
    for text in (b"one", b"two"):
        async with attached(cluster, stdin="true") as client:
            await client.send(STDIN, text + b"\n")
            await client.wait_output(b"got " + text)
            await client.send(CLOSE, bytes([STDIN]))
            assert (await client.finish())["status"] == "Success"
    assert "end" not in await cluster.logs("p")


@pytest.mark.process
@pytest.mark.parametrize("disconnects", [False, True])
async def test_input_for_one_client_ends_with_it(cluster: AgentCluster, disconnects: bool) -> None:
    script = "while read line; do echo got $line; done; echo end >&2"
    await run_shell(cluster, script, stdin=True, stdinOnce=True)
    async with attached(cluster) as other:
        async with attached(cluster, stdin="true") as client:
            await client.send(STDIN, b"one\n")
            await client.wait_output(b"got one\n")
            if not disconnects:
                await client.send(CLOSE, bytes([STDIN]))
                assert (await client.finish())["status"] == "Success"
                assert client.received[STDERR] == b"end\n"
        await other.finish()
        assert other.received[STDOUT] == b"got one\n"
    await cluster.phase("p", "Succeeded")
    assert await cluster.logs("p") == "got one\nend\n"


@pytest.mark.process
async def test_terminal_of_a_container_has_the_size_of_its_client(cluster: AgentCluster) -> None:
    script = "echo $TERM; cat; stty size"
    await run_shell(cluster, script, stdin=True, tty=True)
    await cluster.wait_log("p", "xterm")
    async with attached(cluster, stdin="true", tty="true") as client:
        await client.resize(99, 44)
        await client.send(STDIN, b"one\n")
        await client.wait_output(b"one\r\none\r\n")
        await client.send(STDIN, b"\x04")
        await client.wait_output(b"44 99")
        assert (await client.finish())["status"] == "Success"
    await cluster.phase("p", "Succeeded")


@pytest.mark.process
async def test_container_without_a_socket_of_its_shim_is_an_error(cluster: AgentCluster) -> None:
    await run_shell(cluster, "sleep 1000", stdin=True)
    uid = (await cluster.pod("p"))["metadata"]["uid"]
    path = cluster.settings.data_dir / "pods" / uid / "containers" / "c" / "0" / attach.SOCKET
    path.unlink()
    async with attached(cluster) as client:
        status = await client.finish()
    assert "unable to attach: No such file or directory" in status["message"]


@pytest.mark.process
async def test_kubectl_runs_a_shell_and_deletes_its_pod(
    cluster: AgentCluster, kubectl: Kubectl
) -> None:
    override = '{"spec": {"nodeName": "here"}}'
    arguments = (
        "run", "shell", "-n", cluster.namespace, "-it", "--rm", "--image=busybox",
        "--restart=Never", f"--overrides={override}", "--override-type=strategic",
        "--command", "--", "sh",
    )  # fmt: skip
    async with terminal(80, 24) as (master, end):
        process = await kubectl.start(*arguments, stdio=end)
        os.write(master, b"\n")
        os.write(master, b"test -t 0 && echo $((6 * 7))\n")
        await read_until(master, b"42\r\n")
        os.write(master, b"exit 3\n")
        output = await read_until(master, b"deleted")
        assert b"Welcome" not in output
        assert await process.wait() == 3
    await cluster.wait_pod_deleted("shell")


@pytest.mark.process
async def test_kubectl_runs_a_command_with_its_input(
    cluster: AgentCluster, kubectl: Kubectl
) -> None:
    override = '{"spec": {"nodeName": "here"}}'
    result = await kubectl.run(
        "run", "filter", "-n", cluster.namespace, "-i", "--rm", "--quiet", "--image=busybox",
        "--restart=Never", f"--overrides={override}", "--override-type=strategic",
        "--command", "--", "sort",
        stdin="".join(f"{number:06}\n" for number in range(50_000, 0, -1)),
    )  # fmt: skip
    assert result.code == 0, result.err
    assert result.out.splitlines() == [f"{number:06}" for number in range(1, 50_001)]


class Attached:
    """A shim's server of a container that does not read, with clients of a test."""

    def __init__(self, directory: Path) -> None:
        self.time = 0.0
        self.directory = directory
        self.reader, writer = os.pipe()
        self.server = AttachServer(
            str(directory), stdin=writer, terminal=False, once=True, now=lambda: self.time
        )
        self.clients: list[socket.socket] = []

    def connect(self) -> socket.socket:
        directory = os.open(self.directory, os.O_PATH)
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client.setblocking(False)
        client.connect(socket_path(directory))
        os.close(directory)
        self.clients.append(client)
        self.server.handle(self.server.readable())
        return client


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Attached]:
    created = Attached(tmp_path)
    yield created
    created.server.close()
    for client in created.clients:
        client.close()
    os.close(created.reader)


def read_all(client: socket.socket) -> bytes:
    received = b""
    try:
        while packet := client.recv(2**17):
            received += packet[1:]
    except BlockingIOError:
        return received
    return received + b" end"


async def test_client_that_receives_nothing_stops_the_output_and_is_disconnected(
    server: Attached,
) -> None:
    slow, fast = server.connect(), server.connect()
    sent = 0
    while not server.server.is_behind:
        server.server.send(attach.STDOUT, b"x" * 10_000)
        sent += 10_000
        assert sent < 2**21
        read_all(fast)
    server.time = STALL_TIMEOUT - 1
    server.server.handle([])
    assert server.server.is_behind
    assert server.server.timeout() == 1
    server.time = STALL_TIMEOUT + 1
    server.server.handle([])
    assert not server.server.is_behind
    assert server.server.timeout() is None
    assert read_all(slow).endswith(b" end")
    server.server.send(attach.STDOUT, b"more")
    assert read_all(fast).endswith(b"more")


async def test_client_that_is_behind_receives_the_output_of_a_container_that_has_exited(
    server: Attached,
) -> None:
    client, stalled = server.connect(), server.connect()
    server.server.send(attach.STDOUT, b"x" * 2**20)
    assert server.server.is_behind
    client.setblocking(True)

    def receive() -> bytes:
        received = b""
        while packet := client.recv(2**17):
            received += packet[1:]
            # In this time the other one receives nothing. A full socket takes a fraction of the
            # timeout, so that the server may notice the progress late.
            server.time += 1.5 * attach.STALL_TIMEOUT * len(packet) / 2**20
        return received

    receiving = asyncio.get_running_loop().run_in_executor(None, receive)
    server.server.close()
    assert await receiving == b"x" * 2**20
    assert len(read_all(stalled)) < 2**20


async def test_input_that_the_container_does_not_read_is_not_received(server: Attached) -> None:
    client = server.connect()
    sent = 0
    for _ in range(1000):
        try:
            client.send(attach.STDIN + b"x" * 10_000)
            sent += 10_000
        except BlockingIOError:
            break
        server.server.handle(server.server.readable())
    assert sent < 2**20
    assert client.fileno() not in server.server.readable()
    read = 0
    while read < sent:
        read += len(os.read(server.reader, 2**17))
        server.server.handle([*server.server.readable(), *server.server.writable()])
    assert read == sent


async def test_number_of_clients_is_limited(server: Attached) -> None:
    clients = [server.connect() for _ in range(20)]
    server.server.send(attach.STDOUT, b"x")
    received = [read_all(client) for client in clients]
    assert received.count(b"x") == 16
    assert received.count(b" end") == 4


async def test_packets_that_are_no_input_change_nothing(server: Attached) -> None:
    client = server.connect()
    for packet in (b"\x77", attach.RESIZE, attach.RESIZE + b"1234", attach.STDOUT + b"x"):
        client.send(packet)
        server.server.handle(server.server.readable())
    client.send(attach.STDIN + b"in")
    server.server.handle(server.server.readable())
    client.send(attach.STDIN)
    server.server.handle(server.server.readable())
    assert os.read(server.reader, 100) == b"in"
    assert os.read(server.reader, 100) == b""


async def test_socket_is_for_the_agent_s_user_alone(server: Attached) -> None:
    found = server.directory / attach.SOCKET
    assert found.stat().st_mode & 0o077 == 0


class Client(CommandStreams):
    """A client that has sent the end of its input."""

    def __init__(self) -> None:
        super().__init__(StreamOptions(stdin=True, stdout=True, stderr=False, tty=False))
        self.received = b""
        self.stdin.close()

    async def write(self, stream: int, data: bytes) -> None:
        self.received += data

    async def finish(self, status: Json) -> None:
        raise NotImplementedError


async def test_client_receives_the_output_of_a_container_that_exits_with_unread_input(
    server: Attached,
) -> None:
    client, container = Client(), Container(name="c", stdin=True)
    run, log = RunDir(server.directory), server.directory / "log"
    attachment = Attachment(container=container, run=run, log=log, clock=SystemClock())
    serving = asyncio.create_task(attachment.serve(client))
    listener = server.server.readable()[0]
    await wait_for(lambda: bool(select.select([listener], [], [], 0)[0]))
    server.server.handle([listener])
    accepted = server.server.readable()[1]
    await wait_for(lambda: bool(select.select([accepted], [], [], 0)[0]))
    server.server.send(attach.STDOUT, b"the rest")
    server.server.close()
    assert (await serving)["status"] == "Success"
    assert client.received == b"the rest"
