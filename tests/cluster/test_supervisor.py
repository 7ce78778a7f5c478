"""The supervisor restarts components, and leaves no process after a kill."""

import asyncio
import contextlib
import errno
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from batholith.kube.private_files import write_private
from batholith.local.agent.runtime.process_id import ProcessId, identify
from batholith.local.supervisor import supervisor as supervisor_module
from batholith.local.supervisor.datadir import DataDir, DataDirLockedError
from batholith.local.supervisor.supervisor import (
    ComponentFailedError,
    ComponentSpec,
    Supervisor,
    UpState,
    kill_orphans,
    read_state,
    unready_components,
)

pytestmark = pytest.mark.process

LONG_RUNNING = """
import os, signal, sys
os.write(int(os.environ["BATHOLITH_READY_FD"]), b"1")
signal.signal(signal.SIGTERM, lambda *_: (print("ended", sys.argv[1], flush=True), sys.exit()))
signal.pause()
"""
WAITING = """
import signal
print('nodes is forbidden: User "b" cannot list resource "nodes"', flush=True)
signal.pause()
"""
FAILING = "import sys; print('no such luck', file=sys.stderr); sys.exit(3)"


def component_spec(name: str, program: str = LONG_RUNNING) -> ComponentSpec:
    return ComponentSpec(name=name, arguments=["-c", program, name])


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    data = DataDir(tmp_path / "data")
    data.lock()
    return data


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(100):
        while not holds():  # noqa: ASYNC110  # another process, so it must poll
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def supervised(data: DataDir, *components: ComponentSpec) -> AsyncIterator[None]:
    ready = asyncio.Event()
    supervisor = Supervisor(
        data, components, program=[sys.executable], version="1", ports={"kubernetes": 7443}
    )
    running = asyncio.create_task(supervisor.run(ready.set))
    try:
        async with asyncio.timeout(100):
            await ready.wait()
        yield
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


def state(data: DataDir) -> UpState:
    found = read_state(data)
    assert found is not None
    return found


def process(data: DataDir, name: str) -> ProcessId:
    found = state(data).components[name].process
    assert found is not None
    return found


async def test_killed_component_is_restarted_and_ready(data: DataDir) -> None:
    async with supervised(data, component_spec("a"), component_spec("b")):
        first = process(data, "a")
        os.kill(first.pid, signal.SIGKILL)
        await until(
            lambda: state(data).components["a"].restarts == 1 and state(data).components["a"].ready
        )
        assert process(data, "a") != first
        assert state(data).components["b"].restarts == 0


async def test_components_stop_in_reverse_order(data: DataDir) -> None:
    async with supervised(data, component_spec("a"), component_spec("b")):
        both = [process(data, "a"), process(data, "b")]
    assert not any(each.is_alive for each in both)
    ended = [(data.logs / f"{name}.log").stat().st_mtime_ns for name in ("b", "a")]
    assert ended == sorted(ended)
    assert "ended a" in (data.logs / "a.log").read_text()
    assert read_state(data) is None


@pytest.mark.process
async def test_component_that_never_starts_fails_the_supervisor_with_its_log(data: DataDir) -> None:
    supervisor = Supervisor(
        data,
        [component_spec("a"), component_spec("b", FAILING)],
        program=[sys.executable],
        version="1",
        ports={},
    )
    with pytest.raises(ComponentFailedError, match="no such luck"):
        async with asyncio.timeout(100):
            await supervisor.run(lambda: None)
    assert read_state(data) is None


async def test_a_component_that_is_not_ready_is_named_with_the_end_of_its_log(
    data: DataDir,
) -> None:
    components = [component_spec("a"), component_spec("b", WAITING)]
    supervisor = Supervisor(data, components, program=[sys.executable], version="1", ports={})
    running = asyncio.create_task(supervisor.run(lambda: None))
    expected = (
        f"b is not ready; the end of {data.logs}/b.log:\n"
        'nodes is forbidden: User "b" cannot list resource "nodes"'
    )
    await until(lambda: unready_components(data) == expected)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert unready_components(data) == "", "nothing runs"


