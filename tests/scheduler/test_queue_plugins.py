"""A scenario for each of the plugins that concern queues, namespaces, nodes and times."""

from datetime import datetime, timedelta

import msgspec
import pytest
from support.scheduler import SchedulerWorld, node, pod, podgroup
from support.scheduler_queues import (
    allocated_pods,
    annotated,
    annotated_group,
    configuration,
    queue,
    submit,
)

from batholith.model.meta import ObjectMeta
from batholith.model.queue import NodeGroupTerms, Queue, QueueAffinity
from batholith.scheduler import conf
from batholith.scheduler.plugins.usage import MAX_AGE
from batholith.scheduler.state.cache.events import NodesMeasured, ResourceQuotaEvent
from batholith.scheduler.state.cache.resource_quotas import ResourceQuota, ResourceQuotaStatus
from batholith.scheduler.state.core_types import Pod
from batholith.scheduler.state.nodes.node_usage import NodeUsage
from batholith.scheduler.state.queue.scheduling_queue import ANY

CREATED = datetime.fromisoformat("2026-01-01T00:00:00+00:00").timestamp()


def phase(world: SchedulerWorld, name: str) -> str:
    return world.cluster.gangs[f"ns/{name}"].phase


# -- sla -----------------------------------------------------------------------------------------

SLA = configuration(
    "{name: sla, arguments: {sla-waiting-time: 30m}}", "{name: gang}, {name: overcommit}"
)


def test_a_gang_is_admitted_in_spite_of_limits_once_it_has_waited_too_long() -> None:
    """Quirks 13 and 18: sla in an earlier tier bypasses the limits; it is the remedy for large
    gangs that small ones bypass."""
    world = SchedulerWorld(SLA)
    world.upsert(node("a"), podgroup("g", 1, phase="", resources={"cpu": 100}))
    world.time = CREATED + 1799
    world.schedule()
    assert phase(world, "g") == "Pending"
    world.time = CREATED + 1801
    world.schedule()
    assert phase(world, "g") == "Inqueue"


def test_gangs_with_an_earlier_deadline_are_first() -> None:
    world = SchedulerWorld(SLA)
    world.time = CREATED
    world.upsert(node("a", cpu=1))
    for name, waiting in (("old", "2h"), ("urgent", "5m"), ("wrong", "soon")):
        annotations = {"volcano.sh/sla-waiting-time": waiting}
        world.upsert(annotated_group(podgroup(name, 1), annotations), pod(f"{name}-0", name))
    assert set(world.schedule()) == {"urgent-0"}


def test_a_gang_without_a_waiting_time_has_no_deadline() -> None:
    world = SchedulerWorld(configuration("{name: sla}", "{name: gang}, {name: overcommit}"))
    world.upsert(node("a"), podgroup("g", 1, phase="", resources={"cpu": 100}))
    world.time = CREATED + 10**8
    world.schedule()
    assert phase(world, "g") == "Pending"


# -- tdm -----------------------------------------------------------------------------------------

TDM = configuration(
    "{name: gang}, {name: predicates}, "
    '{name: tdm, arguments: {tdm.revocable-zone.night: "22:00-06:00"}}',
)


def at(hour: int, minute: int = 0) -> float:
    """A local time of day."""
    return datetime(2026, 3, 4, hour, minute).timestamp()


@pytest.mark.parametrize(
    ("hour", "minute", "active"), [(21, 59, 0), (22, 0, 1), (5, 59, 1), (6, 0, 0), (12, 0, 0)]
)
def test_a_revocable_node_takes_preemptable_pods_while_its_zone_is_active(
    hour: int, minute: int, active: bool
) -> None:
    world = SchedulerWorld(TDM)
    world.time = at(hour, minute)
    world.upsert(node("lent", labels={"volcano.sh/revocable-zone": "night"}), node("own"))
    for name, annotations in (
        ("usual", {}),
        ("preemptable", {"volcano__preemptable": "true"}),
        ("revocable", {"volcano__revocable_zone": "*", "volcano__preemptable": "false"}),
        ("invalid", {"volcano__revocable_zone": "night", "volcano__preemptable": "true"}),
    ):
        world.upsert(podgroup(name, 1), annotated(pod(f"{name}-0", name), **annotations))
    lent = "lent" if active else "own"
    assert world.schedule() == {
        "usual-0": "own",
        "preemptable-0": lent,
        "revocable-0": lent,
        "invalid-0": "own",
    }


