"""How the tasks of a job relate: their order, their partitions."""

from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter

from ..model.job import Job, NetworkTopology, TaskSpec

NO_DAG = "job has dependencies between tasks, but doesn't form a directed acyclic graph(DAG)"


def dependency_error(tasks: Sequence[TaskSpec]) -> str:
    """Why the tasks cannot be started one after another, or ``""``."""
    names = {task.name for task in tasks}
    for task in tasks:
        awaited = task.depends_on.name if task.depends_on else ()
        for name in awaited:
            if name not in names:
                return f"{NO_DAG}: task {task.name} depends on {name}, which is no task"
            if awaited.count(name) > 1:
                return f"{NO_DAG}: task {task.name} names {name} twice"
    graph = {task.name: task.depends_on.name for task in tasks if task.depends_on}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as cycle:
        return f"{NO_DAG}: {' -> '.join(cycle.args[1])}"
    return ""


def negative_errors(job: Job) -> Iterator[str]:
    """Which numbers of *job* are below zero, where no schema has refused them."""
    if job.spec.min_available < 0:
        yield "job 'minAvailable' must be >= 0"
    for task in job.spec.tasks:
        if task.replicas < 0:
            yield f"'replicas' must be >= 0 in task: {task.name}"
        if task.min_available is not None and task.min_available < 0:
            yield f"'minAvailable' must be >= 0 in task: {task.name}"


def partition_errors(task: TaskSpec, job: str) -> list[str]:
    """What is wrong with the partitions of *task*."""
    policy = task.partition_policy
    if policy is None:
        return []
    where = f"in task: {task.name}, job: {job}"
    least = policy.min_partitions * policy.partition_size
    problems = []
    if policy.total_partitions <= 0:
        problems.append(f"'TotalPartitions' must be greater than 0 {where}")
    elif policy.partition_size <= 0:
        problems.append(f"'PartitionSize' must be greater than 0 {where}")
    elif task.replicas != policy.total_partitions * policy.partition_size:
        problems.append(f"'Replicas' are not equal to TotalPartitions*PartitionSize {where}")
    elif task.min_available is not None and 0 < least != task.min_available:
        problems.append(f"'MinAvailable' is not equal to MinPartitions*PartitionSize {where}")
    if problem := topology_error(policy.network_topology):
        problems.append(f"{problem} {where}")
    return problems


def topology_error(topology: NetworkTopology | None) -> str:
    """Why the wish for nearness contradicts itself, or ``""``."""
    if topology and topology.highest_tier_allowed is not None and topology.highest_tier_name:
        return (
            "must not specify 'highestTierAllowed' and 'highestTierName' in networkTopology"
            " simultaneously"
        )
    return ""
