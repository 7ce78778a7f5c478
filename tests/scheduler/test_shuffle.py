"""The action ``shuffle``: pods of zones that close (tdm), and of nodes that are used much."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from support.scheduler import SchedulerWorld, node, pod, podgroup
from support.scheduler_queues import annotated, annotated_group, configuration

from batholith.scheduler import conf
from batholith.scheduler.framework.framework import Framework
from batholith.scheduler.state.cache.events import EvictionForgotten, NodesMeasured
from batholith.scheduler.state.nodes.node_usage import NodeUsage

ZONE = {"volcano.sh/revocable-zone": "night"}
PREEMPTABLE = {"volcano__preemptable": "true"}


def zones(more: str = "", flags: str = "") -> str:
    arguments = f'{{tdm.revocable-zone.night: "22:00-06:00"{more}}}'
    plugins = f"{{name: gang}}, {{name: tdm, arguments: {arguments}{flags}}}"
    return configuration(plugins, actions="allocate, shuffle")


def at(hour: int, minute: int = 0, second: int = 0) -> float:
    """A local time of day."""
    return datetime(2026, 3, 4, hour, minute, second).timestamp()


def lend(world: SchedulerWorld, count: int, **annotations: str) -> None:
    """Let *count* preemptable pods of a gang run on a node of a zone."""
    world.upsert(node("lent", cpu=64, labels=ZONE), annotated_group(podgroup("g", 1), annotations))
    for number in range(count):
        running = pod(f"g-t-{number}", "g", node_name="lent", phase="Running")
        world.upsert(annotated(running, **PREEMPTABLE))


def evicted(world: SchedulerWorld, time: float) -> list[str]:
    """The pods that a cycle at *time* evicts."""
    world.time = time
    return sorted(each.name for each in world.decision(now=time).evictions)


def test_a_pod_is_evicted_when_its_zone_closes() -> None:
    world = SchedulerWorld(zones())
    lend(world, 1)
    assert evicted(world, at(5, 59)) == []
    assert world.core.next_due() == at(6)
    world.time = at(6)
    (eviction,) = world.decision(now=at(6)).evictions
    assert eviction.name == "g-t-0"
    assert eviction.message == "revocable zone night is not active any more (shuffle)"


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({}, 1),
        ({"volcano.sh/jdb-max-unavailable": "3"}, 3),
        ({"volcano.sh/jdb-max-unavailable": "50%"}, 5),
        ({"volcano.sh/jdb-min-available": "8"}, 2),
        ({"volcano.sh/jdb-min-available": "10"}, 0),
        ({"volcano.sh/jdb-max-unavailable": "0"}, 0),
    ],
)
def test_no_more_pods_of_a_gang_are_evicted_than_its_budget_permits(
    annotations: dict[str, str], expected: int
) -> None:
    world = SchedulerWorld(zones())
    lend(world, 10, **annotations)
    assert len(evicted(world, at(7))) == expected


def test_finished_pods_are_not_unavailable() -> None:
    world = SchedulerWorld(zones())
    lend(world, 4, **{"volcano.sh/jdb-max-unavailable": "1"})
    world.upsert(pod("g-t-0", "g", node_name="lent", phase="Succeeded"))
    assert len(evicted(world, at(7))) == 1


def test_pods_are_evicted_once_in_each_period() -> None:
    world = SchedulerWorld(zones(", tdm.evict.period: 5m"))
    lend(world, 3)
    first = evicted(world, at(7))
    assert evicted(world, at(7, 4, 59)) == []
    assert world.core.next_due() == at(7, 5)
    world.remove(world.pod_objects[f"uid-{first[0]}"])
    second = evicted(world, at(7, 5))
    assert len(second) == 1
    assert second != first


def test_other_pods_and_other_nodes_stay() -> None:
    world = SchedulerWorld(zones())
    world.upsert(
        node("lent", labels=ZONE), node("unknown", labels={"volcano.sh/revocable-zone": "day"}),
        node("own"), podgroup("g", 1),
        pod("usual", "g", node_name="lent", phase="Running"),
        pod("starting", "g", node_name="lent"),
        pod("foreign", scheduler="other", node_name="lent", phase="Running"),
        annotated(pod("elsewhere", "g", node_name="own", phase="Running"), **PREEMPTABLE),
        annotated(pod("unzoned", "g", node_name="unknown", phase="Running"), **PREEMPTABLE),
    )  # fmt: skip
    assert evicted(world, at(7)) == []


@pytest.mark.parametrize(
    "text",
    [
        zones(flags=", enabledVictim: false"),
        zones().replace("allocate, shuffle", "allocate"),
    ],
)
def test_without_flag_or_action_nothing_is_evicted(text: str) -> None:
    world = SchedulerWorld(text)
    lend(world, 1)
    assert evicted(world, at(7)) == []
    assert world.core.next_due() is None


def test_a_refused_eviction_is_tried_again_later() -> None:
    world = SchedulerWorld(zones())
    lend(world, 1)
    assert evicted(world, at(7)) == ["g-t-0"]
    world.cluster.apply(EvictionForgotten("uid-g-t-0", at(7, 2)))
    assert evicted(world, at(7, 1)) == []
    assert evicted(world, at(7, 2)) == ["g-t-0"]


# -- rescheduling --------------------------------------------------------------------------------


def balance(strategies: str = "", interval: str = "5m") -> str:
    params = "{thresholds: {cpu: 30, memory: 30}, targetThresholds: {cpu: 70, memory: 70}}"
    chosen = f"[{{name: lowNodeUtilization, params: {params}}}{strategies}]"
    plugin = f"{{name: rescheduling, arguments: {{interval: {interval}, strategies: {chosen}}}}}"
    return configuration(f"{{name: gang}}, {plugin}", actions="allocate, shuffle")


def used(world: SchedulerWorld, time: float, **cpu: float) -> None:
    """Measure the CPU utilization of nodes."""
    world.cluster.apply(
        NodesMeasured({name: NodeUsage(each, 10, time) for name, each in cpu.items()})
    )


def busy_world(text: str, **cpu: float) -> SchedulerWorld:
    """Nodes of 10 CPUs with four pods each, of priorities 0 to 3; an interval is over."""
    world = SchedulerWorld(text)
    for name in cpu:
        world.upsert(node(name, cpu=10))
        for number in range(4):
            world.upsert(
                pod(f"{name}-{number}", scheduler="default-scheduler", node_name=name,
                    phase="Running", cpu=2, priority=number)
            )  # fmt: skip
    assert evicted(world, at(12)) == []
    used(world, at(12, 5), **cpu)
    return world


def test_pods_leave_a_node_that_is_used_much_until_it_is_below_its_target() -> None:
    world = busy_world(balance(), high=90, low=10)
    assert world.core.next_due() == at(12, 5)
    assert evicted(world, at(12, 5)) == ["high-0"]
    assert evicted(world, at(12, 9)) == []


def test_pods_of_a_low_priority_leave_first_and_the_fullest_node_first() -> None:
    world = busy_world(balance(), high=95, highest=100, low=10)
    # The low node has 6 CPUs left below its target: three pods.
    assert evicted(world, at(12, 5)) == ["high-0", "highest-0", "highest-1"]


@pytest.mark.parametrize(
    "cpu",
    [{"high": 90, "middle": 50}, {"middle": 60, "low": 10}, {"low": 10, "lower": 5}],
)
def test_without_low_or_high_nodes_nothing_is_evicted(cpu: dict[str, float]) -> None:
    assert evicted(busy_world(balance(), **cpu), at(12, 5)) == []


def test_a_cordoned_node_is_no_low_node() -> None:
    world = busy_world(balance(), high=90, low=10)
    world.upsert(node("low", cpu=10, cordoned=True))
    assert evicted(world, at(12, 5)) == []


def test_old_measurements_are_not_used() -> None:
    world = busy_world(balance(), high=90, low=10)
    assert evicted(world, at(12, 11)) == []


def test_with_offline_only_other_pods_stay() -> None:
    world = busy_world(balance(", {name: offlineOnly}"), high=90, low=10)
    offline = world.pod_objects["uid-high-3"]
    world.upsert(annotated(offline, **PREEMPTABLE))
    assert evicted(world, at(12, 5)) == ["high-3"]


def test_a_gang_keeps_its_minimum() -> None:
    world = SchedulerWorld(balance())
    world.upsert(node("high", cpu=10), node("low", cpu=10), podgroup("g", 3))
    for number in range(4):
        world.upsert(pod(f"g-{number}", "g", node_name="high", phase="Running", cpu=1))
    assert evicted(world, at(12)) == []
    used(world, at(12, 5), high=100, low=0)
    assert len(evicted(world, at(12, 5))) == 1


@pytest.mark.parametrize(
    ("strategies", "problem"),
    [
        ("lowNodeUtilization", "must be a list of names and params"),
        ("[{name: offlineOnly}]", "lowNodeUtilization is required"),
        ("[{name: moreReplicas}]", "'moreReplicas' is not implemented; known: lowNode"),
        ("[{name: lowNodeUtilization, weight: 1}]", "unknown entry 'weight'"),
        ("[{name: lowNodeUtilization, params: {threshold: 1}}]", "unknown entry 'threshold'"),
        ("[{name: lowNodeUtilization, params: {thresholds: {gpus: 1}}}]", "unknown entry 'gpus'"),
        ("[{name: lowNodeUtilization, params: {thresholds: {cpu: 101}}}]", "from 0 to 100"),
        (
            "[{name: lowNodeUtilization, params: {targetThresholds: {cpu: 50}}}]",
            "thresholds must not exceed targetThresholds",
        ),
    ],
)
def test_malformed_strategies_are_errors(strategies: str, problem: str) -> None:
    plugin = f"{{name: rescheduling, arguments: {{strategies: {strategies}}}}}"
    with pytest.raises(conf.ConfError) as caught:
        conf.load(configuration(plugin))
    assert "arguments.strategies: " in str(caught.value)
    assert problem in str(caught.value)


def test_rescheduling_has_the_utilization_of_nodes_measured() -> None:
    loaded = conf.load(balance())
    assert loaded.metrics_source == loaded.metrics
    loaded = conf.load(balance().replace("interval:", "metricsPeriod: 5m, interval:"))
    assert loaded.metrics_source == replace(loaded.metrics, period=timedelta(minutes=5))
    with pytest.raises(conf.ConfError, match="metricsPeriod: must be a positive duration"):
        conf.load(balance().replace("interval:", "metricsPeriod: 5, interval:"))


def test_pods_leave_a_node_that_has_many_of_them() -> None:
    thresholds = "thresholds: {pods: 40}, targetThresholds: {pods: 60}"
    text = balance().replace(
        "thresholds: {cpu: 30, memory: 30}, targetThresholds: {cpu: 70, memory: 70}", thresholds
    )
    world = SchedulerWorld(text)
    world.upsert(node("high", cpu=10, pods=5), node("low", cpu=10, pods=5))
    for number in range(5):
        name = f"high-{number}"
        world.upsert(
            pod(name, scheduler="default-scheduler", node_name="high", phase="Running", cpu=1)
        )
    assert evicted(world, at(12)) == []
    used(world, at(12, 5), high=10, low=10)
    assert evicted(world, at(12, 5)) == ["high-0", "high-1"]


class Named:
    """A plugin that names what a test decides."""

    def __init__(self, names: object) -> None:
        self.names = names

    def victim_tasks(self) -> object:
        return self.names

    def next_victims(self) -> float | None:
        raise ValueError("unknown")


@pytest.mark.parametrize("names", [None, [1], [(1, "text")]])
def test_a_plugin_that_names_no_tasks_fails_alone(names: object) -> None:
    world = SchedulerWorld(zones())
    lend(world, 1)
    framework = Framework(conf.load(zones()).tiers)
    framework.victim_tasks.insert(0, Named(names))  # type: ignore[arg-type]
    world.core.configure(framework, conf.load(zones()).actions)
    world.time = at(7)
    decision = world.decision(now=at(7))
    assert [each.name for each in decision.evictions] == ["g-t-0"]
    assert [each.extension_point for each in decision.plugin_failures] == ["victim_tasks"]
    assert world.core.next_due() == at(7, 1)
