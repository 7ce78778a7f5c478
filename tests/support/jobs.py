"""Builders of jobs, pods and views that read like manifests."""

import dataclasses
from datetime import UTC, datetime
from typing import Any

import msgspec

from batholith.job_ctrl import podgroups
from batholith.job_ctrl.status.job_view import JobView
from batholith.job_ctrl.tracker.pod_info import PodInfo
from batholith.job_ctrl.tracker.pod_tracker import PodTracker
from batholith.model.command import Command
from batholith.model.job import Job, JobStatus
from batholith.model.job_podgroup import desired_spec
from batholith.model.meta import ObjectMeta, OwnerReference
from batholith.model.names import JOBS, OPERATION
from batholith.model.pod import PodPhase
from batholith.model.podgroup import PodGroupStatus

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
TEMPLATE = {
    "spec": {
        "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "busybox:1.36"}],
    }
}


def task(name: str = "t", replicas: int = 2, **fields: Any) -> dict[str, Any]:
    """A task as in a manifest, as the defaults of admission leave it."""
    return {
        "name": name,
        "replicas": replicas,
        "minAvailable": replicas,
        "template": TEMPLATE,
        **fields,
    }


def job(*tasks: dict[str, Any], status: JobStatus | None = None, **spec: Any) -> Job:
    """A Job named ``j`` of *tasks*; its gang is all of its pods unless *spec* overrides it."""
    tasks = tasks or (task(),)
    content = {
        "minAvailable": sum(one["replicas"] for one in tasks),
        "maxRetry": 3,
        "queue": "default",
        "schedulerName": "volcano",
        "tasks": tasks,
        **spec,
    }
    created = msgspec.convert({"spec": encode_templates(content)}, Job)
    meta = ObjectMeta(
        name="j",
        namespace="ns",
        uid="uid-j",
        resource_version="1",
        generation=1,
        creation_timestamp="2026-05-04T11:00:00Z",
    )
    return msgspec.structs.replace(created, metadata=meta, status=status or JobStatus())


def encode_templates(spec: dict[str, Any]) -> dict[str, Any]:
    """*spec* with each task's template as raw JSON, which is how a Job keeps it."""
    tasks = [
        {**one, "template": msgspec.Raw(msgspec.json.encode(one["template"]))}
        for one in spec["tasks"]
    ]
    return {**spec, "tasks": tasks}


def pod_info(name: str = "t-0", phase: PodPhase = PodPhase.RUNNING, **fields: Any) -> PodInfo:
    """A pod ``j-<task>-<index>`` of the job."""
    of_task, _, index = name.rpartition("-")
    plain = PodInfo(
        uid=f"uid-{name}",
        name=f"j-{name}",
        owner="uid-j",
        task=of_task,
        index=int(index),
        version=0,
        phase=phase,
        ready=phase is PodPhase.RUNNING,
    )
    return dataclasses.replace(plain, **fields)


def make_command(
    action: str, name: str = "c", *, job_uid: str = "", operation: str = "", **target: str
) -> Command:
    """A Command for the job; *target* is what it restarts: a task, pod or partition."""
    annotations = {f"batholith.io/{kind}": value for kind, value in target.items()}
    if operation:
        annotations[OPERATION] = operation
    return Command(
        metadata=ObjectMeta(name=name, namespace="ns", uid=f"uid-{name}", annotations=annotations),
        action=action,
        target=OwnerReference(api_version=JOBS.api_version, kind="Job", name="j", uid=job_uid),
    )


def job_view(job: Job, *pods: PodInfo, podgroup: str | None = "Inqueue", **fields: Any) -> JobView:
    """The job *of* with *pods*, and a PodGroup in phase *podgroup* (``None``: there is none)."""
    tracker = PodTracker()
    tracker.set_job(job)
    for pod in pods:
        tracker.update(pod)
    gang = desired_spec(job, priorities={})
    group = podgroups.build(job, gang)
    return JobView(
        job=job,
        pod_tracker=tracker,
        podgroup_spec=gang,
        now=NOW,
        monotonic_now=100.0,
        podgroup=None
        if podgroup is None
        else msgspec.structs.replace(
            group,
            metadata=msgspec.structs.replace(group.metadata, uid="uid-pg"),
            status=PodGroupStatus(phase=podgroup),
        ),
        **fields,
    )
