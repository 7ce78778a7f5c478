"""What claims of devices need, as amounts of queues: ``deviceclass/NAME`` for devices, and
``CAPACITY.deviceclass/NAME`` for a capacity of these."""

from collections.abc import Mapping
from functools import lru_cache

from ..devices.requests import DEVICE_CLASS, decode
from ..resources import Amounts
from .gang import add_amounts

Bounds = frozenset[tuple[str, frozenset[str]]]
"""The classes of requests, as ``deviceclass/NAME``, and what is bounded by each request: its number
of devices, as an empty name, and the capacities that it names."""


@lru_cache(maxsize=1_000)
def needed(devices: bytes) -> tuple[Mapping[str, int], Bounds]:
    """Return what a claim with *devices* needs at most, and what of it cannot be known. Admin
    access does not count."""
    total: Amounts = {}
    bounds: set[tuple[str, frozenset[str]]] = set()
    for request in decode(devices).requests:
        most: Amounts = {}
        for choice in request.choices:
            if choice.admin_access:
                continue
            name = f"{DEVICE_CLASS}{choice.device_class}"
            known = frozenset(key for key, _ in choice.capacity) if choice.count else frozenset()
            bounds.add((name, known | {""} if choice.count else known))
            for key, units in choice.amounts_of_device().items():
                most[key] = max(most.get(key, 0), units * choice.count)
        add_amounts(total, most)
    return total, frozenset(bounds)
