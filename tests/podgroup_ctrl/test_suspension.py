"""Jobs that are suspended until their queue has admitted them."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.controller_api import NAMESPACE, ControllerApi
from support.foreign_kinds import definition
from support.polling import wait_for
from support.running_controller import FakeRecorder, running

from batholith.cli.controller_selection import SUSPENSION
from batholith.kube.client.client import Client
from batholith.machinery.testing import FakeClock
from batholith.model.names import BATCH_JOBS, PODGROUPS, Resource
from batholith.podgroup_ctrl.groupers.jobset import JOBSETS
from batholith.podgroup_ctrl.suspendable_kinds import KINDS, RAYJOBS, TRAINJOBS
from batholith.podgroup_ctrl.suspension import SuspensionController

Json = dict[str, Any]
ROOT = Path(__file__).parents[2]
LABEL = {"batholith.io/suspend-by": "queue"}
ADMITTED = "batholith.io/admitted-by-queue"
QUEUE = {"scheduling.volcano.sh/queue-name": "team"}
JOB, JOBSET, TRAINJOB, RAYJOB = KINDS
GROUP = "scheduling.k8s.io/group-name"


def template() -> Json:
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": "2"}}}
    spec = {"schedulerName": "volcano", "restartPolicy": "Never", "containers": [container]}
    return {"metadata": {"annotations": QUEUE}, "spec": spec}


class World:
    def __init__(self, api: ControllerApi, client: Client, batch_spec: Json) -> None:
        """*batch_spec*: the spec of a Job of batch/v1 with its defaults."""
        self.api, self.client, self.batch_spec = api, client, batch_spec
        self.recorder, self.clock = FakeRecorder(), FakeClock()

    def controller(self, kind: Any = JOB) -> SuspensionController:
        return SuspensionController(self.client, kind, clock=self.clock, recorder=self.recorder)

    def job(
        self,
        name: str = "j",
        *,
        resource: Resource = BATCH_JOBS,
        labels: Json = LABEL,
        annotations: Json | None = None,
        scheduler: str = "volcano",
        uid: str = "",
        owner: Json | None = None,
        status: Json | None = None,
        **spec: Any,
    ) -> None:
        metadata: Json = {"uid": uid or f"{name}-uid", "labels": labels}
        metadata |= {"annotations": annotations or {}}
        metadata |= {} if owner is None else {"ownerReferences": [owner]}
        whole = {"suspend": True, **spec}
        if resource == BATCH_JOBS:
            whole = {**_renamed(self.batch_spec, name, scheduler), **whole}
        self.api.put(resource, name, metadata=metadata, spec=whole, status=status)

    def stored(self, name: str = "j", resource: Resource = BATCH_JOBS) -> Json:
        found: Json = self.api.objects(resource)[f"{NAMESPACE}/{name}"]
        return found

    def is_suspended(self, name: str = "j", resource: Resource = BATCH_JOBS) -> bool:
        return bool(self.stored(name, resource)["spec"]["suspend"])

    def group(self, name: str = "j") -> Json | None:
        """The PodGroup of a job, or of a JobSet."""
        groups = self.api.objects(PODGROUPS)
        found = (f"{NAMESPACE}/podgroup-{each}" for each in (f"{name}-uid", f"jobset-{name}"))
        return next((groups[key] for key in found if key in groups), None)

    def admit(self, name: str = "j") -> None:
        """As the scheduler does."""
        group = self.group(name)
        assert group is not None
        self.api.put(PODGROUPS, group["metadata"]["name"], status={"phase": "Inqueue"})

    async def waits(self, name: str = "j") -> None:
        await wait_for(lambda: self.group(name) is not None)

    @property
    def writes_to_jobs(self) -> list[str]:
        return [
            f"{each.method} {each.path}"
            for each in self.api.faults.requests
            if each.method == "PATCH" and "/jobs" in each.path
        ]


def _renamed(spec: Json, name: str, scheduler: str) -> Json:
    """The spec of another Job, with the labels that the API server generates for that."""
    uid = "batch.kubernetes.io/controller-uid"
    labels = {uid: f"{name}-uid", "batch.kubernetes.io/job-name": name}
    legacy = {"controller-uid": f"{name}-uid", "job-name": name}
    found = spec["template"]
    pods = {
        "metadata": {**found["metadata"], "labels": labels | legacy},
        "spec": {**found["spec"], "schedulerName": scheduler},
    }
    return {**spec, "selector": {"matchLabels": {uid: labels[uid]}}, "template": pods}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with (
        ControllerApi(
            PODGROUPS, definitions=[definition(each) for each in (JOBSETS, TRAINJOBS, RAYJOBS)]
        ) as api,
        api.client() as client,
    ):
        body = {"metadata": {"name": "defaults"}, "spec": {"suspend": True, "template": template()}}
        created = await api.create(BATCH_JOBS, body, namespace=NAMESPACE)
        api.remove(BATCH_JOBS, "defaults")
        yield World(api, client, created["spec"])


def test_the_controllers_have_the_names_of_the_flag() -> None:
    assert [kind.controller for kind in KINDS] == [*SUSPENSION]


def test_the_component_has_the_rights_of_all_kinds() -> None:
    path = ROOT / "manifests" / "components" / "suspension" / "suspension.yaml"
    role = next(yaml.safe_load_all(path.read_text()))
    found = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    needed = {
        (resource.group, resource.plural, verb)
        for kind in KINDS
        for resource, verbs in (
            (kind.resource, ("list", "watch", "patch")),
            (kind.owner, ("list", "watch")),
        )
        for verb in verbs
    }
    assert found == needed


async def test_a_suspended_job_gets_the_podgroup_that_its_pods_will_have(world: World) -> None:
    size = {"scheduling.volcano.sh/group-min-member": "3"}
    world.job(parallelism=4, completions=9, annotations=size)
    async with running(world.controller()):
        await world.waits()
    group = world.group()
    assert group is not None
    assert group["spec"]["minMember"] == 3
    assert group["spec"]["queue"] == "team"
    assert group["spec"]["minResources"]["cpu"] == "6"
    (owner,) = group["metadata"]["ownerReferences"]
    assert (owner["apiVersion"], owner["kind"], owner["uid"]) == ("batch/v1", "Job", "j-uid")
    assert world.is_suspended()
    assert world.writes_to_jobs == []


async def test_a_job_is_resumed_when_its_queue_admits_it(world: World) -> None:
    world.job()
    async with running(world.controller()):
        await world.waits()
        world.admit()
        await wait_for(lambda: world.recorder.events)
    assert not world.is_suspended()
    group = world.group()
    assert group is not None
    assert world.stored()["metadata"]["annotations"][ADMITTED] == group["metadata"]["uid"]
    assert [event[3] for event in world.recorder.events] == ["AdmittedByQueue"]
    assert len(world.writes_to_jobs) == 1


async def test_an_admission_before_the_start_of_the_controller_is_not_lost(world: World) -> None:
    """It was killed between the two writes."""
    world.job()
    async with running(world.controller()):
        await world.waits()
    world.admit()
    async with running(world.controller()):
        await wait_for(lambda: not world.is_suspended())


async def test_a_job_that_its_user_suspends_later_stays_suspended(world: World) -> None:
    world.job()
    async with running(world.controller()):
        await world.waits()
        world.admit()
        await wait_for(lambda: not world.is_suspended())
        annotations = world.stored()["metadata"]["annotations"]
        world.job(annotations=annotations)
        world.job("other")
        await world.waits("other")
    assert world.is_suspended()
    assert len(world.writes_to_jobs) == 1


async def test_jobs_without_the_label_and_jobs_that_run_are_left_alone(world: World) -> None:
    world.job("unlabelled", labels={})
    world.job("else", labels={"batholith.io/suspend-by": "me"})
    world.job("runs", suspend=False)
    async with running(world.controller()):
        world.job("other")
        await world.waits("other")
    assert [*world.api.objects(PODGROUPS)] == [f"{NAMESPACE}/podgroup-other-uid"]


async def test_a_job_that_its_user_resumes_first_starts_without_its_queue(world: World) -> None:
    world.job()
    async with running(world.controller()):
        await world.waits()
        world.job(suspend=False)
        world.admit()
        world.job("other")
        await world.waits("other")
    assert world.writes_to_jobs == []


async def test_a_job_that_is_changed_while_it_waits_changes_its_podgroup(world: World) -> None:
    jobs = [{"name": "w", "replicas": 1, "template": {"spec": {"template": template()}}}]
    world.job(resource=JOBSETS, replicatedJobs=jobs)
    async with running(world.controller(JOBSET)):
        await world.waits()
        world.job(resource=JOBSETS, replicatedJobs=[{**jobs[0], "replicas": 5}])
        await wait_for(lambda: (world.group() or {})["spec"]["minMember"] == 5)
        world.admit()
        await wait_for(lambda: not world.is_suspended(resource=JOBSETS))


async def test_pods_of_another_scheduler_leave_the_job_suspended_with_an_event(
    world: World,
) -> None:
    world.job(scheduler="default-scheduler")
    async with running(world.controller()):
        await wait_for(lambda: world.recorder.events)
    assert world.recorder.events[0][3] == "SuspensionIgnored"
    assert "default-scheduler" in world.recorder.events[0][4]
    assert world.group() is None
    assert world.is_suspended()


async def test_a_job_that_is_modified_concurrently_is_resumed_all_the_same(world: World) -> None:
    world.job()
    async with running(world.controller()):
        await world.waits()
        world.api.fail(409, "PATCH", "/jobs/")
        world.admit()
        while world.is_suspended():
            await world.clock.advance(1)


async def test_a_podgroup_that_is_rejected_is_an_event_of_the_job(world: World) -> None:
    world.api.fail(400, "POST", "/podgroups")
    world.job()
    async with running(world.controller()):
        await wait_for(lambda: world.recorder.events)
        while world.group() is None:
            await world.clock.advance(1)
    assert world.recorder.events[0][3] == "PodGroupRefused"
    assert world.is_suspended()


def jobs_of_set(**job: Any) -> list[Json]:
    return [{"name": "node", "replicas": 1, "template": {"spec": {"template": template()} | job}}]


def trainjob(**changes: Any) -> Json:
    """A reference to TrainJob j."""
    return {
        "apiVersion": TRAINJOBS.api_version,
        "kind": TRAINJOBS.kind,
        "name": "j",
        "uid": "j-uid",
        "controller": True,
    } | changes


async def test_a_trainjob_waits_with_the_podgroup_of_its_suspended_jobset(world: World) -> None:
    world.job(resource=TRAINJOBS)
    async with running(world.controller(TRAINJOB)), running(world.controller(JOBSET)):
        # A JobSet of a TrainJob that was deleted, which had the same name.
        replicated = jobs_of_set(parallelism=3)
        old = trainjob(uid="old")
        world.job(resource=JOBSETS, uid="set", owner=old, replicatedJobs=replicated)
        # As Kubeflow's controller creates it, with the labels of the TrainJob.
        world.job(resource=JOBSETS, uid="set-uid", owner=trainjob(), replicatedJobs=replicated)
        await world.waits()
        world.admit()
        await wait_for(lambda: not world.is_suspended(resource=TRAINJOBS))
        await wait_for(lambda: world.recorder.events)
    group = world.group()
    assert group is not None
    assert (group["spec"]["minMember"], group["spec"]["queue"]) == (3, "team")
    assert [each["uid"] for each in group["metadata"]["ownerReferences"]] == ["set-uid"]
    # Its own controller resumes the JobSet.
    assert world.is_suspended(resource=JOBSETS)
    assert [*world.api.objects(PODGROUPS)] == [f"{NAMESPACE}/podgroup-jobset-j"]


async def test_the_podgroup_of_a_deleted_jobset_does_not_admit_the_next_one(world: World) -> None:
    world.job(resource=JOBSETS, uid="old", replicatedJobs=jobs_of_set())
    async with running(world.controller(JOBSET)):
        await world.waits()
    world.admit()
    world.job(resource=JOBSETS, uid="new", replicatedJobs=jobs_of_set(parallelism=2))

    def owner() -> str:
        group = world.group()
        return "" if group is None else str(group["metadata"]["ownerReferences"][0]["uid"])

    async with running(world.controller(JOBSET)):
        await wait_for(lambda: owner() == "new")
        assert world.is_suspended(resource=JOBSETS)
        world.admit()
        await wait_for(lambda: not world.is_suspended(resource=JOBSETS))


def ray_cluster(workers: Json | None = None) -> Json:
    group = {"groupName": "small", "replicas": 3, "rayStartParams": {"num-cpus": "1"}}
    return {
        "rayVersion": "2.9",
        "headGroupSpec": {"rayStartParams": {"port": "6379"}, "template": template()},
        "workerGroupSpecs": [group | {"template": workers or template()}],
    }


async def test_a_rayjob_is_resumed_with_pods_that_name_its_podgroup(world: World) -> None:
    world.job(resource=RAYJOBS, entrypoint="run", rayClusterSpec=ray_cluster())
    async with running(world.controller(RAYJOB)):
        await world.waits()
        world.admit()
        await wait_for(lambda: not world.is_suspended(resource=RAYJOBS))
    group = world.group()
    assert group is not None
    assert (group["spec"]["minMember"], group["spec"]["minResources"]["cpu"]) == (4, "8")
    assert group["spec"]["queue"] == "team"
    assert {each["name"] for each in group["spec"]["subGroupPolicy"]} == {"head", "small"}
    stored = world.stored(resource=RAYJOBS)["spec"]
    wanted = ray_cluster()
    for each in (wanted["headGroupSpec"], *wanted["workerGroupSpecs"]):
        each["template"]["metadata"] = {"annotations": QUEUE | {GROUP: "podgroup-j-uid"}}
    assert stored == {"suspend": False, "entrypoint": "run", "rayClusterSpec": wanted}


async def test_a_rayjob_that_has_ended_gives_its_reservation_back(world: World) -> None:
    world.job(resource=RAYJOBS, rayClusterSpec=ray_cluster())
    async with running(world.controller(RAYJOB)):
        await world.waits()
        world.admit()
        await wait_for(lambda: not world.is_suspended(resource=RAYJOBS))
        group = world.group()
        assert group is not None
        name = group["metadata"]["name"]
        world.api.put(PODGROUPS, name, status={"phase": "Running"})
        ended = world.stored(resource=RAYJOBS)
        world.api.put(
            RAYJOBS,
            "j",
            metadata=ended["metadata"],
            spec=ended["spec"],
            status={"jobDeploymentStatus": "Complete"},
        )
        # Its pods are still there; another RayJob shows that the controller has seen it.
        world.job("other", resource=RAYJOBS, rayClusterSpec=ray_cluster())
        await world.waits("other")
        assert world.group() is not None
        world.api.put(PODGROUPS, name, status={"phase": "Pending"})
        await wait_for(lambda: world.group() is None)


@pytest.mark.parametrize(
    ("cluster", "problem"),
    [
        (ray_cluster({**template(), "metadata": {"annotations": {GROUP: "mine"}}}), "'mine'"),
        ({}, "schedulerName ''"),
        (ray_cluster() | {"workerGroupSpecs": 3}, "workerGroupSpecs"),
    ],
)
async def test_a_rayjob_whose_pods_no_queue_admits_stays_suspended_with_an_event(
    world: World, cluster: Json, problem: str
) -> None:
    world.job(resource=RAYJOBS, rayClusterSpec=cluster)
    async with running(world.controller(RAYJOB)):
        await wait_for(lambda: world.recorder.events)
    assert world.recorder.events[0][3] == "SuspensionIgnored"
    assert problem in world.recorder.events[0][4]
    assert world.group() is None
    assert world.is_suspended(resource=RAYJOBS)
