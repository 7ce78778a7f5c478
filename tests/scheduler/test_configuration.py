"""The scheduler configuration: what is read, and that nothing is ignored silently."""

import logging
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.packages import install
from support.scheduler import SchedulerWorld, node, pod, podgroup

from batholith.scheduler import conf
from batholith.scheduler.framework import framework
from batholith.scheduler.framework.framework import Framework
from batholith.scheduler.plugins.entry_points import ACTIONS_GROUP, PLUGINS_GROUP
from batholith.scheduler.plugins.extension_points import TOGETHER, FilterPlugin, ScorePlugin
from batholith.scheduler.plugins.registry import PLUGINS, PluginOption
from batholith.scheduler.state.podinfo.declared_fields import PodFields

HELM = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: false
  - name: conformance
- plugins:
  - name: overcommit
  - name: drf
    enablePreemptable: false
  - name: predicates
  - name: proportion
  - name: nodeorder
  - name: binpack
"""
"""The configuration that Volcano's Helm chart installs."""


def plugin(entry: str) -> str:
    """A configuration with one plugin."""
    return f'actions: "allocate"\ntiers:\n- plugins: [{{{entry}}}]'


def test_the_configuration_of_volcanos_chart_is_read() -> None:
    loaded = conf.load(HELM)
    assert [name for name, _ in loaded.actions] == ["enqueue", "allocate", "backfill"]
    assert [[option.name for option in tier] for tier in loaded.tiers] == [
        ["priority", "gang", "conformance"],
        ["overcommit", "drf", "predicates", "proportion", "nodeorder", "binpack"],
    ]
    assert loaded.tiers[0][1].disabled == {"enablePreemptable"}


INVALID = {
    'actions: "enqueue, dance"': "actions: unknown action 'dance'; known: enqueue, allocate",
    'actions: "enqueue,"': "actions: unknown action ''",
    "tiers: []": "actions: must be text",
    "actions: [": "no YAML",
    'actions: "allocate"\nactions: "enqueue"': "duplicate key 'actions'",
    'actions: "allocate"\ntiers: {}': "tiers: must be a list",
    'actions: "allocate"\ntier: []': "tier: unknown key; did you mean 'tiers'?",
    'actions: "allocate"\ntiers: [{plugin: []}]': (
        r"tiers\[0\].plugin: unknown key; did you mean 'plugins'?"
    ),
    plugin("name: voodoo"): r"tiers\[0\].plugins\[0\].name: unknown plugin 'voodoo'; known:",
    plugin(
        "name: deviceshare"
    ): r"tiers\[0\].plugins\[0\].name: unimplemented plugin 'deviceshare'",
    plugin("name: gang}, {name: gang"): r"plugins\[1\]: plugin 'gang' is already at tiers\[0\]",
    plugin("name: gang, enableOverused: false"): (
        r"tiers\[0\].plugins\[0\].enableOverused: unknown key; did you mean 'enabledOverused'?"
    ),
    plugin("name: gang, enablePreemptable: 'false'"): (
        "enablePreemptable: must be true or false, not 'false'"
    ),
    plugin("name: gang, enableHierarchy: true"): "enableHierarchy: plugin 'gang' has no hierarchy",
    plugin("name: gang, arguments: {a: 1}"): r"arguments.a: unknown argument; known: none",
    plugin("name: gang, arguments: [a]"): r"plugins\[0\].arguments: must be a mapping",
    plugin("name: overcommit, arguments: {overcommit-faktor: 2}"): (
        "overcommit-faktor: unknown argument; did you mean 'overcommit-factor'?"
    ),
    plugin("name: overcommit, arguments: {overcommit-factor: '2'}"): (
        r"plugins\[0\].arguments.overcommit-factor: must be a number, not '2'"
    ),
    plugin("name: nodeorder, arguments: {leastrequested.weight: 1.5}"): (
        "leastrequested.weight: must be an integer, not 1.5"
    ),
    plugin("name: predicates, arguments: {predicate.NodePortsEnable: maybe}"): (
        "predicate.NodePortsEnable: must be true or false, not 'maybe'"
    ),
    plugin("name: drf, enableHierarchy: true}, {name: proportion"): (
        "tiers: drf with enableHierarchy and proportion exclude each other"
    ),
    HELM.replace("drf\n", "drf\n    enableHierarchy: true\n"): "exclude each other",
    plugin("name: drf, enableHierarchy: true") + "\n- plugins: [{name: proportion}]": (
        "exclude each other"
    ),
    HELM + "configurations: [{name: dance}]": r"configurations\[0\].name: unknown action 'dance'",
    HELM + "configurations: [{name: preempt, arguments: {a: 1}}]": (
        r"configurations\[0\].arguments.a: unknown argument"
    ),
    HELM + "configurations: [{name: allocate, arguments: {a: 1}}]": (
        r"configurations\[0\].arguments.a: unknown argument"
    ),
    HELM + "configurations: [{name: allocate, arguments: {backfilling: eazy}}]": (
        r"configurations\[0\].arguments.backfilling: must be one of none, easy, conservative"
    ),
    HELM + "configurations: [{name: allocate, arguments: {backfilling.depth: 0}}]": (
        "backfilling.depth: must be at least 1, not 0"
    ),
    HELM + "configurations: [{name: allocate, arguments: {backfilling.depth: 1000}}]": (
        "backfilling.depth: must be at most 100, not 1000"
    ),
    HELM + "configurations: [{name: allocate, arguments: {backfilling.max-idle: 5}}]": (
        "backfilling.max-idle: must be a positive duration"
    ),
    HELM + "configurations: [{name: preempt, arguments: {eviction-delay: 0s}}]": (
        "eviction-delay: must be a positive duration"
    ),
    HELM + "configurations: [{name: allocate, arguments: {backfilling.borrow-for: soon}}]": (
        "backfilling.borrow-for: must be a positive duration"
    ),
    HELM + "configurations: [{name: allocate, arguments: {backfilling.order: longest}}]": (
        "backfilling.order: must be one of queue, shortest-first, not 'longest'"
    ),
    HELM + "configurations: [{name: allocate, arguments: {backfiling: easy}}]": (
        "arguments.backfiling: unknown argument; did you mean 'backfilling'?"
    ),
    HELM + "configurations: [{name: allocate}, {name: allocate}]": "is configured twice",
    HELM + "metrics: {type: elasticsearch}": "metrics.address: prometheus and elasticsearch requ",
    HELM + "metrics: {elasticsearch.index: a}": "elasticsearch.index: has no effect with type 'me",
    HELM + "metrics: {type: prometheus}": "metrics.address: prometheus and elasticsearch requ",
    HELM + "metrics: {interval: 30}": "metrics.interval: must be a positive duration",
    HELM + "metrics: {adress: x}": "metrics.adress: unknown key; did you mean 'address'?",
}


