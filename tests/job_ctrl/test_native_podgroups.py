"""Gangs of jobs as PodGroups of Kubernetes itself: what they contain, and what they cannot."""

from typing import Any

import msgspec
import pytest
from support.controller_api import NAMESPACE, ControllerApi
from support.running_controller import FakeRecorder, running

from batholith.job_ctrl import native_podgroups
from batholith.job_ctrl.controller import JobController
from batholith.job_ctrl.native_podgroups import JobPodGroup
from batholith.job_ctrl.settings import JobSettings
from batholith.kube.client.client import Client
from batholith.model.job import Job
from batholith.model.job_podgroup import desired_spec
from batholith.model.names import (
    COMMANDS,
    JOBS,
    NATIVE_PODGROUPS,
    NATIVE_PODGROUPS_BETA,
    PODGROUP_SPEC,
    PODS,
    Resource,
)
from batholith.model.podgroup import PodGroupSpec

Json = dict[str, Any]


def job(*tasks: Json, minimum: int = 2, **spec: Any) -> Json:
    template = {"spec": {"containers": [{"name": "main", "image": "busybox"}]}}
    listed = tasks or ({"name": "t", "replicas": 2},)
    return {
        "metadata": {"name": "j", "namespace": NAMESPACE, "uid": "uid-j", "generation": 1},
        "spec": {
            "minAvailable": minimum,
            "maxRetry": 3,
            "queue": "default",
            "schedulerName": "volcano",
            "tasks": [{"template": template, **each} for each in listed],
            **spec,
        },
    }


def decoded(body: Json) -> tuple[Job, PodGroupSpec]:
    found = msgspec.json.decode(msgspec.json.encode(body), type=Job)
    return found, desired_spec(found, priorities={})


def as_read(body: Json, **status: Any) -> JobPodGroup:
    """The PodGroup that is created for a job, as the controller reads it."""
    created = msgspec.to_builtins(native_podgroups.build(*decoded(body)))
    return msgspec.convert({**created, "status": status}, JobPodGroup)


def test_a_podgroup_is_read_as_the_one_of_volcano_that_the_job_would_have() -> None:
    """INV-NG-20: its owner is the job."""
    body = job(priorityClassName="high")
    group = as_read(body)
    assert group.spec == decoded(body)[1]
    assert group.status.phase == "Inqueue"
    created = native_podgroups.build(*decoded(body))
    assert created.spec == {
        "schedulingPolicy": {"gang": {"minCount": 2}},
        "priorityClassName": "high",
    }
    assert created.metadata.controller is not None
    assert native_podgroups.build(*decoded(job(minimum=0))).spec == {
        "schedulingPolicy": {"basic": {}}
    }


@pytest.mark.parametrize("text", ["", "{", "[]", '{"minMember":"a"}'])
def test_a_changed_annotation_is_written_again(text: str) -> None:
    body = job()
    created = msgspec.to_builtins(native_podgroups.build(*decoded(body)))
    created["metadata"]["annotations"][PODGROUP_SPEC] = text
    group = msgspec.convert(created, JobPodGroup)
    assert group.spec == PodGroupSpec()
    patch = native_podgroups.patch(group, decoded(body)[1], NATIVE_PODGROUPS)
    assert msgspec.json.decode(patch["metadata"]["annotations"][PODGROUP_SPEC])["minMember"] == 2


def test_its_condition_is_read_as_those_of_volcano() -> None:
    for kind in ("PodGroupScheduled", "PodGroupInitiallyScheduled"):
        condition = {"type": kind, "status": "False", "reason": "Unschedulable", "message": "full"}
        waiting = as_read(job(), conditions=[condition]).status
        assert waiting.phase == "Inqueue"
        assert [(each.type, each.message) for each in waiting.conditions] == [
            ("Unschedulable", "full")
        ]
        started = as_read(job(), conditions=[condition | {"status": "True"}]).status
        assert [(started.phase, each.type) for each in started.conditions] == [
            ("Running", "Scheduled")
        ]


