"""Small histories that a random machine found, told again step by step."""

from collections.abc import Iterator

import pytest
from support.podgroup_stateful import PodGroups

from batholith.model.names import GROUP_NAME, PODGROUPS, PODS


@pytest.fixture
def world() -> Iterator[PodGroups]:
    """Nothing is in it but the server."""
    made = PodGroups()
    try:
        yield made
        assert made.broken == []
    finally:
        made.close()


def test_a_pod_that_somebody_else_binds_in_that_moment_stays_bound_to_theirs(
    world: PodGroups,
) -> None:
    world.do(world.rest())
    world.api.hold(PODS)
    world.pod("d/p", None)
    world.do(world.idle())
    world.api.release()
    while not world.api.count("POST"):
        world.do(world.rounds(1))
    world.put(PODS, "d/p", metadata={"annotations": {GROUP_NAME: "theirs"}})
    world.do(world.rest())
    assert world.every(PODS)["d/p"]["metadata"]["annotations"] == {GROUP_NAME: "theirs"}


@pytest.mark.parametrize("method", ["POST", "PATCH"])
@pytest.mark.parametrize("how", ["hang", "done, hang"])
def test_a_write_that_is_never_answered_is_cut_off_and_tried_again(
    world: PodGroups, method: str, how: str
) -> None:
    world.do(world.rest())
    world.api.fail(how, method=method)
    world.pod("d/p", None)
    world.do(world.pass_time(70))
    (group,) = world.every(PODGROUPS)
    meta = world.every(PODS)["d/p"]["metadata"]
    assert meta["annotations"] == {GROUP_NAME: group.partition("/")[2]}


@pytest.mark.parametrize("name", ["", "a/b", "..", "x%2f"])
def test_an_owner_whose_name_cannot_be_is_taken_for_gone(
    world: PodGroups, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Servers check no name in a reference."""
    world.do(world.rest())
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name, "uid": "u"}
    world.put(
        PODS,
        "d/p",
        metadata={"ownerReferences": [{**owner, "controller": True}]},
        spec={"schedulerName": "volcano", "containers": [{"name": "main"}]},
        status={"phase": "Pending"},
    )
    world.do(world.rest())
    assert world.every(PODGROUPS).keys() == {"d/podgroup-u"}
    world.api.take_away(PODS, "d/p")
    world.do(world.rest())
    assert "will retry" not in caplog.messages
