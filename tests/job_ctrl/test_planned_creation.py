"""By which plans pods are created, and when no more."""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
import pytest

from batholith.job_ctrl.creation.placement import Unplaced
from batholith.job_ctrl.creation.planned_creation import PlannedCreation, PlanUse
from batholith.job_ctrl.plugins.registry import Registry
from batholith.job_ctrl.pods import build
from batholith.job_ctrl.tracker.core_types import PriorityClass
from batholith.kube.errors import NotSentError, was_rejected
from batholith.machinery.testing import FakeClock
from batholith.model.job import Job
from batholith.model.job_defaults import DefaultedJob
from batholith.model.meta import ObjectMeta
from batholith.model.names import MEMBERS, PLAN
from batholith.model.placement import Plan
from batholith.model.podgroup import PodGroup, PodGroupStatus

REGISTRY = Registry.load()


def job(*, cpu: int = 1, replicas: int = 3, version: int = 0, plugin: str = "") -> Job:
    container = {"name": "m", "image": "i", "resources": {"requests": {"cpu": cpu}}}
    task = {"name": "t", "replicas": replicas, "template": {"spec": {"containers": [container]}}}
    body = {
        "metadata": {"name": "j", "namespace": "d", "uid": "u"},
        "spec": {"tasks": [task], "plugins": {plugin: []} if plugin else {}},
        "status": {"version": version},
    }
    return msgspec.json.decode(msgspec.json.encode(body), type=DefaultedJob)


class Harness:
    """One job, its PodGroup, and what is created."""

    def __init__(self, *, enabled: bool = True, plugin: str = "") -> None:
        self.clock = FakeClock()
        self.excluded: Unplaced | None = None
        self.asked: tuple[str, list[dict[str, str]]] | None = None
        self.counts: Counter[Unplaced] = Counter()
        self.priority_classes: list[PriorityClass] = []
        self.planned = PlannedCreation(
            enabled=enabled,
            clock=self.clock,
            priority_classes=self.priority_classes,
            exclude=self._exclude,
            count=self._count,
        )
        self.use = PlanUse()
        self.job = job(plugin=plugin)
        self.plugins = REGISTRY.for_job(self.job)
        self.text = self.planned.description_of(self.job, self.plugins, self.use)
        self.plan: Plan | None = None
        self.annotation = ""

    def _exclude(self, namespace: str, pods: Collection[Mapping[str, str]]) -> Unplaced | None:
        self.asked = namespace, [dict(labels) for labels in pods]
        return self.excluded

    def _count(self, reason: Unplaced) -> None:
        self.counts[reason] += 1

    def make_plan(self, **changes: Any) -> None:
        """Let the scheduler write a plan."""
        assert self.use.description is not None
        fields: dict[str, Any] = {
            "id": "p",
            "members": self.use.description.hash,
            "version": 0,
            "until": int(self.clock.now().timestamp()) + 30,
            "nodes": {("t", index): f"n{index}" for index in range(3)},
        }
        self.annotation = Plan(**{**fields, **changes}).encode()

    def node(self, index: int = 0, *, uid: str = "g") -> str:
        """The node with which a pod is created now."""
        annotations = {MEMBERS: self.text} | ({PLAN: self.annotation} if self.annotation else {})
        group = PodGroup(
            metadata=ObjectMeta(name="g", uid=uid, annotations=annotations),
            status=PodGroupStatus(phase="Inqueue"),
        )
        self.plan = self.planned.plan_for(self.job, group, self.plugins, self.use)
        body = build(self.job, self.job.spec.tasks[0], index)
        self.plugins.mutate_pod(body, self.job)
        return self.planned.node_for(self.use, self.plan, "t", index, body=body)


@pytest.fixture
def harness() -> Harness:
    return Harness()


def test_pods_get_the_nodes_of_the_plan(harness: Harness) -> None:
    assert harness.node() == ""
    assert harness.counts == {Unplaced.NO_PLAN: 1}
    harness.make_plan()
    assert [harness.node(index) for index in range(3)] == ["n0", "n1", "n2"]
    assert harness.counts == {Unplaced.NO_PLAN: 1}


