"""Preferences are normalized over the nodes that fit the next pod, and scores may be negative."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from support.scheduler import SchedulerWorld, node, pod, podgroup
from support.scheduler_terms import labelled

from batholith.model.node_selectors import NodeSelectorRequirement, NodeSelectorTerm
from batholith.scheduler.framework.feasibility import FeasibilityCache
from batholith.scheduler.framework.placer import Placer
from batholith.scheduler.plugins.extension_points import Scores
from batholith.scheduler.plugins.nodeorder import image_scores
from batholith.scheduler.state.core_types import (
    Affinity,
    Node,
    NodeAffinity,
    PreferredSchedulingTerm,
    Taint,
)
from batholith.scheduler.state.nodes.node_matrix import NodeInfo
from batholith.scheduler.state.podinfo.equivalence import EquivalenceClass


def preferring(*weights: int) -> Affinity:
    """A preference for nodes with the label ``w0``, ``w1`` and so on, by weight."""
    return Affinity(
        node_affinity=NodeAffinity(
            preferred_during_scheduling_ignored_during_execution=tuple(
                PreferredSchedulingTerm(
                    weight=weight,
                    preference=NodeSelectorTerm(
                        match_expressions=(
                            NodeSelectorRequirement(key=f"w{index}", operator="Exists"),
                        )
                    ),
                )
                for index, weight in enumerate(weights)
            )
        )
    )


def nodes() -> tuple[Node, ...]:
    """The best liked node fits one pod; of the others the one liked a bit is smaller."""
    return (
        node("a", labels={"w0": ""}, cpu=1),
        node("b", labels={"w1": ""}, cpu=3),
        node("c", cpu=64),
    )


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("sees_pods", [False, True])
def test_affinity_is_normalized_again_when_a_node_is_full(count: int, sees_pods: bool) -> None:
    world = SchedulerWorld()
    world.upsert(*nodes(), podgroup("g", count))
    term = {"topologyKey": "x", "labelSelector": {"matchLabels": {"app": "g"}}}
    soft = {"weight": 1, "podAffinityTerm": term}
    pods = [pod(f"g-{i}", "g", affinity=preferring(100, 1)) for i in range(count)]
    for each in pods:
        if sees_pods:
            preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [soft]}
            spec = {"affinity": {**_builtins(preferring(100, 1)), "podAffinity": preferred}}
            world.upsert(labelled(each, spec=spec, app="g"))
        else:
            world.upsert(each)
    chosen = world.schedule()
    assert sorted(chosen.values()) == ["a", "b", "b", "b"][:count]


def _builtins(affinity: Affinity) -> dict[str, object]:
    found: dict[str, object] = msgspec.to_builtins(affinity)
    return found


def test_a_node_that_is_excluded_does_not_matter() -> None:
    world = SchedulerWorld()
    world.upsert(*nodes(), node("d", labels={"w0": ""}, cordoned=True))
    world.remove(nodes()[0])
    world.upsert(pod("p", scheduler="default-scheduler", affinity=preferring(100, 1)))
    assert world.schedule() == {"p": "b"}


def test_preferred_taints_are_normalized_over_candidates() -> None:
    soft = [Taint(key=f"k{i}", effect="PreferNoSchedule") for i in range(50)]
    world = SchedulerWorld()
    world.upsert(node("a", cpu=64, taints=(soft[0],)), node("b", cpu=2), podgroup("g", 2))
    world.upsert(node("many", taints=tuple(soft), cordoned=True))
    world.upsert(pod("g-0", "g"), pod("g-1", "g"))
    assert set(world.schedule().values()) == {"b"}


class Fixed:
    """Scores nodes by name."""

    def __init__(self, **scores: float) -> None:
        self.scores = scores

    def static_score(self, eq_class: EquivalenceClass, nodes: Sequence[NodeInfo]) -> Scores:
        return np.array([self.scores[each.name] for each in nodes])


def test_negative_scores_keep_their_order() -> None:
    world = SchedulerWorld()
    world.upsert(node("a", pods=1), node("b", pods=1), node("c", pods=1))
    matrix = world.cluster.node_matrix
    eq_class = world.cluster.pod_classes.eq_classes.get(pod("p", cpu=0))
    mask = FeasibilityCache(matrix, ()).get(eq_class)
    scorer: Any = Fixed(a=-5, b=-0.5, c=-3)
    placer = Placer(matrix, eq_class, mask, static_scorers=(scorer,))
    assert [matrix.names[each] for each in placer.allocate(3)] == ["b", "c", "a"]


def test_node_with_the_images_of_a_pod_is_preferred() -> None:
    world = SchedulerWorld()
    big = {"names": ["repo/big:latest", "repo/big@sha256:1"], "sizeBytes": 900 * 2**20}
    body = msgspec.to_builtins(node("c", cpu=7))
    body["status"]["images"] = [big]
    with_image = msgspec.convert(body, Node)
    world.upsert(node("a"), node("b"), with_image)
    image = {"containers": [{"name": "c", "image": "repo/big"}]}
    p = labelled(pod("p", scheduler="default-scheduler"), spec=image)
    matrix, eq_class = world.cluster.node_matrix, world.cluster.pod_classes.eq_classes.get(p)
    scores = image_scores(eq_class, matrix)
    assert scores is not None
    assert dict(zip("abc", scores.tolist(), strict=False)) == {"a": 0, "b": 0, "c": 28}
    world.upsert(p)
    assert world.schedule() == {"p": "c"}
    other = labelled(pod("q"), spec={"containers": [{"name": "c", "image": "repo/big:1"}]})
    assert image_scores(world.cluster.pod_classes.eq_classes.get(other), matrix) is None
    world.upsert(node("c", cpu=7))
    assert image_scores(eq_class, matrix) is None
