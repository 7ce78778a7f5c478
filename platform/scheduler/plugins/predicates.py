"""``predicates``: filters by cordon, node selector, node affinity, taints and host ports, and by
inter-pod affinity and topology spread (see :mod:`.pod_filters`), and by volumes and devices; scores
by devices (see :mod:`.device_scores`), and by volumes if it is configured (see
:mod:`.volume_scores`)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from ...model.tolerations import NUMBER_OPERATORS, compares
from ..state.core_types import Taint, Toleration
from ..state.devices.allocator import DEFAULT_TIMEOUT
from ..state.nodes.node_matrix import NodeInfo, NodeMatrix
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.podinfo.pod_terms import SpreadTerm
from ..state.podinfo.pod_topology import domain_keys
from ..state.podinfo.volumes import ZONE_LABELS, VolumeRequirements
from ..state.resources import BoolVector, IntVector
from . import added_affinity, default_spread
from .arguments import ArgumentError, boolean, number
from .device_scores import device_scores, have_alternatives
from .extension_points import DEFAULT_BIND_TIMEOUT, RejectedNodes
from .pod_filters import affinity_filters, nodes_included, spread_filters
from .volume_scores import VolumeScores

NODE_UNSCHEDULABLE = "node(s) were unschedulable"
NODE_AFFINITY_MISMATCH = "node(s) didn't match Pod's node affinity/selector"
ADDED_AFFINITY_MISMATCH = "node(s) didn't match scheduler-enforced node affinity"
VOLUME_ZONE_MISMATCH = "node(s) had no available volume zone"
VOLUME_AFFINITY_MISMATCH = "node(s) didn't match PersistentVolume's node affinity"
VOLUME_LIMIT_REACHED = "node(s) exceed max volume count"
NO_VOLUME_TO_BIND = "node(s) didn't find available persistent volumes to bind"
NO_FREE_STORAGE = "node(s) did not have enough free storage"
CLAIM_IN_USE = (
    "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
)
CLAIM_ELSEWHERE = "resourceclaim not available on the node"
NO_FREE_PORTS = "node(s) didn't have free ports for the requested pod ports"

_UNSCHEDULABLE_TAINT = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
_HARD_EFFECTS = ("NoSchedule", "NoExecute")
BIND_TIMEOUT = "volumebinding.bindTimeoutSeconds"
FILTER_TIMEOUT = "dynamicresources.filterTimeoutSeconds"

_MAX_ENTRIES = 2_000
"""Sets of constraints for which the included nodes are kept."""


class PredicatesPlugin:
    """The filters of kube-scheduler."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Parse which filters are enabled."""
        self._node_affinity_enabled = boolean(
            arguments, "predicate.NodeAffinityEnable", default=True
        )
        self._taint_toleration_enabled = boolean(
            arguments, "predicate.TaintTolerationEnable", default=True
        )

        self._node_ports_enabled = boolean(arguments, "predicate.NodePortsEnable", default=True)
        self._pod_affinity_enabled = boolean(arguments, "predicate.PodAffinityEnable", default=True)
        self._volume_limits_enabled = boolean(
            arguments, "predicate.NodeVolumeLimitsEnable", default=True
        )
        self._volume_zone_enabled = boolean(arguments, "predicate.VolumeZoneEnable", default=True)
        self._volume_binding_enabled = boolean(
            arguments, "predicate.VolumeBindingEnable", default=True
        )
        self._spread_enabled = boolean(arguments, "predicate.PodTopologySpreadEnable", default=True)
        self.volume_bind_timeout = number(arguments, BIND_TIMEOUT, default=DEFAULT_BIND_TIMEOUT)
        """Seconds within which the volumes of a pod have to be bound once it has a node."""
        if self.volume_bind_timeout <= 0:
            raise ArgumentError(BIND_TIMEOUT, "must be above 0")
        self.device_filter_timeout = number(arguments, FILTER_TIMEOUT, default=DEFAULT_TIMEOUT)
        """Seconds after which the search for the devices of a pod on one node ends; 0: never."""
        if self.device_filter_timeout < 0:
            raise ArgumentError(FILTER_TIMEOUT, "must not be negative")
        self.default_spread = default_spread.parse(arguments)
        """Topology spread constraints of pods that have none."""
        self._added_affinity = added_affinity.required(arguments)
        self._volume_scores = VolumeScores.parse(arguments)
        self._included = IncludedNodes()

    def filter_node(self, eq_class: EquivalenceClass, node: NodeInfo) -> str | None:
        """Return the reason of the first filter that rejects *node*."""
        if node.unschedulable and not _tolerates(eq_class.tolerations, _UNSCHEDULABLE_TAINT):
            return NODE_UNSCHEDULABLE
        if self._node_affinity_enabled:
            if self._added_affinity is not None and not self._added_affinity.matches(
                node.name, node.labels
            ):
                return ADDED_AFFINITY_MISMATCH
            if not matches_node_affinity(eq_class, node):
                return NODE_AFFINITY_MISMATCH
        if self._taint_toleration_enabled:
            for taint in node.taints:
                if taint.effect in _HARD_EFFECTS and not _tolerates(eq_class.tolerations, taint):
                    return f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}"
        return self._rejection_by_claims(eq_class, node)

    def _rejection_by_claims(self, eq_class: EquivalenceClass, node: NodeInfo) -> str | None:
        """Return why *node* cannot have the volumes and devices of the pods."""
        if self._volume_zone_enabled and not in_zones(eq_class.volumes, node):
            return VOLUME_ZONE_MISMATCH
        if self._volume_binding_enabled and not allowed_by_volumes(eq_class.volumes, node):
            return VOLUME_AFFINITY_MISMATCH
        if not all(
            each.matches(node.name, node.labels) for each in eq_class.devices.node_selectors
        ):
            return CLAIM_ELSEWHERE
        return None

    def node_limit(
        self, eq_class: EquivalenceClass, nodes: NodeMatrix, node_indexes: IntVector | None
    ) -> IntVector | None:
        """Accept one pod with host ports on a node where none of them is in use."""
        if not eq_class.host_ports or not self._node_ports_enabled:
            return None
        free = ~nodes.host_ports.conflicts(eq_class.host_ports, node_indexes)
        return free.astype(np.int64)

    def node_limit_reason(self, eq_class: EquivalenceClass) -> str:
        """Return the reason of kube-scheduler."""
        return NO_FREE_PORTS

    def depends_on_pods(self, eq_class: EquivalenceClass) -> bool:
        """Return whether affinity, anti-affinity or a constraint concerns the pods."""
        terms = eq_class.terms
        if eq_class.devices.pending or eq_class.volumes.depend_on_pods:
            return True
        if terms.spread and self._spread_enabled:
            return True
        return self._pod_affinity_enabled and bool(
            terms.affinity
            or terms.anti_affinity
            or any(any(domain_keys(each.holders)) for each in eq_class.matched_by)
        )

    def pod_filters(self, eq_class: EquivalenceClass, nodes: NodeMatrix) -> Iterator[RejectedNodes]:
        """Yield what inter-pod affinity, topology spread and volumes in use reject."""
        if self._pod_affinity_enabled:
            yield from affinity_filters(eq_class, nodes)
        if self._spread_enabled and eq_class.terms.spread:
            included = self._included.get(eq_class, eq_class.terms.spread, nodes)
            yield from spread_filters(eq_class, nodes, included)
        if eq_class.volumes:
            yield from self._volume_filters(eq_class.volumes, nodes)
        if claims := eq_class.devices.pending:
            for mask, reason in nodes.available_devices.unsuitable(claims):
                yield RejectedNodes(mask, reason)

    def prefers_by_pods(self, eq_class: EquivalenceClass) -> bool:
        """Return whether nodes are scored by the volumes or devices that the pods would get."""
        by_volumes = self._volume_scores is not None and bool(eq_class.volumes.delayed)
        return by_volumes or have_alternatives(eq_class.devices.pending)

    def pod_scores(
        self, eq_class: EquivalenceClass, nodes: NodeMatrix, candidates: IntVector
    ) -> IntVector | None:
        """Score by the storage that the volumes of the next pod would use, and by which of the
        alternatives its claims of devices would get."""
        volumes, devices = eq_class.volumes.delayed, eq_class.devices.pending
        by_storage = by_devices = None
        if self._volume_scores is not None and volumes:
            by_storage = self._volume_scores.scores(volumes, nodes, candidates)
        if have_alternatives(devices):
            by_devices = device_scores(devices, nodes, candidates)
        if by_storage is None or by_devices is None:
            return by_devices if by_storage is None else by_storage
        return by_storage + by_devices

    def _volume_filters(
        self, volumes: VolumeRequirements, nodes: NodeMatrix
    ) -> Iterator[RejectedNodes]:
        attached = nodes.attached_volumes
        if attached.is_claim_in_use(volumes):
            yield RejectedNodes(nodes.alive.copy(), CLAIM_IN_USE)
        if self._volume_limits_enabled and attached.has_limit(volumes):
            exceeded = attached.exceeded(volumes, nodes.columns)
            yield RejectedNodes(exceeded, VOLUME_LIMIT_REACHED)
        if self._volume_binding_enabled and volumes.delayed:
            unsuitable = nodes.available_volumes.unsuitable(volumes.delayed)
            yield RejectedNodes(unsuitable.no_volume, NO_VOLUME_TO_BIND)
            yield RejectedNodes(unsuitable.no_space, NO_FREE_STORAGE)


