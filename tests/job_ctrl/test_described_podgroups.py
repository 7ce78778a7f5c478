"""Which jobs need no PodGroup, what their pods describe, and when they get one after all."""

from dataclasses import replace
from datetime import UTC
from typing import Any

import msgspec
import pytest

from batholith.job_ctrl import podgroups
from batholith.job_ctrl.creation.described_podgroups import (
    SILENCE,
    DescribedPodGroups,
    SchedulerSilentError,
    WithoutPodGroup,
)
from batholith.job_ctrl.pods import build, set_description
from batholith.job_ctrl.tracker.core_types import Pod, PodCondition, PodStatus
from batholith.job_ctrl.tracker.pod_info import PodInfo, parse_pod
from batholith.machinery.testing import FakeClock
from batholith.model.described_podgroup import decode
from batholith.model.job import Job
from batholith.model.job_defaults import DefaultedJob
from batholith.model.job_podgroup import desired_spec
from batholith.model.meta import ObjectMeta
from batholith.model.names import NO_PODGROUP, PODGROUP, PODGROUPS_OF_JOB, QUEUE_GATE
from batholith.model.pod import PodPhase

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def job(
    *,
    pod: dict[str, Any] | None = None,
    template: dict[str, Any] | None = None,
    task: dict[str, Any] | None = None,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> Job:
    """A job of one pod."""
    container = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": 1}}}
    described = {"metadata": template or {}, "spec": {"containers": [container], **(pod or {})}}
    body = {
        "metadata": {
            "name": "j",
            "namespace": "d",
            "uid": "u",
            "labels": {"team": "a"},
            "annotations": annotations or {},
        },
        "spec": {
            "queue": "q",
            "priorityClassName": "high",
            "tasks": [{"name": "t", "replicas": 1, "template": described, **(task or {})}],
            **spec,
        },
    }
    return msgspec.json.decode(msgspec.json.encode(body), type=DefaultedJob)


class World:
    """What decides, and its clock."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.clock = FakeClock()
        self.described = DescribedPodGroups(
            enabled=enabled, scheduler_names=("volcano", "other"), clock=self.clock
        )

    def scheduler(self, it: Job) -> str:
        return self.described.scheduler_of(it, desired_spec(it, priorities={}))

    def decide(self, it: Job, *pods: PodInfo) -> WithoutPodGroup | None:
        spec = desired_spec(it, priorities={})
        return self.described.without_podgroup(it, spec, scheduler=self.scheduler(it), pods=pods)

    def created(self, it: Job) -> PodInfo:
        """The pod that is created for *it* now."""
        found = self.decide(it)
        assert found is not None
        body = build(it, it.spec.tasks[0], 0)
        set_description(body, found.description)
        body["metadata"] |= {"uid": "p", "creationTimestamp": self.now()}
        pod = parse_pod(msgspec.convert(body, Pod))
        assert pod is not None
        return pod

    def now(self) -> str:
        return self.clock.now().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    ("it", "scheduler"),
    [
        (job(), "volcano"),
        (job(schedulerName="other"), "other"),
        (job(pod={"schedulerName": "other"}), "other"),
        (job(task={"minAvailable": 1}, minAvailable=1), "volcano"),
        (job(maxRetry=7, ttlSecondsAfterFinished=1, minSuccess=1), "volcano"),
        (job(policies=[{"event": "PodFailed", "action": "RestartJob"}]), "volcano"),
        (job(pod={"volumes": [{"name": "v", "emptyDir": {}}]}), "volcano"),
        (job(pod={"schedulingGates": []}), "volcano"),
        (job(pod={"volumes": None, "schedulingGates": None}), "volcano"),
    ],
)
def test_a_job_of_one_pod_needs_no_podgroup(world: World, it: Job, scheduler: str) -> None:
    assert world.scheduler(it) == scheduler
    assert World(enabled=False).scheduler(it) == ""


@pytest.mark.parametrize(
    "it",
    [
        job(task={"replicas": 2}),
        job(task={"replicas": 0}),
        job(tasks=[]),
        job(task={"minAvailable": 0}, minAvailable=0),
        job(minAvailable=0),
        job(task={"partitionPolicy": {"totalPartitions": 1, "partitionSize": 1}}),
        job(task={"topologyPolicy": "best-effort"}),
        job(task={"dependsOn": {"name": ["t"]}}),
        job(networkTopology={"mode": "soft"}),
        job(plugins={"env": []}),
        job(volumes=[{"mountPath": "/v"}]),
        job(schedulerName="default-scheduler"),
        job(pod={"schedulerName": "default-scheduler"}),
        job(pod={"nodeName": "n"}),
        job(pod={"schedulingGates": [{"name": "g"}]}),
        job(pod={"resourceClaims": [{"name": "c"}]}),
        job(pod={"schedulingGroup": {"podGroupName": "g"}}),
        job(pod={"workloadRef": {"name": "w"}}),
        job(pod={"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}),
        job(pod={"volumes": [{"name": "v", "ephemeral": {}}]}),
        job(template={"annotations": {QUEUE_GATE: "true"}}),
        job(pod={"volumes": "many"}),
    ],
)
def test_if_in_doubt_a_job_needs_a_podgroup(world: World, it: Job) -> None:
    assert world.scheduler(it) == ""


def test_the_description_is_what_the_podgroup_would_contain(world: World) -> None:
    it = job(annotations={"volcano.sh/sla-waiting-time": "1h", LAST_APPLIED: "{}"})
    found = world.decide(it)
    assert found is not None
    description = decode(found.description)
    assert description is not None
    spec = desired_spec(it, priorities={})
    stored = podgroups.build(it, spec)
    assert description.spec == stored.spec == spec
    assert description.labels == stored.metadata.labels
    assert description.annotations == {"volcano.sh/sla-waiting-time": "1h"}


def test_the_annotation_of_the_job_and_the_length_count(world: World) -> None:
    assert world.decide(job(annotations={PODGROUPS_OF_JOB: "all"})) is None
    assert world.decide(job(annotations={"a": "x" * 9000})) is None


def test_pods_are_marked_and_marks_of_the_template_are_dropped(world: World) -> None:
    marks = {"labels": {PODGROUP: "forged"}, "annotations": {PODGROUP: "forged"}}
    it = job(template=marks)
    body = build(it, it.spec.tasks[0], 0)
    set_description(body, "")
    assert PODGROUP not in body["metadata"]["annotations"]
    assert PODGROUP not in body["metadata"]["labels"]
    set_description(body, "text")
    assert body["metadata"]["annotations"][PODGROUP] == "text"
    assert body["metadata"]["labels"][PODGROUP] == NO_PODGROUP


def test_pods_that_describe_another_spec_or_none_lead_to_a_podgroup(world: World) -> None:
    it = job()
    pod = world.created(it)
    assert world.decide(it, pod) is not None
    assert world.decide(job(priorityClassName="low"), pod) is None
    assert world.decide(it, replace(pod, description="")) is None
    assert world.decide(it, replace(pod, description="{")) is None


async def test_a_pod_on_which_no_scheduler_reports_leads_to_a_podgroup(world: World) -> None:
    it = job()
    pod = world.created(it)
    found = world.decide(it, pod)
    assert found is not None
    assert found.check_after == pytest.approx(SILENCE, abs=1)
    await world.clock.advance(SILENCE - 2)
    assert world.decide(it, pod) is not None
    await world.clock.advance(3)
    with pytest.raises(SchedulerSilentError, match="no scheduler has reported on pod j-t-0"):
        world.decide(it, pod)
    for other in (replace(pod, reported=True), replace(pod, phase=PodPhase.RUNNING)):
        waiting = world.decide(it, other)
        assert waiting is not None
        assert waiting.check_after is None


async def test_a_report_on_another_pod_extends_the_silence_of_that_scheduler(world: World) -> None:
    """A scheduler with a backlog reports on its pods one after another."""
    it = job()
    pod = world.created(it)
    await world.clock.advance(SILENCE - 2)
    reported = Pod(
        metadata=ObjectMeta(annotations={PODGROUP: "{}"}),
        status=PodStatus(conditions=(PodCondition(type="PodScheduled", status="True"),)),
    )
    silent = Pod(metadata=reported.metadata)
    world.described.observe("other", silent, reported)
    world.described.observe("volcano", None, silent)
    world.described.observe("volcano", silent, Pod(status=reported.status))
    await world.clock.advance(3)
    with pytest.raises(SchedulerSilentError):
        world.decide(it, pod)
    world.described.observe("volcano", silent, reported)
    assert world.decide(it, pod) is not None


async def test_pods_that_run_or_end_are_no_report_of_their_scheduler(world: World) -> None:
    """They were bound before it was replaced by one that ignores described pods."""
    it = job()
    pod = world.created(it)
    await world.clock.advance(SILENCE + 1)
    before = Pod(
        metadata=ObjectMeta(annotations={PODGROUP: "{}"}),
        status=PodStatus(conditions=(PodCondition(type="PodScheduled", status="True"),)),
    )
    after = msgspec.structs.replace(
        before, status=msgspec.structs.replace(before.status, phase="Succeeded")
    )
    world.described.observe("volcano", before, after)
    with pytest.raises(SchedulerSilentError):
        world.decide(it, pod)


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ((), (False, "")),
        ((PodCondition(type="Ready", status="False", message="no"),), (False, "")),
        ((PodCondition(type="PodScheduled", status="True"),), (True, "")),
        ((PodCondition(type="PodScheduled", status="False", message="full"),), (True, "full")),
    ],
)
def test_the_report_of_the_scheduler_is_read_from_described_pods_alone(
    world: World, conditions: tuple[PodCondition, ...], expected: tuple[bool, str]
) -> None:
    for description, wanted in (("text", expected), ("", (False, ""))):
        body = build(job(), job().spec.tasks[0], 0)
        set_description(body, description)
        pod = msgspec.convert(body, Pod)
        found = parse_pod(msgspec.structs.replace(pod, status=PodStatus(conditions=conditions)))
        assert found is not None
        assert (found.reported, found.unschedulable) == wanted
