"""A controller of pods on the library, with faults, a lagging informer and crashes.

The server is a dictionary; the controller is the one of docs/writing-a-controller.md without its
informers, which the test delivers events for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from support.children import LABELS, OWNER, Anything, Json, Pod
from support.examples import examples

from batholith.kube.errors import (
    AlreadyExistsError,
    ConnectionLostError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
)
from batholith.machinery.child_events import ChildEventHandler
from batholith.machinery.claim import Claimer
from batholith.machinery.expectations import TTL, ControllerExpectations
from batholith.machinery.pod_control import (
    Created,
    Owner,
    check_child,
    create_children,
    delete_children,
    from_template,
)
from batholith.machinery.pod_ranking import deletion_order, is_active
from batholith.machinery.testing import FakeClock
from batholith.model.meta import HasMeta, ObjectMeta
from batholith.model.names import CONFIGMAPS
from batholith.model.selectors import parse_label_selector

KEY = "default/web"
MAX_DESIRED = 4
TEMPLATE: Json = {"metadata": {"labels": LABELS}, "spec": {}}
FATES = st.lists(st.sampled_from(["ok", "ok", "rejected", "no request", "no response"]), max_size=8)


@dataclass
class Server:
    """An :class:`ObjectControl` over a dictionary; each call has the next of the *fates*."""

    pods: dict[str, Pod] = field(default_factory=dict)
    events: list[tuple[Pod | None, Pod | None]] = field(default_factory=list)
    fates: list[str] = field(default_factory=list)
    version: int = 0
    writes: int = 0
    unknown_creations: int = 0
    unknown_writes: int = 0
    deleted: set[str] = field(default_factory=set)
    """Uids whose deletion the controller has a response for."""
    violations: list[str] = field(default_factory=list)
    """Writes that must not be; an exception would be an error of the server."""

    def store(self, name: str, fields: Json | None) -> Pod | None:
        """Replace or remove a pod; return it."""
        self.version += 1
        old, new = self.pods.pop(name, None), None
        if fields is not None:
            metadata = {"uid": f"uid-{self.version}", **fields["metadata"]}
            metadata["resourceVersion"] = str(self.version)
            new = self.pods[name] = msgspec.convert({**fields, "metadata": metadata}, Pod)
        self.events.append((old, new))
        return new

    def change(self, name: str, **metadata: Any) -> None:
        fields = msgspec.to_builtins(self.pods[name])
        self.store(name, {**fields, "metadata": {**fields["metadata"], **metadata}})

    async def create(self, owner: Owner, body: Json) -> Created[Pod]:
        name = check_child(body).name
        fate = self._next_fate()
        self.unknown_creations += fate in ("no request", "no response")
        if name in self.pods:
            raise AlreadyExistsError("exists", status=409)
        if fate == "no request":
            raise ConnectionLostError("connection lost")
        child = self.store(name, body)
        assert child is not None
        self._respond(fate)
        return Created(child)

    async def patch(self, child: ObjectMeta, body: Mapping[str, object]) -> None:
        fate = self._next_fate()
        if fate == "no request":
            raise ConnectionLostError("connection lost")
        self._current(child, InvalidError("uid is immutable", status=422))
        (reference,) = msgspec.to_builtins(body)["metadata"]["ownerReferences"]
        references = [] if "$patch" in reference else [reference]
        self.change(child.name, ownerReferences=references)
        self._respond(fate)

    async def delete(self, owner: Owner, child: ObjectMeta) -> None:
        fate = self._next_fate()
        if fate == "no request":
            raise ConnectionLostError("connection lost")
        self._current(child, NotFoundError("another uid", status=404))
        if child.uid in self.deleted:
            self.violations.append(f"deletion of {child.name} is repeated")
        self.change(child.name, deletionTimestamp="2026-01-01T00:00:00Z")
        self._respond(fate)
        self.deleted.add(child.uid)

    def _next_fate(self) -> str:
        self.writes += 1
        fate = self.fates.pop(0) if self.fates else "ok"
        if fate == "rejected":
            raise ForbiddenError("exceeded quota", status=403)
        self.unknown_writes += fate != "ok"
        return fate

    def _current(self, child: ObjectMeta, replaced: Exception) -> Pod:
        current = self.pods.get(child.name)
        if current is None:
            raise NotFoundError("no such pod", status=404)
        if current.metadata.uid != child.uid:
            raise replaced
        return current

    def _respond(self, fate: str) -> None:
        if fate == "no response":
            raise ConnectionLostError("connection lost")


class Controller:
    """State of one process."""

    def __init__(self, server: Server, clock: FakeClock) -> None:
        self.server = server
        self.expectations = ControllerExpectations(clock)
        self.cache = dict(server.pods)  # the initial list
        self.handler = ChildEventHandler[Pod](
            owner=CONFIGMAPS,
            get_owner={KEY: Anything(metadata=OWNER.metadata)}.get,
            add=lambda key: None,
            expectations=self.expectations,
            matching_owners=lambda pod: [KEY],
        )

    def deliver(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None:
            self.cache[new.metadata.name] = new
        elif old is not None:
            self.cache.pop(old.metadata.name, None)
        self.handler(old, new)

    async def reconcile(self, desired: int, names: list[str]) -> None:
        async def read_owner() -> HasMeta:
            return Anything(metadata=OWNER.metadata)

        satisfied = self.expectations.satisfied(KEY)
        claimer = Claimer(
            control=self.server,
            owner=OWNER,
            selector=parse_label_selector("app=web"),
            read_owner=read_owner,
        )
        claim = await claimer.claim(self.cache.values())
        pods = [pod for pod in claim.children if is_active(pod)]
        if not satisfied:
            return
        surplus = deletion_order(pods)[: max(0, len(pods) - desired)]
        bodies = [from_template(TEMPLATE, OWNER, name=name) for name in names[len(pods) : desired]]
        batch: Any = {"expectations": self.expectations, "key": KEY}
        await delete_children(self.server, OWNER, surplus, **batch)
        await create_children(self.server, OWNER, bodies, **batch)


class World:
    """The server and one process; what happens to them."""

    def __init__(self, desired: int) -> None:
        self.clock = FakeClock()
        self.server = Server()
        self.controller = Controller(self.server, self.clock)
        self.desired = self.most_desired = desired
        self.orphans = 0
        self.names = 0

    async def step(self, action: str, number: int, fates: list[str]) -> None:
        match action:
            case "reconcile":
                await self.reconcile(fates)
            case "notify":
                self.notify(1 + number)
            case "scale":
                self.desired = number % (MAX_DESIRED + 1)
                self.most_desired = max(self.most_desired, self.desired)
            case "end":
                self.end_a_terminating_pod(number)
            case "relabel" if self.server.pods:
                pods = [*self.server.pods]
                self.server.change(pods[number % len(pods)], labels={"app": "db"})
            case "orphan" if self.orphans < 2:
                self.create_orphan()
            case "crash":
                self.server.events.clear()
                self.server.deleted.clear()
                self.controller = Controller(self.server, self.clock)
            case "wait":
                self.wait()

    async def reconcile(self, fates: list[str]) -> None:
        self.names += MAX_DESIRED
        names = [f"web-{self.names + number}" for number in range(MAX_DESIRED)]
        self.server.fates = [*fates]
        await self.controller.reconcile(self.desired, names)
        self.server.fates = []

    def notify(self, count: int) -> None:
        for _ in range(min(count, len(self.server.events))):
            self.controller.deliver(*self.server.events.pop(0))

    def end_a_terminating_pod(self, number: int) -> None:
        pods = [pod for pod in self.server.pods.values() if not is_active(pod)]
        if pods:
            self.server.store(pods[number % len(pods)].metadata.name, None)

    def create_orphan(self) -> None:
        self.orphans += 1
        body = from_template(TEMPLATE, OWNER, name=f"orphan-{self.orphans}")
        del body["metadata"]["ownerReferences"]
        self.server.store(body["metadata"]["name"], body)

    def wait(self) -> None:
        self.notify(len(self.server.events))  # an informer lags, but not for minutes
        self.clock.tick(TTL + 1)

    def children(self) -> list[str]:
        return [
            pod.metadata.name
            for pod in self.server.pods.values()
            if is_active(pod) and OWNER.controls(pod) and pod.metadata.labels == LABELS
        ]

    def check(self) -> None:
        limit = self.most_desired + self.server.unknown_creations + self.orphans
        assert len(self.children()) <= limit, "INV-EX-1"
        assert self.server.violations == []

    async def check_end(self) -> None:
        """Without further faults the desired number of pods exists, and nothing is written."""
        for _ in range(4):
            self.notify(len(self.server.events))
            if self.server.unknown_writes:
                self.clock.tick(TTL + 1)
            await self.reconcile([])
        self.notify(len(self.server.events))
        assert self.controller.expectations.satisfied(KEY), "INV-EX-2"
        assert len(self.children()) == self.desired, "INV-PIPE-1"
        for pod in self.server.pods.values():
            matches = pod.metadata.labels == LABELS
            assert OWNER.controls(pod) == matches or not is_active(pod), "released or adopted"
        writes = self.server.writes
        await self.reconcile([])
        assert self.server.writes == writes, "INV-OW-3"


ACTIONS = st.sampled_from(
    ["reconcile"] * 4
    + ["notify"] * 4
    + ["scale", "scale", "end", "relabel", "orphan", "crash", "wait"]
)
STEPS = st.lists(st.tuples(ACTIONS, st.integers(0, 9), FATES), min_size=5, max_size=25)


@settings(max_examples=examples(100))
@given(desired=st.integers(1, MAX_DESIRED), steps=STEPS)
async def test_replicas_in_random_histories(
    desired: int, steps: list[tuple[str, int, list[str]]]
) -> None:
    """INV-EX-1, INV-EX-2, INV-OW-2, INV-OW-3, INV-PIPE-1, INV-LC-4."""
    world = World(desired)
    for action, number, fates in steps:
        await world.step(action, number, fates)
        world.check()
    await world.check_end()
