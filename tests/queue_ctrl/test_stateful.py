"""Random histories of a queue tree, with its controller killed, disconnected and lagging."""

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from support.queue_stateful import CLOSED_STATES, COUNTED, QueueWorld
from support.stateful import PACE, ControllerMachine, fault_rule, late_watch_rule, stateful_settings

from batholith.model.names import COMMANDS, PODGROUPS, QUEUES

NAMES = ("q1", "q2", "q3", "q4")
ACTIONS = st.sampled_from(
    ["CloseQueue", "CloseQueue", "OpenQueue", "OpenQueue", "SyncQueue", "AbortJob"]
)
WHICH = st.integers(0, 7)


class QueueMachine(ControllerMachine[QueueWorld]):
    """The queue controller under random operations and faults."""

    def __init__(self) -> None:
        super().__init__(QueueWorld())

    @initialize(parents=st.lists(st.integers(0, 4), min_size=2, max_size=4))
    def begin(self, parents: list[int]) -> None:
        """Create a queue tree."""
        names = ["root"]
        for name, parent in zip(NAMES, parents, strict=False):
            above = names[parent % len(names)]
            self.world.api.put(QUEUES, name, spec={"parent": above} if above != "root" else {})
            names.append(name)
        self._settle_or_advance(None)

    def _queue(self, which: int) -> str:
        names = list(self.world.queues)
        return names[which % len(names)]

    # Users.

    @rule(name=st.sampled_from(NAMES), which=WHICH, pace=PACE)
    def create_or_move(self, name: str, which: int, pace: int | None) -> None:
        above = [
            "absent",
            *(one for one in self.world.queues if name not in self.world.ancestors(one)),
        ]
        self.world.api.put(QUEUES, name, spec={"parent": above[which % len(above)]})
        self._settle_or_advance(pace)

    @precondition(lambda self: self.world.queues)
    @rule(which=WHICH, pace=PACE)
    def delete_a_queue(self, which: int, pace: int | None) -> None:
        name = self._queue(which)
        if not self.world.descendants(name):
            self.world.api.remove(QUEUES, name)
        self._settle_or_advance(pace)

    @precondition(lambda self: self.world.queues)
    @rule(which=WHICH, actions=st.lists(ACTIONS, min_size=1, max_size=3), pace=PACE)
    def command(self, which: int, actions: list[str], pace: int | None) -> None:
        for action in actions:
            self.world.command(action, self._queue(which))
        self._settle_or_advance(pace)

    @rule(
        which=WHICH,
        actions=st.lists(ACTIONS, min_size=1, max_size=3),
        dies_after=st.sampled_from([None, 1, 3, 8, 15]),
    )
    def commands_are_executed(self, which: int, actions: list[str], dies_after: int | None) -> None:
        """INV-VC-1, INV-VC-2: in their order, whenever the controller dies."""
        self._settle_or_advance(None)
        world, name = self.world, self._queue(which)
        before = {one: (world.state(one), world.closed_by_parent(one)) for one in world.queues}
        for action in actions:
            world.command(action, name)
        if dies_after is not None:
            world.run(world.run_iterations(dies_after))
            world.run(world.kill())
        self._settle_or_advance(None)
        below = world.descendants(name)
        for one, was in before.items():
            if one not in (name, *below):
                assert (world.state(one), world.closed_by_parent(one)) == was, (
                    f"{one} is none of {name}'s"
                )
        last = [action for action in actions if action in ("OpenQueue", "CloseQueue")][-1:]
        if name == "root" or not last:
            assert world.state(name) == before[name][0]
        elif last == ["CloseQueue"]:
            assert world.state(name) in CLOSED_STATES
            assert world.closed_by_parent(name) != "true", "it was closed by Command"
        elif world.parent(name) in before:
            shut = world.state(world.parent(name)) in CLOSED_STATES
            assert world.state(name) in CLOSED_STATES if shut else world.state(name) == "Open"
        if last == ["OpenQueue"] and len(actions) == 1 and world.state(name) == "Open":
            self._check_reopened_children(name, before)

    def _check_reopened_children(self, name: str, before: dict[str, tuple[str, str]]) -> None:
        """Children closed with the queue are open, those closed by Command are not."""
        if before[name][0] not in CLOSED_STATES:
            return
        for one in self.world.descendants(name):
            line = self.world.ancestors(one)
            line = line[: line.index(name)]
            opens = all(before[each][1] == "true" for each in line)
            assert (self.world.state(one) == "Open") == opens, f"{one}: {before[one]}"

    @precondition(lambda self: self.world.queues)
    @rule(which=WHICH, state=st.sampled_from(["Unknown", "Open", None]), pace=PACE)
    def user_writes_a_state(self, which: int, state: str | None, pace: int | None) -> None:
        name = self._queue(which)
        if name != "root":
            self.world.api.put(QUEUES, name, status={"state": state, "running": 7})
        self._settle_or_advance(pace)

    @precondition(lambda self: self.world.queues)
    @rule(which=WHICH, pace=PACE)
    def the_scheduler_counts(self, which: int, pace: int | None) -> None:
        seen = {"cpu": f"{self.world.api.version}m"}
        self.world.api.put(QUEUES, self._queue(which), status={"allocated": seen})
        self._settle_or_advance(pace)

    @rule(
        name=st.sampled_from(["g1", "g2", "g3"]),
        queue=st.sampled_from([*NAMES, "default"]),
        phase=st.sampled_from([*COUNTED, ""]),
        pace=PACE,
    )
    def put_a_podgroup(self, name: str, queue: str, phase: str, pace: int | None) -> None:
        self.world.api.put(PODGROUPS, name, spec={"queue": queue}, status={"phase": phase})
        self._settle_or_advance(pace)

    @precondition(lambda self: self.world.api.objects(PODGROUPS))
    @rule(which=WHICH, pace=PACE)
    def remove_a_podgroup(self, which: int, pace: int | None) -> None:
        groups = sorted(self.world.api.objects(PODGROUPS))
        self.world.api.force_delete(PODGROUPS, groups[which % len(groups)])
        self._settle_or_advance(pace)

    # Faults and time.

    requests_fail = fault_rule("", "/queues", "/status", "/commands", "/podgroups")
    a_watch_is_late = late_watch_rule(COMMANDS, PODGROUPS, QUEUES)


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = stateful_settings(steps=25)