async def test_components_of_a_killed_supervisor_are_killed(data: DataDir) -> None:
    orphan = await asyncio.create_subprocess_exec("sleep", "1000")
    running = identify(orphan.pid)
    assert running is not None
    async with supervised(data, component_spec("a")):
        left = state(data)
    left.supervisor = ProcessId(left.supervisor.pid, left.supervisor.start_time - 1)
    left.components["a"].process = running
    data.up_json.write_bytes(msgspec.json.encode(left))
    ending = asyncio.create_task(asyncio.to_thread(kill_orphans, data))
    assert await orphan.wait() == -signal.SIGKILL
    assert await ending == ["a"]


async def test_reused_pid_is_not_killed(data: DataDir) -> None:
    other = await asyncio.create_subprocess_exec("sleep", "1000")
    running = identify(other.pid)
    assert running is not None
    async with supervised(data, component_spec("a")):
        left = state(data)
    left.supervisor = ProcessId(left.supervisor.pid, left.supervisor.start_time - 1)
    left.components["a"].process = ProcessId(running.pid, running.start_time - 1)
    data.up_json.write_bytes(msgspec.json.encode(left))
    assert kill_orphans(data) == []
    assert running.is_alive
    other.kill()
    await other.wait()


def test_process_of_another_boot_is_not_alive() -> None:
    me = identify(os.getpid())
    assert me is not None
    assert me.is_alive
    assert not msgspec.structs.replace(me, boot="another").is_alive


def test_process_record_of_an_older_version_is_recognised() -> None:
    me = identify(os.getpid())
    assert me is not None
    noted = f'{{"pid": {me.pid}, "start_time": {me.start_time}}}'
    assert msgspec.json.decode(noted, type=ProcessId).is_alive


def test_malformed_state_without_a_holder_counts_as_missing(data: DataDir) -> None:
    data.up_json.write_text("{")
    assert read_state(data) is None, "this process holds the directory"
    data.unlock()
    assert read_state(data) is None


def test_data_directory_has_one_holder(data: DataDir) -> None:
    other = DataDir(data.root)
    with pytest.raises(DataDirLockedError):
        other.lock()
    data.unlock()
    other.lock()
    other.unlock()
    assert data.root.stat().st_mode & 0o777 == 0o700


async def test_unwritable_state_stops_no_component(
    data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with supervised(data, component_spec("a"), component_spec("b")):
        first, other = process(data, "a"), process(data, "b")
        write, tries = write_private, list[Path]()

        def full(path: Path, content: bytes) -> None:
            tries.append(path)
            if len(tries) < 3:
                raise OSError(errno.ENOSPC, "No space left on device")
            write(path, content)

        monkeypatch.setattr(supervisor_module, "write_private", full)
        monkeypatch.setattr(supervisor_module, "SAVE_RETRY_INTERVAL", 0.01)
        os.kill(first.pid, signal.SIGKILL)
        await until(
            lambda: state(data).components["a"].restarts == 1 and state(data).components["a"].ready
        )
        assert other.is_alive


async def test_supervising_task_continues_after_a_stray_cancellation(
    data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with supervised(data, component_spec("a")):
        first = process(data, "a")
        note, faults = Supervisor._set_process, [asyncio.CancelledError()]

        def cancelled(self: Supervisor, name: str, *, process: ProcessId | None) -> None:
            note(self, name, process=process)
            if process is not None and faults:
                raise faults.pop()

        monkeypatch.setattr(Supervisor, "_set_process", cancelled)
        os.kill(first.pid, signal.SIGKILL)
        await until(lambda: not faults)
        second = process(data, "a")
        os.kill(second.pid, signal.SIGKILL)
        await until(lambda: state(data).components["a"].ready and process(data, "a") != second)