@pytest.mark.parametrize("text", INVALID, ids=range(len(INVALID)))
def test_an_invalid_configuration_is_rejected_with_path_and_reason(text: str) -> None:
    with pytest.raises(conf.ConfError, match=INVALID[text]):
        conf.load(text)


def test_arguments_in_shipped_configurations_without_effect_are_named_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Quirk 29: Volcano's CI configuration sets an argument that nothing reads."""
    caplog.set_level(logging.WARNING)
    conf.load(plugin("name: predicates, arguments: {predicate.CacheEnable: true}"))
    (record,) = caplog.records
    assert vars(record)["argument"] == "tiers[0].plugins[0].arguments.predicate.CacheEnable"


def test_extension_point_of_a_plugin_can_be_disabled() -> None:
    text = "\n- plugins:\n  - {name: gang}\n  - {name: predicates, enablePredicate: false}"
    world = SchedulerWorld('actions: "allocate"\ntiers:' + text)
    world.upsert(node("a", cordoned=True), podgroup("g", 1), pod("g-0", "g"))
    assert world.schedule() == {"g-0": "a"}


class Everything:
    """A plugin with all extension points."""

    pod_fields = PodFields()

    def __getattr__(self, name: str) -> object:
        return lambda *arguments: None


POINTS = {
    "queue_order": "enableQueueOrder",
    "job_order": "enableJobOrder",
    "task_order": "enableTaskOrder",
    "job_enqueueable": "enableJobEnqueued",
    "allocatable": "enabledAllocatable",
    "overused": "enabledOverused",
    "filters": "enablePredicate",
    "node_limits": "enablePredicate",
    "scorers": "enableNodeOrder",
    "static_scorers": "enableNodeOrder",
}
"""The extension points of a framework, and the flag that guards each."""


