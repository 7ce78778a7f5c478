"""Single pods: kube-scheduler decides where they fit, and ours agrees.

Random pods, and pods with random claims that wait for their first consumer, are decided one after
the other, in the same state of the cluster. Where ours chooses a node, kube-scheduler must accept
that node; where ours finds none, kube-scheduler must find none. The volumes that are bound have the
same sizes; of equal ones kube-scheduler takes any. Claims of devices get the same devices.

A pod is pinned by an extended resource that one node has only: node affinity or taints would change
which nodes count for topology spread.
"""

import copy
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support.polling import wait_until_true
from support.random_claims import CLASSES, RandomStorage
from support.random_devices import RandomDevices
from support.random_pods import NAMESPACES, random_node, random_pod
from support.realkube import RealServer, real_server, require_realkube
from support.scheduler import SchedulerWorld

from batholith.model.names import NAMESPACES as NAMESPACE_RESOURCE
from batholith.model.names import NODES, PODS, REPLICASETS, SERVICES, Resource
from batholith.scheduler.plugins.predicates import PredicatesPlugin
from batholith.scheduler.plugins.volume_scores import VolumeScores
from batholith.scheduler.state.cache.events import NamespaceEvent, PodOwnerEvent
from batholith.scheduler.state.core_types import Namespace, Node, Pod
from batholith.scheduler.state.nodes.node_matrix import NodeMatrix
from batholith.scheduler.state.podinfo.default_spread import LabelOwner, SelectorOwner
from batholith.scheduler.state.podinfo.equivalence import EquivalenceClass
from batholith.scheduler.state.resources import IntVector

pytestmark = pytest.mark.timeout(300)

Json = dict[str, Any]

PODS_PER_RUN = 500
NODE_COUNT = 24
PODS_WITH_CLAIMS = 25
PODS_WITH_DEVICES, PODS_WITH_ALTERNATIVES = 20, 6
_PIN = "pin.example.com"
STORAGE_SHAPE = [
    {"utilization": 0, "score": 2},
    {"utilization": 60, "score": 10},
    {"utilization": 100, "score": 3},
]


def pinned(pod: Json, node: str) -> Json:
    """*pod* with a request that only *node* can meet."""
    result = copy.deepcopy(pod)
    container = result["spec"]["containers"][0]
    for amounts in ("requests", "limits"):
        container.setdefault("resources", {}).setdefault(amounts, {})[f"{_PIN}/{node}"] = "1"
    return result


class Truth:
    """A real server with kube-scheduler."""

    def __init__(self, server: RealServer) -> None:
        self.server = server

    async def add_nodes(self, nodes: list[Json]) -> list[Json]:
        """Create *nodes*; returns them as stored."""
        stored = []
        for node in nodes:
            name, body = node["metadata"]["name"], copy.deepcopy(node)
            for amounts in body["status"].values():
                amounts[f"{_PIN}/{name}"] = "1000"
            await self.server.create(NODES.path(), body)
            # Admission adds a taint to a new node, which no controller here would remove.
            patch = {"spec": {"taints": node["spec"]["taints"]}}
            response = await self.server.request(
                "PATCH", NODES.path(name=name), patch, content_type="application/merge-patch+json"
            )
            assert response.status == 200, response
            stored.append(response.body)
        return stored

    async def preview(self, pod: Json) -> Json:
        """*pod* as the server would store it."""
        path = f"{PODS.path(pod['metadata']['namespace'])}?dryRun=All"
        return await self.server.create(path, pod)

    async def schedule(self, pod: Json) -> Json:
        """Create *pod*; returns it as kube-scheduler has decided."""
        created = await self.server.create(PODS.path(pod["metadata"]["namespace"]), pod)
        meta = created["metadata"]
        path = PODS.path(meta["namespace"], meta["name"])
        decided: list[Json] = []

        async def is_decided() -> bool:
            decided[:] = [await self.server.get(path)]
            return bool(decided[0]["spec"].get("nodeName")) or any(
                (each["type"], each["status"]) == ("PodScheduled", "False")
                for each in decided[0]["status"].get("conditions", ())
            )

        await wait_until_true(is_decided)
        return decided[0]

    async def delete(self, pod: Json) -> None:
        """Delete *pod* at once."""
        meta = pod["metadata"]
        path = PODS.path(meta["namespace"], meta["name"])
        response = await self.server.request("DELETE", path, {"gracePeriodSeconds": 0})
        assert response.status == 200, response