@pytest.mark.parametrize(
    ("resource", "minimum", "spec", "is_reported"),
    [
        (NATIVE_PODGROUPS, 1, None, True),
        (NATIVE_PODGROUPS_BETA, 1, {"schedulingPolicy": {"gang": {"minCount": 1}}}, False),
        (NATIVE_PODGROUPS_BETA, 0, None, True),
        (NATIVE_PODGROUPS, 2, None, False),
    ],
)
def test_a_minimum_is_changed_where_the_api_permits_it_and_else_reported(
    resource: Resource, minimum: int, spec: Json | None, is_reported: bool
) -> None:
    desired = decoded(job(minimum=minimum))[1]
    current = as_read(job())
    assert native_podgroups.patch(current, desired, resource).get("spec") == spec
    limits = native_podgroups.unchangeable(current, desired, resource)
    assert bool(limits) is is_reported
    assert not limits or f"minAvailable {minimum}" in limits


def test_fields_that_kubernetes_cannot_express_are_named() -> None:
    """INV-NG-22."""
    partitions = {"totalPartitions": 2, "partitionSize": 1}
    for body, field in (
        (job(networkTopology={"mode": "hard"}), "spec.networkTopology: "),
        (
            job({"name": "t", "replicas": 2, "partitionPolicy": partitions}),
            "spec.tasks[0].partitionPolicy: ",
        ),
    ):
        assert native_podgroups.impossible(decoded(body)[0]).startswith(field)
    soft = job(
        {"name": "t", "replicas": 4, "minAvailable": 2, "topologyPolicy": "restricted"},
        networkTopology={"mode": "soft"},
        queue="research",
    )
    found, spec = decoded(soft)
    assert native_podgroups.impossible(found) == ""
    fields = [each.partition(":")[0] for each in native_podgroups.without_effect(found, spec)]
    assert fields == [
        "spec.queue",
        "spec.networkTopology",
        "spec.tasks[0].minAvailable",
        "spec.tasks[0].topologyPolicy",
    ]
    assert native_podgroups.without_effect(*decoded(job())) == []


class Dropping(Client):
    """A client of an API server without the feature gate, from its create number *kept* on."""

    kept = 0

    async def create(self, resource: Resource, body: Any, **options: Any) -> Any:
        if resource == PODS:
            self.kept -= 1
            if self.kept < 0:
                body["spec"].pop("schedulingGroup")
        return await super().create(resource, body, **options)


@pytest.mark.parametrize("kept", [0, 1, None])
async def test_jobs_that_cannot_be_gangs_report_it_and_have_no_pods(
    kept: int | None,
) -> None:
    """INV-NG-18 and INV-NG-22; the second create is the one after the dry run."""
    body = job() if kept is not None else job(networkTopology={"mode": "hard"})
    recorder = FakeRecorder()
    async with (
        ControllerApi(JOBS, NATIVE_PODGROUPS, COMMANDS) as api,
        Dropping(api.credentials, user_agent="test") as client,
        running(
            JobController(
                client,
                settings=JobSettings(native_podgroups=NATIVE_PODGROUPS),
                recorder=recorder,
            )
        ),
    ):
        client.kept = kept or 0
        api.put(JOBS, "j", metadata=body["metadata"], spec=body["spec"])
        text = native_podgroups.GATE_OFF if kept is not None else "spec.networkTopology"

        def is_reported() -> bool:
            found = next(iter(api.objects(JOBS).values()), {})
            return text in (found.get("status") or {}).get("state", {}).get("message", "")

        await api.wait_until(is_reported)
        await api.wait_until(lambda: not api.objects(PODS))
        assert kept or not api.created(PODS)
    reason = "FailedCreate" if kept is not None else "PodGroupError"
    assert any((each[3], text in each[4]) == (reason, True) for each in recorder.events)
