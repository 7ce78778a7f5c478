"""PVCs of pods: which block a pod, what its volumes require, and what is bound once it has a node.

A pod waits until its PVCs are bound, unless their storage class binds them late
(``WaitForFirstConsumer``): then they are bound to what suits the node that is chosen. From that
decision until the PVC is bound, or the pod loses the node, the decision is *assumed*: other pods
see the volume as taken, and, if they mount the same PVC, as bound.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ....model.selectors import SelectorError
from ..core_types import PersistentVolume, PersistentVolumeClaim, StorageClass, VolumeAttachment
from ..podinfo.available_volumes import PROVISION, AvailableVolumes
from ..podinfo.delayed_claims import (
    SELECTED_NODE,
    WAIT_FOR_FIRST_CONSUMER,
    DelayedClaim,
    claim_class,
    delayed_claim,
    is_reserved_for,
)
from ..podinfo.volumes import (
    NO_VOLUMES,
    READ_WRITE_ONCE_POD,
    AttachedVolumes,
    MountedPVC,
    VolumeRequirements,
    csi_volume,
    pod_volumes,
)
from .gang import Task

_UNBOUND = 'persistentvolumeclaim "{}" is not bound'


@dataclass(frozen=True, slots=True)
class ClaimBinding:
    """What a PVC is to be bound to."""

    claim: PersistentVolumeClaim
    volume: str
    """Name of the volume; empty if one is to be provisioned."""

    node: str
    """The node for which one is to be provisioned."""


@dataclass(slots=True)
class _Assumed:
    binding: ClaimBinding
    uids: set[str] = field(default_factory=set)
    """Pods that have got a node with it."""


class PVCTracker:
    """PVCs, PVs and storage classes after the last event, and the pods that mount PVCs."""

    def __init__(self, available: AvailableVolumes, attached: AttachedVolumes) -> None:
        """Start without PVCs; the volumes that they may be bound to are in *available*, those in
        use in *attached*."""
        self.available = available
        self._attached = attached
        self._pvcs: dict[str, PersistentVolumeClaim] = {}
        self._unbound: set[str] = set()
        self._reserved: dict[str, dict[str, None]] = {}
        """Names of the volumes that name a PVC, by its ``namespace/name``."""
        self._uids_by_pvc: dict[str, set[str]] = {}
        """Uids of pods by ``namespace/name`` of the PVC."""
        self._assumed: dict[str, _Assumed] = {}
        self._attachments: dict[str, dict[str, VolumeAttachment]] = {}
        """VolumeAttachments by the name of the volume and their own."""

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
        if new is None or is_bound(new):
            self._unbound.discard(key)
        else:
            self._unbound.add(key)
        if new is None or is_bound(new) or _is_other(old, new):
            self._forget(key)
        same = (
            old is not None and new is not None and _relevant_fields(old) == _relevant_fields(new)
        )
        return frozenset() if same else self._uids_of(key)

    def update_volume(
        self, old: PersistentVolume | None, new: PersistentVolume | None
    ) -> frozenset[str]:
        """Add, update or delete a PV; returns uids of pods whose requirements it may change."""
        known = new or old
        if known is None:
            return frozenset()
        self._attach(known.metadata.name, -1)
        self.available.update_volume(old, new)
        self._attach(known.metadata.name, 1)
        uids: set[str] = set()
        for volume, is_current in ((old, False), (new, True)):
            claim = volume.spec.claim_ref if volume is not None else None
            if claim is not None:
                key = f"{claim.namespace}/{claim.name}"
                names = self._reserved.setdefault(key, {})
                names.pop(known.metadata.name, None)
                if is_current:
                    names[known.metadata.name] = None
                if not names:
                    del self._reserved[key]
                uids |= self._uids_of(key)
        same = (
            old is not None
            and new is not None
            and (old.spec, old.metadata.labels, old.status)
            == (new.spec, new.metadata.labels, new.status)
        )
        return frozenset() if same else frozenset(uids)

    def update_class(self, old: StorageClass | None, new: StorageClass | None) -> frozenset[str]:
        """Add, update or delete a storage class; returns uids of pods that it may concern."""
        self.available.update_class(old, new)
        return self.waiting()

    def update_attachment(self, old: VolumeAttachment | None, new: VolumeAttachment | None) -> bool:
        """Add, update or delete a VolumeAttachment; returns whether fewer volumes may be
        attached."""
        if old is not None and new is not None and old.spec == new.spec:
            return False
        for attachment, sign in ((old, -1), (new, 1)):
            if attachment is None:
                continue
            volume, name = attachment.spec.source.persistent_volume_name, attachment.metadata.name
            known = self._attachments.setdefault(volume, {})
            if sign < 0 and known.pop(name, None) is not None:
                self._attach_one(attachment, -1)
            elif sign > 0:
                known[name] = attachment
                self._attach_one(attachment, 1)
            if not known:
                del self._attachments[volume]
        return old is not None

    def add_pod(self, uid: str, namespace: str, pvcs: Iterable[MountedPVC]) -> frozenset[str]:
        """Add a pod that mounts *pvcs*; returns uids of other pods that it may concern."""
        concerned: set[str] = set()
        for mounted in pvcs:
            uids = self._uids_by_pvc.setdefault(f"{namespace}/{mounted.name}", set())
            concerned |= uids if len(uids) == 1 else set()  # it is shared from now on
            uids.add(uid)
        return frozenset(concerned - {uid})

    def remove_pod(self, uid: str, namespace: str, pvcs: Iterable[MountedPVC]) -> None:
        """Remove a pod that mounts *pvcs*."""
        for mounted in pvcs:
            key = f"{namespace}/{mounted.name}"
            uids = self._uids_by_pvc.get(key, set())
            uids.discard(uid)
            if not uids:
                self._uids_by_pvc.pop(key, None)

    def volumes(self, namespace: str, pvcs: Iterable[MountedPVC]) -> VolumeRequirements:
        """Return what the volumes of a pod that mounts *pvcs* require."""
        volumes: list[PersistentVolume | None] = []
        exclusive: list[str] = []
        delayed: list[DelayedClaim] = []
        for pvc in self._existing(namespace, pvcs):
            claim = self._delayed(pvc)
            name = pvc.spec.volume_name
            if claim is None and not is_bound(pvc):
                name = self._assumed_volume(pvc.metadata.key)
                if not name:
                    continue
            if READ_WRITE_ONCE_POD in pvc.spec.access_modes:
                exclusive.append(pvc.metadata.key)
            if claim is None:
                volumes.append(self.available.volume(name))
            else:
                delayed.append(claim)
        if not (volumes or delayed):
            return NO_VOLUMES
        return pod_volumes(
            (each for each in volumes if each is not None),
            exclusive,
            sorted(delayed, key=lambda each: each.order),
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
            if not is_bound(pvc):
                if self._is_delayed(pvc):
                    continue
                return f"{mounted.path}: {_UNBOUND.format(pvc.metadata.name)}"
            # Without the right to list volumes, none is known.
            if self.available.knows_volumes and self.available.volume(pvc.spec.volume_name) is None:
                return (
                    f'persistentvolumeclaim "{name}" is bound to volume '
                    f'"{pvc.spec.volume_name}", which does not exist'
                )
        return ""

    # -- assumed bindings ----------------------------------------------------------------------

    def assume(self, task: Task) -> frozenset[str]:
        """Assume what the PVCs of *task*, which has got a node, are to be bound to; returns uids of
        pods that it may concern."""
        claims = task.eq_class.volumes.delayed
        decision = self.available.decided(claims, task.node_index)
        by_claim = {
            pvc.metadata.key: claim
            for pvc in self._existing(task.namespace, task.pvcs)
            if (claim := self._delayed(pvc)) is not None
        }
        uids: set[str] = set()
        left = list(zip(claims, decision or (), strict=bool(decision)))
        for key, claim in by_claim.items():
            found = next((each for each in left if each[0] == claim), None)
            if found is None:
                continue
            left.remove(found)
            if key not in self._assumed:
                binding = ClaimBinding(self._pvcs[key], found[1], task.node)
                self._assumed[key] = _Assumed(binding)
                if found[1] != PROVISION:
                    self.available.take(found[1], 1)
                uids |= self._uids_of(key)
        return frozenset(uids)

    def join(self, task: Task) -> tuple[ClaimBinding, ...]:
        """Return what is assumed for the PVCs of *task*, which keeps it until that is released."""
        found = []
        for pvc in self._existing(task.namespace, task.pvcs):
            assumed = self._assumed.get(pvc.metadata.key)
            if assumed is not None:
                assumed.uids.add(task.uid)
                found.append(assumed.binding)
        return tuple(found)

    def release(self, uid: str) -> frozenset[str]:
        """Forget what was assumed for a pod that does not get its node; returns uids of pods that
        it may concern."""
        uids: set[str] = set()
        for key, assumed in list(self._assumed.items()):
            if uid in assumed.uids:
                assumed.uids.discard(uid)
                if not assumed.uids:
                    self._forget(key)
                    uids |= self._uids_of(key)
        return frozenset(uids)

    def waiting(self) -> frozenset[str]:
        """Return the uids of pods with PVCs that are not bound."""
        return frozenset(uid for key in self._unbound for uid in self._uids_by_pvc.get(key, ()))

    # -- private -------------------------------------------------------------------------------

    def _uids_of(self, key: str) -> frozenset[str]:
        return frozenset(self._uids_by_pvc.get(key, ()))

    def _forget(self, key: str) -> None:
        assumed = self._assumed.pop(key, None)
        if assumed is not None and assumed.binding.volume != PROVISION:
            self.available.take(assumed.binding.volume, -1)

    def _assumed_volume(self, key: str) -> str:
        assumed = self._assumed.get(key)
        return assumed.binding.volume if assumed is not None else ""

    def _existing(
        self, namespace: str, pvcs: Iterable[MountedPVC]
    ) -> Iterator[PersistentVolumeClaim]:
        """Yield the PVCs of a pod that exist, each once."""
        for name in dict.fromkeys(mounted.name for mounted in pvcs):
            pvc = self._pvcs.get(f"{namespace}/{name}")
            if pvc is not None:
                yield pvc

    def _is_delayed(self, pvc: PersistentVolumeClaim) -> bool:
        """Return whether *pvc* is to be bound once its pod has a node."""
        if is_bound(pvc) or pvc.spec.volume_name:
            return False
        known = self.available.storage_class(claim_class(pvc))
        return known is not None and known.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER

    def _delayed(self, pvc: PersistentVolumeClaim) -> DelayedClaim | None:
        """Return the demands of *pvc*, if it is to be bound once its pod has a node, and no volume
        is assumed for it."""
        known = self.available.storage_class(claim_class(pvc))
        if known is None or not self._is_delayed(pvc):
            return None
        key = pvc.metadata.key
        assumed = self._assumed.get(key)
        if assumed is not None and assumed.binding.volume != PROVISION:
            return None
        is_shared = assumed is not None or len(self._uids_by_pvc.get(key, ())) > 1
        selected = pvc.metadata.annotations.get(SELECTED_NODE, "")
        try:
            claim = delayed_claim(pvc, known, is_shared=is_shared, selected_node=selected)
        except SelectorError:  # a validating API server rejects such a claim
            return None
        if assumed is not None and not selected and claim.is_for_one_node:
            return claim.on_node(assumed.binding.node)
        for name in sorted(self._reserved.get(key, ())):
            volume = self.available.volume(name)
            if volume is not None and is_reserved_for(volume, pvc) and claim.admits(volume):
                return claim.with_volume(name, key)
        return claim

    def _attach(self, volume: str, sign: int) -> None:
        for attachment in self._attachments.get(volume, {}).values():
            self._attach_one(attachment, sign)

    def _attach_one(self, attachment: VolumeAttachment, sign: int) -> None:
        spec = attachment.spec
        volume = csi_volume(self.available.volume(spec.source.persistent_volume_name))
        if volume is not None and volume.driver == spec.attacher:
            self._attached.add_attachment(volume, spec.node_name, sign)


def _blocking_reason(pvc: PersistentVolumeClaim) -> str:
    name = pvc.metadata.name
    if pvc.metadata.deletion_timestamp:
        return f'persistentvolumeclaim "{name}" is being deleted'
    if pvc.status.phase == "Lost":
        return f'persistentvolumeclaim "{name}" has lost its volume "{pvc.spec.volume_name}"'
    return ""


def is_bound(pvc: PersistentVolumeClaim) -> bool:
    """Return whether *pvc* is bound."""
    return pvc.status.phase == "Bound" and bool(pvc.spec.volume_name)


def _is_other(old: PersistentVolumeClaim | None, new: PersistentVolumeClaim) -> bool:
    """Return whether *new* has replaced a claim of the same name."""
    return old is not None and old.metadata.uid != new.metadata.uid


def _relevant_fields(pvc: PersistentVolumeClaim) -> tuple[object, ...]:
    meta = pvc.metadata
    return (
        meta.uid,
        meta.owner_references,
        meta.annotations.get(SELECTED_NODE),
        _blocking_reason(pvc),
        is_bound(pvc),
        pvc.spec,
    )