@asynccontextmanager
async def truth(
    directory: Path, plugins: Json | None = None, *, scores: str = "", gates: str = ""
) -> AsyncIterator[Truth]:
    """A server with kube-scheduler and namespaces; *plugins* are arguments by plugin.

    If *scores* is the name of a plugin, it alone scores nodes.
    """
    async with real_server(directory) as server:
        for name, labels in NAMESPACES.items():
            body = {"metadata": {"name": name, "labels": labels}}
            await server.create(NAMESPACE_RESOURCE.path(), body)
        flags = [] if plugins is None else [_config_flag(server, directory, plugins, scores)]
        if gates:
            flags.append(f"--feature-gates={gates}")
        server.kube.start_scheduler(*flags)
        yield Truth(server)


def _config_flag(server: RealServer, directory: Path, plugins: Json, scores: str) -> str:
    """Write a configuration of kube-scheduler; return the flag with which it is used."""
    configured = [{"name": name, "args": arguments} for name, arguments in plugins.items()]
    profile: Json = {"schedulerName": "default-scheduler", "pluginConfig": configured}
    if scores:
        score = {"disabled": [{"name": "*"}], "enabled": [{"name": scores, "weight": 1}]}
        profile["plugins"] = {"score": score}
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(server.kubeconfig_of("admin"))},
        "profiles": [profile],
    }
    file = directory / "scheduler.json"
    file.write_text(json.dumps(config))
    return f"--config={file}"


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 12))]
)
async def test_ours_schedules_a_pod_if_and_only_if_kube_scheduler_does(
    tmp_path: Path, seed: int
) -> None:
    require_realkube()
    rng = random.Random(seed)
    world = SchedulerWorld()
    async with truth(tmp_path) as other:
        for name, labels in NAMESPACES.items():
            stored = {"metadata": {"name": name, "labels": labels}}
            world.cluster.apply(NamespaceEvent(None, msgspec.convert(stored, Namespace)))
        for stored in await other.add_nodes(
            [random_node(rng, f"n{index}") for index in range(NODE_COUNT)]
        ):
            world.upsert(msgspec.convert(stored, Node))
        bound: list[Json] = []
        rejected = 0
        for index in range(PODS_PER_RUN):
            pod = random_pod(rng, f"p{index}", constraints=1.5)
            candidate = msgspec.convert(await other.preview(pod), Pod)
            world.upsert(candidate)
            node = world.schedule().get(candidate.metadata.name)
            world.remove(candidate)
            decided = await other.schedule(pinned(pod, node) if node else pod)
            assert decided["spec"].get("nodeName") == node, (index, node, pod, decided["status"])
            if node is None:
                rejected += 1
                await other.delete(decided)
            else:
                bound.append(decided)
                world.upsert(msgspec.convert(decided, Pod))
            while len(bound) > 6 * NODE_COUNT or (bound and rng.random() < 0.15):
                deleted = bound.pop(rng.randrange(len(bound)))
                await other.delete(deleted)
                world.remove(msgspec.convert(deleted, Pod))
    assert rejected > PODS_PER_RUN // 10