def test_pods_are_placed_when_their_zone_opens() -> None:
    world = SchedulerWorld(TDM)
    world.time = at(21)
    world.upsert(node("lent", labels={"volcano.sh/revocable-zone": "night"}), podgroup("g", 1))
    world.upsert(annotated(pod("g-0", "g"), volcano__preemptable="true"))
    assert world.schedule() == {}
    assert "in a revocable zone that is not active" in world.fit_message("g")
    world.time = at(22)
    assert world.schedule() == {"g-0": "lent"}


def test_gangs_that_are_not_preemptable_are_first() -> None:
    world = SchedulerWorld(TDM)
    world.upsert(node("a", cpu=1))
    old = podgroup("old", 1, created="2025-01-01T00:00:00Z")
    world.upsert(annotated_group(old, {"volcano.sh/preemptable": "true"}), pod("old-0", "old"))
    submit(world, "new", 1)
    assert set(world.schedule()) == {"new-t-0"}


@pytest.mark.parametrize("period", ["22:00", "24:00-06:00", "22:00-06:60", 22])
def test_an_invalid_period_is_rejected(period: object) -> None:
    tier = f'{{name: tdm, arguments: {{tdm.revocable-zone.night: "{period}"}}}}'
    with pytest.raises(conf.ConfError, match=r"tdm.revocable-zone.night: must be a time of day"):
        conf.load(configuration(tier))


# -- nodegroup -----------------------------------------------------------------------------------

GROUPS = configuration("{name: gang}, {name: nodegroup}")


def affinity(
    required: tuple[str, ...] = (),
    preferred: tuple[str, ...] = (),
    avoided: tuple[str, ...] = (),
    excluded: tuple[str, ...] = (),
) -> QueueAffinity:
    return QueueAffinity(
        node_group_affinity=NodeGroupTerms(required=required, preferred=preferred),
        node_group_anti_affinity=NodeGroupTerms(required=excluded, preferred=avoided),
    )


def grouped_nodes(world: SchedulerWorld, *groups: str, cpu: int = 1) -> None:
    for group in groups:
        labels = {"volcano.sh/nodegroup-name": group} if group else {}
        world.upsert(node(group or "none", cpu=cpu, labels=labels))


def test_pods_run_on_the_node_groups_of_their_queue_the_required_first() -> None:
    world = SchedulerWorld(GROUPS)
    grouped_nodes(world, "a", "b", "c", "d", "")
    world.upsert(queue("q", affinity=affinity(("a", "b"), ("b", "c"))), queue("other"))
    submit(world, "g", 4, queue="q")
    submit(world, "else", 1, queue="other")
    nodes = world.schedule()
    assert nodes["g-t-0"] == "b"
    assert set(nodes.values()) == {"a", "b", "c"}
    assert "node(s) were not in a node group of the queue" in world.fit_message("g")
    assert "else-t-0" not in nodes


def test_a_group_that_is_excluded_is_not_used_even_if_it_is_avoided_too() -> None:
    """Quirk 43: in Volcano a preferred anti-affinity allows what a required one excludes."""
    world = SchedulerWorld(GROUPS)
    grouped_nodes(world, "a", "b")
    world.upsert(queue("q", affinity=affinity(avoided=("a", "b"), excluded=("a",))))
    submit(world, "g", 2, queue="q")
    assert world.schedule() == {"g-t-0": "b"}


