"""Regressions found by the stateful test, step by step."""

from collections.abc import Iterator

import pytest
from support.queue_stateful import QueueWorld

from batholith.model.names import COMMANDS, PODGROUPS, QUEUES
from batholith.queue_ctrl.controller import RESYNC_AFTER_DROP


@pytest.fixture
def world() -> Iterator[QueueWorld]:
    """An empty server without a controller."""
    world = QueueWorld()
    try:
        yield world
        assert world.violations == []
    finally:
        world.close()


def test_counts_are_written_after_max_requeues_of_conflicts(world: QueueWorld) -> None:
    world.run(world.run_until_quiet())
    world.api.hold_watches(QUEUES)
    world.api.put(QUEUES, "default", status={"allocated": {"cpu": "1"}})
    world.api.put(PODGROUPS, "g", spec={"queue": "default"}, status={"phase": "Running"})
    world.run(world.pass_time(30))
    world.run(world.run_until_quiet())  # the conflicting change is irrelevant here
    world.run(world.pass_time(RESYNC_AFTER_DROP))
    world.run(world.run_until_quiet())
    world.check_invariants()
    assert world.queues["default"]["status"]["running"] == 1


def test_commands_found_by_a_relist_are_executed_in_order(world: QueueWorld) -> None:
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
