"""Build a job's PodGroup and the patch of an existing one. Pure."""

import msgspec

from ..model import names
from ..model.job import Job
from ..model.meta import ObjectMeta, OwnerReference
from ..model.podgroup import (
    PodGroup,
    PodGroupCondition,
    PodGroupPhase,
    PodGroupSpec,
)


def name_of(job: Job) -> str:
    """Return the name of the job's PodGroup, which contains the uid of the job."""
    return f"{job.metadata.name}-{job.metadata.uid}"


def key_of(job: Job) -> str:
    """Return ``namespace/name`` of the job's PodGroup."""
    return f"{job.metadata.namespace}/{name_of(job)}"


def owner_reference(job: Job) -> OwnerReference:
    """Return the controller reference to *job*, for all objects created for it."""
    return OwnerReference(
        api_version=names.JOBS.api_version,
        kind=names.JOBS.kind,
        name=job.metadata.name,
        uid=job.metadata.uid,
        controller=True,
        block_owner_deletion=True,
    )


def build(job: Job, spec: PodGroupSpec, *, members: str = "") -> PodGroup:
    """Return the PodGroup to create for *job*, with the job's labels and annotations.

    *members* describes its pods, for placement at creation.
    """
    given = job.metadata.annotations
    annotations = {name: text for name, text in given.items() if name not in _NOT_INHERITED}
    if job.spec.running_estimate:
        annotations[names.RUNNING_ESTIMATE] = job.spec.running_estimate
    if members:
        annotations[names.MEMBERS] = members
    return PodGroup(
        metadata=ObjectMeta(
            name=name_of(job),
            namespace=job.metadata.namespace,
            labels=job.metadata.labels,
            annotations=annotations,
            owner_references=(owner_reference(job),),
        ),
        spec=spec,
    )


_NOT_INHERITED = frozenset({names.MEMBERS, names.PLAN, names.PLACE_AT_CREATION})


def spec_patch(current: PodGroupSpec, desired: PodGroupSpec) -> dict[str, object]:
    """Return the merge patch of ``spec`` for the fields that a job controls; empty if equal."""
    patch: dict[str, object] = {}
    if current.priority_class_name != desired.priority_class_name:
        patch["priorityClassName"] = desired.priority_class_name or None
    if (current.min_member, current.min_resources) != (desired.min_member, desired.min_resources):
        removed = dict.fromkeys(
            (current.min_resources or {}).keys() - (desired.min_resources or {}).keys()
        )
        patch["minMember"] = desired.min_member
        patch["minResources"] = {**(desired.min_resources or {}), **removed}
    members = {
        task: number
        for task, number in desired.min_task_member.items()
        if current.min_task_member.get(task) != number
    }
    if members:
        patch["minTaskMember"] = members
    if current.sub_group_policy != desired.sub_group_policy:
        patch["subGroupPolicy"] = msgspec.to_builtins(desired.sub_group_policy)
    return patch


def is_waiting(podgroup: PodGroup) -> bool:
    """Whether the scheduler has not admitted a PodGroup, nor reported why it does not."""
    status = podgroup.status
    return status.phase in ("", PodGroupPhase.PENDING) and not status.conditions


def unschedulable_condition(podgroup: PodGroup) -> PodGroupCondition | None:
    """Return the newest true condition, unless it is Scheduled."""
    true = [condition for condition in podgroup.status.conditions if condition.status == "True"]
    if not true:
        return None
    newest = max(true, key=lambda condition: condition.last_transition_time or "")
    return None if newest.type == "Scheduled" else newest


_UNADMITTED_PHASES = frozenset({PodGroupPhase.PENDING, PodGroupPhase.UNKNOWN})
"""Phases that differ for a job; it starts in all others, and continues."""


def differ(one: PodGroup, other: PodGroup) -> bool:
    """Whether decisions about the job may differ for two versions of its PodGroup."""
    return decisive_fields(one) != decisive_fields(other)


def decisive_fields(podgroup: PodGroup) -> tuple[object, ...]:
    """Return what decisions about the job depend on."""
    meta, phase = podgroup.metadata, podgroup.status.phase or PodGroupPhase.PENDING
    return (
        meta.uid,
        meta.deletion_timestamp,
        meta.annotations.get(names.PLAN),
        podgroup.spec,
        phase if phase in _UNADMITTED_PHASES else "",
        unschedulable_condition(podgroup),
    )
