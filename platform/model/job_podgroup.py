"""The PodGroup spec of a Volcano job, which its controller writes, and the scheduler simulates."""

from collections.abc import Callable, Mapping

from . import names
from .job import Job, JobSpec, NetworkTopology, TaskSpec
from .meta import LabelSelector
from .min_resources import min_resources
from .podgroup import PodGroupSpec, SubGroupPolicy


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


def partition_of(task: TaskSpec, index: int) -> str:
    """Return the partition of the pod with this *index*; empty if the task has none."""
    if task.partition_policy is None:
        return ""
    size = task.partition_policy.partition_size
    return str(index // size if size > 0 else 0)


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
