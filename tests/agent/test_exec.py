"""Commands that clients run in containers: exec, on both API servers."""

import asyncio
import gc
import os
import secrets
import signal
import struct
import sys
import termios
from contextlib import AbstractAsyncContextManager
from fcntl import ioctl
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from kubernetes.stream import stream
from support.agent import container, manifest
from support.agent_cluster import AgentCluster
from support.kubectl import CommandResult, Kubectl
from support.official_client import official_core
from support.polling import wait_for, wait_until_true
from support.terminals import read_until, terminal
from support.websockets import CLOSE, ERROR, STDIN, STDOUT, ChannelSocket, open_channels

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.process]

Json = dict[str, Any]


async def run_shell(cluster: AgentCluster, script: str = "sleep 1000", **more: Any) -> Json:
    """Run a pod named ``p`` until it is running."""
    spec = more.pop("spec", {})
    await cluster.run(manifest("p", container("sh", "-c", script, **more), **spec))
    return await cluster.phase("p", "Running")


async def execute(
    kubectl: Kubectl, cluster: AgentCluster, *argv: str, flags: str = "", stdin: str = ""
) -> CommandResult:
    return await kubectl.run(
        "exec", "-n", cluster.namespace, *flags.split(), "p", "--", *argv, stdin=stdin
    )


def path_of(cluster: AgentCluster, pod: str = "p", subresource: str = "exec") -> str:
    return f"/api/v1/namespaces/{cluster.namespace}/pods/{pod}/{subresource}"


def channels(
    cluster: AgentCluster, *command: str, **more: Any
) -> AbstractAsyncContextManager[ChannelSocket]:
    query = {"stdout": "true", "stderr": "true", "command": command, **more}
    return open_channels(cluster.server, path_of(cluster), **query)


def unique_sleep() -> str:
    """An argument of `sleep` that no other process has."""
    return f"1000.{secrets.randbits(40)}"


