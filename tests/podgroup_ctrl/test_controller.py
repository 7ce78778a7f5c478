"""The PodGroup controller against the API server."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.controller_api import NAMESPACE, ControllerApi
from support.polling import wait_for
from support.running_controller import FakeRecorder, running

from batholith.kube.client.client import Client
from batholith.kube.informer.informer import Informer
from batholith.machinery.testing import FakeClock
from batholith.model.names import NAMESPACES, PODGROUPS, PODS, QUEUES, Resource
from batholith.model.podgroup import PodGroup
from batholith.podgroup_ctrl.controller import PodGroupController, PodGroupSettings

GROUP = "scheduling.k8s.io/group-name"
STATEFULSETS = Resource("apps", "v1", "statefulsets", "StatefulSet")


@dataclass
class PodGroupHarness:
    api: ControllerApi
    client: Client
    pod_spec: dict[str, Any]
    """A pod's spec with its defaults."""

    recorder: FakeRecorder = field(default_factory=FakeRecorder)
    clock: FakeClock = field(default_factory=FakeClock)

    def controller(
        self, *, podgroups: Informer[PodGroup] | None = None, **settings: Any
    ) -> PodGroupController:
        return PodGroupController(
            self.client,
            settings=PodGroupSettings(**settings),
            clock=self.clock,
            recorder=self.recorder,
            podgroups=podgroups,
        )

    def pod(
        self,
        name: str,
        *,
        owner: str = "",
        owner_uid: str = "",
        phase: str = "Pending",
        namespace: str = "d",
        **meta: Any,
    ) -> None:
        controlled = {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "name": owner,
            "uid": owner_uid or f"{owner}-uid",
            "controller": True,
        }
        owners = [controlled] if owner else []
        self.api.put(
            PODS,
            name,
            namespace=namespace,
            metadata={"uid": f"{name}-uid", "ownerReferences": owners, **meta},
            spec=self.pod_spec,
            status={"phase": phase},
        )

    def stateful_set(self, name: str, replicas: int, **annotations: str) -> None:
        named = {key.replace("_", "-"): value for key, value in annotations.items()}
        notes = {f"scheduling.volcano.sh/{key}": value for key, value in named.items()}
        self.api.put(
            STATEFULSETS,
            name,
            metadata={"uid": f"{name}-uid", "annotations": notes},
            spec={"replicas": replicas},
        )

    def bound(self, name: str, namespace: str = "d") -> str | None:
        meta = self.api.objects(PODS)[f"{namespace}/{name}"]["metadata"]
        bound: str | None = meta.get("annotations", {}).get(GROUP)
        return bound

    @property
    def groups(self) -> dict[str, Any]:
        return {key.removeprefix("d/"): obj for key, obj in self.api.objects(PODGROUPS).items()}

    @property
    def writes(self) -> list[str]:
        return [f"{s.method} {s.path}" for s in self.api.faults.requests if s.method != "GET"]


@pytest.fixture
async def world() -> AsyncIterator[PodGroupHarness]:
    async with ControllerApi(PODGROUPS, QUEUES) as api, api.client() as client:
        container = {"name": "main", "image": "busybox"}
        spec = {"schedulerName": "volcano", "containers": [container]}
        pod = {"metadata": {"name": "defaults"}, "spec": spec}
        created = await api.create(PODS, pod, namespace=NAMESPACE)
        api.remove(PODS, "defaults")
        yield PodGroupHarness(api, client, created["spec"])


async def test_bare_pod_gets_a_podgroup_and_its_annotation(world: PodGroupHarness) -> None:
    async with running(world.controller()):
        world.pod("p")
        await wait_for(lambda: world.bound("p") == "podgroup-p-uid")
    group = world.groups["podgroup-p-uid"]
    assert group["spec"]["minMember"] == 1
    assert group["status"] == {"phase": "Pending"}
    assert [each["name"] for each in group["metadata"]["ownerReferences"]] == ["p"]
    assert len(world.writes) == 2


