"""Build a pod from the template of its task. Pure.

The pod is the template's JSON with the controller's name, labels, annotations, owner and volumes.
Names, namespaces and finalizers of the template are dropped.
"""

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

import msgspec

from ..model import names
from ..model.job import Job, TaskSpec
from ..model.job_podgroup import partition_of
from . import podgroups

Pod = dict[str, Any]
"""A pod as decoded JSON."""

_DECODE = msgspec.json.Decoder(dict[str, Any]).decode
_INHERITED = ("volcano.sh/preemptable", "volcano.sh/cooldown-time")
_INHERITED_LABELS = (*_INHERITED, names.ACCOUNT)
_INHERITED_ANNOTATIONS = (*_INHERITED, "volcano.sh/revocable-zone")
_DISRUPTION_ANNOTATIONS = ("volcano.sh/jdb-min-available", "volcano.sh/jdb-max-unavailable")
_NUMA_POLICY = "volcano.sh/numa-topology-policy"


def name_of(job: Job, task: str, index: int) -> str:
    """Return the name of a pod of *job*."""
    return f"{job.metadata.name}-{task}-{index}"


def build(job: Job, task: TaskSpec, index: int) -> Pod:
    """Return the pod of *task* with this *index*, before the plugins mutate it.

    Raises:
        msgspec.DecodeError: the template is not a JSON object.
    """
    template = _DECODE(task.template)
    given = template.get("metadata") or {}
    spec: dict[str, Any] = template.get("spec") or {}
    spec["schedulerName"] = (
        spec.get("schedulerName") or job.spec.scheduler_name or names.SCHEDULER_NAME
    )
    if spec.get("hostNetwork") is True and not spec.get("dnsPolicy"):
        # With the DNS settings of the node, names of Services do not resolve.
        spec["dnsPolicy"] = "ClusterFirstWithHostNet"
    if job.spec.priority_class_name and not spec.get("priorityClassName"):
        spec["priorityClassName"] = job.spec.priority_class_name
    _mount_volumes(job, spec)
    return {
        "apiVersion": names.PODS.api_version,
        "kind": names.PODS.kind,
        "metadata": {
            "name": name_of(job, task.name, index),
            "namespace": job.metadata.namespace,
            "labels": {**(given.get("labels") or {}), **_labels(job, task, index)},
            "annotations": {**(given.get("annotations") or {}), **_annotations(job, task, index)},
            "ownerReferences": [msgspec.to_builtins(podgroups.owner_reference(job))],
        },
        "spec": spec,
    }


def set_description(body: Pod, description: str) -> None:
    """Let the pod *body* describe its PodGroup; with an empty *description*, not."""
    meta = body["metadata"]
    if description:
        meta["annotations"][names.PODGROUP] = description
        meta["labels"][names.PODGROUP] = names.NO_PODGROUP
    else:
        meta["annotations"].pop(names.PODGROUP, None)
        meta["labels"].pop(names.PODGROUP, None)


def _labels(job: Job, task: TaskSpec, index: int) -> dict[str, str]:
    labels = {
        names.TASK_INDEX: str(index),
        names.JOB_NAME: job.metadata.name,
        names.TASK_SPEC: task.name,
        names.JOB_NAMESPACE: job.metadata.namespace,
        names.QUEUE_NAME: job.spec.queue,
    }
    partition = partition_of(task, index)
    if partition:
        labels[names.PARTITION_ID] = partition
    return labels | _select(job.metadata.labels, _INHERITED_LABELS)


def _annotations(job: Job, task: TaskSpec, index: int) -> dict[str, str]:
    annotations = {
        names.TASK_INDEX: str(index),
        names.TASK_SPEC: task.name,
        names.GROUP_NAME: podgroups.name_of(job),
        names.JOB_NAME: job.metadata.name,
        names.QUEUE_NAME: job.spec.queue,
        names.JOB_VERSION: str(job.status.version),
        names.TEMPLATE_UID: f"{job.metadata.name}-{task.name}",
        names.JOB_RETRY_COUNT: str(job.status.retry_count),
    }
    if task.topology_policy:
        annotations[_NUMA_POLICY] = task.topology_policy
    disruption = _select(job.metadata.annotations, _DISRUPTION_ANNOTATIONS)
    first = dict(list(disruption.items())[:1])  # they exclude each other
    return annotations | _select(job.metadata.annotations, _INHERITED_ANNOTATIONS) | first


def _select(given: Mapping[str, str], keys: Iterable[str]) -> dict[str, str]:
    return {key: given[key] for key in keys if key in given} if given else {}


def _mount_volumes(job: Job, spec: dict[str, Any]) -> None:
    """Mount the job's claims in every container, each at all of its mount paths."""
    seen: set[str] = set()
    for volume in job.spec.volumes:
        claim = volume.volume_claim_name
        if not claim:
            continue
        name = f"{job.metadata.name}-{sha256(claim.encode()).hexdigest()[:12]}"
        if claim not in seen:
            seen.add(claim)
            spec.setdefault("volumes", []).append(
                {"name": name, "persistentVolumeClaim": {"claimName": claim}}
            )
        for container in spec.get("containers", []):
            container.setdefault("volumeMounts", []).append(
                {"mountPath": volume.mount_path, "name": name}
            )