def processes_of(argument: str) -> list[int]:
    """The processes with *argument* in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if argument.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


async def test_output_streams_and_exit_code_are_those_of_the_command(
    cluster: AgentCluster, kubectl: Kubectl
) -> None:
    await run_shell(cluster)
    result = await execute(kubectl, cluster, "sh", "-c", "echo out; echo err >&2; exit 7")
    assert result.out == "out\n"
    assert result.err.startswith("err\n")
    assert result.code == 7
    assert (await execute(kubectl, cluster, "true")).code == 0
    killed = await execute(kubectl, cluster, "sh", "-c", "kill -9 $$")
    assert killed.code == 137


async def test_input_reaches_the_command_completely_and_ends(
    cluster: AgentCluster, kubectl: Kubectl
) -> None:
    await run_shell(cluster)
    text = "".join(f"line {number}\n" for number in range(100_000))
    result = await execute(kubectl, cluster, "cat", flags="-i", stdin=text)
    assert result.code == 0, result.err
    assert result.out == text


async def test_command_that_leaves_its_input_unread_ends(
    cluster: AgentCluster, kubectl: Kubectl
) -> None:
    await run_shell(cluster)
    script = "head -c 3; echo; exit 3"
    result = await execute(kubectl, cluster, "sh", "-c", script, flags="-i", stdin="x" * 2**21)
    assert (result.out, result.code) == ("xxx\n", 3)


async def test_command_runs_as_the_container_s_program_does(
    cluster: AgentCluster, kubectl: Kubectl, tmp_path: Path
) -> None:
    script = """
        id -u; id -g; id -G; pwd; umask; ulimit -a; hostname; echo $A
        for each in mnt pid ipc uts user net; do readlink /proc/self/ns/$each; done
        grep -E '^(Cap|NoNewPrivs|Seccomp|SigBlk)' /proc/self/status
        sed -n 's/^SigIgn:.*\\(.......\\)$/\\1/p' /proc/self/status
        cat /proc/self/mountinfo; ls /proc/self/fd
    """
    inherited = os.open(os.devnull, os.O_RDONLY)  # as when a shell starts the agent
    os.set_inheritable(inherited, True)
    handler = signal.signal(signal.SIGQUIT, signal.SIG_IGN)  # and in the background
    await run_shell(
        cluster,
        f"({script}) </dev/null 2>/dev/null | cat; echo done; sleep 1000",
        env=[{"name": "A", "value": "b c"}],
        workingDir="/usr",
        securityContext={"capabilities": {"drop": ["CHOWN"]}},
    )
    log = await cluster.wait_log("p", "done\n")
    command = f"({script}) </dev/null 2>/dev/null | cat; echo done; true"
    result = await execute(kubectl, cluster, "sh", "-c", command)
    os.close(inherited)
    signal.signal(signal.SIGQUIT, handler)
    assert result.out.splitlines() == log.splitlines()


async def test_program_that_does_not_exist_is_an_error_that_names_it(
    cluster: AgentCluster, kubectl: Kubectl
) -> None:
    await run_shell(cluster)
    result = await execute(kubectl, cluster, "no-such-program")
    assert result.code == 1
    assert 'exec: "no-such-program": No such file or directory' in result.err


async def test_terminal_has_the_size_of_the_client_s(
    cluster: AgentCluster, kubectl: Kubectl
) -> None:
    await run_shell(cluster)
    script = (
        "trap 'stty size' WINCH; tty; echo $TERM; stty size; while read x; do echo got $x; done"
    )
    async with terminal(81, 25) as (master, end):
        arguments = ("exec", "-itn", cluster.namespace, "p", "--", "sh", "-c", script)
        process = await kubectl.start(*arguments, stdio=end)
        assert b"xterm" in await read_until(master, b"25 81")
        ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 90, 0, 0))
        process.send_signal(28)  # SIGWINCH: not its controlling terminal
        os.write(master, b"one\n")
        os.write(master, b"two\n")
        await read_until(master, b"30 90")
        os.write(master, b"\x04")
        assert await process.wait() == 0


async def test_sizes_on_a_websocket_signal_the_command(cluster: AgentCluster) -> None:
    await run_shell(cluster)
    script = "trap 'stty size' WINCH; stty -echo; echo up; while :; do read x; done"
    async with channels(cluster, "sh", "-c", script, tty="true", stdin="true") as socket:
        await socket.wait_output(b"up")
        await socket.resize(77, 33)
        await socket.wait_output(b"33 77")


@pytest.mark.parametrize("tty", ["true", "false"])
async def test_command_of_a_client_that_is_gone_is_killed(cluster: AgentCluster, tty: str) -> None:
    await run_shell(cluster)
    seconds = unique_sleep()
    script = f"echo up; sleep {seconds} | cat"
    async with channels(cluster, "sh", "-c", script, tty=tty) as socket:
        await socket.wait_output(b"up")
        await wait_for(lambda: processes_of(seconds))
    await wait_for(lambda: not processes_of(seconds))


async def test_command_is_killed_with_its_container(cluster: AgentCluster) -> None:
    await run_shell(cluster)
    seconds = unique_sleep()
    async with channels(cluster, "sleep", seconds) as socket:
        await wait_for(lambda: processes_of(seconds))
        await cluster.delete("p", grace=0)
        status = await socket.finish()
    assert status["details"]["causes"][0]["message"] == "137"
    assert not processes_of(seconds)


async def test_output_of_a_command_ends_with_it_although_a_background_process_remains(
    cluster: AgentCluster, kubectl: Kubectl
) -> None:
    await run_shell(cluster)
    script = f"sleep {unique_sleep()} & seq 100000"
    result = await execute(kubectl, cluster, "sh", "-c", script)
    assert result.out.splitlines()[-1] == "100000"


async def test_version_5_ends_the_input(cluster: AgentCluster) -> None:
    await run_shell(cluster)
    arguments = {"stdin": "true", "protocol": "v5.channel.k8s.io"}
    async with channels(cluster, "sh", "-c", "cat; echo end", **arguments) as socket:
        await socket.send(STDIN, b"in ")
        await socket.send(CLOSE, bytes([STDIN]))
        assert (await socket.finish())["status"] == "Success"
    assert socket.received[1] == b"in end\n"


async def test_version_1_has_a_message_of_failures_and_no_status(cluster: AgentCluster) -> None:
    await run_shell(cluster)
    for script, error in (("echo out", b""), ("echo out; exit 3", b"exit code 3")):
        async with channels(cluster, "sh", "-c", script, protocol="channel.k8s.io") as socket_:
            while await socket_.receive():
                continue
        assert socket_.received[STDOUT] == b"out\n"
        assert (ERROR in socket_.received) == bool(error)
        assert error in socket_.received.get(ERROR, b"")


# The client leaves its socket to the garbage collector, which runs in the test for this.
@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_official_client_runs_commands(cluster: AgentCluster) -> None:
    await run_shell(cluster)

    def run() -> tuple[str, str, int]:
        with official_core(cluster.server) as core:
            streams = stream(
                core.connect_get_namespaced_pod_exec, "p", cluster.namespace,
                command=["sh", "-c", "read line; echo $line; echo e >&2; exit 9"],
                stdin=True, stdout=True, stderr=True, _preload_content=False,
            )  # fmt: skip
            streams.write_stdin("text\n")
            streams.run_forever(timeout=60)
            return streams.read_stdout(), streams.read_stderr(), streams.returncode

    assert await asyncio.to_thread(run) == ("text\n", "e\n", 9)
    gc.collect()


async def test_files_and_directories_are_copied(
    cluster: AgentCluster, kubectl: Kubectl, tmp_path: Path
) -> None:
    await run_shell(cluster)
    source = tmp_path / "source"
    (source / "below").mkdir(parents=True)
    (source / "large").write_bytes(os.urandom(3 * 2**20))
    (source / "below" / "small").write_text("small")
    there = f"{cluster.namespace}/p:/tmp/there"
    await kubectl("cp", str(source), there)
    await kubectl("cp", there, str(tmp_path / "back"))
    for name in ("large", "below/small"):
        assert (tmp_path / "back" / name).read_bytes() == (source / name).read_bytes()


async def test_requests_that_cannot_be_served_are_rejected(cluster: AgentCluster) -> None:
    await run_shell(cluster)
    await cluster.create(manifest("unbound", container("true"), schedulerName="none"))
    server, query = cluster.server, "?command=true&stdout=true"
    plain = await server.request("POST", path_of(cluster) + query)
    assert (plain.status, plain.body["message"]) == (400, "Upgrade request required")
    for pod, more, status, text in (
        ("p", "&container=x", 400, "container x is not valid for pod p"),
        ("unbound", "", 400, "pod unbound does not have a host assigned"),
        ("missing", "", 404, 'pods "missing" not found'),
    ):
        headers = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1"}
        headers["X-Stream-Protocol-Version"] = "v4.channel.k8s.io"
        path = path_of(cluster, pod) + query + more
        response = await server.request("POST", path, headers=headers)
        assert (response.status, response.body["message"]) == (status, text)


async def test_container_that_has_exited_is_not_found(
    cluster: AgentCluster, kubectl: Kubectl
) -> None:
    both = (container("sleep", "1000"), container("true", name="ended"))
    await cluster.run(manifest("p", *both, restartPolicy="Never"))
    await cluster.wait_pod("p", lambda pod: "terminated" in str(pod["status"]))
    result = await execute(kubectl, cluster, "true", flags="-c ended")
    assert result.code == 1
    assert "container not found" in result.err


async def test_rights_to_get_do_not_suffice(cluster: AgentCluster) -> None:
    await run_shell(cluster)
    user = f"user-{secrets.token_hex(4)}"
    headers = {"Impersonate-User": user}
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{cluster.namespace}"

    async def grant(verb: str) -> None:
        rule = {"apiGroups": [""], "resources": ["pods/exec"], "verbs": [verb]}
        role = {"metadata": {"name": verb}, "rules": [rule]}
        await cluster.server.create(f"{rbac}/roles", role)
        binding = {
            "metadata": {"name": verb},
            "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}],
            "roleRef": {"kind": "Role", "name": verb, "apiGroup": "rbac.authorization.k8s.io"},
        }
        await cluster.server.create(f"{rbac}/rolebindings", binding)

    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    upgrade |= {"Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}

    async def may_only_get() -> bool:
        path = path_of(cluster) + "?command=true&stdout=true"
        response = await cluster.server.request("GET", path, headers=headers | upgrade)
        assert response.status == 403
        return str(response.body["message"]) == 'pods "p" is forbidden: '

    async def may_create() -> bool:
        try:
            async with channels(cluster, "true", headers=headers) as socket:
                return bool((await socket.finish())["status"] == "Success")
        except aiohttp.WSServerHandshakeError as error:
            assert error.status == 403
            return False

    await grant("get")
    await wait_until_true(may_only_get)
    await grant("create")
    await wait_until_true(may_create)


async def test_memory_of_a_command_counts_as_the_container_s(cluster: AgentCluster) -> None:
    limits = {"limits": {"memory": "48Mi"}}
    await run_shell(cluster, resources=limits, spec={"restartPolicy": "Never"})
    script = "x = b'x' * (96 << 20); print('up', flush=True); input()"
    async with channels(cluster, sys.executable, "-c", script, stdin="true") as socket:
        pod = await cluster.phase("p", "Failed")
        assert (await socket.finish())["details"]["causes"][0]["message"] == "137"
    terminated = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert terminated["reason"] == "OOMKilled"


AGENT = """
import asyncio, sys
from batholith.local.agent.runtime.commands import start_command

async def main():
    request = {"argv": ["sleep", sys.argv[1]], "env": {"PATH": "/usr/bin:/bin"}, "cwd": "/",
               "ids": {"base": None}, "pid": 0, "start": None}
    await start_command(request, environment={}, tty=False, stdin=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_command_is_killed_with_the_agent() -> None:
    seconds = unique_sleep()
    agent = await asyncio.create_subprocess_exec(sys.executable, "-c", AGENT, seconds)
    await wait_for(lambda: any(name_of(pid) == "sleep" for pid in processes_of(seconds)))
    agent.kill()
    await agent.wait()
    await wait_for(lambda: not processes_of(seconds))


def name_of(pid: int) -> str:
    """The program of a process; empty if it has exited."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
