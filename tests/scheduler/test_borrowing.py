"""Gangs that end soon may use what queues do not, beyond what their own queue deserves."""

import pytest
from support.planned_starts import World, backfilling
from support.scheduler import queue


def borrowing(mode: str = "none", **more: object) -> str:
    """The default plugins, with gangs of up to 100 s that may double what their queue has."""
    return backfilling(mode, borrow_for="100s", **more)


def shared_by_two(text: str) -> World:
    """Two queues of equal weight on four nodes. That of *b* has a gang that fits no node, and so
    requests its half."""
    world = World(text)
    world.upsert(queue("a"), queue("b"))
    world.submit("huge", 2, cpu=8, queue="b", limit=1000)
    return world


def test_a_gang_that_ends_soon_uses_what_another_queue_leaves_idle() -> None:
    world = shared_by_two(borrowing())
    for name, limit in (("long", 101.0), ("longer", 102.0), ("short", 100.0), ("unknown", None)):
        world.submit(name, 2, queue="a", limit=limit)
    assert world.run() == ["long", "short"]


@pytest.mark.parametrize(
    ("limit", "beyond"), [(25.0, 4), (26.0, 2), (50.0, 2), (100.0, 1), (101.0, 0)]
)
def test_a_gang_may_exceed_the_more_the_sooner_it_ends(limit: float, beyond: int) -> None:
    world = World(borrowing(), nodes=6)
    world.upsert(queue("a"), queue("b", weight=5))
    for number in range(5):
        world.submit(f"huge{number}", 2, cpu=8, queue="b", limit=1000)
    for number in range(6):
        world.submit(f"short{number}", 1, queue="a", limit=limit)
    assert len(world.run()) == 1 + beyond


def test_gangs_that_end_soon_are_tried_although_their_queue_is_overused() -> None:
    world = shared_by_two(borrowing())
    world.submit("long", 2, queue="a", limit=1000)
    assert world.run() == ["long"]
    world.submit("longer", 1, queue="a", limit=1000)
    world.submit("short", 1, queue="a", limit=50)
    assert world.run(10) == ["short"]
    world.end("long")
    assert world.run(20) == ["longer"]


def test_without_the_option_no_gang_borrows() -> None:
    world = shared_by_two(backfilling("none"))
    world.submit("long", 2, queue="a", limit=1000)
    world.submit("short", 1, queue="a", limit=1)
    assert world.run() == ["long"]
    assert world.run(10) == []


def test_a_gang_borrows_no_more_than_the_capability_of_its_queue() -> None:
    world = World(borrowing())
    world.upsert(queue("a", capability={"cpu": 12}), queue("b"))
    world.submit("huge", 2, cpu=8, queue="b", limit=1000)
    for number in range(4):
        world.submit(f"short{number}", 1, queue="a", limit=10)
    assert world.run() == ["short0", "short1", "short2"]


def test_a_closed_queue_borrows_nothing() -> None:
    world = shared_by_two(borrowing())
    world.upsert(queue("a", state="Closed"))
    world.submit("short", 1, queue="a", limit=10)
    assert world.run() == []


def test_further_pods_of_a_gang_that_ends_soon_are_borrowed_too() -> None:
    world = shared_by_two(borrowing())
    world.submit("long", 1, queue="a", limit=1000)
    world.submit("elastic", 3, minimum=1, queue="a", limit=50)
    assert world.run() == ["elastic", "long"]
    assert not world.cluster.gangs["ns/elastic"].pending_tasks


def test_the_planned_start_of_a_gang_that_ends_soon_counts_what_it_may_borrow() -> None:
    world = shared_by_two(borrowing("easy"))
    world.submit("first", 4, queue="a", limit=100)
    assert world.run() == ["first"]
    world.submit("short", 4, queue="a", limit=60)
    assert world.run(10) == []
    assert world.start_of("short") == 100


def test_a_long_gang_of_equal_demand_does_not_keep_a_short_one_from_starting() -> None:
    world = shared_by_two(borrowing())
    world.submit("running", 2, queue="a", limit=1000)
    world.run()
    for name, limit in (("long1", 1000.0), ("long2", 1000.0)):
        world.submit(name, 2, queue="a", limit=limit)
    assert world.run(10) == []
    world.submit("short", 2, queue="a", limit=10)
    assert world.run(20) == ["short"]


def test_the_shortest_gang_is_first_without_planned_starts() -> None:
    world = World(backfilling("none", order="shortest-first"))
    world.submit("long", 4, limit=100)
    world.submit("short", 4, limit=50)
    assert world.run() == ["short"]


def test_the_shortest_of_equal_gangs_is_first_when_resources_are_freed() -> None:
    world = World(backfilling("none", order="shortest-first"))
    world.submit("a", 3)
    world.submit("b", 1)
    world.run()
    for name, limit in (("long", 100.0), ("short", 10.0), ("middle", 50.0)):
        world.submit(name, 1, limit=limit)
    assert world.run(1) == []
    world.end("b")
    assert world.run(2) == ["short"]
    world.end("a")
    assert world.run(3) == ["long", "middle"]
