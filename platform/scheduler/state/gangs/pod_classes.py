"""Equivalence classes of the known pods, kept current as terms, namespaces and volumes change.

A pod is registered while it is known: its terms are in use then, and its PVCs are followed. When
the selectors that match a pod change, or its volumes, the pod gets another class; the counts of its
node are changed with it. Requests are equal in both classes.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from ..core_types import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    Namespace,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    StorageClass,
)
from ..devices.types import DeviceClass, ResourceClaim, ResourceSlice
from ..nodes.node_matrix import NodeMatrix
from ..podinfo.device_requirements import NO_DEVICES
from ..podinfo.equivalence import EquivalenceCache, EquivalenceClass, known_pod
from ..podinfo.pod_topology import KnownPod, PodTopology
from ..podinfo.pod_traits import NO_TRAITS, PodTraits
from ..podinfo.volumes import NO_VOLUMES
from .device_claims import DeviceClaimTracker
from .gang import Task, TaskStatus
from .pvcs import PVCTracker


class ClassifiedPod(Protocol):
    """A known pod and where it is."""

    eq_class: EquivalenceClass
    node_index: int
    """The node that it occupies, or -1."""


class PodClasses:
    """Classifies pods, and counts on their nodes what filters by other pods see."""

    def __init__(
        self,
        node_matrix: NodeMatrix,
        *,
        find: Callable[[str], ClassifiedPod | None],
        on_change: Callable[[ClassifiedPod], object],
    ) -> None:
        """Start without pods.

        *find* returns the known pod with a uid; *on_change* is called with one that has got
        another class.
        """
        self.topology = PodTopology()
        self.eq_classes = EquivalenceCache(self.topology)
        self.device_claims = DeviceClaimTracker(node_matrix.available_devices)
        self.pvcs = PVCTracker(node_matrix.available_volumes, node_matrix.attached_volumes)
        self._node_matrix = node_matrix
        self._find = find
        self._on_change = on_change
        node_matrix.occupancy_listeners.append(self._count)

    def get(self, pod: Pod, traits: PodTraits = NO_TRAITS) -> EquivalenceClass:
        """Return the class of *pod*, which has *traits*."""
        eq_class = self.eq_classes.unmatched(pod).variant(traits=traits)
        return self._current(eq_class, known_pod(pod, eq_class.terms), pod.metadata.uid)

    def register(self, pod: Pod, traits: PodTraits = NO_TRAITS) -> EquivalenceClass:
        """Put the terms of *pod* into use, and follow its PVCs; returns its class."""
        uid, eq_class = pod.metadata.uid, self.eq_classes.unmatched(pod)
        known = known_pod(pod, eq_class.terms)
        if known.pvcs:
            self._reclassify(self.pvcs.add_pod(uid, known.namespace, known.pvcs))
        if known.device_claims or known.extended:
            others = self.device_claims.add_pod(
                uid, known.namespace, known.device_claims, known.extended
            )
            self._reclassify(others)
            if self.device_claims.available.add_implicit(each.resource for each in known.extended):
                self._node_matrix.update_device_resources()
        for selector in self.topology.add_pod(uid, known):
            self._reclassify(self.topology.matching_pods(selector))
        return self._current(eq_class.variant(traits=traits), known, uid)

    def reregister(
        self, pod: Pod, eq_class: EquivalenceClass, traits: PodTraits
    ) -> EquivalenceClass:
        """Return the class of a registered pod without a node, whose default constraints may differ
        from those of its class *eq_class*."""
        if self.eq_classes.unmatched(pod).has_base(eq_class):
            return eq_class.variant(traits=traits)
        self.unregister(pod.metadata.uid)
        return self.register(pod, traits)

    def register_like(self, pod: Pod, eq_class: EquivalenceClass) -> EquivalenceClass:
        """Register a pod whose spec and traits equal those of a registered pod of *eq_class*;
        returns its class. The pod must have neither terms nor PVCs."""
        known = known_pod(pod)
        self.topology.add_pod(pod.metadata.uid, known)
        return self._current(eq_class, known, pod.metadata.uid)

    def unregister(self, uid: str) -> None:
        """Undo :meth:`register`."""
        known = self.topology.pod(uid)
        if known is not None:
            self.pvcs.remove_pod(uid, known.namespace, known.pvcs)
        if known is not None and self.device_claims.is_concerned(uid):
            self.device_claims.remove_pod(uid)
        for selector in self.topology.remove_pod(uid):
            self._reclassify(self.topology.matching_pods(selector))

    def update(self, pod: Pod, eq_class: EquivalenceClass) -> None:
        """Update a registered pod whose class *eq_class* is the same as before."""
        known = known_pod(pod, eq_class.terms)
        self.topology.update_pod(pod.metadata.uid, known)
        if not known.extended:
            self.device_claims.forget_uses(pod.metadata.uid)

    def update_namespace(self, old: Namespace | None, new: Namespace | None) -> bool:
        """Add, update or delete a namespace; returns whether classes may have changed."""
        known = new or old
        if known is None:
            return False
        labels = new.metadata.labels if new is not None else None
        uids = self.topology.update_namespace(known.metadata.name, labels)
        self._reclassify(uids)
        return bool(uids)

    def update_pvc(
        self, old: PersistentVolumeClaim | None, new: PersistentVolumeClaim | None
    ) -> Collection[str]:
        """Add, update or delete a PVC; returns the uids of pods that it may concern."""
        return self._reclassify(self.pvcs.update(old, new))

    def update_volume(
        self, old: PersistentVolume | None, new: PersistentVolume | None
    ) -> Collection[str]:
        """Add, update or delete a PV; returns the uids of pods that it may concern."""
        concerned = self._reclassify(self.pvcs.update_volume(old, new))
        if new is not None and new.spec.claim_ref is None:
            return {*concerned, *self.pvcs.waiting()}
        return concerned

    def update_class(self, old: StorageClass | None, new: StorageClass | None) -> Collection[str]:
        """Add, update or delete a storage class; returns the uids of pods that it may concern."""
        return self._reclassify(self.pvcs.update_class(old, new))

    def update_driver(self, old: CSIDriver | None, new: CSIDriver | None) -> Collection[str]:
        """Add, update or delete a CSI driver; returns the uids of pods that it may concern."""
        if old is not None and new is not None and old.spec == new.spec:
            return ()
        self._node_matrix.available_volumes.update_driver(old, new)
        return self.pvcs.waiting()

    def update_capacity(
        self, old: CSIStorageCapacity | None, new: CSIStorageCapacity | None
    ) -> Collection[str]:
        """Add, update or delete what is free of a storage class; returns the uids of pods that it
        may concern."""
        self._node_matrix.available_volumes.update_capacity(old, new)
        return self.pvcs.waiting()

    def assume_volumes(self, task: Task) -> None:
        """Assume what the PVCs of *task* are to be bound to on its node.

        A pod that waits for resources by a statement keeps its class until the PVC changes: the
        statement is undone with the class that it was created with.
        """
        uids = self.pvcs.assume(task)
        self._reclassify([uid for uid in uids if not self._is_pipelined(uid)])

    def release_volumes(self, uid: str) -> Collection[str]:
        """Forget what is assumed for the PVCs of a pod; returns the uids of pods that it may
        concern."""
        return self._reclassify(self.pvcs.release(uid))

    def update_device_claim(
        self, old: ResourceClaim | None, new: ResourceClaim | None
    ) -> Collection[str]:
        """Add, update or delete a claim of devices; returns the uids of pods that it may
        concern."""
        return self._reclassify(self.device_claims.update(old, new))

    def assume_devices(self, task: Task) -> None:
        """Assume what the claims of devices of *task* get on its node; see
        :meth:`assume_volumes`."""
        uids = self.device_claims.assume(task)
        self._reclassify([uid for uid in uids if not self._is_pipelined(uid)])

    def release_devices(self, uid: str) -> Collection[str]:
        """Forget what is assumed for the claims of devices of a pod; returns the uids of pods that
        it may concern."""
        return self._reclassify(self.device_claims.release(uid))

    def update_device_class(
        self, old: DeviceClass | None, new: DeviceClass | None
    ) -> Collection[str]:
        """Add, update or delete a class of devices; returns the uids of pods that it may
        concern."""
        before = set(self.device_claims.available.resources)
        uids = self.device_claims.update_class(old, new)
        self._node_matrix.update_device_resources(former=before)
        return self._reclassify(uids)

    def update_device_slice(
        self, old: ResourceSlice | None, new: ResourceSlice | None
    ) -> Collection[str]:
        """Add, update or delete a slice; returns the uids of pods that it may concern."""
        uids = self.device_claims.update_slice(old, new)
        nodes = {each.spec.node_name for each in (old, new) if each is not None}
        self._node_matrix.update_device_resources(nodes=nodes)
        return uids

    def update_csi_node(self, old: CSINode | None, new: CSINode | None) -> bool:
        """Add, update or delete the limits of CSI drivers on a node; returns whether they have
        changed."""
        changed = old is None or new is None or old.spec != new.spec
        if changed:
            self._node_matrix.attached_volumes.update_limits(old, new)
        return changed

    # -- private -------------------------------------------------------------------------------

    def _is_pipelined(self, uid: str) -> bool:
        pod = self._find(uid)
        return isinstance(pod, Task) and pod.status is TaskStatus.PIPELINED

    def _current(self, eq_class: EquivalenceClass, pod: KnownPod, uid: str) -> EquivalenceClass:
        volumes = self.pvcs.volumes(pod.namespace, pod.pvcs) if pod.pvcs else NO_VOLUMES
        devices = NO_DEVICES
        if pod.device_claims or self.device_claims.is_concerned(uid):
            devices = self.device_claims.requirements(uid, pod.namespace, pod.device_claims)
        return eq_class.variant(
            matched_by=self.topology.matched_by(pod), volumes=volumes, devices=devices
        )

    def _reclassify(self, uids: Collection[str]) -> Collection[str]:
        """Update the classes of pods; returns *uids*."""
        for uid in uids:
            pod, known = self._find(uid), self.topology.pod(uid)
            if pod is None or known is None:
                continue
            before = pod.eq_class
            after = self._current(before, known, uid)
            if after is not before:
                pod.eq_class = after
                self._on_change(pod)
                if pod.node_index >= 0:
                    self.recount(before, after, (pod.node_index,))
        return uids

    def recount(
        self, before: EquivalenceClass, after: EquivalenceClass, node_indexes: Sequence[int]
    ) -> None:
        """Count pods on *node_indexes* that were of the class *before* as those of *after*."""
        self._count(before, node_indexes, -1)
        self._count(after, node_indexes, 1)

    def _count(self, eq_class: EquivalenceClass, node_indexes: Sequence[int], sign: int) -> None:
        if eq_class.footprint:
            eq_class.footprint.add(self._node_matrix.topology, node_indexes, sign)
        if volumes := eq_class.volumes:
            self._node_matrix.attached_volumes.add(volumes, node_indexes, sign)
            if volumes.delayed:
                self._node_matrix.available_volumes.add(volumes.delayed, node_indexes, sign)
        if devices := eq_class.devices:
            self._node_matrix.available_devices.add(devices, node_indexes, sign)
