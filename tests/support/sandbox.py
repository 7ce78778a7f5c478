"""Containers in one directory, without an agent, at each isolation level of this machine."""

import functools
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.polling import wait_for

from batholith.local.agent.runtime import rootfs
from batholith.local.agent.runtime.ids import SHARED, IdMode, Ids
from batholith.local.agent.runtime.runs import (
    ContainerProcess,
    ExitRecord,
    IsolationLevel,
    IsolationReport,
    LaunchSpec,
    RunDir,
    ShimProcess,
    detect_isolation,
)
from batholith.machinery.clock import SystemClock

Argv = str | Sequence[str]

SANDBOXES = (IsolationLevel.BUBBLEWRAP, IsolationLevel.UNSHARE)
"""The levels with a sandbox."""


def detected_isolation(requested: IsolationLevel | None = None) -> IsolationReport:
    """Return what `detect_isolation` has found in this process under the same conditions.

    Each detection starts a container, and most tests of the agent need its result.
    """
    return _detect_once(requested, os.geteuid(), os.environ.get("PATH"), os.environ.get("HOME"))


@functools.cache
def _detect_once(requested: IsolationLevel | None, *_conditions: object) -> IsolationReport:
    return detect_isolation(requested)


def start_run(run_dir: RunDir, ready_fd: int = -1) -> ContainerProcess:
    """Start a prepared run, without a fork server."""
    shim = ShimProcess.of(run_dir.start(ready_fd))
    return ContainerProcess(run_dir, shim, clock=SystemClock())


class Sandbox:
    """Runs of containers below *base*; the test is skipped if the machine does not permit *level*.

    A container is a shell script or a list of arguments.
    """

    def __init__(self, base: Path, level: IsolationLevel) -> None:
        report = detected_isolation(level)
        if report.isolation is not level:
            pytest.skip("; ".join(report.reasons))
        self.base = base
        self.level = level
        own = report.id_mode is IdMode.OWN
        self.ids = Ids(None if own else SHARED, own or report.id_mode is IdMode.RANGE)
        self.pod_uid = str(uuid.uuid4())
        """Unique on the machine: a lost run's processes are found, and killed, by it."""
        self._runs = 0

    def prepare(
        self,
        argv: Argv,
        *mounts: rootfs.Mount,
        hidden: Sequence[str] = (),
        read_only_root: bool = False,
        steps: Sequence[rootfs.Step] | None = None,
        **more: Any,
    ) -> RunDir:
        """Prepare a run with *mounts*, or with the *steps* of a plan."""
        self._runs += 1
        run_dir = RunDir(self.base / "pods" / self.pod_uid / "c" / str(self._runs))
        if steps is None:
            steps = rootfs.mount_plan(
                mounts,
                hidden=[str(self.base), *hidden],
                home=os.path.expanduser("~"),
                read_only_root=read_only_root,
            )
        run_dir.prepare(
            LaunchSpec(
                argv=["sh", "-c", argv] if isinstance(argv, str) else argv,
                env={"PATH": os.defpath, "GREETING": "hello"},
                cwd="/" if self.level is not IsolationLevel.PLAIN else str(self.base),
                log=self.log,
                hostname="some-pod",
                isolation=self.level,
                ids=self.ids,
                steps=steps,
                **more,
            )
        )
        return run_dir

    def start(self, argv: Argv, *mounts: rootfs.Mount, **more: Any) -> ContainerProcess:
        """Start a container; see :meth:`prepare`."""
        run_dir = self.prepare(argv, *mounts, **more)
        return start_run(run_dir)

    async def run(self, argv: Argv, *mounts: rootfs.Mount, **more: Any) -> ExitRecord:
        """Run a container to its end; see :meth:`prepare`."""
        return await self.start(argv, *mounts, **more).wait()

    @property
    def log(self) -> Path:
        """The log of the last container."""
        return self.base / "logs" / f"{self._runs}.log"

    def output(self) -> list[tuple[str, str]]:
        """Stream and text of the lines of the last container."""
        lines = self.log.read_text().splitlines()
        return [(fields[1], fields[3]) for line in lines if len(fields := line.split(" ", 3)) == 4]

    def lines(self) -> list[str]:
        """The lines of the last container."""
        return [text for _, text in self.output()]

    async def until_logged(self, text: str) -> None:
        """Wait until the last container has written *text*."""
        await wait_for(lambda: self.log.exists() and text in self.log.read_text())
