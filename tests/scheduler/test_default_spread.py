"""Topology spread constraints of pods that have none, as kube-scheduler's PodTopologySpreadArgs."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.polling import wait_for
from support.scheduled_gangs import GangServer
from support.scheduler import SchedulerWorld, node, pod, podgroup

from batholith.model.meta import LabelSelector, ObjectMeta, OwnerReference
from batholith.model.names import GROUP_NAME, NODES, PODGROUPS, PODS, QUEUES, SERVICES
from batholith.scheduler import conf
from batholith.scheduler.plugins.default_spread import CONSTRAINTS, KIND
from batholith.scheduler.state.cache.events import PodOwnerEvent
from batholith.scheduler.state.core_types import Pod, TopologySpreadConstraint
from batholith.scheduler.state.podinfo.default_spread import (
    LabelOwner,
    ReplicaSetSpec,
    SelectorOwner,
    ServiceSpec,
)

ZONE = "topology.kubernetes.io/zone"
HARD = f"{CONSTRAINTS}: [{{topologyKey: {ZONE}, maxSkew: 1, whenUnsatisfiable: DoNotSchedule}}]"
SYSTEM = f"{KIND}: System"


def text(arguments: str) -> str:
    plugins = (
        f"{{name: gang}}, {{name: predicates, arguments: {{{arguments}}}}}, "
        "{name: nodeorder, arguments: {leastrequested.weight: 0, mostrequested.weight: 1, "
        "balancedresource.weight: 0, podtopologyspread.weight: 10}}"
    )
    return f'actions: "allocate"\ntiers:\n- plugins: [{plugins}]'


def world(arguments: str, *, zones: str = "aab") -> SchedulerWorld:
    """Nodes of zones, the first of which is preferred by the scores by resources."""
    found = SchedulerWorld(text(arguments))
    for number, zone in enumerate(zones):
        labels = {"kubernetes.io/hostname": f"n{number}"} | ({ZONE: zone} if zone != "-" else {})
        found.upsert(node(f"n{number}", cpu=8, labels=labels))
    found.upsert(pod("used", node_name="n0", scheduler="other", cpu=2))
    return found


def service(world: SchedulerWorld, name: str = "web", **selector: str) -> None:
    found = LabelOwner(ObjectMeta(name=name, namespace="ns"), ServiceSpec(selector))
    world.cluster.apply(PodOwnerEvent("Service", None, found))


def web(world: SchedulerWorld, count: int, **more: Any) -> None:
    world.upsert(podgroup("g", 1))
    world.upsert(*(pod(f"g-{i}", "g", labels={"app": "web"}, **more) for i in range(count)))


def zones(world: SchedulerWorld) -> list[str]:
    """The zones of the nodes that a cycle chooses."""
    infos = {each.name: each for each in world.cluster.node_matrix.node_infos if each}
    return sorted(infos[name].labels.get(ZONE, "-") for name in world.schedule().values())


def test_pods_of_a_service_are_spread() -> None:
    here = world(HARD)
    service(here, app="web")
    web(here, 4)
    assert zones(here) == ["a", "a", "b", "b"]


def test_without_a_service_or_a_controller_there_are_no_constraints() -> None:
    here = world(HARD)
    service(here, app="other")
    service(here, "without")
    web(here, 4)
    assert zones(here) == ["a"] * 4


def controlled(one: Pod, kind: str, name: str) -> Pod:
    owner = OwnerReference(api_version="apps/v1", kind=kind, name=name, uid="u", controller=True)
    meta = msgspec.structs.replace(one.metadata, owner_references=(owner,))
    return msgspec.structs.replace(one, metadata=meta)


@pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet", "ReplicationController", "Job"])
def test_pods_of_one_controller_are_spread(kind: str) -> None:
    here = world(HARD)
    meta = ObjectMeta(name="web", namespace="ns")
    selector = LabelSelector(match_labels={"app": "web"})
    owner = (
        LabelOwner(meta, ServiceSpec({"app": "web"}))
        if kind == "ReplicationController"
        else SelectorOwner(meta, ReplicaSetSpec(selector))
    )
    here.cluster.apply(PodOwnerEvent(kind if kind != "Job" else "ReplicaSet", None, owner))
    here.upsert(podgroup("g", 1))
    for number in range(4):
        here.upsert(controlled(pod(f"g-{number}", "g", labels={"app": "web"}), kind, "web"))
    assert zones(here) == (["a"] * 4 if kind == "Job" else ["a", "a", "b", "b"])


def test_pods_with_constraints_have_no_others() -> None:
    here = world(HARD)
    service(here, app="web")
    own = TopologySpreadConstraint(
        topology_key="kubernetes.io/hostname", max_skew=5, when_unsatisfiable="DoNotSchedule",
        label_selector=LabelSelector(match_labels={"app": "web"}),
    )  # fmt: skip
    here.upsert(podgroup("g", 1))
    for number in range(4):
        one = pod(f"g-{number}", "g", labels={"app": "web"})
        spec = msgspec.structs.replace(one.spec, topology_spread_constraints=(own,))
        here.upsert(msgspec.structs.replace(one, spec=spec))
    assert zones(here) == ["a"] * 4


def test_the_constraints_of_the_system_prefer_other_nodes_and_zones() -> None:
    here = world(SYSTEM)
    service(here, app="web")
    web(here, 3)
    assert sorted(here.schedule().values()) == ["n0", "n1", "n2"]


def test_the_constraints_of_the_system_concern_nodes_without_zones() -> None:
    here = world(SYSTEM, zones="---")
    service(here, app="web")
    web(here, 3)
    assert sorted(here.schedule().values()) == ["n0", "n1", "n2"]


def test_without_them_the_fullest_node_is_preferred() -> None:
    here = world("")
    service(here, app="web")
    web(here, 3)
    assert set(here.schedule().values()) == {"n0"}


def test_waiting_pods_get_the_constraints_of_a_service_that_is_created_later() -> None:
    here = world(HARD, zones="a")
    web(here, 1, cpu=9)
    assert here.schedule() == {}
    service(here, app="web")
    here.reload(text(HARD))
    here.upsert(node("n1", cpu=9, labels={}))
    assert here.schedule() == {}
    assert "missing required label" in here.fit_message("g")
    here.reload(text(""))
    assert here.schedule() == {"g-0": "n1"}


def store_cluster(server: GangServer) -> None:
    """Store nodes of two zones, a Service, and a gang of four pods that it selects."""
    server.prepare()
    server.put(QUEUES, "root", namespace="", spec={"weight": 1}, status={"state": "Open"})
    for name, zone in (("n0", "a"), ("n1", "a"), ("n2", "b")):
        allocatable = {"cpu": "8", "memory": "64Gi", "pods": "110"}
        server.put(
            NODES, name, metadata={"labels": {ZONE: zone}}, status={"allocatable": allocatable}
        )
    server.put(SERVICES, "web", spec={"selector": {"app": "web"}})
    server.gang("g", 0, 4)
    for number in range(4):
        meta = {"labels": {"app": "web"}, "annotations": {GROUP_NAME: "g"}}
        container = {"name": "c", "resources": {"requests": {"cpu": "1"}}}
        spec = {"schedulerName": "volcano", "containers": [container]}
        server.put(PODS, f"g-{number}", metadata=meta, spec=spec, status={"phase": "Pending"})


async def test_a_running_scheduler_watches_services() -> None:
    async with GangServer() as server:
        store_cluster(server)
        async with server.scheduler(conf=text(HARD)):
            assert (await server.wait_bound("g", 4)).count("n2") == 2


async def test_waiting_pods_are_subject_to_a_service_that_is_created_later() -> None:
    async with GangServer() as server:
        store_cluster(server)
        server.remove(SERVICES, "web")
        for name in ("n0", "n1", "n2"):
            server.remove(NODES, name, namespace="")
        server.put(NODES, "n", status={"allocatable": {"cpu": "0", "pods": "110"}})
        async with server.scheduler(conf=text(HARD)):
            await wait_for(lambda: "Insufficient cpu" in str(server.objects(PODGROUPS)["d/g"]))
            server.put(SERVICES, "web", spec={"selector": {"app": "web"}})
            await wait_for(lambda: "missing required label" in str(server.objects(PODGROUPS)))


async def test_the_first_default_constraints_need_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "conf"
    file.write_text(text(""))
    async with GangServer() as server:
        store_cluster(server)
        async with server.scheduler(conf=text(""), conf_file=file) as run:
            await server.wait_bound("g", 4)
            file.write_text(text(HARD))
            await wait_for(lambda: any(run.events("InvalidSchedulerConfiguration")))
            (message,) = run.events("InvalidSchedulerConfiguration")
            assert "has to be restarted" in message


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (f"{KIND}: Some", "must be List or System, not 'Some'"),
        (f"{HARD}, {SYSTEM}", "must be empty if"),
        (f"{CONSTRAINTS}: zone", "must be a list of constraints"),
        (f"{CONSTRAINTS}: [{{maxSkew: 1, whenUnsatisfiable: ScheduleAnyway}}]", "topologyKey"),
        (f"{CONSTRAINTS}: [{{topologyKey: a, whenUnsatisfiable: ScheduleAnyway}}]", "maxSkew"),
        (f"{CONSTRAINTS}: [{{topologyKey: a, maxSkew: 1}}]", "whenUnsatisfiable: must be"),
        (
            f"{CONSTRAINTS}: [{{topologyKey: a, maxSkew: 1, whenUnsatisfiable: ScheduleAnyway, "
            "labelSelector: {}}]",
            "unknown entry 'labelSelector'",
        ),
    ],
)
def test_malformed_constraints_are_errors(arguments: str, problem: str) -> None:
    with pytest.raises(conf.ConfError) as caught:
        conf.load(text(arguments))
    assert "arguments.podtopologyspread." in str(caught.value)
    assert problem in str(caught.value)
