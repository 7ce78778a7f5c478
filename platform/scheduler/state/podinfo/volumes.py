"""Bound volumes of pods: which nodes they can be used on, and how many a node takes.

A pod whose claims are bound is limited by the volumes: by their node affinity and zones, and by the
attach limits of their CSI drivers; of a ``ReadWriteOncePod`` claim there is one pod in the cluster.
These are part of its equivalence class. A volume that several pods on a node use is attached once.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..core_types import CSINode, NodeSelector, PersistentVolume, Pod
from ..resources import MAX_AMOUNT, BoolVector

ZONE_LABELS = {
    "topology.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region": "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
}
"""Labels of volumes that name zones or regions, and what they are called today."""

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
    """What the bound volumes of a pod require."""

    node_selectors: tuple[NodeSelector, ...] = ()
    zones: tuple[tuple[str, frozenset[str]], ...] = ()
    """Node labels, and the values of which a node has one."""
    csi: tuple[CSIVolume, ...] = ()
    exclusive_claims: tuple[str, ...] = ()
    """``ReadWriteOncePod`` claims, as ``namespace/name``."""

    def __bool__(self) -> bool:
        return self != NO_VOLUMES

    @property
    def depend_on_pods(self) -> bool:
        """Whether volumes that other pods use count."""
        return bool(self.csi or self.exclusive_claims)


NO_VOLUMES = VolumeRequirements()


def pod_volumes(
    volumes: Iterable[PersistentVolume], exclusive_claims: Iterable[str]
) -> VolumeRequirements:
    """Return what bound *volumes*, and *exclusive_claims*, require."""
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
        source = volume.spec.csi
        if source is not None and source.driver and source.volume_handle:
            csi[CSIVolume(source.driver, source.volume_handle)] = None
    return VolumeRequirements(
        tuple(selectors),
        tuple(sorted(zones, key=lambda zone: (zone[0], sorted(zone[1])))),
        tuple(sorted(csi, key=lambda each: (each.driver, each.handle))),
        tuple(sorted(set(exclusive_claims))),
    )


class AttachedVolumes:
    """Volumes in use on each node, and the limits of CSI drivers."""

    def __init__(self) -> None:
        """Start without volumes."""
        self._limits: dict[str, dict[str, int]] = {}
        """By driver and name of the node."""
        self._users: dict[CSIVolume, dict[int, int]] = {}
        """How many pods use a volume on each node."""
        self._attached: dict[str, dict[int, int]] = {}
        """How many volumes of a driver are attached to each node."""
        self._claims: dict[str, int] = {}
        """How many pods on nodes use a claim that is exclusive."""

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
                if not self._users[volume]:
                    del self._users[volume]
            for claim in volumes.exclusive_claims:
                total = self._claims.get(claim, 0) + sign
                self._claims[claim] = total
                if not total:
                    del self._claims[claim]

    def is_claim_in_use(self, volumes: VolumeRequirements) -> bool:
        """Return whether a pod uses one of the exclusive claims of *volumes*."""
        return any(claim in self._claims for claim in volumes.exclusive_claims)

    def has_limit(self, volumes: VolumeRequirements) -> bool:
        """Return whether a driver of *volumes* has a limit on any node."""
        return any(each.driver in self._limits for each in volumes.csi)

    def exceeded(
        self, volumes: VolumeRequirements, indexes_by_name: Mapping[str, int], columns: int
    ) -> BoolVector:
        """Return the columns on which one more pod with *volumes* exceeds a limit.

        As in kube-scheduler, volumes that are attached already do not count.
        """
        exceeded = np.zeros(columns, np.bool_)
        for driver in {each.driver for each in volumes.csi} & self._limits.keys():
            needed = [each for each in volumes.csi if each.driver == driver]
            new = np.full(columns, len(needed), np.int64)
            for volume in needed:
                new[list(self._users.get(volume, ()))] -= 1
            attached = np.zeros(columns, np.int64)
            by_node = self._attached.get(driver, {})
            attached[list(by_node)] = list(by_node.values())
            limits = np.full(columns, MAX_AMOUNT, np.int64)
            known = [name for name in self._limits[driver] if name in indexes_by_name]
            limits[[indexes_by_name[name] for name in known]] = [
                self._limits[driver][name] for name in known
            ]
            exceeded |= (new > 0) & (attached + new > limits)
        return exceeded


def _add(counts: dict[int, int], key: int, delta: int) -> None:
    total = counts.get(key, 0) + delta
    if total:
        counts[key] = total
    else:
        counts.pop(key, None)
