"""Stop of a container: preStop hook, SIGTERM, SIGKILL, for every caller."""

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.agent import container, decode_pod, manifest
from support.agent_cluster import agent_cluster, make_world_writable
from support.api_servers import EmbeddedServerFactory
from support.polling import wait_for

from batholith.local.agent.pods.records import PodDir
from batholith.local.agent.pods.termination import ContainerTermination
from batholith.local.agent.runtime.runs import ContainerProcess
from batholith.local.agent.volumes.host_dirs import HostDir
from batholith.machinery.clock import SteadyClock
from batholith.machinery.testing import FakeClock, run_ready_tasks


class RecordingProcess(ContainerProcess):
    """Records signals instead of sending them."""

    def __init__(self, clock: FakeClock) -> None:
        self._time, self._start = clock, clock.monotonic()
        self.signals: list[tuple[str, float]] = []

    def record(self, name: str) -> None:
        self.signals.append((name, self._time.monotonic() - self._start))

    def terminate(self) -> None:
        self.record("TERM")

    async def kill(self) -> None:
        self.record("KILL")


class Stop:
    """One container that is being stopped."""

    def __init__(self, *, hook_seconds: float | None = None) -> None:
        self.clock = FakeClock()
        self.process = RecordingProcess(self.clock)
        self._time = SteadyClock(self.clock)
        self._tasks: set[asyncio.Task[None]] = set()
        self._hook_seconds = hook_seconds
        self.termination = ContainerTermination(
            self.process,
            clock=self.clock,
            time=self._time,
            spawn=self._spawn,
            pre_stop=None if hook_seconds is None else self._run_hook,
        )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_hook(self, timeout: float) -> None:
        self.process.record("hook")
        await self.clock.sleep(min(self._hook_seconds or 0.0, timeout))

    async def stop(self, seconds: float) -> None:
        """Stop the container with a grace period of *seconds* from now on."""
        self.termination.stop(self._time.now() + timedelta(seconds=seconds))
        await run_ready_tasks()


async def test_sigterm_is_followed_by_sigkill_after_the_grace_period() -> None:
    stop = Stop()
    await stop.stop(30)
    await stop.clock.advance(29)
    assert stop.process.signals == [("TERM", 0)]
    await stop.clock.advance(1)
    assert stop.process.signals == [("TERM", 0), ("KILL", 30)]


async def test_pre_stop_hook_runs_within_the_grace_period_before_sigterm() -> None:
    stop = Stop(hook_seconds=10)
    await stop.stop(30)
    await stop.clock.advance(30)
    assert stop.process.signals == [("hook", 0), ("TERM", 10), ("KILL", 30)]


async def test_hook_that_uses_up_the_grace_period_leaves_two_seconds() -> None:
    stop = Stop(hook_seconds=600)
    await stop.stop(30)
    await stop.clock.advance(30)
    await stop.clock.advance(2)
    assert stop.process.signals == [("hook", 0), ("TERM", 30), ("KILL", 32)]


async def test_repeated_stop_may_only_shorten_the_grace_period() -> None:
    stop = Stop(hook_seconds=10)
    await stop.stop(30)
    await stop.stop(60)
    await stop.stop(20)
    await stop.clock.advance(10)
    await stop.clock.advance(10)
    assert stop.process.signals == [("hook", 0), ("TERM", 10), ("KILL", 20)]


async def test_hook_is_skipped_without_a_grace_period() -> None:
    stop = Stop(hook_seconds=10)
    await stop.stop(0)
    await stop.clock.advance(0)
    assert [name for name, _ in stop.process.signals] == ["TERM", "KILL"]


async def test_kill_skips_hook_and_sigterm() -> None:
    stop = Stop(hook_seconds=10)
    stop.termination.kill()
    await run_ready_tasks()
    assert stop.process.signals == [("KILL", 0)]


async def test_no_signal_is_sent_after_the_exit() -> None:
    stop = Stop(hook_seconds=10)
    await stop.stop(30)
    stop.termination.cancel()
    await stop.clock.advance(60)
    assert stop.process.signals == [("hook", 0)]


def test_stop_order_is_main_containers_then_sidecars_in_reverse() -> None:
    pod = decode_pod(
        manifest(
            "p",
            container(name="a"),
            container(name="b"),
            initContainers=[container(name="i"), container(name="j")],
        )
    )
    assert pod.stop_order == (("a", "b"), ("j",), ("i",))


@pytest.mark.process
async def test_agent_shutdown_runs_hooks_and_stops_sidecars_last(tmp_path: Path) -> None:
    shared = make_world_writable(tmp_path / "shared")
    mounts = [{"name": "v", "mountPath": "/shared"}]

    def logging(name: str) -> dict[str, Any]:
        log = "$BATHOLITH_ROOT/shared/log"
        script = (
            f"trap 'echo {name} term >> {log}; exit 0' TERM; echo up > {log}.{name};"
            "while :; do sleep 0.05; done"
        )
        hook = {"exec": {"command": ["sh", "-c", f"echo {name} hook >> {log}"]}}
        created = container("sh", "-c", script, name=name, volumeMounts=mounts)
        return {**created, "lifecycle": {"preStop": hook}}

    volumes = [{"name": "v", "hostPath": {"path": str(shared)}}]
    sidecar = {**logging("sidecar"), "restartPolicy": "Always"}
    pod = manifest("p", logging("main"), initContainers=[sidecar], volumes=volumes)
    async with (
        agent_cluster(EmbeddedServerFactory(), tmp_path) as w,
        w.agent(host_dirs=(HostDir(str(shared)),)) as agent,
    ):
        await w.run(pod)
        await w.phase("p", "Running")
        await wait_for(lambda: all((shared / f"log.{n}").exists() for n in ("main", "sidecar")))
        agent.stop(stop_pods=True)
        ((pod_dir, _),) = PodDir.all(w.settings.data_dir)
        await wait_for(lambda: pod_dir.runs("sidecar")[0].exit_record())
    lines = (shared / "log").read_text().splitlines()
    assert lines == ["main hook", "main term", "sidecar hook", "sidecar term"]
    for name in ("main", "sidecar"):
        record = pod_dir.runs(name)[0].exit_record()
        assert record is not None
        assert record.code == 0
