"""Which nodes claims that are bound late (``WaitForFirstConsumer``) can be bound on, and to what.

A claim is bound to an available volume that its node can use, the smallest that suffices, or else a
volume is provisioned: if the topology of its storage class has the node, and, for CSI drivers that
publish it, if enough storage is free there. The rules are those of kube-scheduler.

What the pods of open statements would be bound to is counted like their requests, so that of two
pods only one gets the last volume of a node. The counts are per node, and change with each pod, so
that a mask costs one pass over the nodes.
"""

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import merge
from typing import Final, NamedTuple, Protocol

import numpy as np

from ....model.node_selectors import NodeSelector
from ....model.selectors import Operator, Selector, SelectorError, from_label_selector
from ..core_types import CSIDriver, CSIStorageCapacity, PersistentVolume, StorageClass, TopologyTerm
from ..resources import BoolVector, IntVector
from .delayed_claims import DelayedClaim, storage_size
from .node_terms import LabelIndex, LabelledNode

_MAX_DEMANDS = 1_000
"""Different demands of claims for which the matching volumes are kept."""

PROVISION: Final = ""
"""Instead of the name of a volume: one is to be provisioned."""

Decision = tuple[str, ...]
"""The volume of each claim of a pod, in their order."""

_Entry = tuple[int, str]
"""Size and name of a volume."""


class Nodes(Protocol):
    """What is read of the nodes."""

    @property
    def node_infos(self) -> Sequence[LabelledNode | None]:
        """By column; ``None`` for a node that does not exist."""
        ...

    @property
    def names(self) -> Sequence[str]:
        """By column; empty for none."""
        ...

    @property
    def columns(self) -> int:
        """The length of masks."""
        ...

    @property
    def node_position(self) -> int:
        """Grows when a node changes."""
        ...


class Unsuitable(NamedTuple):
    """The nodes on which claims cannot be bound."""

    no_volume: BoolVector
    """Neither is a volume available, nor can one be provisioned."""

    no_space: BoolVector
    """A volume could be provisioned if enough storage were free."""


class _Provisionable(NamedTuple):
    """The nodes for which a volume can be provisioned."""

    nodes: BoolVector
    no_space: BoolVector
    """The nodes that only lack free storage."""
    free: Mapping[int, int]
    """By node, what is published to be free of the class; the most of several pools."""


@dataclass(slots=True)
class _Matches:
    """The available volumes that a claim may be bound to."""

    counts: IntVector
    """How many of them that are not taken each node can use."""
    by_node: dict[int, list[_Entry]] = field(default_factory=dict)
    everywhere: list[_Entry] = field(default_factory=list)
    """Those that all nodes can use."""
    names: set[str] = field(default_factory=set)