def test_pods_follow_a_change_of_the_affinity_of_their_queue() -> None:
    world = SchedulerWorld(GROUPS)
    grouped_nodes(world, "a", "b", cpu=8)
    submit(world, "g", 1, queue="q")
    world.upsert(queue("q"))
    assert world.schedule() == {}
    world.upsert(queue("q", affinity=affinity(("b",))))
    assert world.schedule() == {"g-t-0": "b"}
    world.upsert(queue("q"))
    submit(world, "more", 1, queue="q")
    assert world.schedule() == {}


def test_without_strict_queues_without_affinity_use_nodes_without_a_group() -> None:
    world = SchedulerWorld(
        configuration("{name: gang}, {name: nodegroup, arguments: {strict: false}}")
    )
    grouped_nodes(world, "a", "")
    submit(world, "g", 2)
    assert world.schedule() == {"g-t-0": "none"}


def test_preferred_groups_may_be_ordered() -> None:
    ordered = "{name: nodegroup, arguments: {enablePreferredOrder: true}}"
    world = SchedulerWorld(configuration(f"{{name: gang}}, {ordered}"))
    grouped_nodes(world, "a", "b", "c")
    world.upsert(queue("q", affinity=affinity(preferred=("c", "a", "b"))))
    submit(world, "g", 3, queue="q")
    assert world.schedule() == {"g-t-0": "c", "g-t-1": "a", "g-t-2": "b"}


@pytest.mark.parametrize("enabled", [True, False])
def test_a_queue_inherits_the_affinity_of_an_ancestor_with_hierarchy(enabled: bool) -> None:
    hierarchy = f"{{name: nodegroup, enableHierarchy: {str(enabled).lower()}}}"
    world = SchedulerWorld(configuration(f"{{name: gang}}, {hierarchy}"))
    grouped_nodes(world, "a", "b")
    world.upsert(queue("top", affinity=affinity(("b",))), queue("mid", parent="top"))
    world.upsert(queue("q", parent="mid"))
    submit(world, "g", 1, queue="q")
    assert world.schedule() == ({"g-t-0": "b"} if enabled else {})


# -- usage ---------------------------------------------------------------------------------------

USAGE = configuration("{name: gang}, {name: usage}")
NOW = 10_000.0


def measure(world: SchedulerWorld, *, age: float = 0.0, **cpu: float) -> None:
    """Measure the CPU utilization of nodes, with a memory utilization of 10 %."""
    usages = {name: NodeUsage(each, 10, NOW - age) for name, each in cpu.items()}
    world.cluster.apply(NodesMeasured(usages))


def test_nodes_with_little_measured_utilization_are_preferred() -> None:
    world = SchedulerWorld(USAGE)
    world.time = NOW
    world.upsert(*(node(name, cpu=64) for name in ("a", "b", "c")))
    measure(world, a=70, b=20, c=50)
    submit(world, "g", 1)
    assert world.schedule() == {"g-t-0": "b"}


def test_nodes_above_the_threshold_are_excluded_until_they_are_measured_again() -> None:
    world = SchedulerWorld(USAGE)
    world.time = NOW
    world.upsert(node("a"))
    measure(world, a=81)
    submit(world, "g", 1)
    assert world.schedule() == {}
    assert "1 node(s) had a CPU utilization above the threshold" in world.fit_message("g")
    measure(world, a=79)
    assert world.schedule() == {"g-t-0": "a"}


def test_old_measurements_are_not_used() -> None:
    world = SchedulerWorld(USAGE)
    world.time = NOW
    world.upsert(node("a"), node("b"))
    measure(world, a=99, b=99)
    submit(world, "g", 2)
    assert world.schedule() == {}
    world.time = NOW + MAX_AGE + 1
    assert len(world.schedule()) == 2


