"""Fields of pods that plugins declare, and what filters, scores and orders see of them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.polling import wait_for
from support.scheduled_gangs import GangServer
from support.scheduler import SchedulerWorld, node, pod, podgroup

from batholith.model.names import GROUP_NAME, PODS
from batholith.scheduler import conf
from batholith.scheduler.conf import ConfError
from batholith.scheduler.plugins.registry import PLUGINS
from batholith.scheduler.state.core_types import Pod
from batholith.scheduler.state.gangs.gang import Task
from batholith.scheduler.state.nodes.node_matrix import NodeInfo
from batholith.scheduler.state.podinfo.declared_fields import PodFields, UndeclaredFieldError
from batholith.scheduler.state.podinfo.equivalence import EquivalenceClass

CONF = conf.DEFAULT.replace("  - name: nodeorder", "  - name: acme\n  - name: nodeorder")


def described(base: Pod, *, labels: Mapping[str, str] | None = None, **annotations: str) -> Pod:
    """*base* with labels and annotations."""
    meta = msgspec.structs.replace(
        base.metadata,
        labels={**base.metadata.labels, **(labels or {})},
        annotations={**base.metadata.annotations, **annotations},
    )
    return msgspec.structs.replace(base, metadata=meta)


class Teams:
    """Gives each team the nodes that are named after it."""

    pod_fields = PodFields(labels=("team",))

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Take no arguments."""

    def filter_node(self, eq_class: EquivalenceClass, node: NodeInfo) -> str | None:
        team = self.pod_fields.of(eq_class).label("team")
        return None if team in (None, node.name) else "node(s) were of another team"


class Undeclared(Teams):
    """Reads a field that it does not declare."""

    pod_fields = PodFields(annotations=("team",))


class Favourites:
    """Scores nodes, and orders tasks, by fields of their pods."""

    pod_fields = PodFields(annotations=("node",), priority=True)

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Take no arguments."""

    def static_score(self, eq_class: EquivalenceClass, nodes: Sequence[NodeInfo]) -> Any:
        favourite = self.pod_fields.of(eq_class).annotation("node")
        return np.array([1000.0 * (each.name == favourite) for each in nodes])

    def task_order(self, task: Task) -> float:
        return -self.pod_fields.of(task.eq_class).priority


Use = Callable[[type], SchedulerWorld]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    def start(plugin: type) -> SchedulerWorld:
        monkeypatch.setitem(PLUGINS, "acme", plugin)
        return SchedulerWorld(CONF)

    return start


def test_a_filter_sees_a_declared_label_and_that_a_pod_has_none(use: Use) -> None:
    world = use(Teams)
    world.upsert(node("red", cpu=1), node("blue", cpu=2), podgroup("g", 3))
    world.upsert(*(described(pod(f"g-{i}", "g"), labels={"team": "blue"}) for i in range(2)))
    world.upsert(pod("g-2", "g"))
    assert world.schedule() == {"g-0": "blue", "g-1": "blue", "g-2": "red"}


def test_scores_and_orders_see_declared_fields(use: Use) -> None:
    world = use(Favourites)
    world.upsert(node("a", cpu=4), node("b", cpu=4), node("c", cpu=4), podgroup("g", 1))
    world.upsert(*(described(pod(f"g-{i}", "g"), node="bca"[i]) for i in range(3)))
    assert world.schedule() == {"g-0": "b", "g-1": "c", "g-2": "a"}
    world.upsert(node("d", cpu=1, labels={"for": "h"}), podgroup("h", 1))
    selector = {"for": "h"}
    world.upsert(*(pod(f"h-{i}", "h", priority=i, selector=selector) for i in range(3)))
    assert world.schedule() == {"h-2": "d"}


def test_a_field_that_is_not_declared_is_an_error_that_names_it(use: Use) -> None:
    """The union of all declarations has it not; nor has the plugin's own, where another does."""
    world = use(Undeclared)
    world.upsert(node("red"), podgroup("g", 1), described(pod("g-0", "g"), labels={"team": "red"}))
    assert world.schedule() == {}
    problem = "label 'team' of the pod is read and not declared in pod_fields"
    assert f'plugin "acme" failed in filter_node: UndeclaredFieldError: {problem}' in (
        world.fit_message("g")
    )


def test_a_plugin_reads_only_what_it_declares_itself() -> None:
    both = PodFields(labels=("mine", "other"), name=True, priority=True)
    world = SchedulerWorld()
    world.declare(both)
    world.upsert(podgroup("g", 1))
    world.upsert(described(pod("p", "g", priority=7), labels={"mine": "1", "other": "2"}))
    (task,) = _tasks(world, "g")
    eq_class = task.eq_class
    own = PodFields(labels=("mine",)).of(eq_class)
    assert own.label("mine") == "1"
    reads: tuple[Callable[[], object], ...] = (
        lambda: own.label("other"),
        lambda: own.annotation("mine"),
        lambda: own.name,
        lambda: own.namespace,
        lambda: own.priority,
    )
    for read in reads:
        with pytest.raises(UndeclaredFieldError):
            read()
    every = both.of(eq_class)
    assert (every.namespace, every.name, every.priority) == ("ns", "p", 7)


@pytest.mark.parametrize("value", ["team", ["team"], (1,)])
def test_a_declaration_of_the_wrong_type_is_rejected(value: Any) -> None:
    with pytest.raises(TypeError, match="labels of PodFields must be a tuple of keys"):
        PodFields(labels=value)


def test_a_plugin_whose_declaration_is_no_declaration_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(PLUGINS, "acme", type("Acme", (Teams,), {"pod_fields": ("team",)}))
    with pytest.raises(
        ConfError, match=r"tiers\[1\].plugins\[4\]: pod_fields must be of PodFields"
    ):
        conf.load(CONF)


