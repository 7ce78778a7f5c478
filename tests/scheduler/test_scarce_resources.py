"""``sra`` and ``proportional`` of resource-strategy-fit, with the numbers of Volcano's tables."""

import numpy as np
import pytest
from support.scheduler import Amount, SchedulerWorld, node, pod, podgroup

from batholith.scheduler import conf
from batholith.scheduler.plugins.arguments import Arguments
from batholith.scheduler.plugins.extension_points import NodeAmounts
from batholith.scheduler.plugins.resource_strategy_fit import ResourceStrategyFitPlugin
from batholith.scheduler.state.podinfo.equivalence import EquivalenceCache

T4, A10, GPU = "nvidia.com/t4", "nvidia.com/a10", "nvidia.com/gpu"
NODES: dict[str, dict[str, Amount]] = {
    "n1": {},
    "n2": {T4: 16},
    "n3": {A10: 16},
    "n4": {T4: 8, A10: 16},
}
PODS: dict[str, dict[str, Amount]] = {
    "p1": {"cpu": 1, "memory": "1Gi"},
    "p2": {"cpu": 1.5, T4: 2},
    "p3": {"cpu": 2, "memory": "4Gi", A10: 2},
    "p4": {"cpu": 3, "memory": "4Gi", T4: 1, A10: 3},
}
BOTH = {"resources": f"{T4}, {A10}", "weight": 5, "resourceWeight": {T4: 2, A10: 3}}
T4_ONLY = {"resources": T4, "weight": 5, "resourceWeight": {T4: 2}}


def scores(pod_name: str, **arguments: object) -> list[float]:
    """The scores of a pod on n1 to n4, of which the first has 32 CPUs and the others 8."""
    world = SchedulerWorld()
    for name, devices in NODES.items():
        cpu, memory = (32, "64Gi") if name == "n1" else (8, "16Gi")
        world.upsert(node(name, extra=devices, cpu=cpu, memory=memory))
    plugin = ResourceStrategyFitPlugin(Arguments(arguments))
    plugin.on_session_open(world.cluster)
    matrix = world.cluster.node_matrix
    request = {key: value for key, value in PODS[pod_name].items() if key != "cpu"}
    eq_class = EquivalenceCache().get(pod(pod_name, cpu=PODS[pod_name]["cpu"], extra=request))
    indexes = np.array([matrix.names.index(name) for name in NODES])
    allocatable = matrix.allocatable[:, indexes]
    vector = eq_class.request_vector(matrix.resource_index)
    vector[matrix.resource_index.row("pods")] = 0  # Volcano does not score by pods
    amounts = NodeAmounts(vector, indexes, allocatable, allocatable * 0)
    return [round(each, 3) for each in plugin.score(eq_class, amounts).tolist()]


@pytest.mark.parametrize(
    ("name", "section", "expected"),
    [
        ("p1", BOTH, [500, 300, 200, 0]),
        ("p2", BOTH, [0, 300, 0, 0]),
        ("p3", BOTH, [0, 0, 200, 0]),
        ("p4", BOTH, [0, 0, 0, 0]),
        ("p1", T4_ONLY, [500, 0, 500, 0]),
        ("p2", T4_ONLY, [0, 0, 0, 0]),
        ("p3", T4_ONLY, [0, 0, 500, 0]),
        ("p4", T4_ONLY, [0, 0, 0, 0]),
        ("p1", {**BOTH, "enable": False}, [0, 0, 0, 0]),
        ("p1", {"resources": ""}, [0, 0, 0, 0]),
    ],
)
def test_nodes_with_scarce_devices_are_avoided(
    name: str, section: dict[str, object], expected: list[float]
) -> None:
    sra = {"enable": True} | section
    assert scores(name, resourceStrategyFitWeight=0, sra=sra) == expected


@pytest.mark.parametrize(
    ("name", "weight", "expected"),
    [
        ("p1", 0, [775, 700, 700, 700]),
        ("p1", 5, [1275, 700, 1200, 700]),
        ("p3", 5, [750, 600, 1100, 600]),
    ],
)
def test_the_score_is_added_to_that_by_utilization(
    name: str, weight: int, expected: list[float]
) -> None:
    resources = {
        T4: {"type": "MostAllocated", "weight": 3},
        "cpu": {"type": "LeastAllocated", "weight": 1},
    }
    sra = {**T4_ONLY, "enable": True, "weight": weight}
    assert scores(name, resourceStrategyFitWeight=8, resources=resources, sra=sra) == expected


PROPORTIONAL = (
    f"{{enable: true, resources: {GPU}, resourceProportion: {{{GPU}.cpu: 4, {GPU}.memory: 4}}}}"
)


def world(section: str, *, cpu: int, memory: str, gpus: int) -> SchedulerWorld:
    plugin = f"{{name: resource-strategy-fit, arguments: {{proportional: {section}}}}}"
    found = SchedulerWorld(f'actions: "allocate"\ntiers:\n- plugins: [{{name: gang}}, {plugin}]')
    found.upsert(node("n", cpu=cpu, memory=memory, extra={GPU: gpus}), podgroup("g", 1))
    return found


@pytest.mark.parametrize(
    ("free", "request_", "fits"),
    [
        ((30, "30G", 6), {"cpu": 4, "memory": "4G"}, True),
        ((30, "30G", 6), {"cpu": 10, "memory": "10G"}, False),
        ((30, "30G", 6), {"cpu": 10, "memory": "10G", GPU: 1}, True),
        ((26, "26G", 2), {"cpu": 10, "memory": "10G"}, True),
        ((30, "23G", 6), {"cpu": 1}, False),
    ],
)
def test_cpu_and_memory_are_kept_for_free_devices(
    free: tuple[int, str, int], request_: dict[str, Amount], fits: bool
) -> None:
    cpu, memory, gpus = free
    here = world(PROPORTIONAL, cpu=cpu, memory=memory, gpus=gpus)
    more = {key: value for key, value in request_.items() if key != "cpu"}
    here.upsert(pod("g-x-0", "g", cpu=request_["cpu"], extra=more))
    assert bool(here.schedule()) is fits
    if not fits:
        assert f"proportional of resource {GPU} check failed" in here.fit_message("g")


def test_pods_of_one_gang_leave_what_is_kept_as_well() -> None:
    here = world(PROPORTIONAL, cpu=30, memory="100G", gpus=6)
    here.upsert(*(pod(f"g-x-{i}", "g", cpu=2) for i in range(5)))
    assert len(here.schedule()) == 3


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("sra: {enabled: true}", "sra: section: unknown entry 'enabled'"),
        ("sra: {weight: -1}", "sra: weight: must be at least 0, not -1"),
        ("sra: {resources: a, resourceWeight: {b: 1}}", "unknown entry 'b'; known: a"),
        ("proportional: {enable: 5}", "proportional: enable: must be true or false"),
        ("proportional: {resources: a, resourceProportion: {a.cpu: -1}}", "must be at least 0"),
        ("proportional: {resources: a, resourceProportion: {a: 1}}", "unknown entry 'a'"),
        ("proportional: 1", "proportional: must be a mapping"),
    ],
)
def test_a_malformed_section_is_an_error(arguments: str, problem: str) -> None:
    plugin = f"{{name: resource-strategy-fit, arguments: {{{arguments}}}}}"
    with pytest.raises(conf.ConfError) as caught:
        conf.load(f'actions: "allocate"\ntiers:\n- plugins: [{plugin}]')
    assert problem in str(caught.value)