@pytest.mark.parametrize("flag", sorted(conf.FLAGS))
def test_a_flag_guards_its_extension_points_only(flag: str) -> None:
    option = PluginOption("any", lambda arguments: Everything(), {}, frozenset({flag}))
    framework = Framework(((option,),))
    for point, guard in POINTS.items():
        plugins = getattr(framework, point)
        nested = plugins[0] if plugins and isinstance(plugins[0], list) else plugins
        assert bool(nested) == (guard != flag), point
    assert framework.session_open and framework.job_valid


def _load_with(**attributes: object) -> None:
    with pytest.MonkeyPatch.context() as patch:
        methods = {"__init__": lambda self, arguments: None, **attributes}
        patch.setitem(PLUGINS, "acme", type("Acme", (), methods))
        conf.load(plugin("name: acme"))


@pytest.mark.parametrize("pair", TOGETHER)
def test_a_plugin_with_half_of_an_extension_point_is_rejected(pair: tuple[str, str]) -> None:
    for one, other in (pair, pair[::-1]):
        with pytest.raises(conf.ConfError, match=rf"plugins\[0\]: has {one} without {other}"):
            _load_with(**{one: lambda *arguments: None})
    _load_with(**dict.fromkeys(pair, lambda *arguments: None))


def test_an_inherited_declaration_is_no_method() -> None:
    created: Any = type("Acme", (FilterPlugin, ScorePlugin), {"score": lambda *_: None})
    option = PluginOption("any", lambda arguments: created(), {})
    framework = Framework(((option,),))
    assert framework.scorers and not framework.filters and not framework.static_scorers


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["actions", "tiers", "plugins", "name", "arguments", "metrics"])
                | st.text(max_size=3),
                inner,
                max_size=3,
            )
        ),
    )
)
def test_any_document_is_read_or_rejected(document: object) -> None:
    try:
        conf.load(yaml.safe_dump(document))
    except conf.ConfError as error:
        assert str(error)


# -- plugins and actions of other packages -----------------------------------------------------