SPREAD = [
    {
        "topologyKey": "topology.kubernetes.io/zone",
        "maxSkew": 1,
        "whenUnsatisfiable": "DoNotSchedule",
    }
]
ADDED_AFFINITY = {
    "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [
            {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}
        ]
    }
}
OWNERS: tuple[tuple[Resource, str, Json], ...] = (
    (SERVICES, "a", {"selector": {"app": "a"}, "ports": [{"port": 1}]}),
    (SERVICES, "a1", {"selector": {"app": "a", "version": "1"}, "ports": [{"port": 1}]}),
    (SERVICES, "front", {"selector": {"tier": "front"}, "ports": [{"port": 1}]}),
    (SERVICES, "without", {"ports": [{"port": 1}]}),
    (
        REPLICASETS,
        "b",
        {
            "replicas": 0,
            "selector": {
                "matchExpressions": [{"key": "app", "operator": "In", "values": ["b", "c"]}]
            },
            "template": {
                "metadata": {"labels": {"app": "b"}},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            },
        },
    ),
)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, 4))
async def test_default_constraints_and_added_affinity_are_those_of_kube_scheduler(
    tmp_path: Path, seed: int
) -> None:
    require_realkube()
    rng = random.Random(seed)
    arguments = {
        "podtopologyspread.defaultConstraints": SPREAD,
        "nodeaffinity.addedAffinity": ADDED_AFFINITY,
    }
    plugins = [{"name": "gang"}, {"name": "predicates", "arguments": arguments}]
    world = SchedulerWorld(
        json.dumps({"actions": "allocate, backfill", "tiers": [{"plugins": plugins}]})
    )
    spread = {"defaultingType": "List", "defaultConstraints": SPREAD}
    affinity = {"addedAffinity": ADDED_AFFINITY}
    async with truth(tmp_path, {"PodTopologySpread": spread, "NodeAffinity": affinity}) as other:
        for stored in await other.add_nodes([random_node(rng, f"n{i}") for i in range(NODE_COUNT)]):
            world.upsert(msgspec.convert(stored, Node))
        owners: Json = {}
        for resource, name, spec in OWNERS:
            body = {"metadata": {"name": name}, "spec": spec}
            stored = owners[name] = await other.server.create(resource.path("ns-a"), body)
            view: type[LabelOwner] | type[SelectorOwner] = LabelOwner
            if resource is REPLICASETS:
                view = SelectorOwner
            world.cluster.apply(PodOwnerEvent(resource.kind, None, msgspec.convert(stored, view)))
        rejected = 0
        for index in range(150):
            pod = random_pod(rng, f"p{index}", constraints=0)
            pod["metadata"]["namespace"] = "ns-a"
            if pod["metadata"]["labels"]["app"] in "bd":
                uid = owners["b"]["metadata"]["uid"]
                owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "b", "uid": uid}
                pod["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
            candidate = msgspec.convert(await other.preview(pod), Pod)
            world.upsert(candidate)
            node = world.schedule().get(candidate.metadata.name)
            world.remove(candidate)
            decided = await other.schedule(pinned(pod, node) if node else pod)
            assert decided["spec"].get("nodeName") == node, (index, node, pod, decided["status"])
            if node is None:
                rejected += 1
                await other.delete(decided)
            else:
                world.upsert(msgspec.convert(decided, Pod))
    assert rejected > 5


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, 12))
async def test_ours_places_pods_with_claims_where_kube_scheduler_does(
    tmp_path: Path, seed: int
) -> None:
    require_realkube()
    world = SchedulerWorld()
    async with truth(tmp_path) as other:
        other.server.kube.start_manager(("persistentvolume-binder-controller",))
        storage = RandomStorage(random.Random(seed), other.server, world)
        for stored in await other.add_nodes(storage.nodes()):
            world.upsert(msgspec.convert(stored, Node))
        await storage.create_objects()
        decisions = []
        for index in range(PODS_WITH_CLAIMS if seed == 1 else 4 * PODS_WITH_CLAIMS):
            pod = await storage.new_pod(f"p{index}")
            await storage.update()
            candidate = msgspec.convert(await other.preview(pod), Pod)
            world.upsert(candidate)
            placement = next(iter(world.decision().placements), None)
            node = placement.node if placement is not None else None
            expected = storage.sizes(placement)
            world.remove(candidate)
            async with storage.provisioning():
                decided = await other.schedule(pinned(pod, node) if node else pod)
            assert decided["spec"].get("nodeName") == node, (index, node, pod, decided["status"])
            await storage.update()
            assert storage.bound_sizes(expected) == expected, (index, pod)
            decisions.append(node)
            if node is None:
                await other.delete(decided)
            else:
                world.upsert(msgspec.convert(decided, Pod))
    assert decisions.count(None) > len(decisions) // 10
    assert len(decisions) - decisions.count(None) > len(decisions) // 4
    assert storage.used_classes >= CLASSES.keys()


def _possible_nodes(eq_class: EquivalenceClass, matrix: NodeMatrix) -> IntVector:
    """The nodes that no filter rejects."""
    predicates = PredicatesPlugin({})
    possible = np.array(
        [
            node is not None and predicates.filter_node(eq_class, node) is None
            for node in matrix.node_infos
        ]
        + [False] * (matrix.columns - len(matrix.node_infos))
    )
    for rejected in predicates.pod_filters(eq_class, matrix):
        possible &= ~rejected.mask
    return np.flatnonzero(possible)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, 4))
