"""Gangs of jobs as PodGroups of Kubernetes itself, for kube-scheduler.

Such a PodGroup has the name, the owner and the labels of the one of Volcano, whose spec it has in
an annotation. It is read as if it were that one: pods are to be created at once, since the
scheduler waits for them, so it counts as admitted.
"""

from typing import Any

import msgspec
from msgspec.structs import force_setattr

from ..model import names
from ..model.base import ApiStruct
from ..model.job import Job
from ..model.meta import ObjectMeta
from ..model.names import Resource
from ..model.native_podgroup import (
    SCHEDULED_CONDITIONS,
    NativePodGroupSpec,
    NativePodGroupStatus,
)
from ..model.podgroup import (
    PodGroup,
    PodGroupCondition,
    PodGroupPhase,
    PodGroupSpec,
    PodGroupStatus,
)
from . import podgroups
from .pods import Pod

SCHEDULER = "default-scheduler"
"""``schedulerName`` of the pods: that of kube-scheduler."""

GATE_OFF = (
    "the API server has dropped spec.schedulingGroup of the pod: its feature gate GenericWorkload "
    "is off"
)
_DECODER = msgspec.json.Decoder(PodGroupSpec)


class JobPodGroup(PodGroup, frozen=True):
    """A PodGroup of Kubernetes itself, read as one of Volcano."""

    spec: PodGroupSpec = msgspec.field(default=PodGroupSpec(), name="specOfVolcano")
    """From the annotation; :attr:`status` from the condition."""
    status: PodGroupStatus = msgspec.field(default=PodGroupStatus(), name="statusOfVolcano")
    native_spec: NativePodGroupSpec = msgspec.field(default=NativePodGroupSpec(), name="spec")
    native_status: NativePodGroupStatus = msgspec.field(
        default=NativePodGroupStatus(), name="status"
    )

    def __post_init__(self) -> None:
        force_setattr(self, "spec", _recorded_spec(self.metadata))
        force_setattr(self, "status", _status(self.native_status))


class NewPodGroup(ApiStruct, frozen=True):
    """A PodGroup to be created."""

    metadata: ObjectMeta
    spec: dict[str, object]


def build(job: Job, spec: PodGroupSpec) -> NewPodGroup:
    """Return the PodGroup to create for *job*, for which one of Volcano would have *spec*."""
    meta = podgroups.build(job, spec).metadata
    annotations = {**meta.annotations, **_annotations(spec)}
    found: dict[str, object] = {"schedulingPolicy": {"basic": {}}}
    if spec.min_member > 0:
        found["schedulingPolicy"] = {"gang": {"minCount": spec.min_member}}
    if spec.priority_class_name:
        found["priorityClassName"] = spec.priority_class_name
    return NewPodGroup(metadata=msgspec.structs.replace(meta, annotations=annotations), spec=found)


def patch(current: PodGroup, desired: PodGroupSpec, resource: Resource) -> dict[str, Any]:
    """Return the merge patch by which *current*, in the version of *resource*, becomes *desired* as
    far as possible; :func:`unchangeable` returns what is not."""
    body: dict[str, Any] = {"metadata": {"annotations": _annotations(desired)}}
    has_other = _min_count(current) not in (None, desired.min_member)
    if has_other and not unchangeable(current, desired, resource):
        body["spec"] = {"schedulingPolicy": {"gang": {"minCount": desired.min_member}}}
    return body


def unchangeable(current: PodGroup, desired: PodGroupSpec, resource: Resource) -> str:
    """Return what of *desired* applies only to the PodGroup of the next restart of the job."""
    count = _min_count(current)
    if desired.min_member == (count or 0):
        return ""
    if resource == names.NATIVE_PODGROUPS_BETA and count is not None and desired.min_member > 0:
        return ""
    return (
        f"minAvailable {desired.min_member} applies from the next restart of the job on: the "
        f"minCount of a PodGroup is immutable in {resource.version}"
    )


def set_group(body: Pod, job: Job, scheduler_names: tuple[str, ...]) -> None:
    """Let the pod *body* name the PodGroup of *job*, and kube-scheduler instead of one of
    *scheduler_names*."""
    spec = body["spec"]
    spec["schedulingGroup"] = {"podGroupName": podgroups.name_of(job)}
    if spec.get("schedulerName") in scheduler_names:
        spec["schedulerName"] = SCHEDULER


def impossible(job: Job) -> str:
    """Return the first field of *job* that requires what a PodGroup of Kubernetes cannot express;
    the job may not run without it."""
    topology = job.spec.network_topology
    if topology is not None and topology.mode != "soft":
        return "spec.networkTopology: HyperNodes are not known to kube-scheduler"
    for index, task in enumerate(job.spec.tasks):
        if task.partition_policy is not None:
            return f"spec.tasks[{index}].partitionPolicy: a group has no sub-groups"
    return ""


def without_effect(job: Job, spec: PodGroupSpec) -> list[str]:
    """Return the fields of *job* that have no effect on kube-scheduler."""
    found = []
    if spec.queue not in ("", names.DEFAULT_QUEUE):
        found.append("spec.queue: no limits or shares of queues apply")
    if job.spec.network_topology is not None:
        found.append("spec.networkTopology: a preference is not possible")
    total = sum(task.replicas for task in job.spec.tasks)
    for index, task in enumerate(job.spec.tasks):
        if task.min_available is not None and spec.min_member < total:
            found.append(f"spec.tasks[{index}].minAvailable: any pods count for the minimum")
        if task.topology_policy:
            found.append(f"spec.tasks[{index}].topologyPolicy: NUMA is not considered")
    return found


def _annotations(spec: PodGroupSpec) -> dict[str, str]:
    return {
        names.PODGROUP_SPEC: msgspec.json.encode(spec).decode(),
        names.PODGROUP_QUEUE: spec.queue,
    }


def _min_count(podgroup: PodGroup) -> int | None:
    """Return the minimum in the PodGroup itself; ``None`` for one without gang."""
    gang = (
        podgroup.native_spec.scheduling_policy.gang if isinstance(podgroup, JobPodGroup) else None
    )
    return None if gang is None else gang.min_count


def _recorded_spec(meta: ObjectMeta) -> PodGroupSpec:
    """Return the spec in the annotation; an empty one if users have changed it to no spec."""
    try:
        return _DECODER.decode(meta.annotations.get(names.PODGROUP_SPEC, "{}"))
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return PodGroupSpec()


def _status(status: NativePodGroupStatus) -> PodGroupStatus:
    kinds = SCHEDULED_CONDITIONS.values()
    found = next((each for each in status.conditions if each.type in kinds), None)
    if found is None:
        return PodGroupStatus(phase=PodGroupPhase.INQUEUE)
    scheduled = found.status == "True"
    condition = PodGroupCondition(
        type="Scheduled" if scheduled else "Unschedulable",
        status="True",
        reason=found.reason,
        message=found.message,
        last_transition_time=found.last_transition_time,
    )
    phase = PodGroupPhase.RUNNING if scheduled else PodGroupPhase.INQUEUE
    return PodGroupStatus(phase=phase, conditions=(condition,))
