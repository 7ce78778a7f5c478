"""The queue controller in a simulated cluster, for random histories, and its invariants."""

from typing import Any

from support.inmemory_api import InMemoryClient
from support.virtual_controller import CheckedWorld

from batholith.model.names import COMMANDS, PODGROUPS, QUEUES
from batholith.queue_ctrl.controller import QueueController, QueueSettings

Object = dict[str, Any]

SETTINGS = QueueSettings(workers=2, max_requeues=5)
CLOSED_STATES = ("Closed", "Closing")
CLOSED_BY_PARENT = "volcano.sh/closed-by-parent"
EDGES = {
    "": {"Open", *CLOSED_STATES},
    "Open": {*CLOSED_STATES},
    "Closing": {"Closed", "Open"},
    "Closed": {"Open"},
    "Unknown": {"Open", *CLOSED_STATES},
}
COUNTED = ("Pending", "Inqueue", "Running", "Unknown", "Completed")


class QueueWorld(CheckedWorld[QueueController]):
    """The server with at most one queue controller, and what others do."""

    def make_controller(self, client: InMemoryClient) -> QueueController:
        """A new queue controller."""
        return QueueController(client, settings=SETTINGS, clock=self.clock, recorder=self.recorder)

    # What there is.

    @property
    def queues(self) -> dict[str, Object]:
        """By name."""
        return dict(sorted(self.api.objects(QUEUES).items()))

    def state(self, name: str) -> str:
        state: str = self.queues[name].get("status", {}).get("state", "")
        return state

    def closed_by_parent(self, name: str) -> str:
        """Whether it opens again with its parent, by its annotation."""
        mark: str = self.queues[name]["metadata"].get("annotations", {}).get(CLOSED_BY_PARENT, "")
        return mark

    def parent(self, name: str) -> str:
        """Empty for the root."""
        parent: str = self.queues[name].get("spec", {}).get("parent", "")
        return parent or ("" if name == "root" else "root")

    def ancestors(self, name: str) -> list[str]:
        """*name* and those above it, as far as they exist."""
        found = [name]
        while name in self.queues and (name := self.parent(name)):
            found.append(name)
        return found

    def descendants(self, name: str) -> list[str]:
        """Those under *name*, at any depth."""
        return [one for one in self.queues if one != name and name in self.ancestors(one)]

    def podgroup_phases(self, name: str) -> list[str]:
        """The phases of the PodGroups in the queue."""
        return [
            group["status"]["phase"]
            for group in self.api.objects(PODGROUPS).values()
            if group["spec"]["queue"] == name
        ]

    def command(self, action: str, queue: str) -> None:
        """A user creates a Command."""
        target = {"apiVersion": QUEUES.api_version, "kind": "Queue", "name": queue}
        name = f"c{10**6 - self.api.version}"  # the newest is first in a list
        self.api.put(COMMANDS, name, action=action, target=target)

    # What happens.

    def _check(self, prefix: str, change: str, new: Object, old: Object) -> None:
        name = new["metadata"]["name"]
        if prefix == COMMANDS.path():
            assert change == "DELETED", f"a Command is {change}"
            sent = self.api.received[-1].body["preconditions"]["uid"]
            assert sent == new["metadata"]["uid"], "INV-OW-2"
            return
        assert prefix == QUEUES.path(), f"{prefix} is written"
        if change == "ADDED":
            assert name in ("root", "default"), f"{name} is created"
            return
        assert change == "MODIFIED", f"{name} is {change}"
        was, now = (one.get("status", {}).get("state", "") for one in (old, new))
        assert now == was or now in EDGES[was], f"{name} changes from {was} to {now}"
        assert name != "root" or now == "Open" or now == was, "the root is closed"
        before, after = (one.get("status", {}).get("allocated") for one in (old, new))
        assert before == after, "what the scheduler wrote is changed"
        given = old.get("spec", {})
        assert new["spec"] == given | {"parent": given.get("parent") or "root"} or (
            new["spec"] == given
        ), new["spec"]

    # At rest.

    def check_invariants(self) -> None:
        """Check that all is as it should be when the controller has nothing left to do.

        Raises:
            AssertionError: it is not.
        """
        assert not self.api.objects(COMMANDS), "a Command is left over"
        assert {"root", "default"} <= self.queues.keys()
        for name, queue in self.queues.items():
            self._check_settled(name, queue.get("status", {}))
            if name != "root" and self.parent(name) in self.queues:
                self._matches_parent(name)
        bound = 60 + 30 * self.external_changes + 10 * self.controllers_started
        assert self.controller_writes <= bound, (
            f"{self.controller_writes} writes for {self.external_changes} changes"
        )

    def _check_settled(self, name: str, status: Object) -> None:
        stored = self.podgroup_phases(name)
        for phase in COUNTED:
            assert status.get(phase.lower(), 0) == stored.count(phase), (
                f"{name}: {stored}, {status}"
            )
        assert stored or status["state"] != "Closing", f"INV-VC-5: {name} is empty and {status}"

    def _matches_parent(self, name: str) -> None:
        """It is as its parent allows."""
        parent, state, mark = self.parent(name), self.state(name), self.closed_by_parent(name)
        assert self.queues[name]["spec"].get("parent"), f"{name} has no parent"
        if self.state(parent) in CLOSED_STATES:
            assert state in CLOSED_STATES, f"{name} is {state} under a shut parent"
        if self.state(parent) == "Open" and mark == "true":
            raise AssertionError(f"{name} is {state}, and does not open with its parent")
