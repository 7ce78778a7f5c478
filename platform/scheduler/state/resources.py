"""Resource amounts as integers, and their rows in the matrices.

CPU is in millicores, memory in bytes, pods in pods, everything else in thousandths of its unit: the
units of Volcano, without its rounding. A vector has one number for each name of
a :class:`ResourceIndex`; a vector from before a name was added is shorter and means zero there.
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
FloatMatrix = npt.NDArray[np.float64]
BoolVector = npt.NDArray[np.bool_]
Amounts = dict[str, int]

CPU, MEMORY, PODS = 0, 1, 2
"""Rows that every resource index has."""

MAX_AMOUNT = 2**60
"""Amounts are limited to this, so that sums over a cluster fit 64 bits."""

_BYTES = ("memory", "limits.memory")
_WHOLE_UNIT_RESOURCES = (*_BYTES, "pods")


class ResourceIndex:
    """Rows of resources by name; rows are never removed."""

    def __init__(self) -> None:
        """Start with CPU, memory and pods."""
        self.names = ["cpu", "memory", "pods"]
        self._rows = {name: row for row, name in enumerate(self.names)}

    def __len__(self) -> int:
        return len(self.names)

    def row(self, name: str) -> int:
        """Return the row of *name*, adding it if it is new."""
        row = self._rows.get(name)
        if row is None:
            row = self._rows[name] = len(self.names)
            self.names.append(name)
        return row

    def vector(self, amounts: Mapping[str, int]) -> IntVector:
        """Return *amounts* as a vector, adding rows for new names."""
        rows = [self.row(name) for name in amounts]
        vector = np.zeros(len(self.names), np.int64)
        vector[rows] = list(amounts.values())
        return vector

    def padded(self, vector: IntVector) -> IntVector:
        """Return *vector* extended to the current number of rows."""
        missing = len(self.names) - len(vector)
        return np.concatenate([vector, np.zeros(missing, np.int64)]) if missing else vector

    def amounts(self, vector: IntVector) -> Amounts:
        """Return the non-zero entries of *vector* by name."""
        return {self.names[row]: int(vector[row]) for row in np.flatnonzero(vector)}


@lru_cache(maxsize=16384)
def amount(name: str, quantity: str | int | float) -> int:
    """Return *quantity* of resource *name* as an integer amount, rounded up.

    A malformed quantity counts as zero: a validating API server rejects such objects.
    """
    try:
        parsed = parse(quantity)
    except QuantityError:
        return 0
    units = parsed.value() if name in _WHOLE_UNIT_RESOURCES else parsed.milli_value()
    return max(min(units, MAX_AMOUNT), -MAX_AMOUNT)


def units_of(name: str) -> int:
    """Return which amount of resource *name* is one of it: a CPU, a byte, a device."""
    return 1 if name in _WHOLE_UNIT_RESOURCES else 1000


def amounts(quantities: Mapping[str, str | int | float] | None) -> Amounts:
    """Return the counted entries of a resource list as amounts."""
    if not quantities:
        return {}
    return {
        name: amount(name, quantity) for name, quantity in quantities.items() if is_counted(name)
    }


def format_amount(name: str, units: int) -> str:
    """Format *units* of *name* for messages: ``64``, ``500m``, ``153.6``, ``1.5Gi``."""
    if name in _BYTES and abs(units) >= 2**20 and units % 2**20:
        return f"{units / 2**30:.1f}Gi" if abs(units) >= 2**30 else f"{units / 2**20:.1f}Mi"
    if name not in _WHOLE_UNIT_RESOURCES and abs(units) >= 1000:
        return f"{units / 1000:.3f}".rstrip("0").rstrip(".")
    return to_quantity(name, units)


def to_quantity(name: str, units: int) -> str:
    """Return *units* of *name* as a Kubernetes quantity."""
    if name not in _BYTES:
        return str(Quantity(units * (10**9 if name in _WHOLE_UNIT_RESOURCES else 10**6)))
    for suffix, size in (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
        if units and units % size == 0:
            return f"{units // size}{suffix}"
    return str(units)


def to_resource_list(amounts_by_name: Mapping[str, int]) -> dict[str, str]:
    """Return amounts as a Kubernetes resource list, sorted by name."""
    return {name: to_quantity(name, amounts_by_name[name]) for name in sorted(amounts_by_name)}


def pod_request(spec: PodSpec) -> Amounts:
    """Return the effective request of a pod, with ``pods: 1``.

    Containers run concurrently; init containers run one by one, with the sidecars that were
    started before them, so only the maximum of that sequence counts. Requests of the pod as a whole
    replace those of its containers.
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
    request = _elementwise_max(regular, peak) | _pod_level_request(spec)
    return _sum((request, amounts(spec.overhead), {"pods": 1}))


def _pod_level_request(spec: PodSpec) -> Amounts:
    """Return the requests of the pod as a whole, which replace those of its containers.

    A limit counts as a request, unless the pod or a container requests that resource.
    """
    level = spec.resources
    if not level.requests and not level.limits:
        return {}
    requested = {
        name
        for container in (*spec.containers, *spec.init_containers)
        for name in container.resources.requests
    }
    limits = {name: each for name, each in level.limits.items() if name not in requested}
    return {
        name: units
        for name, units in amounts(limits | level.requests).items()
        if name in ("cpu", "memory") or name.startswith("hugepages-")
    }


def _request(container: ContainerResources) -> Amounts:
    """Return the request of a container; a limit without a request counts as one."""
    return amounts(container.resources.limits | container.resources.requests)


def _sum(items: Iterable[Amounts]) -> Amounts:
    total: Amounts = {}
    for item in items:
        for name, units in item.items():
            total[name] = total.get(name, 0) + units
    return total


def _elementwise_max(left: Amounts, right: Amounts) -> Amounts:
    return {name: max(left.get(name, 0), right.get(name, 0)) for name in left.keys() | right.keys()}
