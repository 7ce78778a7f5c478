"""Small histories that a random machine found, told again step by step."""

from collections.abc import Iterator

import pytest
from support.queue_stateful import QueueWorld

from batholith.model.names import COMMANDS, PODGROUPS, QUEUES
from batholith.queue_ctrl.controller import RESYNC_AFTER_GIVE_UP


@pytest.fixture
def world() -> Iterator[QueueWorld]:
    """Nothing is in it but the server."""
    made = QueueWorld()
    try:
        yield made
        assert made.violations == []
    finally:
        made.close()


def test_counts_are_written_though_all_retries_met_a_conflict(world: QueueWorld) -> None:
    world.run(world.run_until_quiet())
    world.api.hold_watches(QUEUES)
    world.api.put(QUEUES, "default", status={"allocated": {"cpu": "1"}})
    world.api.put(PODGROUPS, "g", spec={"queue": "default"}, status={"phase": "Running"})
    world.run(world.pass_time(30))
    world.run(world.run_until_quiet())  # the change that was in the way is none that matters here
    world.run(world.pass_time(RESYNC_AFTER_GIVE_UP))
    world.run(world.run_until_quiet())
    world.check_invariants()
    assert world.queues["default"]["status"]["running"] == 1


def test_commands_of_a_relist_are_executed_in_order(world: QueueWorld) -> None:
    """INV-VC-2."""
    world.run(world.run_until_quiet())
    world.api.hold_watches(COMMANDS)
    world.command("CloseQueue", "default")
    world.command("OpenQueue", "default")
    world.run(world.run_until_idle())
    world.api.break_watches()
    world.run(world.run_until_quiet())
    assert world.state("default") == "Open"


def test_counts_of_a_queue_without_its_parent_are_written(world: QueueWorld) -> None:
    world.api.put(QUEUES, "q", spec={"parent": "absent"})
    world.run(world.run_until_quiet())
    for name in ("g1", "g2"):
        world.api.put(PODGROUPS, name, spec={"queue": "q"}, status={"phase": "Running"})
        world.run(world.pass_time(0.2))
    world.run(world.run_until_quiet())
    world.check_invariants()
    assert world.queues["q"]["status"]["running"] == 2
