"""The nodes as matrices that follow the cluster change by change.

One column a node, one row a resource: what the node offers (``allocatable``) and what of it is
left (``idle``). A column keeps its place while its node lives or pods are charged to it; then it
is used again. Whole numbers throughout, so that taking something back restores every bit.

Whoever derives something from columns (masks, scores) remembers a mark of a :class:`ChangeLog`
and asks later which columns changed: nothing is worked out anew for the others.
Neighbours: ``masks`` (who may go where), ``placer`` (where the next pod goes best).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from .core_types import Node, Taint
from .resources import (
    CPU,
    LARGEST,
    MEMORY,
    PODS,
    Amounts,
    BoolVector,
    Dimensions,
    IntVector,
    Matrix,
    amounts,
)

_FIRST_COLUMNS = 16
_LOG_LENGTH = 4096


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What filters and preferences see of a node; changes seldom."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...]
    unschedulable: bool


class ChangeLog:
    """Which columns changed, in order, for readers who come by at their own pace."""

    def __init__(self) -> None:
        """Start empty."""
        self._slots: list[int] = []
        self._forgotten = 0

    @property
    def mark(self) -> int:
        """The present end of the log."""
        return self._forgotten + len(self._slots)

    def add(self, slot: int) -> None:
        """Note a change of column *slot*."""
        self._slots.append(slot)
        if len(self._slots) > 2 * _LOG_LENGTH:
            del self._slots[:_LOG_LENGTH]
            self._forgotten += _LOG_LENGTH

    def since(self, mark: int) -> list[int] | None:
        """Columns changed since *mark*, or ``None`` if that is too long ago to tell."""
        if mark < self._forgotten:
            return None
        return self._slots[mark - self._forgotten :]


class Snapshot:
    """Nodes and what is free on them. Not safe to change while somebody decides over it."""

    def __init__(self) -> None:
        """Start without nodes."""
        self.dimensions = Dimensions()
        self.names: list[str] = []
        self.facts: list[NodeFacts | None] = []
        self.allocatable: Matrix = np.zeros((len(self.dimensions), _FIRST_COLUMNS), np.int64)
        self.idle: Matrix = self.allocatable.copy()
        self.alive: BoolVector = np.zeros(_FIRST_COLUMNS, np.bool_)
        self.changed = ChangeLog()
        """Columns whose amounts changed."""
        self.refitted = ChangeLog()
        """Columns whose node facts changed."""
        self._slots: dict[str, int] = {}
        self._free: list[int] = []
        self._ties: IntVector | None = None

    # -- nodes ---------------------------------------------------------------------------------

    @property
    def columns(self) -> int:
        """How many columns the matrices have, used or not."""
        return int(self.allocatable.shape[1])

    def __len__(self) -> int:
        """How many nodes there are."""
        return int(self.alive.sum())

    def set_node(self, node: Node) -> bool:
        """Take in a new or changed *node*; say whether anything that matters here changed."""
        slot = self._slot(node.metadata.name)
        facts = NodeFacts(
            node.metadata.name, node.metadata.labels, node.spec.taints, node.spec.unschedulable
        )
        offers = self.dimensions.vector(amounts(node.status.allocatable))
        self.fit_rows()
        same = self.alive[slot] and facts == self.facts[slot]
        if not same:
            self.facts[slot] = facts
            self.refitted.add(slot)
            self._ties = None if not self.alive[slot] else self._ties
            self.alive[slot] = True
        if same and np.array_equal(self.allocatable[:, slot], offers):
            return False
        self._set_allocatable(slot, offers)
        return True

    def drop_node(self, name: str) -> None:
        """Forget a node; pods that are still charged to it stay charged. Unknown: no matter."""
        slot = self._slots.get(name)
        if slot is None or not self.alive[slot]:
            return
        self.alive[slot] = False
        self.facts[slot] = None
        self._ties = None
        self.refitted.add(slot)
        self._set_allocatable(slot, np.zeros(len(self.dimensions), np.int64))
        self._release_if_empty(slot)

    def node_slot(self, name: str) -> int | None:
        """The column of node *name* (known or only named by a pod), if it has one."""
        return self._slots.get(name)

    def ties(self) -> IntVector:
        """Who wins among equals: the node whose name comes first has the largest number."""
        if self._ties is None:
            self._ties = np.zeros(self.columns, np.int64)
            by_name = sorted(np.flatnonzero(self.alive).tolist(), key=self.names.__getitem__)
            self._ties[by_name] = np.arange(len(by_name), 0, -1)
        return self._ties

    def total(self) -> Amounts:
        """What all nodes together offer, unschedulable ones too."""
        return self.dimensions.amounts(self.allocatable.sum(axis=1))

    def used(self) -> Amounts:
        """What all pods together take."""
        taken = (self.allocatable - self.idle).sum(axis=1)
        return self.dimensions.amounts(taken)

    # -- pods ----------------------------------------------------------------------------------

    def charge(self, name: str, request: IntVector) -> int:
        """A pod with *request* is on node *name*; returns the column."""
        slot = self._slot(name)
        self.take(request, (slot,))
        return slot

    def refund(self, slot: int, request: IntVector) -> None:
        """A pod with *request* is gone from column *slot*."""
        self.give(request, (slot,))
        self._release_if_empty(slot)

    def take(self, request: IntVector, slots: Iterable[int]) -> None:
        """Charge *request* once to each of *slots*; a slot may come up more than once."""
        self._move(request, slots, -1)

    def give(self, request: IntVector, slots: Iterable[int]) -> None:
        """The exact opposite of :meth:`drain`."""
        self._move(request, slots, 1)

    def capacity(self, request: IntVector, slots: IntVector | None = None) -> IntVector:
        """How many pods with *request* fit at most on each of *slots* (by default all columns).

        CPU and memory count even when not asked for: an over-committed node takes nobody.
        """
        idle = self.idle if slots is None else self.idle[:, slots]
        most = np.full(idle.shape[1], LARGEST, np.int64)
        for row in np.flatnonzero(request):
            np.minimum(most, idle[row] // request[row], out=most)
        for always in (CPU, MEMORY):
            if not request[always]:
                most[idle[always] < 0] = 0
        return np.maximum(most, 0, out=most)

    def fit_rows(self) -> None:
        """Give the matrices a row for every resource that is known by now."""
        missing = len(self.dimensions) - self.allocatable.shape[0]
        if missing:
            more = ((0, missing), (0, 0))
            self.allocatable = np.pad(self.allocatable, more)
            self.idle = np.pad(self.idle, more)

    def validate(self) -> None:
        """Check what must always hold.

        Raises:
            AssertionError: the snapshot contradicts itself; the message says where.
        """
        dead = ~self.alive[: len(self.names)]
        claims = {
            "matrices of different shapes": self.allocatable.shape == self.idle.shape,
            "a node lost its column": all(self.names[at] == n for n, at in self._slots.items()),
            "a dead node offers": not self.allocatable[:, : len(self.names)][:, dead].any(),
            "a free column is charged": not self.idle[:, self._free].any(),
        }
        for complaint, holds in claims.items():
            if not holds:
                raise AssertionError(complaint)

    # -- inside --------------------------------------------------------------------------------

    def _slot(self, name: str) -> int:
        slot = self._slots.get(name)
        if slot is not None:
            return slot
        if self._free:
            slot = self._free.pop()
            self.names[slot] = name
        else:
            slot = len(self.names)
            self.names.append(name)
            self.facts.append(None)
            if slot == self.columns:
                self._double_columns()
        self._slots[name] = slot
        return slot

    def _double_columns(self) -> None:
        more = ((0, 0), (0, self.columns))
        self.alive = np.pad(self.alive, more[1])
        self.allocatable = np.pad(self.allocatable, more)
        self.idle = np.pad(self.idle, more)
        self._ties = None

    def _set_allocatable(self, slot: int, offers: IntVector) -> None:
        self.idle[:, slot] += offers - self.allocatable[:, slot]
        self.allocatable[:, slot] = offers
        self.changed.add(slot)

    def _release_if_empty(self, slot: int) -> None:
        if self.alive[slot] or self.idle[PODS, slot]:
            return
        del self._slots[self.names[slot]]
        self.names[slot] = ""
        self._free.append(slot)

    def _move(self, request: IntVector, slots: Iterable[int], sign: int) -> None:
        self.fit_rows()
        counts: dict[int, int] = {}
        for slot in slots:
            counts[slot] = counts.get(slot, 0) + 1
        request = self.dimensions.full(request)
        for slot, count in counts.items():
            self.idle[:, slot] += request * (sign * count)
            self.changed.add(slot)
