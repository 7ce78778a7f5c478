"""The PodGroup controller with groupers against the API server."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.controller_api import NAMESPACE, ControllerApi
from support.foreign_kinds import definition
from support.polling import wait_for
from support.running_controller import FakeRecorder, running

from batholith.kube.client.client import Client
from batholith.machinery.testing import FakeClock
from batholith.model.names import PODGROUPS, PODS, QUEUES
from batholith.podgroup_ctrl.controller import PodGroupController, PodGroupSettings
from batholith.podgroup_ctrl.groupers.jobset import JOBSETS
from batholith.podgroup_ctrl.groupers.registry import GROUPERS

GROUP = "scheduling.k8s.io/group-name"
LABELS = "jobset.sigs.k8s.io"
Json = dict[str, Any]


class World:
    def __init__(self, api: ControllerApi, client: Client, pod_spec: Json) -> None:
        self.api, self.client, self.pod_spec = api, client, pod_spec
        self.recorder, self.clock = FakeRecorder(), FakeClock()

    def controller(self, *groupers: str) -> PodGroupController:
        settings = PodGroupSettings(groupers=groupers or tuple(GROUPERS))
        return PodGroupController(
            self.client, settings=settings, clock=self.clock, recorder=self.recorder
        )

    def jobset(self, *jobs: Json, uid: str = "set-uid", **annotations: str) -> None:
        metadata = {"uid": uid, "annotations": annotations}
        self.api.put(JOBSETS, "set", metadata=metadata, spec={"replicatedJobs": list(jobs)})

    def pod(self, name: str, phase: str = "Pending", **meta: Any) -> None:
        metadata = {"uid": f"{name}-uid", **meta}
        self.api.put(PODS, name, metadata=metadata, spec=self.pod_spec, status={"phase": phase})

    def member(self, name: str, role: str, *, uid: str = "set-uid") -> None:
        """A pod; without *uid* as of JobSet's controller before version 0.9."""
        labels = {f"{LABELS}/jobset-name": "set", f"{LABELS}/replicatedjob-name": role}
        labels |= {f"{LABELS}/jobset-uid": uid} if uid else {}
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": f"set-{role}-0",
            "uid": f"{role}-uid",
            "controller": True,
        }
        self.pod(name, labels=labels, ownerReferences=[owner])

    def bound(self, name: str) -> str | None:
        meta = self.api.objects(PODS)[f"{NAMESPACE}/{name}"]["metadata"]
        found: str | None = meta.get("annotations", {}).get(GROUP)
        return found

    def group(self, name: str = "podgroup-jobset-set") -> Json | None:
        found: Json | None = self.api.objects(PODGROUPS).get(f"{NAMESPACE}/{name}")
        return found

    def min_member(self) -> int | None:
        found = self.group()
        return None if found is None else found["spec"]["minMember"]


def replicated(name: str, pods: int, *depends_on: str) -> Json:
    spec = {"parallelism": pods, "completions": pods, "template": {"spec": {"containers": []}}}
    waits = [{"name": each, "status": "Complete"} for each in depends_on]
    return {"name": name, "replicas": 1, "template": {"spec": spec}, "dependsOn": waits}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    definitions = [definition(JOBSETS)]
    async with (
        ControllerApi(PODGROUPS, QUEUES, definitions=definitions) as api,
        api.client() as client,
    ):
        container = {"name": "main", "image": "busybox"}
        spec = {"schedulerName": "volcano", "containers": [container]}
        body = {"metadata": {"name": "defaults"}, "spec": spec}
        created = await api.create(PODS, body, namespace=NAMESPACE)
        api.remove(PODS, "defaults")
        yield World(api, client, created["spec"])


@pytest.mark.parametrize("uid", ["set-uid", ""])
async def test_pods_of_all_jobs_of_a_jobset_share_its_podgroup(world: World, uid: str) -> None:
    world.jobset(replicated("driver", 1), replicated("worker", 2))
    async with running(world.controller()):
        for name, role in (("a", "driver"), ("b", "worker"), ("c", "worker")):
            world.member(name, role, uid=uid)
        await wait_for(lambda: all(world.bound(n) == "podgroup-jobset-set" for n in "abc"))
    assert world.min_member() == 3
    assert len(world.api.objects(PODGROUPS)) == 1
    assert world.recorder.events == []


async def test_a_jobset_that_is_created_again_gets_another_podgroup(world: World) -> None:
    def owner() -> str:
        (found,) = (world.group() or {})["metadata"]["ownerReferences"]
        uid: str = found["uid"]
        return uid

    world.jobset(replicated("worker", 2))
    async with running(world.controller()):
        world.member("a", "worker", uid="")
        await wait_for(lambda: world.bound("a"))
        assert owner() == "set-uid"
        world.api.remove(PODS, "a")
        world.jobset(replicated("worker", 3), uid="new-uid")
        world.member("b", "worker", uid="")
        await wait_for(lambda: world.bound("b"))
    assert (owner(), world.min_member()) == ("new-uid", 3)


async def test_without_the_grouper_each_job_is_a_podgroup(world: World) -> None:
    world.jobset(replicated("driver", 1), replicated("worker", 2))
    async with running(world.controller("annotation")):
        world.member("a", "driver")
        world.member("b", "worker")
        await wait_for(lambda: world.bound("a") and world.bound("b"))
    assert world.bound("a") == "podgroup-driver-uid"
    assert world.bound("b") == "podgroup-worker-uid"