async def test_pods_of_one_owner_share_a_podgroup_of_the_owners_size(
    world: PodGroupHarness,
) -> None:
    """INV-PIPE-2: twenty concurrent pods get one PodGroup, and each is annotated once."""
    world.stateful_set("s", 20, group_min_member="4")
    async with running(world.controller()):
        for number in range(20):
            world.pod(f"s-{number}", owner="s")
        await wait_for(lambda: all(world.bound(f"s-{n}") == "podgroup-s-uid" for n in range(20)))
    assert list(world.groups) == ["podgroup-s-uid"]
    assert world.groups["podgroup-s-uid"]["spec"]["minMember"] == 4
    assert len(world.writes) == 21


async def test_owner_is_not_read_without_inheritance(world: PodGroupHarness) -> None:
    world.stateful_set("s", 1, group_min_member="4")
    async with running(world.controller(inherit_owner_annotations=False)):
        world.pod("s-0", owner="s")
        await wait_for(lambda: world.bound("s-0"))
    assert world.groups["podgroup-s-uid"]["spec"]["minMember"] == 1


async def test_pods_with_a_podgroup_and_pods_of_jobs_are_ignored(world: PodGroupHarness) -> None:
    """Scenario bare-pod-group; also for pods that exist at the start: INV-LC-4."""
    world.pod("mine", annotations={GROUP: "mine"})
    world.pod("job", labels={"volcano.sh/job-name": "j", "volcano.sh/task-index": "0"})
    world.pod("before")
    async with running(world.controller()):
        await wait_for(lambda: world.bound("before"))
    assert list(world.groups) == ["podgroup-before-uid"]
    async with running(world.controller()):
        world.pod("after")
        await wait_for(lambda: world.bound("after"))
    assert len(world.writes) == 4


async def test_pods_with_a_podgroup_of_kubernetes_itself_are_ignored(
    world: PodGroupHarness,
) -> None:
    plain = world.pod_spec
    world.pod_spec = {**plain, "schedulingGroup": {"podGroupName": "g"}}
    world.pod("native")
    world.pod_spec = plain
    world.pod("plain")
    async with running(world.controller()):
        await wait_for(lambda: world.bound("plain"))
    assert list(world.groups) == ["podgroup-plain-uid"]


async def test_pod_with_only_the_job_name_label_gets_a_podgroup(world: PodGroupHarness) -> None:
    """As tools around a job do, so that both are selected together."""
    async with running(world.controller()):
        world.pod("board", labels={"volcano.sh/job-name": "train"})
        await wait_for(lambda: world.bound("board") == "podgroup-board-uid")


async def test_quirk_p12_finished_pod_gets_no_podgroup(world: PodGroupHarness) -> None:
    for phase in ("Succeeded", "Failed"):
        world.pod(phase.lower(), phase=phase)
    async with running(world.controller()):
        world.pod("after")
        await wait_for(lambda: world.bound("after"))
    assert list(world.groups) == ["podgroup-after-uid"]


async def test_existing_podgroup_is_written_to_an_unannotated_pod(world: PodGroupHarness) -> None:
    """INV-LC-4: the controller died between the two writes."""
    world.api.put(PODGROUPS, "podgroup-p-uid", spec={"minMember": 1})
    world.pod("p")
    async with running(world.controller()):
        await wait_for(lambda: world.bound("p") == "podgroup-p-uid")
    assert world.writes == ["PATCH /api/v1/namespaces/d/pods/p"]


async def test_quirk_p8_deleted_podgroup_is_recreated_while_its_pods_are_active(
    world: PodGroupHarness,
) -> None:
    async with running(world.controller()):
        world.pod("p")
        await wait_for(lambda: world.bound("p"))
        world.api.remove(PODGROUPS, "podgroup-p-uid")
        await wait_for(lambda: "podgroup-p-uid" in world.groups)