async def test_ours_scores_nodes_by_storage_as_kube_scheduler_does(
    tmp_path: Path, seed: int
) -> None:
    """kube-scheduler takes any of the nodes with the highest score. So no node may have a higher
    score by our rules than the one that it has chosen."""
    require_realkube()
    world = SchedulerWorld()
    arguments = {"volumebinding.shape": STORAGE_SHAPE}
    scores = VolumeScores.parse(arguments)
    assert scores is not None
    kube = {"VolumeBinding": {"shape": STORAGE_SHAPE, "bindTimeoutSeconds": 600}}
    gates = "StorageCapacityScoring=true"
    async with truth(tmp_path, kube, scores="VolumeBinding", gates=gates) as other:
        other.server.kube.start_manager(("persistentvolume-binder-controller",))
        storage = RandomStorage(random.Random(seed), other.server, world)
        for stored in await other.add_nodes(storage.nodes()):
            world.upsert(msgspec.convert(stored, Node))
        await storage.create_objects()
        preferring = 0
        for index in range(2 * PODS_WITH_CLAIMS):
            pod = await storage.new_pod(f"p{index}")
            await storage.update()
            candidate = msgspec.convert(await other.preview(pod), Pod)
            world.upsert(candidate)
            matrix = world.cluster.node_matrix
            eq_class = world.cluster.pod_classes.get(candidate)
            possible = _possible_nodes(eq_class, matrix)
            claims = eq_class.volumes.delayed
            found = scores.scores(claims, matrix, possible) if len(possible) else None
            world.remove(candidate)
            async with storage.provisioning():
                decided = await other.schedule(pod)
            name = decided["spec"].get("nodeName")
            assert (name is not None) == (len(possible) > 0), (index, pod, decided["status"])
            if found is not None:
                by_name = dict(zip((matrix.names[each] for each in possible), found, strict=True))
                assert by_name[name] == max(by_name.values()), (index, name, by_name, pod)
                preferring += 1
            await storage.update()
            if name is None:
                await other.delete(decided)
            else:
                world.upsert(msgspec.convert(decided, Pod))
    assert preferring > 5


async def prefer_the_same_nodes(
    other: Truth, devices: RandomDevices, world: SchedulerWorld
) -> None:
    """Compare the nodes of pods whose claims have alternatives; kube-scheduler takes any of those
    with the highest score."""
    preferring = 0
    for index in range(PODS_WITH_ALTERNATIVES):
        pod = await devices.new_pod(f"alternatives-{index}", alternatives=4)
        candidate = msgspec.convert(await other.preview(pod), Pod)
        world.upsert(candidate)
        matrix = world.cluster.node_matrix
        eq_class = world.cluster.pod_classes.get(candidate)
        possible = _possible_nodes(eq_class, matrix)
        scores = PredicatesPlugin({}).pod_scores(eq_class, matrix, possible)
        world.remove(candidate)
        decided = await other.schedule(pod)
        details = index, devices.claims_of(pod), decided["status"]
        name = decided["spec"].get("nodeName")
        assert (name is not None) == (len(possible) > 0), details
        if scores is not None:
            by_name = dict(zip((matrix.names[each] for each in possible), scores, strict=True))
            assert by_name[name] == max(by_name.values()), (name, by_name, details)
            preferring += 1
        await devices.update(decided)
        await other.delete(decided)
        await devices.free(decided)
    assert preferring


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(2, 12))]
)
async def test_ours_allocates_the_devices_that_kube_scheduler_does(
    tmp_path: Path, seed: int
) -> None:
    require_realkube()
    world, rng = SchedulerWorld(), random.Random(seed)
    async with truth(tmp_path, {}, scores="DynamicResources") as other:
        devices = RandomDevices(rng, other.server, world)
        for stored in await other.add_nodes(devices.nodes()):
            world.upsert(msgspec.convert(stored, Node))
        await devices.create_objects()
        await prefer_the_same_nodes(other, devices, world)
        bound: list[Json] = []
        allocated = rejected = 0
        for index in range(PODS_WITH_DEVICES if seed == 1 else 5 * PODS_WITH_DEVICES):
            pod = await devices.new_pod(f"p{index}")
            candidate = msgspec.convert(await other.preview(pod), Pod)
            world.upsert(candidate)
            placement = next(iter(world.decision().placements), None)
            node = placement.node if placement is not None else None
            expected = devices.expected(placement)
            world.remove(candidate)
            decided = await other.schedule(pinned(pod, node) if node else pod)
            details = (index, node, devices.claims_of(pod), decided["status"])
            assert decided["spec"].get("nodeName") == node, details
            found = await devices.update(decided)
            assert {name: found[name] for name in expected} == expected, (index, pod)
            if node is None:
                rejected += 1
                await other.delete(decided)
            else:
                allocated += len(expected)
                bound.append(decided)
                world.upsert(msgspec.convert(decided, Pod))
            while bound and rng.random() < 0.3:
                deleted = bound.pop(rng.randrange(len(bound)))
                await other.delete(deleted)
                world.remove(msgspec.convert(deleted, Pod))
                await devices.free(deleted)
    assert min(allocated, rejected) > PODS_WITH_DEVICES // 10