def test_pods_that_came_after_the_measurement_count_by_an_estimate() -> None:
    world = SchedulerWorld(USAGE)
    world.time = NOW
    world.upsert(node("a", cpu=10), node("b", cpu=10))
    measure(world, a=30, b=40)
    submit(world, "g", 6)
    nodes = list(world.schedule().values())
    # One CPU is estimated to add 7 %, so the nodes alternate after the second pod.
    assert (nodes.count("a"), nodes.count("b")) == (4, 2)


def estimating(estimator: str) -> str:
    return USAGE.replace("name: usage", f"name: usage, arguments: {{estimator: {{{estimator}}}}}")


def test_best_effort_pods_that_came_after_the_measurement_count_by_a_fixed_amount() -> None:
    world = SchedulerWorld(estimating("be_cpu: 1, be_mem: 0").replace("allocate", "backfill"))
    world.time = NOW
    world.upsert(node("a", cpu=10), node("b", cpu=10))
    measure(world, a=30, b=45)
    world.upsert(podgroup("g", 5), *(pod(f"g-{i}", "g", cpu=0) for i in range(5)))
    nodes = list(world.schedule().values())
    # One pod is estimated to add 10 %, so the nodes alternate after the second pod.
    assert (nodes.count("a"), nodes.count("b")) == (3, 2)


def test_best_effort_pods_that_were_there_at_the_measurement_are_in_it() -> None:
    world = SchedulerWorld(estimating("be_cpu: 3"))
    world.time = NOW
    world.upsert(node("a", cpu=10), node("b", cpu=10))
    early, late = (pod(name, node_name="a", scheduler="other", cpu=0) for name in ("x", "y"))
    world.upsert(early)
    measure(world, a=30, b=40)
    submit(world, "g", 1)
    assert world.schedule() == {"g-t-0": "a"}
    world.upsert(late)
    submit(world, "h", 1)
    assert world.schedule() == {"h-t-0": "b"}
    world.remove(late)
    submit(world, "i", 1)
    assert world.schedule() == {"i-t-0": "a"}


def limited(found: Pod, cpu: float) -> Pod:
    (container,) = found.spec.containers
    resources = msgspec.structs.replace(container.resources, limits={"cpu": cpu})
    containers = (msgspec.structs.replace(container, resources=resources),)
    spec = msgspec.structs.replace(found.spec, containers=containers)
    return msgspec.structs.replace(found, spec=spec)


@pytest.mark.parametrize(
    ("ratio", "limit", "b", "expected"),
    [
        (0, 3, 45, ["a", "a", "a"]),
        # Each pod is estimated to add 70 % of one CPU and 50 % of two: 17 % of a node.
        (0.5, 3, 45, ["a", "a", "b"]),
        # 70 % of one CPU and 500 % of half a CPU are more than the limit, which is 15 %.
        (5, 1.5, 61, ["a", "a", "a"]),
    ],
)
def test_pods_that_came_after_the_measurement_count_with_a_share_of_their_limits(
    ratio: float, limit: float, b: float, expected: list[str]
) -> None:
    world = SchedulerWorld(estimating(f"burst_ratio: {ratio}"))
    world.time = NOW
    world.upsert(node("a", cpu=10), node("b", cpu=10))
    world.upsert(podgroup("x", 1), limited(pod("x-0", "x", node_name="a", phase="Running"), 9))
    measure(world, a=30, b=b)
    pods = [limited(pod(f"g-{index}", "g"), limit) for index in range(3)]
    world.upsert(podgroup("g", 3), *pods)
    assert sorted(world.schedule().values()) == expected
    world.remove(podgroup("g", 3))
    for each in pods:
        world.remove(each)
    if ratio:
        late = limited(pod("y-0", "y", node_name="a", phase="Running"), 9)
        world.upsert(podgroup("y", 1), late)
        submit(world, "h", 1)
        assert world.schedule() == {"h-t-0": "b"}
        world.remove(late)
        submit(world, "i", 1)
        assert world.schedule() == {"i-t-0": "a"}


