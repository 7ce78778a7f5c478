"""The PodGroup that a job asks for, and what must change in one that is there. Pure."""

from collections.abc import Callable, Mapping

import msgspec

from ..model import names
from ..model.job import Job, JobSpec, NetworkTopology, TaskSpec
from ..model.meta import LabelSelector, ObjectMeta, OwnerReference
from ..model.podgroup import PodGroup, PodGroupCondition, PodGroupSpec, SubGroupPolicy
from . import resources


def name_of(job: Job) -> str:
    """The name of the job's PodGroup: never that of an earlier job of the same name."""
    return f"{job.metadata.name}-{job.metadata.uid}"


def owner_reference(job: Job) -> OwnerReference:
    """The reference by which everything that we make for *job* goes when it goes."""
    return OwnerReference(
        api_version=names.JOBS.api_version,
        kind=names.JOBS.kind,
        name=job.metadata.name,
        uid=job.metadata.uid,
        controller=True,
        block_owner_deletion=True,
    )


def desired_spec(job: Job, *, priorities: Mapping[str, int]) -> PodGroupSpec:
    """The spec of the job's PodGroup; *priorities* are the priority classes' values by name.

    Raises:
        QuantityError, msgspec.ValidationError: a template cannot be read.
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
        min_resources={
            **resources.min_resources(spec.tasks, spec.min_available, priorities=priorities)
        },
        network_topology=topology,
        sub_group_policy=tuple(filter(None, map(_sub_group, spec.tasks))),
    )


def build(job: Job, spec: PodGroupSpec) -> PodGroup:
    """The PodGroup to create for *job*; it inherits the job's labels and annotations."""
    return PodGroup(
        metadata=ObjectMeta(
            name=name_of(job),
            namespace=job.metadata.namespace,
            labels=job.metadata.labels,
            annotations=job.metadata.annotations,
            owner_references=(owner_reference(job),),
        ),
        spec=spec,
    )


def spec_patch(current: PodGroupSpec, desired: PodGroupSpec) -> dict[str, object]:
    """The merge patch of ``spec`` that gives *there* what a job may change; empty if nothing."""
    patch: dict[str, object] = {}
    if current.priority_class_name != desired.priority_class_name:
        patch["priorityClassName"] = desired.priority_class_name or None
    if (current.min_member, current.min_resources) != (desired.min_member, desired.min_resources):
        gone = dict.fromkeys(
            (current.min_resources or {}).keys() - (desired.min_resources or {}).keys()
        )
        patch["minMember"] = desired.min_member
        patch["minResources"] = {**(desired.min_resources or {}), **gone}
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


def unschedulable_condition(podgroup: PodGroup) -> PodGroupCondition | None:
    """The scheduler's newest finding about the gang, if it is not that it is scheduled."""
    true = [condition for condition in podgroup.status.conditions if condition.status == "True"]
    if not true:
        return None
    newest = max(true, key=lambda condition: condition.last_transition_time or "")
    return None if newest.type == "Scheduled" else newest


def _initial_min_member(spec: JobSpec) -> int:
    """How many pods must be placed at once: of tasks that wait for others there are none by then.

    They follow one by one, as places are found. Were they counted, nothing would ever start.
    """
    least = {task.name: _min_available(task) for task in spec.tasks}
    first = [
        task for task in spec.tasks if dependencies_met(task, lambda name: not least.get(name))
    ]
    if len(first) == len(spec.tasks):
        return spec.min_available
    enough = sum(least[task.name] for task in first) or sum(task.replicas for task in first)
    return min(spec.min_available, enough)


def dependencies_met(task: TaskSpec, started: Callable[[str], bool]) -> bool:
    """Whether those that *task* waits for have *started*."""
    waits = task.depends_on
    if waits is None or not waits.name:
        return True
    enough = any if waits.iteration == "any" and len(waits.name) > 1 else all
    return enough(started(name) for name in waits.name)


def _min_available(task: TaskSpec) -> int:
    """How many pods of *task* the gang needs."""
    if task.min_available is not None:
        return task.min_available
    cut = task.partition_policy
    if cut is not None and cut.min_partitions and cut.partition_size:
        return cut.min_partitions * cut.partition_size
    return task.replicas


def _sub_group(task: TaskSpec) -> SubGroupPolicy | None:
    cut = task.partition_policy
    if cut is None:
        return None
    return SubGroupPolicy(
        name=task.name,
        network_topology=cut.network_topology,
        sub_group_size=cut.partition_size,
        min_sub_groups=cut.min_partitions,
        label_selector=LabelSelector(match_labels={names.TASK_SPEC: task.name}),
        match_label_keys=(names.PARTITION_ID,),
    )