async def test_quirk_p17_rejection_is_recorded_and_retried_when_a_queue_opens(
    world: PodGroupHarness,
) -> None:
    """Without waiting for the next retry, since the clock does not move."""
    async with running(world.controller()):
        world.api.fail(400)
        world.pod("p")
        await wait_for(lambda: world.recorder.events)
        assert world.groups == {}
        world.api.put(QUEUES, "team", status={"state": "Open"})
        await wait_for(lambda: world.bound("p"))
    assert world.recorder.events == [
        ("Pod", "p", "Warning", "PodGroupRefused", "cannot create PodGroup: injected fault")
    ]


async def test_quirk_p7_failures_are_retried(world: PodGroupHarness) -> None:
    async with running(world.controller()):
        world.api.fail(500)
        world.pod("p")
        while not world.bound("p"):
            await world.clock.advance(1)


async def test_conflict_on_a_pod_is_retried(world: PodGroupHarness) -> None:
    async with running(world.controller()):
        world.api.fail(409, "PATCH", "/pods/")
        world.pod("p")
        while not world.bound("p"):
            await world.clock.advance(1)


async def test_quirk_p1_queue_on_the_owner_records_a_warning(
    world: PodGroupHarness,
) -> None:
    world.stateful_set("s", 1, queue_name="team")
    async with running(world.controller()):
        world.pod("s-0", owner="s")
        await wait_for(lambda: world.bound("s-0"))
    ((kind, name, level, reason, message),) = world.recorder.events
    assert (kind, name, level, reason) == ("Pod", "s-0", "Warning", "QueueNameIgnored")
    assert "put it into the pod template" in message
    assert world.groups["podgroup-s-uid"]["spec"]["queue"] == "default"


async def test_quirk_p4_owners_of_one_name_in_two_namespaces_have_separate_podgroups(
    world: PodGroupHarness,
) -> None:
    """By the owner's uid alone, for any name, labels and selector."""
    sizes = {"d": 2, "e": 3}
    world.api.put(NAMESPACES, "e")
    for space, size in sizes.items():
        notes = {"scheduling.volcano.sh/group-min-member": str(size)}
        meta = {"uid": f"uid-{space}", "annotations": notes}
        world.api.put(STATEFULSETS, "s", namespace=space, metadata=meta)
    async with running(world.controller()):
        for space in sizes:
            world.pod("s-0", owner="s", owner_uid=f"uid-{space}", namespace=space)
        await wait_for(lambda: all(world.bound("s-0", space) for space in sizes))
    assert {space: world.bound("s-0", space) for space in sizes} == {
        "d": "podgroup-uid-d",
        "e": "podgroup-uid-e",
    }
    groups = world.api.objects(PODGROUPS)
    sizes = {key: group["spec"]["minMember"] for key, group in groups.items()}
    assert sizes == {"d/podgroup-uid-d": 2, "e/podgroup-uid-e": 3}


async def test_quirk_p6_owner_selector_is_ignored(world: PodGroupHarness) -> None:
    """Pods are found by their owner; the selector is not read."""
    world.stateful_set("s", 1)
    expression = {"key": "app", "operator": "In", "values": ["other"]}
    world.api.put(STATEFULSETS, "s", spec={"selector": {"matchExpressions": [expression]}})
    async with running(world.controller()):
        world.pod("s-0", owner="s")
        await wait_for(lambda: world.bound("s-0") == "podgroup-s-uid")


async def test_quirk_p7_workloads_of_other_schedulers_cost_no_request(
    world: PodGroupHarness,
) -> None:
    async with running(world.controller()):
        for number in range(20):
            world.stateful_set(f"s{number}", number % 2)
        world.pod("p")
        await wait_for(lambda: world.bound("p"))
    assert [seen.path for seen in world.api.faults.requests if "/apps/" in seen.path] == []


async def test_quirk_p10_job_of_another_group_is_not_read_as_a_batch_job(
    world: PodGroupHarness,
) -> None:
    theirs = {
        "apiVersion": "training.example.org/v1",
        "kind": "Job",
        "name": "j",
        "uid": "j-uid",
        "controller": True,
    }
    async with running(world.controller()):
        world.pod("p", ownerReferences=[theirs])
        await wait_for(lambda: world.bound("p") == "podgroup-j-uid")
    assert [seen.path for seen in world.api.faults.requests if "/jobs" in seen.path] == []