def test_without_declarations_labels_do_not_split_classes(use: Use) -> None:
    world = use(type("Silent", (), {"__init__": lambda self, arguments: None}))
    world.upsert(podgroup("g", 2))
    for i in range(2):
        world.upsert(described(pod(f"g-{i}", "g", priority=i), labels={"team": str(i)}))
    first, second = world.cluster.gangs["ns/g"].tasks.values()
    assert first.eq_class is second.eq_class


def test_a_changed_label_wakes_the_gang(use: Use) -> None:
    world = use(Teams)
    world.upsert(node("red"), podgroup("g", 1))
    waiting = described(pod("g-0", "g"), labels={"team": "blue"})
    world.upsert(waiting)
    assert world.schedule() == {}
    world.upsert(described(waiting, labels={"team": "red"}))
    assert world.schedule() == {"g-0": "red"}


# -- reload ----------------------------------------------------------------------------------------


def test_a_reload_classifies_pods_by_the_new_declarations(use: Use) -> None:
    world = use(Teams)
    world.reload(conf.DEFAULT)
    world.upsert(node("red", cpu=2), node("blue"), podgroup("g", 2), podgroup("run", 1))
    for i, team in enumerate(("red", "blue")):
        world.upsert(described(pod(f"g-{i}", "g"), labels={"team": team}))
    world.upsert(described(pod("run-0", "run", node_name="red"), labels={"team": "red"}))
    tasks = {each.name: each for key in ("g", "run") for each in _tasks(world, key)}
    assert len({each.eq_class for each in tasks.values()}) == 1
    world.reload(CONF)
    world.validate()
    teams = {name: Teams.pod_fields.of(each.eq_class).label("team") for name, each in tasks.items()}
    assert teams == {"g-0": "red", "g-1": "blue", "run-0": "red"}
    assert world.schedule() == {"g-0": "red", "g-1": "blue"}
    world.reload(conf.DEFAULT)
    world.validate()
    assert len({each.eq_class for each in tasks.values()}) == 1


def _tasks(world: SchedulerWorld, group: str) -> list[Task]:
    return list(world.cluster.gangs[f"ns/{group}"].tasks.values())


async def test_a_running_scheduler_uses_new_declarations_for_pods_that_it_knows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(PLUGINS, "acme", Teams)
    file = tmp_path / "conf"
    file.write_text(conf.DEFAULT)
    async with GangServer() as server:
        server.prepare()
        async with server.scheduler(conf_file=file) as run:
            server.gang("g", 1)
            meta = {"labels": {"team": "blue"}, "annotations": {GROUP_NAME: "g"}}
            server.put(PODS, "g-0", metadata=meta)
            await wait_for(lambda: run.events("Unschedulable"))
            file.write_text(CONF)
            reloads = "batholith_scheduler_config_reloads_total"
            await wait_for(lambda: run.metric(reloads, result="success"))
            server.node("red")
            server.node("blue")
            assert await server.wait_bound("g", 1) == ["blue"]
            failures = "batholith_scheduler_plugin_errors_total"
            assert not run.metric(failures, plugin="acme", extension_point="filter_node")


# -- properties ------------------------------------------------------------------------------------

_KEYS = ("a", "b")
_texts = st.sampled_from(("", "1", "2"))
_fields = st.builds(
    PodFields,
    labels=st.lists(st.sampled_from(_KEYS), unique=True).map(tuple),
    annotations=st.lists(st.sampled_from(_KEYS), unique=True).map(tuple),
    name=st.booleans(),
    priority=st.booleans(),
)
_pods = st.builds(
    lambda number, labels, annotations, priority, cpu: described(
        pod(f"g-{number}", "g", priority=priority, cpu=cpu), labels=labels, **annotations
    ),
    number=st.integers(0, 5),
    labels=st.dictionaries(st.sampled_from(_KEYS), _texts),
    annotations=st.dictionaries(st.sampled_from(_KEYS), _texts),
    priority=st.sampled_from((None, 0, 1)),
    cpu=st.sampled_from((1, 2)),
)


def _declared(fields: PodFields, each: Pod) -> tuple[object, ...]:
    """The declared fields of a pod, read without the code under test."""
    meta = each.metadata
    return (
        tuple(meta.labels.get(key) for key in fields.labels),
        tuple(meta.annotations.get(key) for key in fields.annotations),
        meta.name if fields.name else "",
        (each.spec.priority or 0) if fields.priority else 0,
    )


@given(st.lists(st.one_of(_pods, _fields), max_size=12), st.data())
def test_pods_share_a_class_exactly_if_specs_and_declared_fields_are_equal(
    steps: list[Pod | PodFields], data: st.DataObject
) -> None:
    """Over pods that arrive, are updated and get a node, and other declarations."""
    world = SchedulerWorld()
    world.upsert(node("n"), podgroup("g", 1))
    fields = PodFields()
    for step in steps:
        if isinstance(step, PodFields):
            fields = step
            world.declare(fields)
        else:
            spec = msgspec.structs.replace(
                step.spec, node_name=data.draw(st.sampled_from(("", "n")))
            )
            world.upsert(msgspec.structs.replace(step, spec=spec))
        world.validate()
        tasks = {each.uid: each for each in _tasks(world, "g")}
        assert tasks.keys() == world.pod_objects.keys()
        for first, one in world.pod_objects.items():
            for second, other in world.pod_objects.items():
                is_equal = one.spec.containers == other.spec.containers and _declared(
                    fields, one
                ) == _declared(fields, other)
                assert (tasks[first].eq_class is tasks[second].eq_class) == is_equal