@pytest.mark.parametrize(
    ("estimator", "problem"),
    [
        ("be_cpu: much", "estimator: be_cpu must be a quantity of at least 0, not 'much'"),
        ("be_mem: -1Mi", "estimator: be_mem must be a quantity"),
        ("be_mem: [1]", "estimator: be_mem must be a quantity"),
        ("burst_ratio: -0.5", "estimator: burst_ratio must not be negative"),
    ],
)
def test_an_invalid_estimate_is_named(estimator: str, problem: str) -> None:
    with pytest.raises(conf.ConfError, match=problem):
        conf.load(estimating(estimator))


# -- resourcequota -------------------------------------------------------------------------------

QUOTA = configuration("{name: gang}, {name: resourcequota}")


def quota(hard: dict[str, str | int | float], used: dict[str, str | int | float]) -> ResourceQuota:
    return ResourceQuota(
        metadata=ObjectMeta(name="compute", namespace="ns"),
        status=ResourceQuotaStatus(hard=hard, used=used),
    )


@pytest.mark.parametrize("name", ["cpu", "requests.cpu"])
def test_gangs_are_admitted_within_the_quota_of_their_namespace(name: str) -> None:
    world = SchedulerWorld(QUOTA)
    world.upsert(node("a", cpu=100))
    world.cluster.apply(ResourceQuotaEvent(None, quota({name: "5"}, {name: "2"})))
    for gang in ("one", "two"):
        world.upsert(podgroup(gang, 1, phase="", resources={"cpu": 2}))
    world.schedule()
    assert (phase(world, "one"), phase(world, "two")) == ("Inqueue", "Pending")
    assert world.fit_message("two") == (
        'resource quota "compute" insufficient: insufficient cpu (requested 2, free 1 of 5)'
    )
    # The pods of the first gang do not exist yet, so its quota is still taken.
    world.cluster.scheduling_queue.publish(ANY)
    world.schedule()
    assert phase(world, "two") == "Pending"
    world.cluster.apply(ResourceQuotaEvent(None, quota({name: "9"}, {name: "2"})))
    world.schedule()
    assert phase(world, "two") == "Inqueue"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("limits.memory", "insufficient limits.memory (requested 2Gi, free 1Gi of 5Gi)"),
        ("limits.cpu", "insufficient limits.cpu (requested 4, free 3 of 10)"),
        ("count/pods", "insufficient count/pods (requested 2, free 1 of 5)"),
    ],
)
def test_quotas_of_limits_and_pods_admit_gangs_until_they_are_used_up(
    name: str, message: str
) -> None:
    world = SchedulerWorld(QUOTA)
    world.upsert(node("a", cpu=100))
    hard = {"limits.memory": "5Gi", "limits.cpu": "10", "count/pods": "5"}
    used = {"limits.memory": "2Gi", "limits.cpu": "3", "count/pods": "2"}
    limit = quota({name: hard[name]}, {name: used[name]})
    world.cluster.apply(ResourceQuotaEvent(None, limit))
    minimum: dict[str, str | int | float] = {
        "cpu": 2,
        "limits.cpu": 4,
        "limits.memory": "2Gi",
        "count/pods": 2,
    }
    for gang in ("one", "two"):
        world.upsert(podgroup(gang, 2, phase="", resources=minimum))
    world.schedule()
    assert (phase(world, "one"), phase(world, "two")) == ("Inqueue", "Pending")
    assert world.fit_message("two") == f'resource quota "compute" insufficient: {message}'


def test_pods_that_exist_before_their_gang_is_admitted_count_in_the_quota_once() -> None:
    world = SchedulerWorld(QUOTA)
    world.upsert(node("a", cpu=100))
    full: dict[str, str | int | float] = {"cpu": "2", "limits.cpu": "4"}
    world.cluster.apply(ResourceQuotaEvent(None, quota(full, full)))
    world.upsert(pod("g-0", "g", cpu=1), pod("g-1", "g", cpu=1))
    world.upsert(podgroup("g", 2, phase="", resources={"cpu": 2, "limits.cpu": 4}))
    world.schedule()
    assert phase(world, "g") == "Inqueue"


