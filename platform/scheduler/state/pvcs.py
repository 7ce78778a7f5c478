"""PVCs of pods: a pod is not scheduled before all of them are bound."""

from .core_types import PersistentVolumeClaim
from .gangs import Task

_UNBOUND = (
    'persistentvolumeclaim "{}" is not bound; delayed binding (WaitForFirstConsumer) is not '
    "supported yet"
)


class PVCTracker:
    """PVCs after the last event, and the tasks that mount them."""

    def __init__(self) -> None:
        """Start empty."""
        self._pvcs: dict[str, PersistentVolumeClaim] = {}
        self._tasks_by_pvc: dict[str, set[str]] = {}
        """Uids of tasks by ``namespace/name`` of the PVC."""

    def update(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> frozenset[str]:
        """Add, update or delete a PVC; returns uids of tasks that may be schedulable now."""
        known = new or old
        if known is None:
            return frozenset()
        key = known.metadata.key
        if new is None:
            self._pvcs.pop(key, None)
        else:
            self._pvcs[key] = new
        same = (
            old is not None and new is not None and _relevant_fields(old) == _relevant_fields(new)
        )
        return frozenset() if same else frozenset(self._tasks_by_pvc.get(key, ()))

    def add_task(self, task: Task) -> None:
        """Add the PVCs of *task*."""
        for mounted in task.pvcs:
            self._tasks_by_pvc.setdefault(f"{task.namespace}/{mounted.name}", set()).add(task.uid)

    def remove_task(self, task: Task) -> None:
        """Remove the PVCs of *task*."""
        for mounted in task.pvcs:
            key = f"{task.namespace}/{mounted.name}"
            task_uids = self._tasks_by_pvc.get(key, set())
            task_uids.discard(task.uid)
            if not task_uids:
                self._tasks_by_pvc.pop(key, None)

    def blocking_reason(self, task: Task) -> str:
        """Return which PVC blocks *task* and why; empty if none does."""
        for mounted in task.pvcs:
            name = mounted.name
            pvc = self._pvcs.get(f"{task.namespace}/{name}")
            if pvc is None:
                return f'persistentvolumeclaim "{name}" not found'
            if mounted.owned and all(
                each.uid != task.uid for each in pvc.metadata.owner_references
            ):
                return f'persistentvolumeclaim "{name}" was not created for pod "{task.name}"'
            if text := _blocking_reason(pvc):
                return text
            if not _is_bound(pvc):
                return f"{mounted.path}: {_UNBOUND.format(name)}"
        return ""


def _blocking_reason(pvc: PersistentVolumeClaim) -> str:
    name = pvc.metadata.name
    if pvc.metadata.deletion_timestamp:
        return f'persistentvolumeclaim "{name}" is being deleted'
    if pvc.status.phase == "Lost":
        return f'persistentvolumeclaim "{name}" has lost its volume "{pvc.spec.volume_name}"'
    return ""


def _is_bound(pvc: PersistentVolumeClaim) -> bool:
    return pvc.status.phase == "Bound" and bool(pvc.spec.volume_name)


def _relevant_fields(pvc: PersistentVolumeClaim) -> tuple[object, ...]:
    meta = pvc.metadata
    return meta.uid, meta.owner_references, _blocking_reason(pvc), _is_bound(pvc)