class IncludedNodes:
    """Which nodes count for topology spread constraints, kept until nodes change."""

    def __init__(self) -> None:
        """Start empty."""
        self._known: dict[object, tuple[int, int, Sequence[BoolVector]]] = {}

    def get(
        self, eq_class: EquivalenceClass, constraints: tuple[SpreadTerm, ...], nodes: NodeMatrix
    ) -> Sequence[BoolVector]:
        """Return the nodes for each of *constraints* of *eq_class*."""
        key = (eq_class.constraints_key, constraints)
        known = self._known.get(key)
        state = (nodes.node_changes.position, nodes.columns)
        if known is None or known[:2] != state:
            if len(self._known) >= _MAX_ENTRIES:
                self._known.clear()
            masks = nodes_included(
                eq_class,
                constraints,
                nodes,
                matches_affinity=matches_node_affinity,
                tolerates_taints=tolerates_hard_taints,
            )
            known = self._known[key] = (*state, masks)
        return known[2]


def tolerates_hard_taints(eq_class: EquivalenceClass, node: NodeInfo) -> bool:
    """Return whether the pods tolerate all taints of *node* that keep pods away."""
    return all(
        taint.effect not in _HARD_EFFECTS or _tolerates(eq_class.tolerations, taint)
        for taint in node.taints
    )


