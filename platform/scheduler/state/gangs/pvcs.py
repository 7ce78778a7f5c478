"""PVCs of pods: a pod is not scheduled before all of them are bound, and then by their volumes."""

from collections.abc import Iterable, Iterator

from ..core_types import PersistentVolume, PersistentVolumeClaim, StorageClass
from ..podinfo.volumes import (
    NO_VOLUMES,
    READ_WRITE_ONCE_POD,
    MountedPVC,
    VolumeRequirements,
    pod_volumes,
)
from .gang import Task

_UNBOUND = (
    'persistentvolumeclaim "{}" is not bound; delayed binding (WaitForFirstConsumer) is not '
    "supported yet"
)
_UNBOUND_IMMEDIATE = 'persistentvolumeclaim "{}" is not bound'


class PVCTracker:
    """PVCs, PVs and storage classes after the last event, and the pods that mount PVCs."""

    def __init__(self) -> None:
        """Start empty."""
        self._pvcs: dict[str, PersistentVolumeClaim] = {}
        self._volumes: dict[str, PersistentVolume] = {}
        self._classes: dict[str, StorageClass] = {}
        self._uids_by_pvc: dict[str, set[str]] = {}
        """Uids of pods by ``namespace/name`` of the PVC."""

    def update(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> frozenset[str]:
        """Add, update or delete a PVC; returns uids of pods that it may concern."""
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
        return frozenset() if same else frozenset(self._uids_by_pvc.get(key, ()))

    def update_volume(
        self, old: PersistentVolume | None, new: PersistentVolume | None
    ) -> frozenset[str]:
        """Add, update or delete a PV; returns uids of pods that it may concern."""
        known = new or old
        if known is None:
            return frozenset()
        if new is None:
            self._volumes.pop(known.metadata.name, None)
        else:
            self._volumes[known.metadata.name] = new
        same = (
            old is not None
            and new is not None
            and (old.spec, old.metadata.labels) == (new.spec, new.metadata.labels)
        )
        claim = known.spec.claim_ref
        if same or claim is None:
            return frozenset()
        return frozenset(self._uids_by_pvc.get(f"{claim.namespace}/{claim.name}", ()))

    def update_class(self, old: StorageClass | None, new: StorageClass | None) -> None:
        """Add, update or delete a storage class."""
        if old is not None:
            self._classes.pop(old.metadata.name, None)
        if new is not None:
            self._classes[new.metadata.name] = new

    def add_pod(self, uid: str, namespace: str, pvcs: Iterable[MountedPVC]) -> None:
        """Add a pod that mounts *pvcs*."""
        for mounted in pvcs:
            self._uids_by_pvc.setdefault(f"{namespace}/{mounted.name}", set()).add(uid)

    def remove_pod(self, uid: str, namespace: str, pvcs: Iterable[MountedPVC]) -> None:
        """Remove a pod that mounts *pvcs*."""
        for mounted in pvcs:
            key = f"{namespace}/{mounted.name}"
            uids = self._uids_by_pvc.get(key, set())
            uids.discard(uid)
            if not uids:
                self._uids_by_pvc.pop(key, None)

    def volumes(self, namespace: str, pvcs: Iterable[MountedPVC]) -> VolumeRequirements:
        """Return what the bound volumes of a pod that mounts *pvcs* require."""
        bound = list(self._bound(namespace, pvcs))
        if not bound:
            return NO_VOLUMES
        volumes = [self._volumes.get(each.spec.volume_name) for each in bound]
        return pod_volumes(
            (each for each in volumes if each is not None),
            (each.metadata.key for each in bound if READ_WRITE_ONCE_POD in each.spec.access_modes),
        )

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
                return f"{mounted.path}: {self._unbound(pvc)}"
            # Without the right to list volumes, none is known.
            if self._volumes and pvc.spec.volume_name not in self._volumes:
                return (
                    f'persistentvolumeclaim "{name}" is bound to volume '
                    f'"{pvc.spec.volume_name}", which does not exist'
                )
        return ""

    def _bound(self, namespace: str, pvcs: Iterable[MountedPVC]) -> Iterator[PersistentVolumeClaim]:
        for mounted in pvcs:
            pvc = self._pvcs.get(f"{namespace}/{mounted.name}")
            if pvc is not None and _is_bound(pvc):
                yield pvc

    def _unbound(self, pvc: PersistentVolumeClaim) -> str:
        storage_class = self._classes.get(pvc.spec.storage_class_name)
        immediate = storage_class is not None and storage_class.volume_binding_mode == "Immediate"
        return (_UNBOUND_IMMEDIATE if immediate else _UNBOUND).format(pvc.metadata.name)


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
    return (
        meta.uid,
        meta.owner_references,
        _blocking_reason(pvc),
        _is_bound(pvc),
        pvc.spec.access_modes,
    )
