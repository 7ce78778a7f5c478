"""Build a job's PodGroup and the patch of an existing one. Pure."""

from collections.abc import Callable, Mapping

import msgspec

from ..model import names
from ..model.job import Job, JobSpec, NetworkTopology, TaskSpec
from ..model.meta import LabelSelector, ObjectMeta, OwnerReference
from ..model.min_resources import min_resources
from ..model.podgroup import (
    PodGroup,
    PodGroupCondition,
    PodGroupPhase,
    PodGroupSpec,
    SubGroupPolicy,
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


def desired_spec(job: Job, *, priorities: Mapping[str, int]) -> PodGroupSpec:
    """Return the spec of the job's PodGroup; *priorities*: values of the PriorityClasses by name.

    Raises:
        QuantityError, msgspec.ValidationError: a template is malformed.
    """
    spec = job.spec
    topology = spec.network_topology
    if topology is not None and topology.highest_tier_allowed is not None:
        topology = NetworkTopology(
            mode=topology.mode, highest_tier_allowed=topology.highest_tier_allowed
        )
    return PodGroupSpec(
        min_member=_initial_min_member(spec),
        min_task_member={task.name: _min_available(task) for task in spec.tasks},
        queue=spec.queue,
        priority_class_name=spec.priority_class_name,
        min_resources={**min_resources(spec.tasks, spec.min_available, priorities=priorities)},
        network_topology=topology,
        sub_group_policy=tuple(filter(None, map(_sub_group, spec.tasks))),
    )


def build(job: Job, spec: PodGroupSpec, *, members: str = "") -> PodGroup:
    """Return the PodGroup to create for *job*, with the job's labels and annotations.

    *members* describes its pods, for placement at creation.
    """
    given = job.metadata.annotations
    annotations = {name: text for name, text in given.items() if name not in _NOT_INHERITED}
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


def _initial_min_member(spec: JobSpec) -> int:
    """Return ``minMember``, without the pods of tasks that depend on others.

    Those pods do not exist when the gang is scheduled: if they counted, it would never start.
    """
    minimum = {task.name: _min_available(task) for task in spec.tasks}
    first = [
        task for task in spec.tasks if dependencies_met(task, lambda name: not minimum.get(name))
    ]
    if len(first) == len(spec.tasks):
        return spec.min_available
    enough = sum(minimum[task.name] for task in first) or sum(task.replicas for task in first)
    return min(spec.min_available, enough)


def dependencies_met(task: TaskSpec, started: Callable[[str], bool]) -> bool:
    """Whether the tasks that *task* depends on have *started*."""
    depends_on = task.depends_on
    if depends_on is None or not depends_on.name:
        return True
    enough = any if depends_on.iteration == "any" and len(depends_on.name) > 1 else all
    return enough(started(name) for name in depends_on.name)


def _min_available(task: TaskSpec) -> int:
    """Return the number of pods of *task* that the gang requires."""
    if task.min_available is not None:
        return task.min_available
    policy = task.partition_policy
    if policy is not None and policy.min_partitions and policy.partition_size:
        return policy.min_partitions * policy.partition_size
    return task.replicas


def _sub_group(task: TaskSpec) -> SubGroupPolicy | None:
    policy = task.partition_policy
    if policy is None:
        return None
    return SubGroupPolicy(
        name=task.name,
        network_topology=policy.network_topology,
        sub_group_size=policy.partition_size,
        min_sub_groups=policy.min_partitions,
        label_selector=LabelSelector(match_labels={names.TASK_SPEC: task.name}),
        match_label_keys=(names.PARTITION_ID,),
    )


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
