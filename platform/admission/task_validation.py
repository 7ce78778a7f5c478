"""Validation of tasks on create and update: dependencies, numbers, partitions, topology."""

from collections import Counter
from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter

from ..model.job import Job, NetworkTopology, TaskSpec
from ..model.job_size import too_many_pods_error, volcano_pods

NO_DAG = "job has dependencies between tasks, but doesn't form a directed acyclic graph(DAG)"


def size_error(job: Job, max_pods: int) -> str:
    """Return why *job* has too many pods, or ``""``."""
    error = too_many_pods_error(volcano_pods(job.spec), max_pods)
    return f"spec.tasks[*].replicas: {error}" if error else ""


def dependency_error(tasks: Sequence[TaskSpec]) -> str:
    """Return why the task dependencies are not a DAG, or ``""``."""
    names = {task.name for task in tasks}
    for task in tasks:
        dependencies = Counter(task.depends_on.name if task.depends_on else ())
        for name, count in dependencies.items():
            if name not in names:
                return f"{NO_DAG}: task {task.name} depends on {name}, which is not a task"
            if count > 1:
                return f"{NO_DAG}: task {task.name} has duplicate dependency {name}"
    graph = {task.name: task.depends_on.name for task in tasks if task.depends_on}
    if not graph:
        return ""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as cycle:
        return f"{NO_DAG}: {' -> '.join(cycle.args[1])}"
    return ""


def negative_errors(job: Job) -> Iterator[str]:
    """Yield errors for negative numbers of *job*, which the schema may not have rejected."""
    if job.spec.min_available < 0:
        yield "job 'minAvailable' must be >= 0"
    for task in job.spec.tasks:
        if task.replicas < 0:
            yield f"'replicas' must be >= 0 in task: {task.name}"
        if task.min_available is not None and task.min_available < 0:
            yield f"'minAvailable' must be >= 0 in task: {task.name}"


def partition_errors(task: TaskSpec, job: str) -> list[str]:
    """Return the errors of the partitions of *task*."""
    policy = task.partition_policy
    if policy is None:
        return []
    where = f"in task: {task.name}, job: {job}"
    min_available = policy.min_partitions * policy.partition_size
    errors = []
    if policy.total_partitions <= 0:
        errors.append(f"'TotalPartitions' must be greater than 0 {where}")
    elif policy.partition_size <= 0:
        errors.append(f"'PartitionSize' must be greater than 0 {where}")
    elif task.replicas != policy.total_partitions * policy.partition_size:
        errors.append(f"'Replicas' are not equal to TotalPartitions*PartitionSize {where}")
    elif task.min_available is not None and 0 < min_available != task.min_available:
        errors.append(f"'MinAvailable' is not equal to MinPartitions*PartitionSize {where}")
    if error := topology_error(policy.network_topology):
        errors.append(f"{error} {where}")
    return errors


def topology_error(topology: NetworkTopology | None) -> str:
    """Return why the network topology is contradictory, or ``""``."""
    if topology and topology.highest_tier_allowed is not None and topology.highest_tier_name:
        return (
            "must not specify 'highestTierAllowed' and 'highestTierName' in networkTopology"
            " simultaneously"
        )
    return ""
