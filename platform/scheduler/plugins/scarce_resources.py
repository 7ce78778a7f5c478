"""The sections ``sra`` and ``proportional`` of ``resource-strategy-fit``: nodes with scarce devices
are kept for the pods that need these.

``sra`` (scarce resource avoidance) prefers nodes without devices of which a pod requests none.
``proportional`` keeps, on each node, CPU and memory for the devices that are free.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from ..state.nodes.node_matrix import NodeMatrix
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.resources import CPU, MAX_AMOUNT, MEMORY, FloatVector, IntVector, units_of
from .arguments import (
    ArgumentError,
    Arguments,
    boolean,
    integer,
    mapping,
    number,
    require_read,
    text,
)
from .extension_points import NodeAmounts

_SRA, _PROPORTIONAL = "sra", "proportional"
_GIGABYTE = 10**9


@dataclass(frozen=True, slots=True)
class ScarceResources:
    """The section ``sra``."""

    weight: int
    weights: Mapping[str, int]
    """By resource."""

    @classmethod
    def parse(cls, arguments: Mapping[str, object]) -> "ScarceResources | None":
        """Return the section, ``None`` if it is not enabled.

        Raises:
            ArgumentError: it is malformed.
        """
        section = mapping(arguments, _SRA)
        with _errors_of(_SRA):
            weight = integer(section, "weight", default=1, minimum=0)
            given = mapping(section, "resourceWeight")
            weights = {
                name: integer(given, name, default=1, minimum=0) for name in _resources(section)
            }
            require_read(given, "resourceWeight")
            is_enabled = boolean(section, "enable", default=False)
            require_read(section, "section")
        return cls(weight, weights) if is_enabled else None

    def scores(self, names: list[str], amounts: NodeAmounts) -> FloatVector:
        """Return the score of each node, lower the more of the resources it has; 0 for nodes that
        lack a resource which the pod requests. *names* are those of the rows."""
        total = sum(self.weights.values())
        found: FloatVector = np.zeros(len(amounts.node_indexes))
        for row, name in enumerate(names[: len(amounts.allocatable)]):
            if name in self.weights:
                found += self.weights[name] * (amounts.allocatable[row] > 0)
        requested = np.flatnonzero(amounts.request)
        has_all = (amounts.allocatable[requested] > 0).all(axis=0)
        scores = (1 - found / total if total else found) * (100 * self.weight)
        return np.where(has_all, scores, 0.0)


@dataclass(frozen=True, slots=True)
class Proportional:
    """The section ``proportional``."""

    kept: Mapping[str, tuple[float, float]]
    """By resource: CPUs and gigabytes that are kept for each free device."""

    @classmethod
    def parse(cls, arguments: Mapping[str, object]) -> "Proportional | None":
        """Return the section, ``None`` if it is not enabled.

        Raises:
            ArgumentError: it is malformed.
        """
        section = mapping(arguments, _PROPORTIONAL)
        with _errors_of(_PROPORTIONAL):
            given = mapping(section, "resourceProportion")
            kept = {
                name: (_rate(given, f"{name}.cpu"), _rate(given, f"{name}.memory"))
                for name in _resources(section)
            }
            require_read(given, "resourceProportion")
            is_enabled = boolean(section, "enable", default=False)
            require_read(section, "section")
        return cls(kept) if is_enabled else None

    @property
    def reason(self) -> str:
        """Why a node accepts no more pods, with Volcano's text."""
        return f"proportional of resource {', '.join(self.kept)} check failed"

    def limit(
        self, eq_class: EquivalenceClass, nodes: NodeMatrix, node_indexes: IntVector | None
    ) -> IntVector | None:
        """Return how many pods fit in addition to what is kept for the free devices of each node;
        ``None`` for pods that request one."""
        if any(eq_class.request.get(name) for name in self.kept):
            return None
        columns = slice(None) if node_indexes is None else node_indexes
        idle = nodes.idle[:, columns]
        limit: IntVector = np.full(idle.shape[1], MAX_AMOUNT)
        request = eq_class.request_vector(nodes.resource_index)
        for row, name in enumerate(nodes.resource_index.names[: len(idle)]):
            for kept_row, unit, rate in zip(
                (CPU, MEMORY), (1000, _GIGABYTE), self.kept.get(name, ()), strict=False
            ):
                devices = np.maximum(idle[row], 0) / units_of(name)
                left = idle[kept_row] - np.ceil(devices * rate * unit).astype(np.int64)
                each = int(request[kept_row])
                fitting = np.where(left < 0, 0, left // each if each else MAX_AMOUNT)
                limit = np.where(devices > 0, np.minimum(limit, fitting), limit)
        return limit


def _resources(section: Arguments) -> list[str]:
    names = (each.strip() for each in text(section, "resources").split(","))
    return list(dict.fromkeys(filter(None, names)))


def _rate(given: Arguments, name: str) -> float:
    rate = number(given, name, default=1)
    if rate < 0:
        raise ArgumentError(name, f"must be at least 0, not {rate:g}")
    return rate


@contextmanager
def _errors_of(section: str) -> Iterator[None]:
    """Name *section* in the errors of the block."""
    try:
        yield
    except ArgumentError as error:
        raise ArgumentError(section, str(error)) from error
