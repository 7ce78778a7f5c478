"""The queue controller in a world of its own, for random histories, and the rules it must keep."""

from typing import Any

from support.inmemory_api import LocalClient
from support.virtual_controller import Process

from batholith.model.names import COMMANDS, PODGROUPS, QUEUES
from batholith.queue_ctrl.controller import QueueController, QueueSettings

Object = dict[str, Any]

SETTINGS = QueueSettings(workers=2, max_requeues=5)
SHUT = ("Closed", "Closing")
MARK = "volcano.sh/closed-by-parent"
EDGES = {
    "": {"Open", *SHUT},
    "Open": {*SHUT},
    "Closing": {"Closed", "Open"},
    "Closed": {"Open"},
    "Unknown": {"Open", *SHUT},
}
COUNTED = ("Pending", "Inqueue", "Running", "Unknown", "Completed")


class Queues(Process[QueueController]):
    """The server with at most one queue controller, and what others do."""

    def __init__(self) -> None:
        super().__init__()
        self.api.told = self._hear
        self.causes = self.writes = 0
        """Changes by others, and by controllers."""
        self.broken: list[str] = []

    def make(self, client: LocalClient) -> QueueController:
        """A new queue controller."""
        return QueueController(client, settings=SETTINGS, clock=self.clock, recorder=self.notes)

    # What there is.

    @property
    def queues(self) -> dict[str, Object]:
        """By name."""
        return dict(sorted(self.api.objects(QUEUES).items()))

    def state(self, name: str) -> str:
        state: str = self.queues[name].get("status", {}).get("state", "")
        return state

    def mark(self, name: str) -> str:
        """Whether it opens again with its parent, as its annotation says."""
        mark: str = self.queues[name]["metadata"].get("annotations", {}).get(MARK, "")
        return mark

    def parent(self, name: str) -> str:
        """Empty for the root."""
        parent: str = self.queues[name].get("spec", {}).get("parent", "")
        return parent or ("" if name == "root" else "root")

    def line(self, name: str) -> list[str]:
        """*name* and those above it, as far as they exist."""
        found = [name]
        while name in self.queues and (name := self.parent(name)):
            found.append(name)
        return found

    def below(self, name: str) -> list[str]:
        """Those under *name*, at any depth."""
        return [one for one in self.queues if one != name and name in self.line(one)]

    def held(self, name: str) -> list[str]:
        """The phases of the PodGroups in the queue."""
        return [
            group["status"]["phase"]
            for group in self.api.objects(PODGROUPS).values()
            if group["spec"]["queue"] == name
        ]

    def command(self, action: str, queue: str) -> None:
        """Somebody orders something."""
        target = {"apiVersion": QUEUES.api_version, "kind": "Queue", "name": queue}
        name = f"c{10**6 - self.api.version}"  # the newest comes first in a list
        self.api.put(COMMANDS, name, action=action, target=target)

    # What happens.

    def _hear(self, prefix: str, change: str, new: Object, old: Object | None) -> None:
        self.writes += bool(self.api.asked_by)
        self.causes += not self.api.asked_by
        if not self.api.asked_by:
            return
        try:
            self._check(prefix, change, new, old or {})
        except AssertionError as error:
            self.broken.append(f"{error}")

    def _check(self, prefix: str, change: str, new: Object, old: Object) -> None:
        name = new["metadata"]["name"]
        if prefix == COMMANDS.path():
            assert change == "DELETED", f"a Command is {change}"
            sent = self.api.seen[-1].body["preconditions"]["uid"]
            assert sent == new["metadata"]["uid"], "INV-OW-2"
            return
        assert prefix == QUEUES.path(), f"{prefix} is written"
        if change == "ADDED":
            assert name in ("root", "default"), f"{name} is made"
            return
        assert change == "MODIFIED", f"{name} is {change}"
        was, now = (one.get("status", {}).get("state", "") for one in (old, new))
        assert now == was or now in EDGES[was], f"{name} goes from {was} to {now}"
        assert name != "root" or now == "Open" or now == was, "the root is closed"
        before, after = (one.get("status", {}).get("allocated") for one in (old, new))
        assert before == after, "what the scheduler wrote is changed"
        given = old.get("spec", {})
        assert new["spec"] == given | {"parent": given.get("parent") or "root"} or (
            new["spec"] == given
        ), new["spec"]

    # At rest.

    def validate(self) -> None:
        """Check that all is as it should be when the controller has nothing left to do.

        Raises:
            AssertionError: it is not.
        """
        assert not self.api.objects(COMMANDS), "a Command is left over"
        assert {"root", "default"} <= self.queues.keys()
        for name, queue in self.queues.items():
            self._is_settled(name, queue.get("status", {}))
            if name != "root" and self.parent(name) in self.queues:
                self._follows(name)
        bound = 60 + 30 * self.causes + 10 * self.lives
        assert self.writes <= bound, f"{self.writes} writes for {self.causes} changes"

    def _is_settled(self, name: str, status: Object) -> None:
        held = self.held(name)
        for phase in COUNTED:
            assert status.get(phase.lower(), 0) == held.count(phase), f"{name}: {held}, {status}"
        assert held or status["state"] != "Closing", f"INV-VC-5: {name} is empty and {status}"

    def _follows(self, name: str) -> None:
        """It is as its parent allows."""
        parent, state, mark = self.parent(name), self.state(name), self.mark(name)
        assert self.queues[name]["spec"].get("parent"), f"{name} has no parent"
        if self.state(parent) in SHUT:
            assert state in SHUT, f"{name} is {state} under a shut parent"
        if self.state(parent) == "Open" and mark == "true":
            raise AssertionError(f"{name} is {state}, and does not open with its parent")