def matches_node_affinity(eq_class: EquivalenceClass, node: NodeInfo) -> bool:
    """Return whether *node* matches the selector and required node affinity of *eq_class*."""
    if any(node.labels.get(key) != value for key, value in eq_class.node_selector.items()):
        return False
    required = eq_class.required
    return required is None or required.matches(node.name, node.labels)


def in_zones(volumes: VolumeRequirements, node: NodeInfo) -> bool:
    """Return whether *node* is in the zones and regions of *volumes*.

    A node without any such label is, since there are no zones then.
    """
    if not volumes.zones or not any(key in node.labels for key in ZONE_LABELS):
        return True
    return all(
        node.labels.get(key, node.labels.get(ZONE_LABELS[key])) in values
        for key, values in volumes.zones
    )


def allowed_by_volumes(volumes: VolumeRequirements, node: NodeInfo) -> bool:
    """Return whether all *volumes* can be used on *node*."""
    return all(selector.matches(node.name, node.labels) for selector in volumes.node_selectors)


def _tolerates(tolerations: tuple[Toleration, ...], taint: Taint) -> bool:
    return any(_tolerates_taint(toleration, taint) for toleration in tolerations)


def _tolerates_taint(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    if toleration.operator in NUMBER_OPERATORS:
        return compares(toleration.operator, taint.value, toleration.value)
    return bool(toleration.key) and toleration.value == taint.value


def count_untolerated(eq_class: EquivalenceClass, node: NodeInfo, effect: str) -> int:
    """Return how many taints of *effect* on *node* the pods do not tolerate."""
    return sum(
        taint.effect == effect and not _tolerates(eq_class.tolerations, taint)
        for taint in node.taints
    )


def tolerates_cordon(tolerations: tuple[Toleration, ...]) -> bool:
    """Return whether pods with *tolerations* may be bound to a node that is cordoned."""
    return _tolerates(tolerations, _UNSCHEDULABLE_TAINT)


def untolerated(tolerations: tuple[Toleration, ...], taints: Iterable[Taint]) -> Taint | None:
    """Return the first of *taints* that keeps pods with *tolerations* away, if any."""
    hard = (taint for taint in taints if taint.effect in _HARD_EFFECTS)
    return next((taint for taint in hard if not _tolerates(tolerations, taint)), None)
