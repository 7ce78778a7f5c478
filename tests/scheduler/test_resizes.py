"""Pods that are resized in place: what their node is charged, and that no pod is evicted."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.preemption import EvictingWorld
from support.scheduler import node, podgroup

from batholith.scheduler import conf
from batholith.scheduler.framework.overcommitted_nodes import KUBELET_DELAY
from batholith.scheduler.state.core_types import Pod


def resized(
    wanted: int | str,
    *,
    allocated: int | str | None = None,
    actual: int | str | None = None,
    pending: str = "",
    name: str = "r-t-0",
    foreign: bool = False,
    sidecar: bool = False,
    pod_level: bool = False,
) -> Pod:
    """A pod on node *a* with CPUs by its spec, as allocated by the kubelet, and in effect."""
    container = {"name": "c", "resources": {"requests": {"cpu": wanted}}}
    status: dict[str, Any] = {"name": "c"}
    if allocated is not None:
        status["allocatedResources"] = {"cpu": allocated}
    if actual is not None:
        status["resources"] = {"requests": {"cpu": actual}}
    kind, statuses = "containers", "containerStatuses"
    if sidecar:
        container["restartPolicy"] = "Always"
        kind, statuses = "initContainers", "initContainerStatuses"
    spec: dict[str, Any] = {kind: [container]}
    found: dict[str, Any] = {statuses: [status]}
    if pod_level:
        spec, found = {"resources": container["resources"]}, status
    condition = {"type": "PodResizePending", "status": "True", "reason": pending}
    return msgspec.convert(
        {
            "metadata": {
                "name": name,
                "namespace": "ns",
                "uid": f"uid-{name}",
                "annotations": {} if foreign else {"scheduling.k8s.io/group-name": "r"},
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {"schedulerName": "other" if foreign else "volcano", "nodeName": "a"} | spec,
            "status": {"phase": "Running", "conditions": [condition] if pending else []} | found,
        },
        Pod,
        strict=False,
    )


def idle(world: EvictingWorld) -> int:
    """The idle CPUs of node *a*."""
    return int(world.cluster.node_matrix.idle[0, 0]) // 1000


@pytest.mark.parametrize("foreign", [False, True])
@pytest.mark.parametrize("kind", ["container", "sidecar", "pod_level"])
@pytest.mark.parametrize(
    ("fields", "charged"),
    [
        ({"wanted": 2, "allocated": 2, "actual": 2}, 2),
        ({"wanted": 2, "allocated": "2000m", "actual": 2}, 2),
        ({"wanted": 2, "allocated": 6, "actual": 6}, 6),
        ({"wanted": 2, "allocated": 2, "actual": 6}, 6),
        ({"wanted": 6, "allocated": 2, "actual": 2}, 6),
        ({"wanted": 6, "allocated": 2, "actual": 2, "pending": "Deferred"}, 6),
        ({"wanted": 6, "allocated": 2, "actual": 2, "pending": "Infeasible"}, 2),
        ({"wanted": 6, "allocated": 2, "actual": 3, "pending": "Infeasible"}, 3),
        ({"wanted": 6, "pending": "Infeasible"}, 6),
    ],
)
def test_the_maximum_of_what_is_requested_allocated_and_actuated_is_charged(
    fields: dict[str, Any], charged: int, kind: str, foreign: bool
) -> None:
    world = EvictingWorld(conf.DEFAULT)
    options: dict[str, Any] = {} if kind == "container" else {kind: True}
    world.upsert(node("a", cpu=8), podgroup("r", 1, phase="Running"))
    world.upsert(resized(**fields, **options, foreign=foreign))
    assert idle(world) == 8 - charged
    world.validate()


def test_no_pod_gets_what_a_container_uses_until_a_resize_is_actuated() -> None:
    world = EvictingWorld(conf.DEFAULT)
    world.upsert(node("a", cpu=8), podgroup("r", 1, phase="Running"))
    world.upsert(resized(2, allocated=8, actual=8))
    world.gang("new", 1, cpu=6)
    assert world.run(time=1.0).placements == ()
    world.upsert(resized(2, allocated=2, actual=8))
    assert world.run(time=2.0).placements == ()
    world.upsert(resized(2, allocated=2, actual=2))
    assert [each.name for each in world.run(time=3.0).placements] == ["new-t-0"]


def test_an_infeasible_resize_takes_nothing_from_others() -> None:
    world = EvictingWorld(conf.DEFAULT)
    world.upsert(node("a", cpu=8), podgroup("r", 1, phase="Running"))
    world.upsert(resized(20, allocated=2, actual=2, pending="Infeasible"))
    world.gang("new", 1, cpu=6)
    assert [each.name for each in world.run(time=1.0).placements] == ["new-t-0"]


STEPS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(1, 9),
        st.integers(1, 9),
        st.integers(1, 9),
        st.sampled_from(["", "Deferred", "Infeasible"]),
    ),
    max_size=6,
)


@settings(max_examples=examples(60), deadline=None)
@given(STEPS, st.booleans())
def test_nothing_is_evicted_by_resizes(
    steps: list[tuple[int, int, int, int, str]], foreign: bool
) -> None:
    """Any pods are resized on a full node, in any order."""
    world = EvictingWorld(conf.DEFAULT)
    world.upsert(node("a", cpu=6), podgroup("r", 3, phase="Running"))
    for index in range(3):
        world.upsert(resized(2, allocated=2, actual=2, name=f"r-t-{index}", foreign=foreign))
    world.run(time=0.0)
    charges = [2, 2, 2]
    for second, (index, wanted, allocated, actual, pending) in enumerate(steps):
        name = f"r-t-{index}"
        world.upsert(
            resized(
                wanted,
                allocated=allocated,
                actual=actual,
                pending=pending,
                name=name,
                foreign=foreign,
            )
        )
        world.run(time=1.0 + second * (KUBELET_DELAY + 1))
        reported = max(allocated, actual)
        charges[index] = reported if pending == "Infeasible" else max(reported, wanted)
        assert idle(world) == 6 - sum(charges)
    world.run(time=1000.0)
    assert world.evicted == []
