"""Regressions found by the stateful test, step by step."""

from collections.abc import Iterator

import pytest
from support.podgroup_stateful import PodGroupWorld

from batholith.model.names import GROUP_NAME, PODGROUPS, PODS


@pytest.fixture
def world() -> Iterator[PodGroupWorld]:
    """An empty server without a controller."""
    world = PodGroupWorld()
    try:
        yield world
        assert world.violations == []
    finally:
        world.close()


def test_podgroup_annotation_written_concurrently_is_kept(
    world: PodGroupWorld,
) -> None:
    world.run(world.run_until_quiet())
    world.api.hold_watches(PODS)
    world.pod("d/p", None)
    world.run(world.run_until_idle())
    world.api.release_watches()
    while not world.api.count("POST"):
        world.run(world.run_iterations(1))
    world.put(PODS, "d/p", metadata={"annotations": {GROUP_NAME: "theirs"}})
    world.run(world.run_until_quiet())
    assert world.objects_by_key(PODS)["d/p"]["metadata"]["annotations"] == {GROUP_NAME: "theirs"}


@pytest.mark.parametrize("method", ["POST", "PATCH"])
@pytest.mark.parametrize("how", ["hang", "done, hang"])
def test_write_without_response_times_out_and_is_retried(
    world: PodGroupWorld, method: str, how: str
) -> None:
    world.run(world.run_until_quiet())
    world.api.inject_fault(how, method=method)
    world.pod("d/p", None)
    world.run(world.pass_time(70))
    (group,) = world.objects_by_key(PODGROUPS)
    meta = world.objects_by_key(PODS)["d/p"]["metadata"]
    assert meta["annotations"] == {GROUP_NAME: group.partition("/")[2]}


@pytest.mark.parametrize("name", ["", "a/b", "..", "x%2f"])
def test_owner_with_invalid_name_is_treated_as_not_found(
    world: PodGroupWorld, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Servers do not validate names in owner references."""
    world.run(world.run_until_quiet())
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name, "uid": "u"}
    world.put(
        PODS,
        "d/p",
        metadata={"ownerReferences": [{**owner, "controller": True}]},
        spec={"schedulerName": "volcano", "containers": [{"name": "main"}]},
        status={"phase": "Pending"},
    )
    world.run(world.run_until_quiet())
    assert world.objects_by_key(PODGROUPS).keys() == {"d/podgroup-u"}
    world.api.force_delete(PODS, "d/p")
    world.run(world.run_until_quiet())
    assert "reconcile failed, requeuing" not in caplog.messages
