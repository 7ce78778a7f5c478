"""Volumes are bound before pods: what is written, awaited, and undone."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.controller_api import ControllerApi
from support.running_controller import FakeRecorder, running

from batholith.machinery.testing import FakeClock
from batholith.model.names import (
    GROUP_NAME,
    NODES,
    PERSISTENTVOLUMECLAIMS,
    PERSISTENTVOLUMES,
    PODGROUPS,
    PODS,
    QUEUES,
    STORAGECLASSES,
)
from batholith.scheduler.conf import DEFAULT
from batholith.scheduler.scheduler import Scheduler, SchedulerSettings

Json = dict[str, Any]

HOST = "kubernetes.io/hostname"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
BIND_COMPLETED = {"pv.kubernetes.io/bind-completed": "yes"}
TIMEOUT = 100
CONF = DEFAULT.replace(
    "- name: predicates",
    f"- name: predicates\n    arguments: {{volumebinding.bindTimeoutSeconds: {TIMEOUT}}}",
)


def on(host: str) -> Json:
    term = {"matchExpressions": [{"key": HOST, "operator": "In", "values": [host]}]}
    return {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}}


class Storage:
    """An API server with two nodes of two CPUs, and a gang whose pods have claims."""

    def __init__(self, api: ControllerApi) -> None:
        self.api = api
        self.clock = FakeClock()
        self.recorder = FakeRecorder()

    def prepare(self, provisioner: str) -> None:
        self.api.put(QUEUES, "default", status={"state": "Open"})
        amounts = {"cpu": "2", "memory": "8Gi", "pods": "110"}
        for name in ("a", "b"):
            labels = {"labels": {HOST: name}}
            self.api.put(NODES, name, metadata=labels, status={"allocatable": amounts})
        self.api.put(
            STORAGECLASSES,
            "late",
            provisioner=provisioner,
            volumeBindingMode="WaitForFirstConsumer",
        )

    def put_gang(self, *claims: str) -> None:
        """Store a gang with a pod of one CPU for each of *claims*, which exist."""
        size = len(claims)
        self.api.put(
            PODGROUPS, "g", spec={"minMember": size, "queue": "default"},
            status={"phase": "Inqueue"},
        )  # fmt: skip
        for index, claim in enumerate(claims):
            resources = {"requests": {"cpu": "1"}}
            container = {"name": "c", "image": "i", "resources": resources}
            volume = {"name": "v", "persistentVolumeClaim": {"claimName": claim}}
            self.api.put(
                PODS, f"p{index}", metadata={"annotations": {GROUP_NAME: "g"}},
                spec={"schedulerName": "volcano", "containers": [container], "volumes": [volume]},
                status={"phase": "Pending"},
            )  # fmt: skip

    def put_claim(self, name: str) -> None:
        requests = {"requests": {"storage": "1Gi"}}
        spec = {
            "storageClassName": "late",
            "accessModes": ["ReadWriteOnce"],
            "volumeMode": "Filesystem",
            "resources": requests,
        }
        self.api.put(
            PERSISTENTVOLUMECLAIMS,
            name,
            spec=spec,
            status={"phase": "Pending"},
        )

    def put_volume(self, name: str, host: str, *, claim: str = "") -> None:
        found = {"namespace": "d", "name": claim} if claim else None
        spec: Json = {
            "storageClassName": "late",
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "volumeMode": "Filesystem",
            "hostPath": {"path": "/v", "type": ""},
            **({"claimRef": found} if found else {}),
        }
        status = {"phase": "Bound" if claim else "Available"}
        self.api.put(
            PERSISTENTVOLUMES, name, namespace="", spec={**spec, **on(host)}, status=status
        )

    def bind_claim(self, name: str, volume: str) -> None:
        """Bind a claim as the volume controller does."""
        claim = self.api.objects(PERSISTENTVOLUMECLAIMS)[f"d/{name}"]
        annotations = {**claim["metadata"].get("annotations", {}), **BIND_COMPLETED}
        self.api.put(
            PERSISTENTVOLUMECLAIMS,
            name,
            metadata={**claim["metadata"], "annotations": annotations},
            spec={**claim["spec"], "volumeName": volume},
            status={"phase": "Bound"},
        )

    def claim_ref(self, volume: str) -> str:
        found = self.api.objects(PERSISTENTVOLUMES)[volume]["spec"].get("claimRef") or {}
        return str(found.get("name", ""))

    def is_bound(self, claim: str) -> bool:
        status = self.api.objects(PERSISTENTVOLUMECLAIMS)[f"d/{claim}"]["status"]
        return bool(status["phase"] == "Bound")

    def selected(self, claim: str) -> str:
        meta = self.api.objects(PERSISTENTVOLUMECLAIMS)[f"d/{claim}"]["metadata"]
        return str(meta.get("annotations", {}).get(SELECTED_NODE, ""))

    def nodes(self) -> set[str]:
        """The nodes of the pods."""
        return {each["spec"].get("nodeName", "") for each in self.api.objects(PODS).values()}

    def messages(self) -> list[str]:
        """Of the failures that were recorded."""
        return [event[4] for event in self.recorder.events if event[3] == "FailedScheduling"]

    @asynccontextmanager
    async def scheduling(self) -> AsyncIterator[None]:
        async with self.api.client() as client:
            scheduler = Scheduler(
                client,
                settings=SchedulerSettings(conf=CONF),
                clock=self.clock,
                recorder=self.recorder,
            )
            async with running(scheduler):
                yield

    async def wait(self, condition: Callable[[], object]) -> None:
        """Let short times pass, for which events are collected, until *condition* holds."""

        async def advance() -> None:
            while not condition():
                await self.clock.advance(0.1)
                await asyncio.sleep(0.005)

        await asyncio.wait_for(advance(), 30)


@pytest.fixture
async def storage() -> AsyncIterator[Storage]:
    async with ControllerApi(PODGROUPS, QUEUES) as api:
        yield Storage(api)


async def test_pods_of_a_gang_are_bound_once_all_their_volumes_are(storage: Storage) -> None:
    storage.prepare("d.example.com")
    storage.put_volume("v", "a")  # the volume controller binds it to one of them
    for name in ("c0", "c1"):
        storage.put_claim(name)
    storage.put_gang("c0", "c1")
    async with storage.scheduling():
        await storage.wait(lambda: storage.is_bound("c0") or storage.is_bound("c1"))
        await storage.wait(lambda: storage.selected("c0") or storage.selected("c1"))
        assert storage.nodes() == {""}
        other = "c0" if storage.is_bound("c1") else "c1"
        storage.put_volume("w", storage.selected(other), claim=other)
        storage.bind_claim(other, "w")
        await storage.wait(lambda: "" not in storage.nodes())
        assert storage.claim_ref("v") == {"c0": "c1", "c1": "c0"}[other]


async def test_a_node_is_selected_until_the_volume_is_provisioned(storage: Storage) -> None:
    storage.prepare("d.example.com")
    storage.put_claim("c")
    storage.put_gang("c")
    async with storage.scheduling():
        await storage.wait(lambda: storage.selected("c"))
    assert storage.nodes() == {""}
    node = storage.selected("c")
    async with storage.scheduling():  # another process continues
        storage.put_volume("v", node, claim="c")
        storage.bind_claim("c", "v")
        await storage.wait(lambda: "" not in storage.nodes())
    assert storage.nodes() == {node}


@pytest.mark.parametrize("cause", ["pod deleted", "time is over"])
async def test_no_node_stays_selected_if_a_volume_is_not_bound(
    storage: Storage, cause: str
) -> None:
    storage.prepare("d.example.com")
    for name in ("c0", "c1"):
        storage.put_claim(name)
    storage.put_gang("c0", "c1")
    async with storage.scheduling():
        await storage.wait(lambda: storage.selected("c0") and storage.selected("c1"))
        if cause == "pod deleted":
            storage.api.remove(PODS, "p0")
        else:
            storage.api.remove(STORAGECLASSES, "late", namespace="")  # so that it is not retried
            await storage.clock.advance(TIMEOUT)
        await storage.wait(lambda: not any(map(storage.selected, ("c0", "c1"))))
        await storage.wait(lambda: storage.messages())
    expected = {"pod deleted": "pod p0 was deleted", "time is over": f"not bound after {TIMEOUT} s"}
    assert any(expected[cause] in each for each in storage.messages()), storage.messages()
    assert storage.nodes() == {""}


async def test_a_gang_moves_to_where_its_volume_was_provisioned(storage: Storage) -> None:
    storage.prepare("d.example.com")
    storage.put_claim("c")
    storage.put_gang("c")
    async with storage.scheduling():
        await storage.wait(lambda: storage.selected("c"))
        other = {"a": "b", "b": "a"}[storage.selected("c")]
        storage.put_volume("v", other, claim="c")
        storage.bind_claim("c", "v")
        await storage.wait(lambda: "" not in storage.nodes())
    assert storage.nodes() == {other}


async def test_another_node_is_selected_if_the_provisioner_gives_up(storage: Storage) -> None:
    storage.prepare("d.example.com")
    storage.put_claim("c")
    storage.put_gang("c")
    async with storage.scheduling():
        await storage.wait(lambda: storage.selected("c"))
        async with storage.api.client() as client:
            patch = {"metadata": {"annotations": {SELECTED_NODE: None}}}
            await client.patch(PERSISTENTVOLUMECLAIMS, "c", patch, namespace="d")
        message = "no volume was provisioned"
        await storage.wait(lambda: any(message in each for each in storage.messages()))
        await storage.wait(lambda: storage.selected("c"))
