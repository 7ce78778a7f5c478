"""Volumes of pods: which nodes they can be used on, and how many a node takes.

A pod whose claims are bound is limited by the volumes: by their node affinity and zones, and by the
attach limits of their CSI drivers; of a ``ReadWriteOncePod`` claim there is one pod in the cluster.
These are part of its equivalence class. A volume that several pods on a node use is attached once.
Claims that are bound once the pod has a node are in :mod:`.delayed_claims`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ....model.node_selectors import NodeSelector
from ..core_types import CSINode, PersistentVolume, Pod
from ..resources import MAX_AMOUNT, BoolVector
from .delayed_claims import DelayedClaim

ZONE_LABELS = {
    "topology.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region": "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
"""Labels of volumes that name zones or regions, and what they are called today."""

K = TypeVar("K", int, str)

_ZONE_SEPARATOR = "__"
READ_WRITE_ONCE_POD = "ReadWriteOncePod"


@dataclass(frozen=True, slots=True)
class MountedPVC:
    """A PVC that a pod mounts."""

    name: str
    owned: bool
    """Whether it is to be owned by the pod."""

    path: str
    """The field that names it: ``spec.volumes[0].persistentVolumeClaim``."""


def mounted_pvcs(pod: Pod) -> tuple[MountedPVC, ...]:
    """Return the PVCs that *pod* mounts."""
    found = []
    for index, volume in enumerate(pod.spec.volumes):
        path = f"spec.volumes[{index}]"
        if volume.persistent_volume_claim is not None:
            name = volume.persistent_volume_claim.claim_name
            found.append(MountedPVC(name, owned=False, path=f"{path}.persistentVolumeClaim"))
        elif volume.ephemeral is not None:
            name = f"{pod.metadata.name}-{volume.name}"
            found.append(MountedPVC(name, owned=True, path=f"{path}.ephemeral"))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class CSIVolume:
    """A volume of a CSI driver."""

    driver: str
    handle: str


@dataclass(frozen=True, slots=True)
class VolumeRequirements:
    """What the volumes of a pod require."""

    node_selectors: tuple[NodeSelector, ...] = ()
    zones: tuple[tuple[str, frozenset[str]], ...] = ()
    """Node labels, and the values of which a node has one."""
    csi: tuple[CSIVolume, ...] = ()
    exclusive_claims: tuple[str, ...] = ()
    """``ReadWriteOncePod`` claims, as ``namespace/name``."""
    delayed: tuple[DelayedClaim, ...] = ()
    """Claims that are bound once the pod has a node."""

    @property
    def new_volumes(self) -> tuple[str, ...]:
        """The CSI drivers of volumes that are new on any node."""
        claims = self.delayed
        return tuple(each.provisioner for each in claims if each.provisioner and not each.key)

    def __bool__(self) -> bool:
        return self != NO_VOLUMES

    @property
    def depend_on_pods(self) -> bool:
        """Whether volumes that other pods use count."""
        return bool(self.csi or self.exclusive_claims or self.delayed)


NO_VOLUMES = VolumeRequirements()


def csi_volume(volume: PersistentVolume | None) -> CSIVolume | None:
    """Return what *volume* is for its CSI driver, if it has one."""
    source = volume.spec.csi if volume is not None else None
    if source is None or not source.driver or not source.volume_handle:
        return None
    return CSIVolume(source.driver, source.volume_handle)


def pod_volumes(
    volumes: Iterable[PersistentVolume],
    exclusive_claims: Iterable[str],
    delayed: Iterable[DelayedClaim] = (),
) -> VolumeRequirements:
    """Return what bound *volumes*, *exclusive_claims* and *delayed* claims require."""
    waiting = tuple(delayed)
    selectors: dict[NodeSelector, None] = {}
    zones: dict[tuple[str, frozenset[str]], None] = {}
    csi: dict[CSIVolume, None] = {}
    for volume in volumes:
        affinity = volume.spec.node_affinity
        if affinity is not None and affinity.required is not None:
            selectors[affinity.required] = None
        for key, value in volume.metadata.labels.items():
            if key in ZONE_LABELS:
                zones[key, frozenset(value.split(_ZONE_SEPARATOR))] = None
        if attached := csi_volume(volume):
            csi[attached] = None
    for claim in waiting:
        if claim.key and claim.provisioner:
            csi[CSIVolume(claim.provisioner, claim.key)] = None
    return VolumeRequirements(
        tuple(selectors),
        tuple(sorted(zones, key=lambda zone: (zone[0], sorted(zone[1])))),
        tuple(sorted(csi, key=lambda each: (each.driver, each.handle))),
        tuple(sorted(set(exclusive_claims))),
        waiting,
    )


class AttachedVolumes:
    """Volumes in use on each node, and the limits of CSI drivers."""

    def __init__(self, names: Sequence[str], indexes_by_name: Mapping[str, int]) -> None:
        """Start without volumes; *names* are those of the nodes, by column."""
        self._names = names
        self._indexes_by_name = indexes_by_name
        self._limits: dict[str, dict[str, int]] = {}
        """By driver and name of the node."""
        self._users: dict[CSIVolume, dict[int, int]] = {}
        """How many pods use a volume on each node."""
        self._attached: dict[str, dict[int, int]] = {}
        """How many volumes of a driver the pods of each node use."""
        self._claims: dict[str, int] = {}
        """How many pods on nodes use a claim that is exclusive."""
        self._attachments: dict[tuple[CSIVolume, str], int] = {}
        """VolumeAttachments, by volume and name of the node."""
        self._unused: dict[str, dict[str, int]] = {}
        """How many volumes are attached that no pod uses, by driver and name of the node."""

    def update_limits(self, old: CSINode | None, new: CSINode | None) -> None:
        """Replace the limits of *old* by those of *new*."""
        for csi_node in (old, new):
            for driver in csi_node.spec.drivers if csi_node is not None else ():
                limits = self._limits.setdefault(driver.name, {})
                limits.pop(csi_node.metadata.name if csi_node else "", None)
                limit = driver.allocatable.count if driver.allocatable is not None else None
                if csi_node is new and new is not None and limit is not None:
                    limits[new.metadata.name] = limit
                if not limits:
                    del self._limits[driver.name]

    def add(self, volumes: VolumeRequirements, node_indexes: Sequence[int], sign: int) -> None:
        """Count a pod with *volumes* on each of *node_indexes*; with *sign* -1, undo that."""
        for node_index in node_indexes:
            for volume in volumes.csi:
                before = self._users.get(volume, {}).get(node_index, 0)
                _add(self._users.setdefault(volume, {}), node_index, sign)
                if not before or before + sign == 0:
                    _add(self._attached.setdefault(volume.driver, {}), node_index, sign)
                    if (volume, self._names[node_index]) in self._attachments:
                        self._add_unused(volume, self._names[node_index], -sign)
                if not self._users[volume]:
                    del self._users[volume]
            for driver in volumes.new_volumes:
                _add(self._attached.setdefault(driver, {}), node_index, sign)
            for claim in volumes.exclusive_claims:
                total = self._claims.get(claim, 0) + sign
                self._claims[claim] = total
                if not total:
                    del self._claims[claim]

    def add_attachment(self, volume: CSIVolume, node: str, sign: int) -> None:
        """Count an attachment of *volume* to *node*; with *sign* -1, undo that.

        Volumes stay attached for a while after their last pod has ended, and count until then.
        """
        before = self._attachments.get((volume, node), 0)
        if before + sign:
            self._attachments[volume, node] = before + sign
        else:
            del self._attachments[volume, node]
        is_used = self._indexes_by_name.get(node) in self._users.get(volume, ())
        if not is_used and (not before or not before + sign):
            self._add_unused(volume, node, sign)

    def is_claim_in_use(self, volumes: VolumeRequirements) -> bool:
        """Return whether a pod uses one of the exclusive claims of *volumes*."""
        return any(claim in self._claims for claim in volumes.exclusive_claims)

    def has_limit(self, volumes: VolumeRequirements) -> bool:
        """Return whether a driver of *volumes* has a limit on any node."""
        return any(driver in self._limits for driver in _drivers(volumes))

    def exceeded(self, volumes: VolumeRequirements, columns: int) -> BoolVector:
        """Return the columns on which one more pod with *volumes* exceeds a limit.

        As in kube-scheduler, volumes that pods use there already do not count, but those that are
        only attached count even if they are of the pod.
        """
        exceeded = np.zeros(columns, np.bool_)
        for driver in _drivers(volumes) & self._limits.keys():
            needed = [each for each in volumes.csi if each.driver == driver]
            count = len(needed) + volumes.new_volumes.count(driver)
            new = np.full(columns, count, np.int64)
            for volume in needed:
                new[list(self._users.get(volume, ()))] -= 1
            attached = np.zeros(columns, np.int64)
            by_node = self._attached.get(driver, {})
            attached[list(by_node)] = list(by_node.values())
            for name, unused in self._unused.get(driver, {}).items():
                if name in self._indexes_by_name:
                    attached[self._indexes_by_name[name]] += unused
            limits = np.full(columns, MAX_AMOUNT, np.int64)
            known = [name for name in self._limits[driver] if name in self._indexes_by_name]
            limits[[self._indexes_by_name[name] for name in known]] = [
                self._limits[driver][name] for name in known
            ]
            exceeded |= (new > 0) & (attached + new > limits)
        return exceeded

    def _add_unused(self, volume: CSIVolume, node: str, sign: int) -> None:
        _add(self._unused.setdefault(volume.driver, {}), node, sign)


def _drivers(volumes: VolumeRequirements) -> set[str]:
    return {each.driver for each in volumes.csi}.union(volumes.new_volumes)


def _add(counts: dict[K, int], key: K, delta: int) -> None:
    total = counts.get(key, 0) + delta
    if total:
        counts[key] = total
    else:
        counts.pop(key, None)
