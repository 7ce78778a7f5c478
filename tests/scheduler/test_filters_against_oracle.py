"""Feasible nodes and scores equal those of plain Python, in random histories of a cluster."""

import random

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.random_pods import NAMESPACES, random_node, random_pod
from support.scheduler import SchedulerWorld
from support.scheduler_filters import Cluster, affinity_scores, feasible, spread_scores

from batholith.scheduler.plugins.nodeorder import NodeOrderPlugin
from batholith.scheduler.state.cache.events import NamespaceEvent
from batholith.scheduler.state.core_types import Namespace, Node, Pod


class Comparison:
    """A scheduler and an oracle that see the same cluster."""

    def __init__(self, rng: random.Random, node_count: int) -> None:
        self.rng = rng
        self.world = SchedulerWorld()
        self.oracle = Cluster([], namespaces=dict(NAMESPACES))
        for name, labels in NAMESPACES.items():
            body = {"metadata": {"name": name, "labels": labels}}
            self.world.cluster.apply(NamespaceEvent(None, msgspec.convert(body, Namespace)))
        for index in range(node_count):
            self.put_node(f"n{index}")

    def put_node(self, name: str) -> None:
        """Add or replace a node."""
        node = msgspec.convert(random_node(self.rng, name), Node)
        self.oracle.nodes = [each for each in self.oracle.nodes if each.metadata.name != name]
        self.oracle.nodes.append(node)
        self.world.upsert(node)

    def remove_pod(self) -> None:
        """Delete a pod."""
        if self.oracle.pods:
            deleted = self.oracle.pods.pop(self.rng.randrange(len(self.oracle.pods)))
            self.world.remove(deleted)

    def change_pod(self) -> None:
        """Change the labels of a pod, or let it terminate."""
        if not self.oracle.pods:
            return
        pod = self.oracle.pods.pop(self.rng.randrange(len(self.oracle.pods)))
        body = msgspec.to_builtins(pod)
        if self.rng.random() < 0.5:
            body["metadata"]["labels"] = {"app": self.rng.choice("abcde")}
        else:
            body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        changed = msgspec.convert(body, Pod)
        self.oracle.pods.append(changed)
        self.world.upsert(changed)

    def schedule(self, pod: Pod) -> None:
        """Compare the decision on *pod*, which then stays on its node."""
        expected = feasible(pod, self.oracle)
        self.world.upsert(pod)
        if expected:
            self._compare_scores(pod, sorted(expected))
        chosen = self.world.schedule().get(pod.metadata.name)
        assert (chosen in expected) if expected else chosen is None
        if chosen is None:
            self.world.remove(pod)
        else:
            spec = msgspec.structs.replace(pod.spec, node_name=chosen)
            bound = msgspec.structs.replace(pod, spec=spec)
            self.oracle.pods.append(bound)
            self.world.upsert(bound)

    def _compare_scores(self, pod: Pod, names: list[str]) -> None:
        cluster = self.world.cluster
        matrix, eq_class = cluster.node_matrix, cluster.pod_classes.eq_classes.get(pod)
        columns = np.array([matrix.index_of(name) for name in names])
        for only, score, applies in (
            ("podaffinity", affinity_scores, True),
            ("podtopologyspread", spread_scores, bool(eq_class.terms.soft_spread)),
        ):
            off = {f"{each}.weight": 0 for each in ("podaffinity", "podtopologyspread")}
            plugin = NodeOrderPlugin(off | {f"{only}.weight": 1})
            found = plugin.pod_scores(eq_class, matrix, columns)
            values = [0] * len(names) if found is None else found.tolist()
            expected = score(pod, self.oracle, names) if applies else dict.fromkeys(names, 0)
            assert dict(zip(names, values, strict=True)) == expected


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 2**32), nodes=st.integers(1, 8), pods=st.integers(1, 25))
def test_decisions_are_those_of_plain_python(seed: int, nodes: int, pods: int) -> None:
    rng = random.Random(seed)
    comparison = Comparison(rng, nodes)
    for index in range(pods):
        body = random_pod(rng, f"p{index}", constraints=1.5)
        body["metadata"]["uid"] = f"uid-p{index}"
        body["spec"]["schedulerName"] = "default-scheduler"
        comparison.schedule(msgspec.convert(body, Pod))
        action = rng.random()
        if action < 0.1:
            comparison.put_node(f"n{rng.randrange(nodes)}")
        elif action < 0.2:
            comparison.remove_pod()
        elif action < 0.35:
            comparison.change_pod()