async def test_quirk_p16_size_on_the_pod_records_a_warning(
    world: PodGroupHarness,
) -> None:
    async with running(world.controller()):
        world.pod("p", annotations={"scheduling.volcano.sh/group-min-member": "3"})
        await wait_for(lambda: world.bound("p"))
    ((kind, name, level, reason, message),) = world.recorder.events
    assert (kind, name, level, reason) == ("Pod", "p", "Warning", "GroupMinMemberIgnored")
    assert "put it on the pod's owner" in message


async def test_scaling_to_zero_deletes_the_podgroup(world: PodGroupHarness) -> None:
    world.stateful_set("s", 1)
    async with running(world.controller()):
        world.pod("s-0", owner="s")
        await wait_for(lambda: world.bound("s-0") and world.groups)
        world.api.remove(PODS, "s-0")
        world.pod("s-1", owner="s")
        await wait_for(lambda: world.bound("s-1"))
        assert list(world.groups) == ["podgroup-s-uid"]
        world.stateful_set("s", 0)
        world.api.fail(409, "DELETE", "/podgroups/")
        world.api.remove(PODS, "s-1")
        while world.groups:
            await world.clock.advance(1)


async def test_quirks_p2_p3_and_p5_later_pod_updates_only_the_podgroup_of_its_owner(
    world: PodGroupHarness,
) -> None:
    world.stateful_set("s", 2, group_min_member="2")
    groups = Informer(world.client, PODGROUPS, PodGroup)
    async with running(world.controller(podgroups=groups)):
        world.pod("s-0", owner="s")
        await wait_for(lambda: world.bound("s-0"))
        world.api.put(
            PODGROUPS,
            "podgroup-s-uid",
            metadata={"annotations": {"other": "stays"}},
            spec={"queue": "assigned"},
        )
        await wait_for(
            lambda: (group := groups.get("d/podgroup-s-uid")) and group.metadata.annotations
        )
        world.stateful_set("s", 3, group_min_member="3")
        world.pod("s-1", owner="s")
        while not world.bound("s-1"):
            await world.clock.advance(1)
    group = world.groups["podgroup-s-uid"]
    assert group["spec"] == {
        "minMember": 3,
        "minResources": {"count/pods": "3", "pods": "3"},
        "queue": "assigned",
    }
    assert group["metadata"]["annotations"] == {"other": "stays"}
    assert sum("podgroup-s-uid" in write for write in world.writes) == 1


async def test_scaling_to_zero_while_the_controller_is_down_deletes_the_podgroup(
    world: PodGroupHarness,
) -> None:
    """INV-LC-4: the last pod was deleted unobserved."""
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "controller": True}
    world.pod("evicted", owner="left", phase="Failed", annotations={GROUP: "podgroup-left-uid"})
    for name, replicas in (("idle", 0), ("left", 0), ("busy", 1)):
        world.stateful_set(name, replicas)
        mine = {**owner, "name": name, "uid": f"{name}-uid"}
        world.api.put(PODGROUPS, f"podgroup-{name}-uid", metadata={"ownerReferences": [mine]})
    async with running(world.controller()):
        await wait_for(lambda: list(world.groups) == ["podgroup-busy-uid"])


async def test_forbidden_owner_is_logged(
    world: PodGroupHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise a gang of one instead of eight would be unexplained."""
    world.stateful_set("s", 1, group_min_member="8")
    world.api.fail(403, "GET", "/statefulsets/s")
    async with running(world.controller()):
        world.pod("s-0", owner="s")
        await wait_for(lambda: world.bound("s-0"))
    (line,) = [vars(line) for line in caplog.records if line.levelname == "WARNING"]
    assert (line["owner"], line["kind"]) == ("d/s", "StatefulSet")
