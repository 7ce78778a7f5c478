"""What claims use of devices: a whole device, or a share of one that allows multiple allocations.

Of the latter each claim consumes some of each capacity: what it requests, rounded as the request
policy of the capacity demands, or the default of that.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from ....model import quantity
from ....model.quantity import Format, Quantity

Json = dict[str, Any]

_NANO = 1_000_000_000


class DeviceRef(NamedTuple):
    """The name of a device."""

    driver: str
    pool: str
    device: str


class DeviceUse(NamedTuple):
    """One use of a device by a claim."""

    ref: DeviceRef
    capacity: tuple[tuple[str, int], ...] | None = None
    """What a share consumes, by name, in billionths; ``None`` for the whole device."""


class UsedDevices:
    """How devices are used."""

    def __init__(self) -> None:
        """Start without uses."""
        self._whole: Counter[DeviceRef] = Counter()
        self._shares: Counter[DeviceRef] = Counter()
        self._consumed: dict[DeviceRef, Counter[str]] = {}

    def add(self, use: DeviceUse, sign: int) -> None:
        """Count another *use*; with *sign* -1, undo that."""
        counts = self._whole if use.capacity is None else self._shares
        counts[use.ref] += sign
        if not counts[use.ref]:
            del counts[use.ref]
        if use.capacity:
            consumed = self._consumed.setdefault(use.ref, Counter())
            for name, amount in use.capacity:
                consumed[name] += sign * amount
        if use.ref not in self._shares:
            self._consumed.pop(use.ref, None)

    def is_whole(self, ref: DeviceRef) -> bool:
        """Return whether a claim has a device for itself."""
        return ref in self._whole

    def is_used(self, ref: DeviceRef) -> bool:
        """Return whether a claim has a device, or a share of it."""
        return ref in self._whole or ref in self._shares

    def consumed(self, ref: DeviceRef) -> Mapping[str, int]:
        """Return what shares of a device consume, by name, in billionths."""
        return self._consumed.get(ref, _NOTHING)


_NOTHING: Mapping[str, int] = {}


def consumption(device: Json, requested: Mapping[str, str]) -> dict[str, Quantity] | None:
    """Return what a claim with the capacity requests *requested* consumes of *device*, an entry of
    a ResourceSlice; ``None`` if the device lacks a capacity, or a policy does not permit that."""
    capacities = device.get("capacity") or {}
    if not requested.keys() <= capacities.keys():
        return None
    found: dict[str, Quantity] = {}
    for name, capacity in capacities.items():
        policy = capacity.get("requestPolicy") or {}
        given = requested.get(name)
        if given is None:
            default = policy.get("default")
            found[name] = quantity.parse(capacity.get("value", "0") if default is None else default)
            continue
        amount = _rounded(quantity.parse(given), policy)
        if not _is_permitted(amount, policy):
            return None
        found[name] = amount
    return found


def fits(device: Json, wanted: Mapping[str, Quantity], *consumed: Mapping[str, int]) -> bool:
    """Return whether a device has what is *wanted* in addition to what is *consumed*."""
    capacities = device.get("capacity") or {}
    return all(
        amount.nanos + sum(each.get(name, 0) for each in consumed)
        <= quantity.parse(capacities[name].get("value", "0")).nanos
        for name, amount in wanted.items()
    )


def in_billionths(amounts: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """Return the quantities of ``consumedCapacity`` as those of a :class:`DeviceUse`."""
    return tuple((name, quantity.parse(amount).nanos) for name, amount in amounts.items())


def _rounded(amount: Quantity, policy: Json) -> Quantity:
    """Return *amount* rounded up to what *policy* permits, if there is such an amount."""
    minimum, step = _range(policy, "min"), _range(policy, "step")
    if minimum is not None:
        if amount < minimum:
            return minimum
        if step is None:
            return amount
        steps = -(-(amount.value() - minimum.value()) // step.value())
        return Quantity((minimum.value() + step.value() * steps) * _NANO, Format.BINARY)
    values = map(quantity.parse, policy.get("validValues") or ())
    return next((each for each in values if amount <= each), amount)


def _is_permitted(amount: Quantity, policy: Json) -> bool:
    maximum = _range(policy, "max")
    if maximum is not None and amount > maximum:
        return False
    minimum, step = _range(policy, "min"), _range(policy, "step")
    if minimum is not None and step is not None:
        return (amount.value() - minimum.value()) % step.value() == 0
    values = policy.get("validValues") or ()
    return not values or any(amount == quantity.parse(each) for each in values)


def _range(policy: Json, name: str) -> Quantity | None:
    found = (policy.get("validRange") or {}).get(name)
    return None if found is None else quantity.parse(found)
