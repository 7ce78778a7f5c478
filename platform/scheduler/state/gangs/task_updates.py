"""How an update of a pod affects its task."""

from ..core_types import Pod
from ..podinfo.resizes import has_equal_charge
from .gang import Task, TaskStatus


def keep_evicting(task: Task) -> None:
    """Keep the task of an updated pod as evicted, unless it has finished."""
    if task.status in (TaskStatus.BOUND, TaskStatus.RUNNING):
        task.evicting, task.status = True, TaskStatus.RELEASING


def is_status_update(old: Pod, new: Pod) -> bool:
    """Return whether two versions of a pod differ in status and version only, and not in what
    their node is charged."""
    before, after = old.metadata, new.metadata
    return (
        old.spec == new.spec
        and before.labels == after.labels
        and before.annotations == after.annotations
        and before.deletion_timestamp == after.deletion_timestamp
        and has_equal_charge(old, new)
    )


def is_stale_update(task: Task, pod: Pod) -> bool:
    """Return whether *pod* is a version from before the placement of *task*."""
    unplaced = not pod.spec.node_name and not pod.metadata.deletion_timestamp
    return task.status is TaskStatus.BINDING and unplaced
