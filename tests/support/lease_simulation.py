"""Candidates for one Lease in simulated time, each with its own clock and connection.

The server is correct and immediate; between it and a candidate, messages are delayed, lost or
wrong. A candidate that is frozen (SIGSTOP) runs nothing, while its clock and its requests go on.
"""

import asyncio
import copy
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, cast

import msgspec

from batholith.kube.client.client import Client, WatchEvent
from batholith.kube.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    NotFoundError,
    NotLeaderError,
    ServerError,
)
from batholith.machinery.clock import Timer
from batholith.machinery.leader_election import (
    LeaderElectionConfig,
    LeaderElectionMetrics,
    LeaderElector,
)
from batholith.machinery.testing import FakeClock, run_ready_tasks
from batholith.model.names import Resource

Json = dict[str, Any]
NAME, NAMESPACE = "vc-controller-manager", "volcano-system"


class ObservedClock(FakeClock):
    """True time; *after_each* is called whenever something has happened."""

    on_advance: Callable[[], object] = staticmethod(lambda: None)

    async def advance(self, seconds: float) -> None:
        await run_ready_tasks()
        self.on_advance()
        target = self._elapsed + seconds
        while self._fire_next(target):
            await run_ready_tasks()
            self.on_advance()
        self._elapsed = target
        self.on_advance()


class LeaseServer:
    """Stores one Lease and notifies its watchers."""

    def __init__(self, clock: ObservedClock) -> None:
        self.clock = clock
        self.lease: Json | None = None
        self.lease_history: list[tuple[float, Json]] = []
        """Every stored spec, with its time."""
        self.watchers: list[asyncio.Queue[Json]] = []
        self.namespace = True
        self._version = 0

    @property
    def spec(self) -> Json:
        assert self.lease is not None
        return cast(Json, self.lease["spec"])

    def get(self) -> Json:
        if self.lease is None:
            raise NotFoundError("no such lease", status=404, details={"kind": "leases"})
        return copy.deepcopy(self.lease)

    def create(self, body: Json) -> Json:
        if not self.namespace:
            raise NotFoundError(
                f'namespaces "{NAMESPACE}" not found', status=404, details={"kind": "namespaces"}
            )
        if self.lease is not None:
            raise AlreadyExistsError("there is one", status=409)
        return self._store(body)

    def replace(self, body: Json) -> Json:
        if self.lease is None:
            raise NotFoundError("no such lease", status=404, details={"kind": "leases"})
        if body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise ConflictError("it has changed", status=409)
        return self._store(body)

    def delete(self) -> None:
        self.lease = None

    def update_labels(self, **labels: str) -> None:
        """A user sets labels on the Lease."""
        body = self.get()
        body["metadata"]["labels"] = labels
        self._store(body)

    def _store(self, body: Json) -> Json:
        self._version += 1
        meta = {**body["metadata"], "resourceVersion": str(self._version), "uid": "lease-uid"}
        self.lease = {**copy.deepcopy(body), "metadata": meta}
        self.lease_history.append((self.clock.monotonic(), self.lease["spec"]))
        for watcher in self.watchers:
            watcher.put_nowait(self.lease)
        return copy.deepcopy(self.lease)


@dataclass
class NetworkConditions:
    """What becomes of a candidate's requests from now on; seconds of true time."""

    request_delay: float = 0.01
    response_delay: float = 0.01
    delivers_requests: bool = True
    """Whether requests reach the server."""
    delivers_responses: bool = True
    """Whether its responses reach the client."""
    error: ApiError | None = None


class _Timer:
    """A call that can be taken back even when it has fallen due in a frozen process."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call: Callable[[], object] | None = call

    def cancel(self) -> None:
        self._call = None

    def fire(self) -> None:
        if self._call is not None:
            self._call()


class SkewedClock:
    """A clock that runs *rate* times as fast as true time, with an offset, and may be frozen."""

    def __init__(self, true: ObservedClock, *, rate: float = 1.0, start: float = 0.0) -> None:
        self.rate = rate
        self.wall_jump = 0.0
        self.frozen = False
        self._true_clock = true
        self._start = start
        self._due: list[Callable[[], object]] = []

    def now(self) -> datetime:
        return self._true_clock.now() + timedelta(seconds=self.wall_jump)

    def monotonic(self) -> float:
        return self._start + self.rate * self._true_clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.Event()
        timer = self.call_later(seconds, woken.set)
        try:
            await woken.wait()
        finally:
            timer.cancel()

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        created = _Timer(callback)
        self._true_clock.call_later(
            max(seconds, 0.0) / self.rate, lambda: self.run_when_thawed(created.fire)
        )
        return created

    def run_when_thawed(self, call: Callable[[], object]) -> None:
        """Call now, or after unfreezing."""
        if self.frozen:
            self._due.append(call)
        else:
            call()

    def thaw(self) -> None:
        self.frozen = False
        due, self._due = self._due, []
        for call in due:
            call()


class LeaseClient:
    """As much of a client as an elector uses, over a candidate's wire."""

    def __init__(self, server: LeaseServer, clock: SkewedClock, network: NetworkConditions) -> None:
        self._server = server
        self._clock = clock
        self._network = network
        self.requests: list[str] = []

    async def get(self, resource: Resource, name: str, *, namespace: str, view: object) -> Json:
        return await self._request("GET", self._server.get)

    async def create(self, resource: Resource, body: Json, *, namespace: str, view: object) -> Json:
        return await self._request("POST", lambda: self._server.create(body))

    async def replace(
        self, resource: Resource, name: str, body: Json, *, namespace: str, view: object
    ) -> Json:
        return await self._request("PUT", lambda: self._server.replace(body))

    async def watch(
        self, resource: Resource, *, view: type[Any], namespace: str, field_selector: str
    ) -> AsyncIterator[WatchEvent[Any]]:
        assert field_selector == f"metadata.name={NAME}"
        lines: asyncio.Queue[Json] = asyncio.Queue()
        self._server.watchers.append(lines)
        try:
            if self._server.lease is not None:
                lines.put_nowait(self._server.lease)
            while True:
                obj = await lines.get()
                if (
                    self._network.delivers_requests
                    and self._network.delivers_responses
                    and not self._clock.frozen
                ):
                    yield WatchEvent("MODIFIED", msgspec.convert(obj, view))
        finally:
            self._server.watchers.remove(lines)

    async def _request(self, method: str, action: Callable[[], Json]) -> Json:
        """Send a request; cancellation by the caller does not revoke it."""
        wire, true = self._network, self._server.clock
        self.requests.append(method)
        response: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        back, responses, refusal = wire.response_delay, wire.delivers_responses, wire.error

        def complete(result: Json | ApiError) -> None:
            if response.done():
                return
            if isinstance(result, ApiError):
                response.set_exception(result)
            else:
                response.set_result(result)

        def process() -> None:
            result: Json | ApiError
            try:
                result = refusal or action()
            except ApiError as error:
                result = error
            if responses:
                true.call_later(back, lambda: self._clock.run_when_thawed(lambda: complete(result)))

        if wire.delivers_requests:
            true.call_later(wire.request_delay, process)
        return await response


