"""The situations of Volcano's end-to-end tests of network topologies, by their numbers there.

Eight nodes of 8 CPUs: s0 to s3 have two each, s4 has s0 and s1, s5 has s2 and s3, s6 has all.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import pytest
from support.scheduler import SchedulerWorld, node, pod, podgroup
from support.topologies import ALLOCATE, hard, hypernode, soft

from batholith.model.job import NetworkTopology
from batholith.model.meta import LabelSelector
from batholith.model.podgroup import SubGroupPolicy
from batholith.scheduler.state.core_types import Pod

PARTITION = "volcano.sh/partition-id"
FULL = dict.fromkeys(range(8), 6)
TWO_ISLANDS = {0: 4, 4: 4, 2: 6, 3: 6, 6: 6, 7: 6}
PENDING: Mapping[str, int] = {}


@dataclass(frozen=True, kw_only=True)
class Situation:
    """A job, and where its pods are expected."""

    used: Mapping[int, int]
    """CPUs of other pods by node."""
    job: NetworkTopology | None
    cpu: int
    pods: int
    minimum: int = 0
    """0: all pods."""
    size: int = 0
    """Pods of a partition; 0: there are none."""
    min_partitions: int = 0
    partitions: NetworkTopology | None = None
    expected: Mapping[str, int]
    """Pods by the HyperNode that has them."""


S1 = {2: 1, 3: 1}
SITUATIONS = {
    "1.1": Situation(used={0: 1, 1: 1}, job=hard(1), cpu=2, pods=2, expected={"s0": 2}),
    "1.2": Situation(used={0: 5, 1: 1}, job=hard(1), cpu=3, pods=3, expected={"s0": 3}),
    "1.3": Situation(used=FULL, job=hard(1), cpu=4, pods=2, expected=PENDING),
    "2": Situation(used={0: 1}, job=hard(2), cpu=5, pods=4, expected={"s0": 2, "s1": 2}),
    "4": Situation(used={7: 1}, job=soft(), cpu=5, pods=4, expected={"s2": 2, "s3": 2}),
    "4.1": Situation(
        used=S1, job=hard(1), cpu=2, pods=4, size=2, partitions=hard(1), expected={"s1": 4}
    ),
    "4.2": Situation(
        used=FULL, job=hard(1), cpu=4, pods=2, size=1, partitions=hard(1), expected=PENDING
    ),
    "4.3": Situation(
        used={each: 2 if each % 2 else 6 for each in range(8)},
        job=hard(1), cpu=4, pods=2, size=1, partitions=hard(1), expected=PENDING,
    ),
    "5.1": Situation(
        used=S1, job=hard(2), cpu=2, pods=4, size=2, partitions=hard(1), expected={"s1": 4}
    ),
    "5.2": Situation(
        used={0: 3, 2: 3, 4: 6, 5: 6, 6: 6, 7: 6},
        job=hard(2), cpu=3, pods=4, size=2, partitions=hard(1), expected={"s0": 2, "s1": 2},
    ),
    "5.4": Situation(
        used={0: 6, 1: 6, **S1},
        job=hard(2), cpu=2, pods=4, size=2, partitions=hard(1), expected={"s1": 4},
    ),
    "5.5": Situation(
        used=FULL, job=hard(2), cpu=4, pods=2, size=1, partitions=hard(1), expected=PENDING
    ),
    "6.1": Situation(
        used=S1, job=hard(2), cpu=2, pods=4, size=2, partitions=soft(), expected={"s1": 4}
    ),
    "6.3": Situation(
        used={0: 6, 1: 2, 2: 2, 3: 2, 4: 6, 5: 2, 6: 2, 7: 2},
        job=hard(2), cpu=4, pods=4, size=2, partitions=soft(), expected=PENDING,
    ),
    "7.1": Situation(
        used=TWO_ISLANDS,
        job=soft(), cpu=3, pods=4, size=2, partitions=hard(1), expected={"s0": 2, "s2": 2},
    ),
    "8.1": Situation(
        used=TWO_ISLANDS,
        job=None, cpu=3, pods=4, size=2, partitions=hard(1), expected={"s0": 2, "s2": 2},
    ),
    "9.1, all fit": Situation(
        used=S1, job=hard(1), cpu=3, pods=4, size=2, min_partitions=2, partitions=hard(1),
        expected={"s1": 4},
    ),
    "9.1, the minimum fits": Situation(
        used=S1, job=hard(1), cpu=3, pods=8, minimum=4, size=2, min_partitions=2,
        partitions=hard(1), expected={"s1": 4},
    ),
    "9.2": Situation(
        used=S1, job=hard(2), cpu=3, pods=8, minimum=4, size=2, min_partitions=4,
        partitions=hard(1), expected={"s0": 4, "s1": 4},
    ),
    "9.3": Situation(
        used={}, job=hard(1), cpu=3, pods=12, minimum=6, size=2, min_partitions=2,
        partitions=hard(1), expected=PENDING,
    ),
    "9.4": Situation(
        used={}, job=hard(1), cpu=3, pods=12, minimum=4, size=2, min_partitions=4,
        partitions=hard(1), expected=PENDING,
    ),
}  # fmt: skip
"""Without 5.6 and 7.2, which decide nothing: they read pods before these are scheduled, and their
pods fit. Those with replacements follow below: 3, 5.3, 9.5 and 9.6."""

TASK = "volcano.sh/task-spec"


def world_of(given: Situation) -> SchedulerWorld:
    """The cluster, with the job of *given*."""
    world = SchedulerWorld(ALLOCATE)
    world.upsert(*(node(f"n{index}", cpu=8) for index in range(8)))
    world.upsert(*(hypernode(f"s{i}", [f"n{2 * i}", f"n{2 * i + 1}"]) for i in range(4)))
    world.upsert(hypernode("s4", of=["s0", "s1"], tier=2), hypernode("s5", of=["s2", "s3"], tier=2))
    world.upsert(hypernode("s6", of=["s4", "s5"], tier=3))
    for index, cpu in given.used.items():
        world.upsert(pod(f"other{index}", node_name=f"n{index}", scheduler="other", cpu=cpu))
    policy = SubGroupPolicy(
        name="x",
        sub_group_size=given.size,
        min_sub_groups=given.min_partitions,
        network_topology=given.partitions,
        label_selector=LabelSelector(match_labels={TASK: "x"}),
        match_label_keys=(PARTITION,),
    )
    sub_groups = (policy,) if given.size else ()
    minimum = given.minimum or given.pods
    world.upsert(podgroup("g", minimum, topology=given.job, sub_groups=sub_groups))
    world.upsert(*(member(given, index) for index in range(given.pods)))
    return world


def member(given: Situation, index: int, generation: int = 0) -> Pod:
    labels = {TASK: "x"}
    if given.size:
        labels[PARTITION] = str(index // given.size)
    return pod(f"g-x-{index}-{generation}", "g", role="x", labels=labels, cpu=given.cpu)


def by_hypernode(chosen: Mapping[str, str]) -> Counter[str]:
    return Counter(f"s{int(each[1:]) // 2}" for each in chosen.values())


@pytest.mark.parametrize("given", SITUATIONS.values(), ids=SITUATIONS)
def test_the_pods_of_a_job_are_where_volcanos_tests_expect_them(given: Situation) -> None:
    assert by_hypernode(world_of(given).schedule()) == given.expected


def test_a_partition_without_a_rack_uses_the_spine_that_fits_the_job() -> None:
    """6.2: three pods fit one spine, and six fit the other one."""
    used = {0: 3, 1: 3, 2: 3, 3: 5, 4: 2, 6: 2}
    given = Situation(
        used=used, job=hard(2), cpu=4, pods=4, size=2, partitions=soft(), expected=PENDING
    )
    found = by_hypernode(world_of(given).schedule())
    assert found.total() == 4
    assert found.keys() <= {"s2", "s3"}


@pytest.mark.parametrize(
    ("job", "size", "lost"),
    [(hard(2), 0, [0]), (hard(2), 2, [0]), (hard(1), 2, [0, 1])],
    ids=["3", "5.3 and 9.5", "9.6"],
)
def test_lost_pods_are_replaced_in_the_same_hypernode(
    job: NetworkTopology, size: int, lost: list[int]
) -> None:
    given = Situation(
        used={6: 1, 7: 1}, job=job, cpu=3, pods=4, size=size, min_partitions=2 if size else 0,
        partitions=hard(1) if size else None, expected={"s3": 4},
    )  # fmt: skip
    world = world_of(given)
    chosen = world.schedule()
    assert by_hypernode(chosen) == given.expected
    for name, where in chosen.items():
        known = world.pod_objects[f"uid-{name}"]
        spec = msgspec.structs.replace(known.spec, node_name=where)
        status = msgspec.structs.replace(known.status, phase="Running")
        world.upsert(msgspec.structs.replace(known, spec=spec, status=status))
    for index in lost:
        world.remove(world.pod_objects[f"uid-g-x-{index}-0"])
        world.upsert(member(given, index, generation=1))
    assert by_hypernode(world.schedule()) == {"s3": len(lost)}
