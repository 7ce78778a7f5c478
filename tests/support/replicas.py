"""Replicas of the components as processes, started and stopped as by a user or a cluster."""

import asyncio
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from support.realkube import RealServer

from batholith.local.agent.runtime.process_id import die_with_parent
from batholith.local.supervisor import kubeconfig

PROGRAM = (sys.executable, "-m", "batholith.cli")


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionTiming:
    """Times of an election, in seconds."""

    lease: float = 8.0
    renew: float = 6.0
    retry: float = 1.0

    @property
    def flags(self) -> list[str]:
        """What the command line is given."""
        return [
            "--leader-elect",
            f"--leader-elect-lease-duration={self.lease:g}s",
            f"--leader-elect-renew-deadline={self.renew:g}s",
            f"--leader-elect-retry-period={self.retry:g}s",
        ]


FAST_ELECTION = ElectionTiming()


class Replica:
    """One process of a component, with its own user."""

    def __init__(self, user: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.user = user
        self.log = log
        self._process = process

    @property
    def is_running(self) -> bool:
        """Whether it has not ended (it may be stopped)."""
        return self._process.returncode is None

    def kill(self) -> None:
        """``kill -9``."""
        self._process.kill()

    def terminate(self) -> None:
        """SIGTERM, as a cluster ends it."""
        self._process.terminate()

    def suspend(self) -> None:
        """SIGSTOP: it does not run until `resume`."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    async def wait_exit(self, *, seconds: float = 100) -> int:
        """Wait for its exit; return the exit code. The timeout keeps a broken test from hanging."""
        async with asyncio.timeout(seconds):
            return await self._process.wait()

    def log_text(self) -> str:
        """What it wrote to its log."""
        return self.log.read_text(errors="replace")


class ReplicaSet:
    """All replicas of a test; none outlives it."""

    def __init__(self, server: RealServer, directory: Path) -> None:
        self.server = server
        self.directory = directory
        self.replicas: dict[str, Replica] = {}
        """By user, the newest of each."""
        self._all: list[Replica] = []

    async def start(
        self,
        component: str,
        user: str,
        *flags: str,
        url: str = "",
        program: tuple[str, ...] = PROGRAM,
    ) -> Replica:
        """Start a component as *user*, at the server or at a proxy's *url*."""
        log = self.directory / f"{user}.log"
        parent = os.getpid()
        with log.open("ab") as sink:
            process = await asyncio.create_subprocess_exec(
                *program,
                component,
                f"--kubeconfig={self._kubeconfig(user, url)}",
                *flags,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                preexec_fn=lambda: die_with_parent(parent),
            )
        replica = Replica(user, process, log)
        self.replicas[user] = replica
        self._all.append(replica)
        return replica

    async def start_agent(self, nodes: int = 2) -> Replica:
        """Start the kubelet of *nodes* simulated nodes."""
        data = f"--data-dir={self.directory / 'agent'}"
        return await self.start("agent", "agent", data, f"--simulate={nodes}")

    def _kubeconfig(self, user: str, url: str) -> Path:
        if not url:
            return self.server.kubeconfig_of(user)
        path = self.directory / f"{user}-elsewhere.kubeconfig"
        token = self.server.tokens[user]
        access = kubeconfig.ClusterAccess(server=url, ca=self.server.ca, user=user, token=token)
        kubeconfig.write(path, access)
        return path

    async def __aenter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        for replica in self._all:
            if replica.is_running:
                replica.kill()
        for replica in self._all:
            await replica.wait_exit()