def test_each_index_is_created_by_the_plan_once(harness: Harness) -> None:
    harness.make_plan()
    assert harness.node(1) == "n1"
    harness.use.observe_created("t", 1)
    assert harness.node(1) == ""
    harness.make_plan(id="q", nodes={("t", 1): "n9"})
    assert harness.node(1) == ""
    assert harness.node(1, uid="next") == "n9"


@pytest.mark.parametrize(
    "changes", [{"members": "other"}, {"version": 1}, {"nodes": {("u", 0): "n"}}]
)
def test_a_plan_for_something_else_is_not_used(harness: Harness, changes: dict[str, Any]) -> None:
    harness.make_plan(**changes)
    assert harness.node() == ""


@pytest.mark.parametrize("text", ["", "x", "{}", "[1]", '{"id":"p"}'])
def test_a_malformed_plan_is_none(harness: Harness, text: str) -> None:
    harness.annotation = text
    assert harness.node() == ""


@pytest.mark.parametrize("change", [{"cpu": 2}, {"replicas": 4}, {"version": 1}])
def test_a_plan_ends_when_the_job_changes(harness: Harness, change: dict[str, Any]) -> None:
    harness.make_plan()
    assert harness.node() == "n0"
    harness.job = job(**change)
    assert harness.node() == ""
    assert harness.counts[Unplaced.CHANGED] == 1


def test_a_plan_ends_when_another_priority_is_given(harness: Harness) -> None:
    harness.make_plan()
    assert harness.node() == "n0"
    harness.use.checked = None
    harness.priority_classes.append(
        PriorityClass(metadata=ObjectMeta(name="d"), value=5, global_default=True)
    )
    assert harness.node() == ""


def test_a_pod_that_a_plugin_makes_different_from_its_description_is_unplaced() -> None:
    harness = Harness(plugin="env")
    harness.make_plan()
    assert harness.node() == "n0"
    body = build(harness.job, harness.job.spec.tasks[0], 1)
    body["spec"]["nodeSelector"] = {"a": "b"}
    assert harness.planned.node_for(harness.use, harness.plan, "t", 1, body=body) == ""
    assert harness.counts[Unplaced.CHANGED] == 1


def test_a_rejected_pod_ends_the_plan_for_all(harness: Harness) -> None:
    harness.make_plan()
    assert harness.node() == "n0"
    assert harness.plan is not None
    harness.planned.end(harness.use, harness.plan, Unplaced.REJECTED)
    assert harness.node(1) == ""
    harness.make_plan(id="q")
    assert harness.node(1) == "n1"


def test_nothing_is_created_by_a_plan_that_has_ended(harness: Harness) -> None:
    harness.make_plan()
    assert harness.node() == "n0"
    plan = harness.plan
    assert plan is not None
    harness.planned.require_valid(plan)
    harness.clock.tick(30)
    assert harness.node(1) == ""
    with pytest.raises(NotSentError) as refused:
        harness.planned.require_valid(plan)
    assert was_rejected(refused.value)


def test_rules_of_the_cluster_end_the_plan(harness: Harness) -> None:
    harness.make_plan()
    assert harness.node() == "n0"
    harness.excluded = Unplaced.MUTATION
    assert harness.node(1) == ""
    assert harness.counts[Unplaced.MUTATION] == 1
    assert harness.planned.description_of(harness.job, harness.plugins, harness.use) == ""


def test_rules_of_the_cluster_are_asked_for_the_labels_of_the_pods(harness: Harness) -> None:
    harness.asked = None
    harness.make_plan()
    harness.node()
    assert harness.asked is not None
    namespace, (labels,) = harness.asked
    body = build(harness.job, harness.job.spec.tasks[0], 0)
    harness.plugins.mutate_pod(body, harness.job)
    assert namespace == "d"
    assert labels == body["metadata"]["labels"]
    assert labels["volcano.sh/job-name"] == "j"


def test_nothing_is_described_or_planned_unless_enabled() -> None:
    harness = Harness(enabled=False)
    assert harness.text == ""
    assert harness.node() == ""
    assert not harness.counts