def test_a_deleted_quota_limits_nothing() -> None:
    world = SchedulerWorld(QUOTA)
    limit = quota({"cpu": "1"}, {})
    world.cluster.apply(ResourceQuotaEvent(None, limit))
    world.upsert(podgroup("g", 1, phase="", resources={"cpu": 2}))
    world.schedule()
    world.cluster.apply(ResourceQuotaEvent(limit, None))
    world.schedule()
    assert phase(world, "g") == "Inqueue"


# -- overcommit ----------------------------------------------------------------------------------

OVERCOMMIT = configuration("{name: gang}, {name: overcommit}, {name: predicates}")


@pytest.mark.parametrize(
    ("pods", "cpu", "labels"),
    [(1, 9, {}), (3, 5, {}), (1, 5, {"gpu": "yes"})],
    ids=["larger than each node", "too many for all nodes", "no such node"],
)
def test_a_gang_that_the_nodes_cannot_take_does_not_keep_others_from_admission(
    pods: int, cpu: int, labels: dict[str, str]
) -> None:
    world = SchedulerWorld(OVERCOMMIT)
    world.upsert(node("a", cpu=8), node("b", cpu=8))
    world.upsert(podgroup("never", pods, phase="", resources={"cpu": pods * cpu}))
    world.upsert(*(pod(f"never-{n}", "never", cpu=cpu, selector=labels) for n in range(pods)))
    world.upsert(podgroup("small", 2, phase="", resources={"cpu": 15}))
    for _ in range(3):
        world.schedule()
    assert (phase(world, "never"), phase(world, "small")) == ("Inqueue", "Inqueue")
    expected = "all nodes together could not take its pods even if nothing else ran"
    assert expected in world.report("never").status.conditions[-1].message
    world.upsert(*(node(name, cpu=16, labels=labels) for name in "cd"))
    assert len(world.schedule()) == pods


# -- drf with hierarchy --------------------------------------------------------------------------

HDRF = configuration("{name: gang}, {name: drf, enableHierarchy: true}", actions="allocate")


def tree_queue(path: str, weights: str = "") -> Queue:
    annotations = {"volcano.sh/hierarchy": path, "volcano.sh/hierarchy-weights": weights}
    return queue(path.rpartition("/")[2], annotations=annotations)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (("1/1", "1/2/1", "1/2/1"), {"sci": 4, "dev": 4, "prod": 4}),
        (("1/4", "1/2/1", "1/2/1"), {"sci": 8, "dev": 2, "prod": 2}),
        (("", "1/1/1", "1/1/-3"), {"sci": 6, "dev": 3, "prod": 3}),
    ],
)
def test_the_cluster_is_divided_level_by_level_by_weight(
    weights: tuple[str, str, str], expected: dict[str, int]
) -> None:
    world = SchedulerWorld(HDRF)
    world.upsert(node("a", cpu=12, memory="64Gi"))
    paths = ("root/sci", "root/eng/dev", "root/eng/prod")
    world.upsert(*map(tree_queue, paths, weights))
    for name in ("sci", "dev", "prod"):
        submit(world, name, 12, queue=name)
    assert allocated_pods(world) == expected


def test_an_unequal_division_within_a_parent_does_not_count_for_it() -> None:
    """What a queue has beyond the smallest of its siblings is scaled down: dev and prod count as 3
    each, so that sci gets half of their 6."""
    world = SchedulerWorld(HDRF)
    world.upsert(node("a", cpu=12, memory="64Gi"))
    paths = ("root/sci", "root/eng/dev", "root/eng/prod")
    world.upsert(*map(tree_queue, paths, ("1/1", "1/2/1", "1/2/3")))
    for name in ("sci", "dev", "prod"):
        submit(world, name, 12, queue=name)
    assert allocated_pods(world) == {"sci": 3, "dev": 3, "prod": 6}