async def test_the_minimum_follows_the_stage_of_a_jobset(world: World) -> None:
    world.jobset(replicated("init", 1), replicated("train", 4, "init"))
    async with running(world.controller()):
        world.member("a", "init")
        await wait_for(lambda: world.bound("a"))
        assert world.min_member() == 1
        world.pod("a", "Succeeded")
        world.member("b", "train")
        await wait_for(lambda: world.bound("b"))
    assert world.min_member() == 4


async def test_a_jobset_that_is_scaled_changes_the_minimum_with_its_next_pod(world: World) -> None:
    world.jobset(replicated("worker", 2))
    async with running(world.controller()):
        world.member("a", "worker")
        await wait_for(lambda: world.bound("a"))
        world.jobset(replicated("worker", 5))
        world.member("b", "worker")
        await wait_for(lambda: world.bound("b"))
    assert world.min_member() == 5


async def test_a_jobset_that_is_scaled_down_changes_the_minimum_when_its_gang_lacks_pods(
    world: World,
) -> None:
    world.jobset(replicated("worker", 5))
    async with running(world.controller()):
        world.member("a", "worker")
        await wait_for(lambda: world.bound("a"))
        assert world.min_member() == 5
        world.jobset(replicated("worker", 1))
        # As the scheduler does.
        world.api.put(PODGROUPS, "podgroup-jobset-set", status={"phase": "Unknown"})
        await wait_for(lambda: world.min_member() == 1)


async def test_pods_whose_jobset_cannot_be_read_are_alone_and_say_so(world: World) -> None:
    async with running(world.controller()):
        world.api.fail(403, "GET", "/jobsets/")
        world.member("a", "worker")
        await wait_for(lambda: world.bound("a"))
    assert world.min_member() == 1
    ((_, name, level, reason, text),) = world.recorder.events
    assert (name, level, reason) == ("a", "Warning", "GangUnknown")
    assert "cannot read the JobSet" in text


@pytest.mark.parametrize("uid", ["other", "set-uid"])
async def test_labels_with_the_uid_of_another_jobset_make_no_gang(world: World, uid: str) -> None:
    world.jobset(replicated("worker", 7), uid=uid)
    async with running(world.controller()):
        world.member("a", "worker")
        await wait_for(lambda: world.bound("a"))
    assert world.min_member() == (7 if uid == "set-uid" else 1)


MALFORMED = {"containers": [{"name": "main", "resources": {"requests": {"cpu": "much"}}}]}


@pytest.mark.parametrize(
    "jobs",
    [
        "many",
        [{"name": "worker", "template": {"spec": {"template": {"spec": MALFORMED}}}}],
    ],
)
async def test_a_malformed_object_does_not_keep_its_pods_from_running(
    world: World, jobs: object
) -> None:
    world.api.put(JOBSETS, "set", metadata={"uid": "set-uid"}, spec={"replicatedJobs": jobs})
    async with running(world.controller()):
        world.member("a", "worker")
        await wait_for(lambda: world.bound("a"))
    assert [event[3] for event in world.recorder.events] == ["GangUnknown"]


async def test_a_name_that_is_none_is_not_requested(world: World) -> None:
    """The API server does not validate the names of owners."""
    owner = {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "name": "../../../../api/v1/secrets/s",
        "uid": "ray-uid",
        "controller": True,
    }
    async with running(world.controller()):
        world.pod("a", ownerReferences=[owner])
        await wait_for(lambda: world.bound("a"))
    assert [event[3] for event in world.recorder.events] == ["GangUnknown"]
    assert not any("secrets" in each.path for each in world.api.faults.requests)


async def test_annotations_of_the_owner_are_not_read_without_inheritance(world: World) -> None:
    world.jobset(replicated("worker", 5), **{"scheduling.volcano.sh/group-min-member": "2"})
    settings = PodGroupSettings(groupers=("jobset",), inherit_owner_annotations=False)
    async with running(PodGroupController(world.client, settings=settings, clock=world.clock)):
        world.member("a", "worker")
        await wait_for(lambda: world.bound("a"))
    assert world.min_member() == 5


NOTES = {"batholith.io/gang": "pair", "batholith.io/gang-size": "2"}


async def test_pods_that_name_their_gang_share_a_podgroup_until_the_last_is_deleted(
    world: World,
) -> None:
    name = "podgroup-gang-pair"
    async with running(world.controller()):
        for pod in ("a", "b"):
            world.pod(pod, annotations=NOTES)
        await wait_for(lambda: world.bound("a") == world.bound("b") == name)
        group = world.group(name)
        assert group is not None
        assert group["spec"]["minMember"] == 2
        assert "ownerReferences" not in group["metadata"]
        world.api.remove(PODS, "a")
        world.pod("b", "Succeeded", annotations={**NOTES, GROUP: name})
        world.pod("other")
        await wait_for(lambda: world.bound("other"))
        assert world.group(name) is not None
        world.api.remove(PODS, "b")
        await wait_for(lambda: world.group(name) is None)


async def test_a_podgroup_whose_pods_were_deleted_before_the_start_is_deleted(
    world: World,
) -> None:
    for name, notes in (("podgroup-gang-pair", NOTES), ("podgroup-gang-own", {})):
        world.api.put(PODGROUPS, name, metadata={"annotations": notes}, spec={"minMember": 2})
    async with running(world.controller()):
        await wait_for(lambda: world.group("podgroup-gang-pair") is None)
    assert world.group("podgroup-gang-own") is not None
