"""A real API server with Batholith's components, measured from outside."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from batholith.kube.client.client import Client
from batholith.local.supervisor.supervisor import PARENT, READY_FD
from batholith.model.base import ApiStruct as View
from batholith.model.meta import ObjectMeta
from batholith.model.names import NODES

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from support.realkube import RealKube, RealKubeOptions  # shared with the tests

Json = dict[str, Any]

COMPONENTS = ("controllers", "scheduler", "agent")
"""Components, each a process and a user of the server of that name."""
SUBMITTER = "admin"
"""The user that submits and watches."""
WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
PERIODIC_WRITES = frozenset({"leases"})
"""Resources that are written periodically, independent of the load."""
SIMULATED, CPUS = 100, 128
"""Nodes, and the CPUs of each."""
_TICKS = os.sysconf("SC_CLK_TCK")
_READY_WITHIN = 300.0
_POLL_INTERVAL = 0.5


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
        """Wait until it is ready; return the seconds since its start.

        Raises:
            ChildProcessError: it ended instead.
        """
        async with asyncio.timeout(_READY_WITHIN):
            ready = await asyncio.to_thread(os.read, self.ready_fd, 1)
        if not ready:
            raise ChildProcessError(f"{self.name} ended before it was ready")
        return time.perf_counter() - self.started

    def stop(self) -> None:
        """Terminate it, and kill it after ten seconds."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.ready_fd)