MODULE = """
class Fixed:
    def __init__(self, arguments):
        self.node = arguments.get("node", "")

    def filter_node(self, eq_class, node):
        return None if node.name == self.node else "node(s) were another one"


def broken(arguments):
    raise ValueError("no")


def count(arguments):
    limit = arguments.get("limit")

    def action(session):
        counted.append((limit, len(session.cache.gangs)))

    return action

counted = []
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a plugin, and one with an action."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "acme_scheduling", raising=False)
    install(
        tmp_path,
        "acme-scheduling",
        modules={"acme_scheduling": MODULE},
        entry_points={
            "fixed": "acme_scheduling:Fixed",
            "broken": "acme_scheduling:broken",
            "missing": "acme_scheduling:Missing",
        },
        group=PLUGINS_GROUP,
    )
    install(
        tmp_path,
        "acme-actions",
        modules={},
        entry_points={"count": "acme_scheduling:count"},
        group=ACTIONS_GROUP,
    )
    return tmp_path


@pytest.mark.usefixtures("installed")
def test_a_plugin_of_another_package_is_used_with_its_arguments() -> None:
    world = SchedulerWorld(plugin("name: gang}, {name: fixed, arguments: {node: b}"))
    world.upsert(node("a"), node("b"), podgroup("g", 1), pod("g-0", "g"))
    assert world.schedule() == {"g-0": "b"}


@pytest.mark.usefixtures("installed")
def test_an_action_of_another_package_is_run_with_its_arguments() -> None:
    text = 'actions: "count"\nconfigurations: [{name: count, arguments: {limit: 3}}]'
    SchedulerWorld(text).schedule()
    assert sys.modules["acme_scheduling"].counted == [(3, 0)]


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (plugin("name: fixed, arguments: {nod: b}"), "nod: unknown argument; did you mean 'node'?"),
        (plugin("name: broken"), "arguments: rejected: ValueError: no"),
        (plugin("name: missing"), "of acme-scheduling 1.0: cannot be loaded: AttributeError"),
        (plugin("name: absent"), "unknown plugin 'absent'; known: .* broken, fixed, missing"),
        (
            'actions: "count"\nconfigurations: [{name: count, arguments: {limits: 3}}]',
            "arguments of count.limits: unknown argument; did you mean 'limit'?",
        ),
    ],
)
def test_an_unusable_plugin_of_another_package_is_rejected(text: str, message: str) -> None:
    with pytest.raises(conf.ConfError, match=message):
        conf.load(text)


@pytest.mark.parametrize(
    ("group", "name"),
    [(PLUGINS_GROUP, "gang"), (ACTIONS_GROUP, "allocate"), (PLUGINS_GROUP, "fixed")],
)
def test_a_name_that_is_taken_is_an_error(installed: Path, group: str, name: str) -> None:
    install(
        installed, "clash", modules={}, entry_points={name: "acme_scheduling:count"}, group=group
    )
    with pytest.raises(conf.ConfError, match=rf"entry point '{name}' .* of \S+ 1.0: "):
        conf.load()


@pytest.mark.parametrize(
    ("action", "argument"),
    [("allocate", "predicateErrorCacheEnable"), ("preempt", "enableTopologyAwarePreemption")],
)
def test_arguments_of_volcanos_actions_cause_a_warning(
    action: str, argument: str, caplog: pytest.LogCaptureFixture
) -> None:
    given = f"configurations: [{{name: {action}, arguments: {{{argument}: true}}}}]"
    assert conf.load(HELM + given).tiers == conf.load(HELM).tiers
    (record,) = caplog.records
    assert record.getMessage() == "argument of scheduler action without effect"
    assert vars(record)["argument"] == f"configurations[0].arguments.{argument}"


def test_a_flag_that_guards_nothing_causes_a_warning_when_it_is_false(
    caplog: pytest.LogCaptureFixture,
) -> None:
    conf.load(plugin("name: gang, enabledSubJobReady: true, enableJobReady: false"))
    assert not caplog.records
    conf.load(plugin("name: gang, enabledSubJobReady: false"))
    (record,) = caplog.records
    assert record.getMessage() == "flag of scheduler plugin without effect"
    assert vars(record)["flag"] == "tiers[0].plugins[0].enabledSubJobReady"


def test_flags_are_spelled_as_in_volcano() -> None:
    flags = ("enableTargetJob", "enableReservedNodes", "enabledVictim", "enabledSubJobReady")
    for flag in flags:
        assert conf.load(plugin(f"name: gang, {flag}: true"))
    with pytest.raises(conf.ConfError, match="unknown key; did you mean 'enableTargetJob'"):
        conf.load(plugin("name: gang, enabledTargetJob: true"))


def test_the_flags_that_guard_nothing_are_those_that_nothing_reads() -> None:
    source = Path(framework.__file__).read_text()
    assert {each for each in conf.FLAGS if f'"{each}"' not in source} == set(
        conf.FLAGS_WITHOUT_EFFECT
    )


# -- plugins that are not implemented -------------------------------------------------------------


def test_unimplemented_plugins_are_disabled_unless_the_configuration_is_strict() -> None:
    text = HELM + "- plugins: [{name: deviceshare, arguments: {deviceshare.VGPUEnable: true}}]"
    loaded = conf.load(text, strict=False)
    assert loaded.tiers[:2] == conf.load(HELM).tiers
    assert loaded.tiers[2:] == ((),)
    assert loaded.disabled == {"deviceshare": "tiers[2].plugins[0]"}
    assert loaded.disabled_text.endswith("'deviceshare' (tiers[2].plugins[0])")
    assert conf.load(HELM, strict=False).disabled_text == ""
    with pytest.raises(conf.ConfError, match="unimplemented plugin 'deviceshare'"):
        conf.load(text)


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("name: voodoo", "unknown plugin 'voodoo'"),
        (
            "name: deviceshare}, {name: deviceshare",
            r"plugins\[1\]: plugin 'deviceshare' is already at",
        ),
        ("name: deviceshare, enable: true", r"plugins\[0\].enable: unknown key"),
        ("name: deviceshare, enablePredicate: 1", "enablePredicate: must be true or false"),
        ("nam: deviceshare", r"plugins\[0\].name: unknown plugin None"),
    ],
)
def test_all_else_is_an_error_also_if_it_is_not_strict(entry: str, problem: str) -> None:
    with pytest.raises(conf.ConfError, match=problem):
        conf.load(plugin(entry), strict=False)


# -- configurations that Volcano has shipped -----------------------------------------------------

_BASE = "{name: priority}, {name: gang, enablePreemptable: false}, {name: conformance}"
_DRF = "{name: drf, enablePreemptable: false}, {name: predicates}"
SHIPPED = {
    "chart": (HELM, ""),
    "continuous integration": (
        f'actions: "enqueue, allocate, backfill, reclaim, preempt"\n'
        f"tiers: [{{plugins: [{_BASE}, {{name: sla}}]}}, {{plugins: [{{name: overcommit}}, {_DRF}, "
        "{name: proportion}, {name: nodeorder}, {name: binpack}, {name: network-topology-aware}]}]",
        "",
    ),
    "network topology": (
        'actions: "enqueue, allocate, backfill"\n'
        "tiers: [{plugins: [{name: priority}, {name: gang}, {name: conformance}]}, {plugins: "
        "[{name: drf}, {name: predicates}, {name: proportion}, {name: nodeorder}, {name: binpack}, "
        "{name: network-topology-aware, arguments: {weight: 10, hypernode.binpack.cpu: 5, "
        "hypernode.binpack.memory: 1, hypernode.binpack.resources: "
        "'nvidia.com/gpu, example.com/foo', hypernode.binpack.resources.nvidia.com/gpu: 2, "
        "hypernode.binpack.resources.example.com/foo: 3, hypernode.binpack.normal-pod.enable: "
        "true, hypernode.binpack.normal-pod.fading: 0.8}}]}]",
        "",
    ),
    "capacity": (
        f'actions: "enqueue, allocate, backfill, reclaim"\ntiers: [{{plugins: [{_BASE}]}}, '
        f"{{plugins: [{_DRF}, {{name: capacity, enableHierarchy: true, arguments: "
        "{ancestorReclaimLevel: 1}}, {name: nodeorder}, {name: binpack}]}]",
        "",
    ),
    "capacity with resource claims": (
        'actions: "enqueue, allocate"\ntiers: [{plugins: [{name: capacity, arguments: '
        "{capacity.DynamicResourceAllocationEnable: true, "
        "capacity.DRAConsumableCapacityEnable: true}}]}]",
        "",
    ),
    "binpack": (
        'actions: "enqueue, allocate, backfill"\ntiers: [{plugins: [{name: predicates}, '
        "{name: nodeorder}, {name: binpack, arguments: {binpack.weight: 10, binpack.cpu: 2, "
        "binpack.memory: 1}}]}]",
        "",
    ),
    "unified scheduling": (
        'actions: "enqueue, allocate, backfill"\ntiers: [{plugins: [{name: predicates, '
        "arguments: {predicate.CacheEnable: true}}, {name: nodeorder, arguments: "
        "{leastrequested.weight: 1, mostrequested.weight: 0, balancedresource.weight: 1, "
        "nodeaffinity.weight: 2, podaffinity.weight: 2, tainttoleration.weight: 3, "
        "imagelocality.weight: 1, podtopologyspread.weight: 2}}]}]",
        "",
    ),
    "sla": (
        'actions: "enqueue, allocate"\ntiers: [{plugins: [{name: sla, arguments: '
        "{sla.JobWaitingTime: 30m}}]}]",
        "",
    ),
    "resource-strategy-fit": (
        'actions: "reclaim, allocate, backfill, preempt"\ntiers: [{plugins: [{name: '
        "resource-strategy-fit, arguments: {resourceStrategyFitWeight: 10, resources: "
        "{cpu: {type: LeastAllocated, weight: 1}, nvidia.com/gpu: {type: MostAllocated, "
        "weight: 2}}}}]}]",
        "",
    ),
    "number of GPUs": (
        'actions: "enqueue, allocate"\ntiers: [{plugins: [{name: predicates, arguments: '
        "{predicate.GPUNumberEnable: true}}]}]",
        "",
    ),
    "shared GPUs": (
        'actions: "enqueue, allocate"\ntiers: [{plugins: [{name: predicates}, {name: deviceshare, '
        "arguments: {deviceshare.VGPUEnable: true}}]}]",
        "unimplemented plugin 'deviceshare'",
    ),
    "extender": (
        'actions: "allocate"\ntiers: [{plugins: [{name: extender, arguments: '
        "{extender.urlPrefix: 'http://127.0.0.1:8713'}}]}]",
        "",
    ),
    "a plugin of one's own": (
        'actions: "allocate"\ntiers: [{plugins: [{name: magic}]}]',
        "unknown plugin 'magic'",
    ),
}
"""The configurations of Volcano's chart, tests and documentation, and why some are rejected."""


@pytest.mark.parametrize("name", SHIPPED)
def test_configurations_that_volcano_has_shipped_load_or_name_what_is_missing(name: str) -> None:
    text, problem = SHIPPED[name]
    if problem:
        with pytest.raises(conf.ConfError, match=problem):
            conf.load(text)
    else:
        assert conf.load(text).tiers
