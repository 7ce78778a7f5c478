"""Starts by the fork server: what a shim inherits, and starts although the server is killed."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.polling import wait_for
from support.sandbox import Sandbox

from batholith.local.agent.runtime.fork_server import ForkServer
from batholith.local.agent.runtime.runs import (
    RUN_VARIABLE,
    ContainerProcess,
    RunDir,
    kill_tagged,
)
from batholith.local.agent.runtime.shim import start_time
from batholith.machinery.clock import SystemClock

pytestmark = pytest.mark.process


@pytest.fixture
def shims(tmp_path: Path) -> Iterator[ForkServer]:
    """A fork server."""
    server = ForkServer(tmp_path)
    yield server
    server.close()


async def started(shims: ForkServer, run_dir: RunDir) -> ContainerProcess:
    """Start a run."""
    return ContainerProcess(run_dir, await shims.start(run_dir), clock=SystemClock())


async def test_a_start_is_reported_when_the_program_runs(box: Sandbox, shims: ForkServer) -> None:
    run_dir = box.prepare(["sleep", "60"])
    process = await started(shims, run_dir)
    claim = run_dir.read_claim()
    assert claim is not None
    assert claim.pid == process.pid
    assert run_dir.exit_record() is None
    await process.kill()


async def test_a_program_that_cannot_be_started_has_ended_when_its_start_is_over(
    box: Sandbox, shims: ForkServer
) -> None:
    run_dir = box.prepare(["no-such-program"])
    process = await started(shims, run_dir)
    record = run_dir.exit_record()
    assert record is not None
    assert record.reason == "StartError"
    await process.wait()


async def test_a_shim_has_its_own_session_and_environment_and_no_descriptor_of_others(
    plain: Sandbox, shims: ForkServer, tmp_path: Path
) -> None:
    first_run, second_run = (plain.prepare(["sleep", "60"]) for _ in range(2))
    first, second = await started(shims, first_run), await started(shims, second_run)
    for process in (first, second):
        assert os.getsid(process.pid) == process.pid
        proc = Path(f"/proc/{process.pid}")
        environment = {each for each in (proc / "environ").read_text().split("\0") if each}
        tag = f"{RUN_VARIABLE}={process.run_dir.name}"
        assert environment == {tag, f"PATH={os.defpath}"}
        opened = [os.readlink(each) for each in (proc / "fd").iterdir()]
        assert [each for each in opened if "socket" in each or "pidfd" in each] == []
        names = {each.rpartition("/")[0] for each in opened if each.startswith(str(tmp_path))}
        assert names == {str(process.run_dir.path), str(plain.log.parent)}
    assert kill_tagged(first_run.name) == 2
    assert (await first.wait()).reason == "ContainerStatusUnknown"
    assert second_run.shim_pid() == second.pid
    await second.kill()


async def test_containers_outlive_a_killed_server_and_the_next_one_starts_more(
    box: Sandbox, shims: ForkServer
) -> None:
    first = await started(shims, box.prepare("exec sleep 60"))
    second = await started(shims, box.prepare(["sleep", "60"]))
    killed = shims.pid
    os.kill(killed, signal.SIGKILL)
    third = await started(shims, box.prepare("exit 4"))
    fourth = await started(shims, box.prepare("exit 5"))
    assert [(await each.wait()).code for each in (third, fourth)] == [4, 5]
    assert shims.pid != killed
    for process in (first, second):
        process.terminate()
    assert [(await each.wait()).code for each in (first, second)] == [143, 143]


async def test_a_start_is_repeated_if_the_server_is_killed_before_it_responds(
    plain: Sandbox, shims: ForkServer, tmp_path: Path
) -> None:
    await (await started(shims, plain.prepare("exit 0"))).wait()
    server = shims.pid
    os.kill(server, signal.SIGSTOP)
    run_dir = plain.prepare(f"echo x >> {tmp_path}/ran; exit 6")
    starts = asyncio.create_task(started(shims, run_dir))
    await wait_for(lambda: (run_dir.path / "shim.err").exists())  # opened for the request
    os.kill(server, signal.SIGKILL)
    assert (await (await starts).wait()).code == 6
    assert (tmp_path / "ran").read_text() == "x\n"


async def test_the_next_start_succeeds_after_a_cancelled_one(
    plain: Sandbox, shims: ForkServer
) -> None:
    first = plain.prepare("exit 1")
    cancelled = asyncio.create_task(shims.start(first))
    await asyncio.sleep(0)
    cancelled.cancel()
    second = await started(shims, plain.prepare("exit 2"))
    assert (await second.wait()).code == 2
    await wait_for(lambda: first.exit_record() is not None)


async def test_no_server_is_left_after_its_end(plain: Sandbox, tmp_path: Path) -> None:
    shims = ForkServer(tmp_path)
    first = await started(shims, plain.prepare(["sleep", "60"]))
    server = shims.pid
    shims.close()
    assert start_time(server) is None
    second = await started(shims, plain.prepare("exit 2"))
    assert (await second.wait()).code == 2
    assert shims.pid == server
    await first.kill()