def test_a_queue_that_has_all_it_requests_leaves_the_rest_to_others() -> None:
    world = SchedulerWorld(HDRF)
    world.upsert(node("a", cpu=12), tree_queue("root/x", "1/1"), tree_queue("root/y", "1/1"))
    submit(world, "x", 2, queue="x")
    submit(world, "y", 12, queue="y")
    assert allocated_pods(world) == {"x": 2, "y": 10}
    world.remove(world.pod_objects["uid-y-t-0"])
    submit(world, "more", 1, queue="x")
    assert allocated_pods(world) == {"more": 1}


# -- resource-strategy-fit -----------------------------------------------------------------------

STRATEGY = configuration(
    "{name: gang}, {name: resource-strategy-fit, arguments: {resources: {"
    "cpu: {type: MostAllocated, weight: 1}, example.com/*: {type: LeastAllocated, weight: 4}}}}"
)


def test_nodes_are_filled_by_one_resource_and_spread_by_another() -> None:
    world = SchedulerWorld(STRATEGY)
    for name in ("a", "b"):
        world.upsert(node(name, cpu=10, extra={"example.com/card": 10}))
    submit(world, "first", 2)
    assert set(world.schedule().values()) == {"a"}
    submit(world, "second", 2, extra={"example.com/card": 1})
    # The cards of both are idle, but a has fewer CPUs left; then it also has fewer cards.
    assert world.schedule() == {"second-t-0": "a", "second-t-1": "b"}


def test_a_pod_overrides_strategy_and_weights_by_annotations() -> None:
    world = SchedulerWorld(STRATEGY)
    world.upsert(node("a", cpu=10), node("b", cpu=10))
    submit(world, "first", 1)
    assert set(world.schedule().values()) == {"a"}
    override = {
        "volcano__resource_strategy_scoring_type": "LeastAllocated",
        "volcano__resource_strategy_weight": '{"cpu": 5}',
    }
    world.upsert(podgroup("g", 1), annotated(pod("g-0", "g"), **override))
    assert world.schedule() == {"g-0": "b"}


# -- task-topology -------------------------------------------------------------------------------

TOPOLOGY = configuration("{name: gang}, {name: nodeorder}, {name: task-topology}")


def strong_topology(scores: str) -> str:
    """The plugin *scores*, and task-topology with the weight of Volcano's documentation."""
    topology = "{name: task-topology, arguments: {task-topology.weight: 10}}"
    return configuration(f"{{name: gang}}, {{name: {scores}}}, {topology}")


def topology_gang(world: SchedulerWorld, roles: dict[str, int], **annotations: str) -> None:
    world.upsert(
        annotated_group(
            podgroup("g", sum(roles.values())),
            {f"volcano.sh/task-topology-{k.replace('_', '-')}": v for k, v in annotations.items()},
        )
    )
    for role, count in roles.items():
        world.upsert(*(pod(f"g-{role}-{i}", "g", role=role) for i in range(count)))


def test_tasks_that_belong_together_are_on_one_node() -> None:
    world = SchedulerWorld(TOPOLOGY)
    world.upsert(*(node(f"n{i}", cpu=4) for i in range(4)))
    topology_gang(world, {"ps": 1, "worker": 3}, affinity="ps,worker")
    assert len(set(world.schedule().values())) == 1


def test_tasks_that_belong_apart_are_on_different_nodes() -> None:
    world = SchedulerWorld(
        configuration(
            "{name: gang}, {name: binpack}, {name: task-topology, "
            "arguments: {task-topology.weight: 5}}"
        )
    )
    world.upsert(*(node(f"n{i}", cpu=4) for i in range(4)))
    topology_gang(world, {"ps": 3}, anti_affinity="ps")
    assert len(set(world.schedule().values())) == 3