class AvailableVolumes:
    """Volumes that no claim has, and what can be provisioned where."""

    def __init__(self, nodes: Nodes) -> None:
        """Start without volumes and classes; *nodes* are read when a mask is asked for."""
        self._nodes = nodes
        self._volumes: dict[str, PersistentVolume] = {}
        """All volumes, also those that claims have."""
        self._classes: dict[str, StorageClass] = {}
        self._capacity_drivers: set[str] = set()
        """CSI drivers that publish how much storage is free."""
        self._capacities: dict[str, CSIStorageCapacity] = {}
        self._taken: dict[str, int] = {}
        self._decisions: dict[tuple[tuple[DelayedClaim, ...], int], list[Decision | None]] = {}
        self._chosen: dict[str, list[tuple[int, str]]] = {}
        """For claims with a key: node and volume for each pod of an open statement."""
        self._position = (-1, -1)
        self._index = LabelIndex(())
        self._matches: dict[DelayedClaim, _Matches] = {}
        self._provisionable: dict[tuple[str, int], _Provisionable] = {}
        self._reach: dict[NodeSelector, set[int]] = {}

    # -- objects -------------------------------------------------------------------------------

    def update_volume(self, old: PersistentVolume | None, new: PersistentVolume | None) -> None:
        """Add, update or delete a volume."""
        self._refresh()
        known = self._volumes.get((new or old or PersistentVolume()).metadata.name)
        if known is not None:
            self._withdraw(known)
            del self._volumes[known.metadata.name]
        if new is not None:
            self._volumes[new.metadata.name] = new
            for claim, matches in self._matches.items():
                if new.spec.claim_ref is None and claim.matches(new):
                    self._offer(matches, new)

    def update_class(self, old: StorageClass | None, new: StorageClass | None) -> None:
        """Add, update or delete a storage class."""
        if old is not None:
            self._classes.pop(old.metadata.name, None)
        if new is not None:
            self._classes[new.metadata.name] = new
        self._provisionable.clear()

    def update_driver(self, old: CSIDriver | None, new: CSIDriver | None) -> None:
        """Add, update or delete a CSI driver."""
        if old is not None:
            self._capacity_drivers.discard(old.metadata.name)
        if new is not None and new.spec.storage_capacity:
            self._capacity_drivers.add(new.metadata.name)
        self._provisionable.clear()

    def update_capacity(
        self, old: CSIStorageCapacity | None, new: CSIStorageCapacity | None
    ) -> None:
        """Add, update or delete what is free of a class."""
        if old is not None:
            self._capacities.pop(old.metadata.key, None)
        if new is not None:
            self._capacities[new.metadata.key] = new
        self._provisionable.clear()

    def storage_class(self, name: str) -> StorageClass | None:
        """Return the storage class *name*, if it is known."""
        return self._classes.get(name)

    def volume(self, name: str) -> PersistentVolume | None:
        """Return the volume *name*, if it is known."""
        return self._volumes.get(name)

    @property
    def knows_volumes(self) -> bool:
        """Whether there are volumes; without the right to list them none is known."""
        return bool(self._volumes)

    # -- pods ----------------------------------------------------------------------------------

    def add(self, claims: tuple[DelayedClaim, ...], node_indexes: Sequence[int], sign: int) -> None:
        """Count a pod with *claims* on each of *node_indexes*; with *sign* -1, undo that."""
        self._refresh()
        for node_index in node_indexes:
            decisions = self._decisions.setdefault((claims, node_index), [])
            decision = self.decide(claims, node_index) if sign > 0 else decisions.pop()
            if sign > 0:
                decisions.append(decision)
            if not decisions:
                del self._decisions[claims, node_index]
            for claim, name in zip(claims, decision or (), strict=bool(decision)):
                if name:
                    self.take(name, sign)
                if claim.key:
                    self._choose(claim.key, (node_index, name), sign)

    def take(self, name: str, sign: int) -> None:
        """Take the volume *name* for a claim; with *sign* -1, undo that."""
        self._refresh()
        before = self._taken.get(name, 0)
        if before + sign:
            self._taken[name] = before + sign
        else:
            del self._taken[name]
        volume = self._volumes.get(name)
        if volume is not None and (not before or not before + sign):
            for matches in self._matches.values():
                if name in matches.names:
                    self._count(matches, volume, -sign)

    def decided(self, claims: tuple[DelayedClaim, ...], node_index: int) -> Decision | None:
        """Return what the claims of the pod with *claims* that was counted last on a node are to be
        bound to; ``None`` if they cannot be bound there."""
        decisions = self._decisions.get((claims, node_index))
        return decisions[-1] if decisions else None

    def decide(self, claims: Sequence[DelayedClaim], node_index: int) -> Decision | None:
        """Return what *claims* of one pod would be bound to on a node, if they can be."""
        self._refresh()
        chosen: list[str] = []
        for claim in claims:
            name = self._decide_one(claim, node_index, chosen)
            if name is None:
                return None
            chosen.append(name)
        return tuple(chosen)

    def storage_use(
        self, claims: Sequence[DelayedClaim], node_index: int
    ) -> Mapping[str, tuple[int, int]]:
        """Return, by storage class, how many bytes *claims* of one more pod would request on a node
        of how many.

        The latter are the capacities of the volumes that they would be bound to. If none would be
        bound to one, they are what is published to be free, and classes without that are left out.
        """
        use: dict[str, tuple[int, int]] = {}
        decision = self.decide(claims, node_index)
        if decision is None:
            return use
        for claim, name in zip(claims, decision, strict=True):
            if name != PROVISION:
                requested, capacity = use.get(claim.storage_class, (0, 0))
                size = storage_size(self._volumes[name].spec.capacity.get("storage"))
                use[claim.storage_class] = requested + _bytes(claim.size), capacity + _bytes(size)
        if use:
            return use
        for claim in claims:
            free = self._can_provision(claim).free.get(node_index)
            if free is not None:
                requested, _ = use.get(claim.storage_class, (0, 0))
                use[claim.storage_class] = requested + _bytes(claim.size), _bytes(free)
        return use

    def unsuitable(self, claims: Sequence[DelayedClaim]) -> Unsuitable:
        """Return the nodes on which *claims* of one more pod cannot be bound."""
        self._refresh()
        columns = self._nodes.columns
        found = Unsuitable(np.zeros(columns, np.bool_), np.zeros(columns, np.bool_))
        for claim in claims:
            suitable, no_space = self._suitable(claim)
            found.no_space[:] |= no_space & ~suitable
            found.no_volume[:] |= ~suitable & ~no_space
        if _compete(claims):
            for node_index in np.flatnonzero(~(found.no_volume | found.no_space)).tolist():
                if self.decide(claims, node_index) is None:
                    found.no_volume[node_index] = True
        return found

    # -- private -------------------------------------------------------------------------------

    def _refresh(self) -> None:
        """Forget what depends on nodes, if one has changed."""
        position = self._nodes.node_position, self._nodes.columns
        if position != self._position:
            self._position, self._index = position, LabelIndex(self._nodes.node_infos)
            self._matches.clear()
            self._provisionable.clear()
            self._reach.clear()

    def _decide_one(self, claim: DelayedClaim, node_index: int, excluded: list[str]) -> str | None:
        chosen = self._chosen.get(claim.key) if claim.key else None
        if chosen:
            node, name = chosen[0]
            if name != PROVISION:
                return name if self._can_use(node_index, name) else None
            if claim.is_for_one_node and node != node_index:
                return None
        elif claim.selected_node:
            if self._nodes.names[node_index] != claim.selected_node:
                return None
        elif claim.volume:
            if self._can_use(node_index, claim.volume):
                return claim.volume
        else:
            matches = self._matches_of(claim)
            free = (
                name
                for _, name in merge(matches.by_node.get(node_index, ()), matches.everywhere)
                if name not in self._taken and name not in excluded
            )
            first: str | None = next(free, None)
            if first is not None:
                return first
        return PROVISION if self._can_provision(claim).nodes[node_index] else None

    def _suitable(self, claim: DelayedClaim) -> tuple[BoolVector, BoolVector]:
        """Return the nodes that suffice for *claim*, and those that lack free storage."""
        provisionable, no_space, _ = self._can_provision(claim)
        only = np.ones(self._nodes.columns, np.bool_)
        chosen = self._chosen.get(claim.key) if claim.key else None
        if chosen:
            node, name = chosen[0]
            if name != PROVISION:
                return self._users(name), np.zeros_like(only)
            if claim.is_for_one_node:
                only = np.arange(self._nodes.columns) == node
        elif claim.selected_node:
            only = np.array([name == claim.selected_node for name in self._names()], np.bool_)
        elif claim.volume:
            return self._users(claim.volume) | provisionable, no_space
        else:
            matches = self._matches_of(claim)
            free = (matches.counts > 0) | any(
                name not in self._taken for _, name in matches.everywhere
            )
            return free | provisionable, no_space
        return provisionable & only, no_space & only

    def _names(self) -> Iterator[str]:
        yield from self._nodes.names
        yield from ("" for _ in range(self._nodes.columns - len(self._nodes.names)))

    def _matches_of(self, claim: DelayedClaim) -> _Matches:
        demand = claim.demand
        known = self._matches.get(demand)
        if known is None:
            if len(self._matches) >= _MAX_DEMANDS:
                self._matches.clear()
            known = self._matches[demand] = _Matches(np.zeros(self._nodes.columns, np.int64))
            for volume in self._volumes.values():
                if volume.spec.claim_ref is None and claim.matches(volume):
                    self._offer(known, volume)
        return known

    def _offer(self, matches: _Matches, volume: PersistentVolume) -> None:
        name = volume.metadata.name
        entry = (storage_size(volume.spec.capacity.get("storage")), name)
        matches.names.add(name)
        nodes = self._reachable(volume)
        if nodes is None:
            insort(matches.everywhere, entry)
        for node_index in nodes or ():
            insort(matches.by_node.setdefault(node_index, []), entry)
        if name not in self._taken:
            self._count(matches, volume, 1)

    def _withdraw(self, volume: PersistentVolume) -> None:
        name = volume.metadata.name
        entry = (storage_size(volume.spec.capacity.get("storage")), name)
        for matches in self._matches.values():
            if name not in matches.names:
                continue
            matches.names.discard(name)
            nodes = self._reachable(volume)
            if nodes is None:
                matches.everywhere.remove(entry)
            for node_index in nodes or ():
                matches.by_node[node_index].remove(entry)
            if name not in self._taken:
                self._count(matches, volume, -1)

    def _count(self, matches: _Matches, volume: PersistentVolume, delta: int) -> None:
        nodes = self._reachable(volume)
        if nodes:
            matches.counts[list(nodes)] += delta

    def _reachable(self, volume: PersistentVolume) -> set[int] | None:
        """Return the nodes that can use *volume*; ``None`` if all can."""
        affinity = volume.spec.node_affinity
        required = affinity.required if affinity is not None else None
        if required is None:
            return None
        known = self._reach.get(required)
        if known is None:
            known = self._reach[required] = self._index.matching(required)
        return known

    def _can_use(self, node_index: int, name: str) -> bool:
        volume = self._volumes.get(name)
        if volume is None:
            return False
        nodes = self._reachable(volume)
        return nodes is None or node_index in nodes

    def _users(self, name: str) -> BoolVector:
        """Return the nodes that can use the volume *name*."""
        volume = self._volumes.get(name)
        nodes: Iterable[int] | None = self._reachable(volume) if volume is not None else ()
        return self._mask(self._index.all() if nodes is None else nodes)

    def _mask(self, node_indexes: Iterable[int]) -> BoolVector:
        mask = np.zeros(self._nodes.columns, np.bool_)
        mask[list(node_indexes)] = True
        return mask

    def _can_provision(self, claim: DelayedClaim) -> _Provisionable:
        key = claim.storage_class, claim.size
        known = self._provisionable.get(key)
        if known is None:
            known = self._provisionable[key] = self._new_provisionable(claim)
        return known

    def _new_provisionable(self, claim: DelayedClaim) -> _Provisionable:
        storage_class = self._classes.get(claim.storage_class)
        if storage_class is None or not claim.provisioner:
            return _Provisionable(self._mask(()), self._mask(()), {})
        allowed = self._mask(self._within(storage_class.allowed_topologies))
        if not claim.size or claim.provisioner not in self._capacity_drivers:
            return _Provisionable(allowed, self._mask(()), {})
        enough: set[int] = set()
        free: dict[int, int] = {}
        for capacity in self._capacities.values():
            if capacity.storage_class_name != claim.storage_class:
                continue
            limit = capacity.maximum_volume_size
            limit = capacity.capacity if limit is None else limit
            if limit is None or storage_size(limit) < claim.size:
                continue
            for node_index in self._with_access(capacity):
                enough.add(node_index)
                if capacity.capacity is not None:
                    size = storage_size(capacity.capacity)
                    free[node_index] = max(size, free.get(node_index, 0))
        has_space = self._mask(enough)
        return _Provisionable(allowed & has_space, allowed & ~has_space, free)

    def _within(self, topologies: tuple[TopologyTerm, ...]) -> Iterable[int]:
        if not topologies:
            yield from self._index.all()
        for term in topologies:
            allowed = [
                set(self._index.of(each.key, each.values)) for each in term.match_label_expressions
            ]
            yield from set.intersection(*allowed) if allowed else ()

    def _with_access(self, capacity: CSIStorageCapacity) -> Iterable[int]:
        try:
            selector = from_label_selector(capacity.node_topology)
        except SelectorError:
            return
        for node_index in self._candidates(selector):
            node = self._nodes.node_infos[node_index]
            if node is not None and selector.matches(node.labels):
                yield node_index

    def _candidates(self, selector: Selector) -> Iterable[int]:
        for requirement in selector.requirements:
            if requirement.operator is Operator.IN:
                return self._index.of(requirement.key, requirement.values)
        return self._index.all()

    def _choose(self, key: str, choice: tuple[int, str], sign: int) -> None:
        choices = self._chosen.setdefault(key, [])
        if sign > 0:
            choices.append(choice)
        else:
            choices.remove(choice)
        if not choices:
            del self._chosen[key]


def _bytes(size: int) -> int:
    """Return *size*, in billionths, rounded up as by Kubernetes."""
    return -(-size // 10**9)


def _compete(claims: Sequence[DelayedClaim]) -> bool:
    """Return whether several of *claims* may be bound to the same volume."""
    classes = [each.storage_class for each in claims]
    return len(set(classes)) < len(classes)