@dataclass(eq=False)
class SimulatedCandidate:
    """One process that would lead."""

    name: str
    clock: SkewedClock
    network: NetworkConditions
    client: LeaseClient
    elector: LeaderElector
    task: asyncio.Task[None]
    metrics: LeaderElectionMetrics
    killed: bool = False

    @property
    def may_write(self) -> bool:
        """Whether its fence is open."""
        try:
            self.elector.check_fence()
        except NotLeaderError:
            return False
        return not self.killed

    @property
    def ended(self) -> bool:
        return self.killed or self.task.done()

    def kill(self) -> None:
        """``kill -9``: nothing more is done, though what was sent may still arrive."""
        self.killed = self.clock.frozen = True


@dataclass
class LeaseSimulation:
    """The server, true time, and all candidates there ever were."""

    clock: ObservedClock = field(default_factory=ObservedClock)
    candidates: list[SimulatedCandidate] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.server = LeaseServer(self.clock)
        self.clock.on_advance = self.check_invariants

    def add(
        self,
        *,
        rate: float = 1.0,
        start: float = 0.0,
        random: Callable[[], float] = lambda: 0.5,
        recorder: Any = None,
        group: str = "",
        **settings: float,
    ) -> SimulatedCandidate:
        """*group* is the identity of candidates that share the Lease."""
        name = group or f"host_{len(self.candidates)}"
        clock, wire = SkewedClock(self.clock, rate=rate, start=start), NetworkConditions()
        client, metrics = LeaseClient(self.server, clock, wire), LeaderElectionMetrics()
        elector = LeaderElector(
            cast(Client, client),
            LeaderElectionConfig(
                name=NAME, identity=name, shared=bool(group), **cast(Any, settings)
            ),
            clock=clock,
            recorder=recorder,
            metrics=metrics,
            random_source=random,
        )
        task = asyncio.get_running_loop().create_task(elector.run())
        created = SimulatedCandidate(name, clock, wire, client, elector, task, metrics)
        self.candidates.append(created)
        return created

    @property
    def leaders(self) -> list[SimulatedCandidate]:
        return [each for each in self.candidates if each.may_write]

    def check_invariants(self) -> None:
        """INV-LE-1 and INV-LE-4, and that loss is reported: they hold at every moment."""
        leaders = self.leaders
        names = {each.name for each in leaders}
        assert len(names) <= 1, f"two leaders: {names}"
        for leader in leaders:
            there = self.server.lease
            known = there is None or there["spec"]["holderIdentity"] == leader.name
            assert known, "it only thinks it leads"
        for each in self.candidates:
            reported = each.ended or each.clock.frozen or each.task.cancelling()
            if not reported and each.elector.elected.is_set():
                # Of several things that happen at one moment this may not be the first.
                assert each.elector._remaining() > -1e-6, "not stopped"

    def check_transitions(self) -> None:
        """INV-LE-3."""
        holder, transitions = "", -1
        for _, spec in self.server.lease_history:
            changed = spec["holderIdentity"] not in ("", holder)
            assert spec["leaseTransitions"] == transitions + changed
            holder = spec["holderIdentity"] or holder
            transitions = spec["leaseTransitions"]

    async def stop(self) -> None:
        """End all tasks; nothing is released any more."""
        self.clock.on_advance = lambda: None
        for each in self.candidates:
            each.network.error = ServerError("the world ends", status=500)
            each.network.delivers_requests = each.network.delivers_responses = True
            each.network.request_delay = each.network.response_delay = 0.0
            each.clock.thaw()
            each.task.cancel()
        done = asyncio.gather(*(each.task for each in self.candidates), return_exceptions=True)
        await self.clock.advance(10)
        await done