@pytest.mark.parametrize("scores", ["nodeorder", "binpack"])
@pytest.mark.parametrize("cpu", [3, 4, 6])
def test_a_group_is_divided_by_the_task_that_belongs_apart_from_itself(
    cpu: int, scores: str
) -> None:
    """As Volcano's buckets: each ps has two workers on its node, also where more would fit."""
    world = SchedulerWorld(strong_topology(scores))
    world.upsert(*(node(f"n{i}", cpu=cpu) for i in range(4)))
    topology_gang(world, {"ps": 2, "worker": 4}, affinity="ps,worker", anti_affinity="ps")
    roles: dict[str, list[str]] = {}
    for name, where in world.schedule().items():
        roles.setdefault(where, []).append(name.split("-")[1])
    assert [sorted(each) for each in roles.values()] == [["ps", "worker", "worker"]] * 2


@pytest.mark.parametrize("scores", ["nodeorder", "binpack"])
def test_a_group_that_fits_on_no_node_is_on_as_few_as_possible(scores: str) -> None:
    world = SchedulerWorld(strong_topology(scores))
    world.upsert(*(node(f"n{i}", cpu=3) for i in range(4)))
    topology_gang(world, {"ps": 2, "worker": 4}, affinity="ps,worker")
    assert len(set(world.schedule().values())) == 2


def test_groups_with_a_task_in_common_are_one() -> None:
    world = SchedulerWorld(TOPOLOGY)
    world.upsert(*(node(f"n{i}", cpu=6) for i in range(3)))
    topology_gang(world, {"a": 2, "b": 2, "c": 2}, affinity="a,b;b,c")
    assert len(set(world.schedule().values())) == 1


def test_a_gang_with_too_many_names_in_an_annotation_waits_and_says_so() -> None:
    world = SchedulerWorld(TOPOLOGY)
    world.upsert(node("n", cpu=8))
    names = ",".join(f"t{number}" for number in range(30_000))
    topology_gang(world, {"t1": 1, "t2": 1}, affinity=names, anti_affinity=names)
    assert world.schedule() == {}
    diagnosis = world.cluster.gangs["ns/g"].diagnosis
    assert diagnosis is not None and diagnosis.reason == "UnsupportedField"
    name = "volcano.sh/task-topology-affinity"
    assert diagnosis.message == f"the annotation {name} has more than 500 names"
    short = podgroup("g", 1)
    world.upsert(annotated_group(short, {name: ",".join(names.split(",")[:500])}))
    assert set(world.schedule().values()) == {"n"}


def test_tasks_without_a_term_are_not_scored() -> None:
    world = SchedulerWorld(TOPOLOGY)
    world.upsert(*(node(f"n{i}", cpu=8) for i in range(3)))
    topology_gang(world, {"a": 1, "b": 1, "other": 1}, affinity="a,b")
    nodes = world.schedule()
    assert nodes["g-a-0"] == nodes["g-b-0"] != nodes["g-other-0"]


def test_tasks_are_placed_in_the_declared_order() -> None:
    world = SchedulerWorld(TOPOLOGY)
    world.upsert(node("a", cpu=1))
    world.upsert(
        annotated_group(podgroup("g", 1), {"volcano.sh/task-topology-task-order": "worker,ps"})
    )
    world.upsert(pod("g-ps-0", "g", role="ps"), pod("g-worker-5", "g", role="worker"))
    assert world.schedule() == {"g-worker-5": "a"}


def test_the_time_of_a_deadline_is_when_a_gang_is_tried_again() -> None:
    world = SchedulerWorld(SLA)
    world.time = CREATED + 1700
    world.upsert(podgroup("g", 1, phase="", resources={"cpu": 1}))
    world.schedule()
    waiting = timedelta(minutes=30).total_seconds()
    at = world.cluster.scheduling_queue.next_due()
    assert at is not None and CREATED + waiting < at < CREATED + waiting + 1
