"""A scheduler without any PodGroup restarts while pods that describe theirs wait."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.scheduler_stateful import SchedulerHistory

from batholith.model.names import PODGROUPS, PODS, WHY


@pytest.fixture
def world() -> Iterator[SchedulerHistory]:
    """A full node, and two pods that wait, of which the second was created later."""
    it = SchedulerHistory()
    it.put_queue("default")
    it.put_node("n0", cpu=2)
    it.put_described_pod("runs", "default", cpu=2)
    it.run(it.run_until_quiet())
    it.api.put(PODS, "runs-t-0", status={"phase": "Running"})
    for name in ("first", "second"):
        it.put_described_pod(name, "default", cpu=2)
        it.run(it.pass_time(2))
    it.run(it.run_until_quiet())
    try:
        yield it
        assert it.violations == []
        assert not it.objects(PODGROUPS)
    finally:
        it.close()


def why(world: SchedulerHistory, name: str) -> Any:
    """The explanation of a pod."""
    return json.loads(world.pods[f"{name}-t-0"]["metadata"]["annotations"][WHY])


def message(world: SchedulerHistory, name: str) -> str:
    """The message of its condition."""
    conditions = world.pods[f"{name}-t-0"]["status"]["conditions"]
    (found,) = [str(each["message"]) for each in conditions if each["type"] == "PodScheduled"]
    return found


def restart(world: SchedulerHistory) -> None:
    world.run(world.kill())
    world.writes.clear()
    world.run(world.run_until_quiet())


def test_waiting_pods_are_explained_with_their_position(world: SchedulerHistory) -> None:
    queues = {name: why(world, name)["queue"] for name in ("first", "second")}
    assert {name: queue["name"] for name, queue in queues.items()} == {
        "first": "default",
        "second": "default",
    }
    assert (queues["first"]["position"], queues["second"]["position"]) == (1, 2)
    assert queues["second"]["waiting"] == 2


def test_a_restart_writes_nothing_again(world: SchedulerHistory) -> None:
    before = {name: (why(world, name), message(world, name)) for name in ("first", "second")}
    restart(world)
    assert world.writes == []
    assert {name: (why(world, name), message(world, name)) for name in before} == before


def test_what_has_changed_meanwhile_is_explained(world: SchedulerHistory) -> None:
    world.run(world.kill())
    before = {name: message(world, name) for name in ("first", "second")}
    world.put_node("n1", cpu=1)
    restart(world)
    for name in ("first", "second"):
        assert message(world, name) != before[name]
        assert why(world, name)["message"].endswith(message(world, name))


def test_the_oldest_pod_gets_what_has_become_free_meanwhile(world: SchedulerHistory) -> None:
    world.run(world.kill())
    world.api.put(PODS, "runs-t-0", status={"phase": "Succeeded"})
    restart(world)
    assert world.pods["first-t-0"]["spec"]["nodeName"] == "n0"
    assert not world.pods["second-t-0"]["spec"].get("nodeName")
