"""Amounts of resources as exact whole numbers, and their place in the matrices.

CPU is counted in millicores, memory in bytes, pods in pods, everything else in thousandths of its
unit: the units of Volcano, without its rounding. A vector holds one number for each name of
a :class:`ResourceIndex`; vectors made before a name was known are shorter and mean zero there.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ...model.pod_resources import ContainerResources
from ...model.quantity import Quantity, QuantityError, parse
from ...model.resource_names import is_counted
from .core_types import PodSpec

IntVector = npt.NDArray[np.int64]
Matrix = npt.NDArray[np.int64]
FloatVector = npt.NDArray[np.float64]
BoolVector = npt.NDArray[np.bool_]
Amounts = dict[str, int]

CPU, MEMORY, PODS = 0, 1, 2
"""Rows that every dimension table has."""

MAX_AMOUNT = 2**60
"""Amounts are cut off here, so that sums over a cluster stay within 64 bits."""

_WHOLE_UNIT_RESOURCES = ("memory", "pods")


class ResourceIndex:
    """Names of resources and their rows; it only grows."""

    def __init__(self) -> None:
        """Start with CPU, memory and pods."""
        self.names = ["cpu", "memory", "pods"]
        self._rows = {name: row for row, name in enumerate(self.names)}

    def __len__(self) -> int:
        return len(self.names)

    def row(self, name: str) -> int:
        """The row of *name*, new if need be."""
        row = self._rows.get(name)
        if row is None:
            row = self._rows[name] = len(self.names)
            self.names.append(name)
        return row

    def vector(self, amounts: Mapping[str, int]) -> IntVector:
        """*amounts* as a vector over all names known so far (theirs included)."""
        rows = [self.row(name) for name in amounts]
        vector = np.zeros(len(self.names), np.int64)
        vector[rows] = list(amounts.values())
        return vector

    def padded(self, vector: IntVector) -> IntVector:
        """*vector*, made as long as the table is now."""
        missing = len(self.names) - len(vector)
        return np.concatenate([vector, np.zeros(missing, np.int64)]) if missing else vector

    def amounts(self, vector: IntVector) -> Amounts:
        """The non-zero entries of *vector* by name."""
        return {self.names[row]: int(vector[row]) for row in np.flatnonzero(vector)}


@lru_cache(maxsize=16384)
def amount(name: str, quantity: str | int | float) -> int:
    """How much *quantity* of *name* is, in our units, rounded up.

    An unreadable quantity counts as nothing: API servers refuse such objects, so it can only come
    from one that does not check.
    """
    try:
        parsed = parse(quantity)
    except QuantityError:
        return 0
    units = parsed.value() if name in _WHOLE_UNIT_RESOURCES else parsed.milli_value()
    return max(min(units, MAX_AMOUNT), -MAX_AMOUNT)


def amounts(quantities: Mapping[str, str | int | float] | None) -> Amounts:
    """The counted entries of a resource list, in our units."""
    return {
        name: amount(name, quantity)
        for name, quantity in (quantities or {}).items()
        if is_counted(name)
    }


def format_amount(name: str, units: int) -> str:
    """*units* of *name* as people like to read them: ``64``, ``500m``, ``153.6``, ``1.5Gi``."""
    if name == "memory" and abs(units) >= 2**20 and units % 2**20:
        return f"{units / 2**30:.1f}Gi" if abs(units) >= 2**30 else f"{units / 2**20:.1f}Mi"
    if name not in _WHOLE_UNIT_RESOURCES and abs(units) >= 1000:
        return f"{units / 1000:.3f}".rstrip("0").rstrip(".")
    return to_quantity(name, units)


def to_quantity(name: str, units: int) -> str:
    """*units* of *name* as a quantity for the wire."""
    if name != "memory":
        return str(Quantity(units * (10**9 if name in _WHOLE_UNIT_RESOURCES else 10**6)))
    for suffix, size in (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
        if units and units % size == 0:
            return f"{units // size}{suffix}"
    return str(units)


def to_resource_list(amounts_by_name: Mapping[str, int]) -> dict[str, str]:
    """Amounts as a resource list for the wire, by name in order."""
    return {name: to_quantity(name, amounts_by_name[name]) for name in sorted(amounts_by_name)}


def pod_request(spec: PodSpec) -> Amounts:
    """What a pod takes of its node, ``pods: 1`` included.

    Containers run together; init containers one after the other beside the sidecars that were
    started before them, so only the peak of that row counts.
    """
    regular = _sum(_request(container) for container in spec.containers)
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in spec.init_containers:
        request = _request(container)
        if container.restart_policy == "Always":
            regular = _sum((regular, request))
            sidecars = _sum((sidecars, request))
            peak = _elementwise_max(peak, sidecars)
        else:
            peak = _elementwise_max(peak, _sum((request, sidecars)))
    return _sum((_elementwise_max(regular, peak), amounts(spec.overhead), {"pods": 1}))


def _request(container: ContainerResources) -> Amounts:
    """What a container asks for; a limit without a request counts as one."""
    return amounts(container.resources.limits | container.resources.requests)


def _sum(items: Iterable[Amounts]) -> Amounts:
    total: Amounts = {}
    for part in items:
        for name, units in part.items():
            total[name] = total.get(name, 0) + units
    return total


def _elementwise_max(left: Amounts, right: Amounts) -> Amounts:
    return {name: max(left.get(name, 0), right.get(name, 0)) for name in left.keys() | right.keys()}
