"""Small histories that a random machine found, told again step by step."""

from collections.abc import Iterator

import pytest
from support.queue_stateful import Queues

from batholith.model.names import COMMANDS, PODGROUPS, QUEUES
from batholith.queue_ctrl.controller import RESYNC_AFTER_GIVE_UP


@pytest.fixture
def world() -> Iterator[Queues]:
    """Nothing is in it but the server."""
    made = Queues()
    try:
        yield made
        assert made.broken == []
    finally:
        made.close()


def test_counts_are_written_though_all_retries_met_a_conflict(world: Queues) -> None:
    world.do(world.rest())
    world.api.hold(QUEUES)
    world.api.put(QUEUES, "default", status={"allocated": {"cpu": "1"}})
    world.api.put(PODGROUPS, "g", spec={"queue": "default"}, status={"phase": "Running"})
    world.do(world.pass_time(30))
    world.do(world.rest())  # the change that was in the way is none that matters here
    world.do(world.pass_time(RESYNC_AFTER_GIVE_UP))
    world.do(world.rest())
    world.validate()
    assert world.queues["default"]["status"]["running"] == 1


def test_commands_found_by_a_new_list_are_obeyed_in_their_order(world: Queues) -> None:
    """INV-VC-2."""
    world.do(world.rest())
    world.api.hold(COMMANDS)
    world.command("CloseQueue", "default")
    world.command("OpenQueue", "default")
    world.do(world.idle())
    world.api.lose()
    world.do(world.rest())
    assert world.state("default") == "Open"


def test_counts_of_a_queue_without_its_parent_are_written(world: Queues) -> None:
    world.api.put(QUEUES, "q", spec={"parent": "absent"})
    world.do(world.rest())
    for name in ("g1", "g2"):
        world.api.put(PODGROUPS, name, spec={"queue": "q"}, status={"phase": "Running"})
        world.do(world.pass_time(0.2))
    world.do(world.rest())
    world.validate()
    assert world.queues["q"]["status"]["running"] == 2