class Platform:
    """A server in *directory*, and the components started on it; a context manager."""

    def __init__(
        self, directory: Path, *, users: Sequence[str] = (), audit_rules: Sequence[Json] = ()
    ) -> None:
        """*users* besides the submitter and the components; *audit_rules* go first."""
        groups = dict.fromkeys((SUBMITTER, *COMPONENTS, *users), ("system:masters",))
        # Durable writes measure the disk, not the server.
        self.kube = RealKube(
            directory, RealKubeOptions(users=groups, audit=True, audit_rules=audit_rules)
        )
        self.components: dict[str, ComponentProcess] = {}
        self._directory = directory

    def __enter__(self) -> Self:
        self.kube.__enter__()
        return self

    def __exit__(self, *about: object) -> None:
        try:
            self.stop_components()
        finally:
            self.kube.__exit__(*about)

    def start(self, name: str, *options: str, user: str = "") -> ComponentProcess:
        """Start a component under its own user, or a replica of it under *user*."""
        user = user or name
        reader, writer = os.pipe()
        arguments = [name, "--kubeconfig", str(self.kube.kubeconfig_of(user)), *options]
        with (self._directory / f"{user}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "batholith.cli", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(writer,),
                env=os.environ | {PARENT: str(os.getpid()), READY_FD: str(writer)},
            )
        os.close(writer)
        component = self.components[user] = ComponentProcess(
            user, process, reader, time.perf_counter()
        )
        return component

    async def start_components(
        self, client: Client, *names: str, options: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        """Start components, wait until all are ready, and remove the taint of the agent's nodes.

        *options* are further ones of the components.
        """
        simulated = ("--simulate", str(SIMULATED), "--cpus", str(CPUS))
        alone = ("--leader-elect=false",)
        needed = {
            "agent": ("--data-dir", str(self._directory / "agent"), *simulated),
            "controllers": alone,
            "scheduler": alone,
        }
        started = [
            self.start(name, *needed.get(name, ()), *(options or {}).get(name, ()))
            for name in names
        ]
        for component in started:
            await component.wait_ready()
        for node in (await client.list(NODES, view=_Node)).items:
            # A new node has a taint that the node controller removes; none runs here.
            await client.patch(NODES, node.metadata.name, {"spec": {"taints": None}})

    def stop_components(self) -> None:
        """Stop all components, so that the audit log contains their watches."""
        for component in self.components.values():
            component.stop()
        self.components.clear()

    def cpu_of(self, user: str) -> float:
        """CPU seconds of one component so far."""
        return _cpu_seconds(self.components[user].process.pid)

    def cpu(self) -> Counter[str]:
        """CPU seconds of each process so far; *bench* is this one."""
        pids = {"bench": os.getpid(), **dict(_children())}
        return Counter({name: _cpu_seconds(pid) for name, pid in pids.items()})

    def audit(self) -> list[Json]:
        """The audit log."""
        return self.kube.audit()

    async def wait_settled(self, *users: str, seconds: float) -> None:
        """Wait until none of *users* has written anything for some *seconds*, except Events.

        Writes that are delayed under load happen during this.
        """
        with (self.kube.directory / "audit.log").open("rb") as log:
            rest, last_write = log.read().rpartition(b"\n")[2], time.perf_counter()
            while (left := last_write + seconds - time.perf_counter()) > 0:
                await asyncio.sleep(min(left, _POLL_INTERVAL))
                *lines, rest = (rest + log.read()).split(b"\n")
                written = RequestCounts()
                for line in lines:
                    written.add(json.loads(line))
                if written.writes_of(*users, events=False):
                    last_write = time.perf_counter()


def _children() -> Iterator[tuple[str, int]]:
    """Yield name and id of each child process; a component is named by its subcommand."""
    for task in Path("/proc/self/task").iterdir():
        for text in (task / "children").read_text().split():
            with contextlib.suppress(OSError):
                args = Path("/proc", text, "cmdline").read_bytes().decode().split("\0")
                yield (args[3] if args[1] == "-m" else Path(args[0]).name), int(text)


def _cpu_seconds(pid: int) -> float:
    fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory(pid: int) -> tuple[float, float]:
    """Return the memory of a process in MiB, now and at its maximum."""
    lines = Path("/proc", str(pid), "status").read_text().splitlines()
    values = dict(line.split(":", 1) for line in lines)
    now, most = (int(values[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
    return now, most


@dataclass(frozen=True, slots=True)
class AuditedRequest:
    """Target and verb of a request in the audit log."""

    user: str
    verb: str
    resource: str
    """Resource, and sub-resource if there is one."""

    @property
    def is_write(self) -> bool:
        """Report whether it is a write other than periodic ones."""
        return self.verb in WRITES and self.resource not in PERIODIC_WRITES


@dataclass(slots=True)
class RequestCounts:
    """Counts of requests in an interval."""

    accepted: Counter[AuditedRequest] = field(default_factory=Counter)
    refused: Counter[tuple[AuditedRequest, int]] = field(default_factory=Counter)

    @classmethod
    def between(cls, lines: Iterable[Json], since: str, until: str) -> "RequestCounts":
        """Count the requests received in [*since*, *until*), times as in the log."""
        found = cls()
        for line in lines:
            if since <= line["requestReceivedTimestamp"] < until:
                found.add(line)
        return found

    def add(self, line: Mapping[str, Any]) -> None:
        """Count one line of the log."""
        reference = line.get("objectRef", {})
        path = (reference.get("resource", "-"), reference.get("subresource", ""))
        request = AuditedRequest(
            line["user"]["username"], line["verb"], "/".join(filter(None, path))
        )
        code = line.get("responseStatus", {}).get("code", 0)
        if code < 400:
            self.accepted[request] += 1
        else:
            self.refused[request, code] += 1

    def reads_of(self, user: str) -> tuple[int, int, int]:
        """Return the counts of successful and of failed lists and watches of *user*."""

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
        """Return the requests of *user* except watches, Events and periodic ones."""
        counts: Counter[str] = Counter()
        for asked, number in self.accepted.items():
            spared = asked.verb == "watch" or asked.resource in PERIODIC_WRITES | {"events"}
            if asked.user == user and not spared:
                counts[f"{asked.verb} {asked.resource}"] += number
        for (asked, code), number in self.refused.items():
            if asked.user == user and asked.verb != "watch":
                counts[f"{asked.verb} {asked.resource} ({code})"] += number
        return counts

    def writes_of(self, *users: str, events: bool = True) -> Counter[str]:
        """Writes of *users* that took effect, by verb and resource; on request without Events."""
        counts: Counter[str] = Counter()
        for asked, number in self.accepted.items():
            counted = asked.is_write and (events or asked.resource != "events")
            if asked.user in users and counted:
                counts[f"{asked.verb} {asked.resource}"] += number
        return counts
