"""A real API server with Batholith's parts on it, and what is seen of them from outside."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from batholith.kube.client.client import Client
from batholith.local.supervisor import PARENT, READY_FD
from batholith.model.base import ApiStruct as View
from batholith.model.meta import ObjectMeta
from batholith.model.names import NODES

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from support.realkube import RealKube, RealKubeOptions  # shared with the tests

Json = dict[str, Any]

COMPONENTS = ("controllers", "scheduler", "agent")
"""Parts that run as processes of their own; each is a user of the server by that name."""
SUBMITTER = "admin"
"""The user that submits and watches."""
WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
PERIODIC_WRITES = frozenset({"leases"})
"""Resources written by the clock, whatever the work."""
SIMULATED, CPUS = 100, 128
"""Nodes, and the CPUs of each."""
_TICKS = os.sysconf("SC_CLK_TCK")
_READY_WITHIN = 300.0


class _Node(View, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


@dataclass(slots=True)
class ComponentProcess:
    """One process of Batholith."""

    name: str
    process: subprocess.Popen[bytes]
    ready_fd: int
    started: float

    async def wait_ready(self) -> float:
        """Wait until it says so; returns the seconds since its start.

        Raises:
            ChildProcessError: it ended instead.
        """
        async with asyncio.timeout(_READY_WITHIN):
            said = await asyncio.to_thread(os.read, self.ready_fd, 1)
        if not said:
            raise ChildProcessError(f"{self.name} ended before it was ready")
        return time.perf_counter() - self.started

    def stop(self) -> None:
        """Stop it in order, or by force after ten seconds."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.ready_fd)


class Platform:
    """A server in *folder*, and the parts that were started on it; a context manager."""

    def __init__(self, folder: Path) -> None:
        users = dict.fromkeys((SUBMITTER, *COMPONENTS), ("system:masters",))
        # Durable storage is the disk's figure, not ours.
        self.kube = RealKube(folder, RealKubeOptions(users=users, audit=True))
        self.components: dict[str, ComponentProcess] = {}
        self._folder = folder

    def __enter__(self) -> Self:
        self.kube.__enter__()
        return self

    def __exit__(self, *about: object) -> None:
        try:
            self.stop_components()
        finally:
            self.kube.__exit__(*about)

    def start(self, name: str, *options: str) -> ComponentProcess:
        """Start a part under its own user."""
        reader, writer = os.pipe()
        arguments = [name, "--kubeconfig", str(self.kube.kubeconfig_of(name)), *options]
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "batholith.cli", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(writer,),
                env=os.environ | {PARENT: str(os.getpid()), READY_FD: str(writer)},
            )
        os.close(writer)
        part = self.components[name] = ComponentProcess(name, process, reader, time.perf_counter())
        return part

    async def start_components(self, client: Client, *names: str) -> None:
        """Start parts, wait until all are ready, and let pods onto the agent's nodes."""
        pretended = ("--simulate", str(SIMULATED), "--cpus", str(CPUS))
        alone = ("--leader-elect=false",)
        options = {
            "agent": ("--data-dir", str(self._folder / "agent"), *pretended),
            "controllers": alone,
            "scheduler": alone,
        }
        started = [self.start(name, *options.get(name, ())) for name in names]
        for part in started:
            await part.wait_ready()
        for node in (await client.list(NODES, view=_Node)).items:
            # A node is born with a taint that the node controller takes away; none runs here.
            await client.patch(NODES, node.metadata.name, {"spec": {"taints": None}})

    def stop_components(self) -> None:
        """Stop all parts, so that the audit log has their watches."""
        for part in self.components.values():
            part.stop()
        self.components.clear()

    def cpu(self) -> Counter[str]:
        """CPU seconds of each process so far; *bench* is this one."""
        pids = {"bench": os.getpid(), **dict(_children())}
        return Counter({name: _cpu_seconds(pid) for name, pid in pids.items()})

    def audit(self) -> list[Json]:
        """The audit log."""
        return self.kube.audit()


def _children() -> Iterator[tuple[str, int]]:
    """Name and number of each child process; a part is named by its sub-command."""
    for task in Path("/proc/self/task").iterdir():
        for text in (task / "children").read_text().split():
            with contextlib.suppress(OSError):
                words = Path("/proc", text, "cmdline").read_bytes().decode().split("\0")
                yield (words[3] if words[1] == "-m" else Path(words[0]).name), int(text)


def _cpu_seconds(pid: int) -> float:
    fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory(pid: int) -> tuple[float, float]:
    """MiB that a process holds now, and the most that it ever held."""
    lines = Path("/proc", str(pid), "status").read_text().splitlines()
    values = dict(line.split(":", 1) for line in lines)
    now, most = (int(values[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
    return now, most


@dataclass(frozen=True, slots=True)
class AuditedRequest:
    """What a request was for, as the audit log tells it."""

    user: str
    verb: str
    resource: str
    """Resource, and sub-resource if there is one."""

    @property
    def is_write(self) -> bool:
        """Whether it changes something that somebody asked for."""
        return self.verb in WRITES and self.resource not in PERIODIC_WRITES


@dataclass(slots=True)
class RequestCounts:
    """Counts of requests between two moments."""

    accepted: Counter[AuditedRequest] = field(default_factory=Counter)
    refused: Counter[tuple[AuditedRequest, int]] = field(default_factory=Counter)

    @classmethod
    def between(cls, lines: Iterable[Json], since: str, until: str) -> "RequestCounts":
        """Count the requests that came in [*since*, *until*), times as in the log."""
        found = cls()
        for line in lines:
            if since <= line["requestReceivedTimestamp"] < until:
                found.add(line)
        return found

    def add(self, line: Mapping[str, Any]) -> None:
        """Count one line of the log."""
        about = line.get("objectRef", {})
        parts = (about.get("resource", "-"), about.get("subresource", ""))
        asked = AuditedRequest(
            line["user"]["username"], line["verb"], "/".join(filter(None, parts))
        )
        code = line.get("responseStatus", {}).get("code", 0)
        if code < 400:
            self.accepted[asked] += 1
        else:
            self.refused[asked, code] += 1

    def reads_of(self, user: str) -> tuple[int, int, int]:
        """Lists and watches that *user* was given, and those it was refused."""

        def taken(verb: str) -> int:
            return sum(
                number
                for asked, number in self.accepted.items()
                if (asked.user, asked.verb) == (user, verb)
            )

        refused = sum(
            number
            for (asked, _), number in self.refused.items()
            if asked.user == user and asked.verb in {"list", "watch"}
        )
        return taken("list"), taken("watch"), refused

    def calls_of(self, user: str) -> Counter[str]:
        """All that *user* asked for but watches, Events and what goes by the clock."""
        counts: Counter[str] = Counter()
        for asked, number in self.accepted.items():
            spared = asked.verb == "watch" or asked.resource in PERIODIC_WRITES | {"events"}
            if asked.user == user and not spared:
                counts[f"{asked.verb} {asked.resource}"] += number
        for (asked, code), number in self.refused.items():
            if asked.user == user and asked.verb != "watch":
                counts[f"{asked.verb} {asked.resource} ({code})"] += number
        return counts

    def writes_of(self, *users: str) -> Counter[str]:
        """Writes of *users* that took effect, by verb and resource."""
        counts: Counter[str] = Counter()
        for asked, number in self.accepted.items():
            if asked.user in users and asked.is_write:
                counts[f"{asked.verb} {asked.resource}"] += number
        return counts
