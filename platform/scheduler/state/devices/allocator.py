"""Chooses devices of one node for the claims of one pod: a pure function.

The search is that of kube-scheduler: claim after claim, request after request, device after device,
and the first solution counts. Pools are searched in the order of their names, devices in that of
their slices.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ....machinery.cel import device_selectors
from ....machinery.cel.device_selectors import DeviceValue
from ....machinery.cel.environment import CompileError, EvaluationError
from ....model import quantity
from ....model.device_taints import NO_EXECUTE, NO_SCHEDULE, tolerates
from ....model.node_selectors import NodeSelector
from ....model.quantity import Quantity
from .capacity import DeviceRef, DeviceUse, UsedDevices, consumption, fits
from .requests import Choice, ClaimRequests, Constraint
from .types import DeviceClass

Json = dict[str, Any]

MAX_RESULTS = 32
"""Devices of one claim."""

_MAX_STEPS = 10_000
"""Devices that are tried for one pod on one node: where nothing fits, the number of combinations
may be arbitrarily large."""

DEFAULT_TIMEOUT = 10.0
"""Seconds after which the search on one node ends, as in kube-scheduler."""


TIMED_OUT = "timed out trying to allocate devices"


class AllocationError(Exception):
    """Something is wrong with a claim that is to be allocated; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device that can be used from a node."""

    ref: DeviceRef
    content: Json
    """Its entry in the slice."""
    value: DeviceValue
    """What selectors see of it."""
    node_name: str = ""
    """The only node from which it can be used, if it is local to one, or is bound to one."""
    node_selector: NodeSelector | None = None

    @property
    def is_shared(self) -> bool:
        """Whether several claims may have it, each a share of its capacity."""
        return bool(self.content.get("allowMultipleAllocations"))


@dataclass(frozen=True, slots=True)
class Pool:
    """The devices of a pool that can be used from a node."""

    driver: str
    name: str
    devices: tuple[Device, ...] = ()
    problem: str = ""
    """Why nothing is allocated from it: it is incomplete, or invalid."""
    counters: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Counters by set and name, in billionths."""
    consumers: Mapping[str, Json] = field(default_factory=dict)
    """All devices of the pool that use counters, by name."""
    unsupported: tuple[str, ...] = ()
    """Fields of devices that the scheduler does not know: these devices are not allocated."""


@dataclass(frozen=True, slots=True)
class ClaimAllocation:
    """What a claim gets."""

    devices: tuple[DeviceUse, ...]
    """What no other claim may get."""
    content: Json
    """``status.allocation`` of the claim, with empty identifiers of shares."""
    node_selector: NodeSelector | None
    preference: int = 0
    """How good the alternatives are that its requests get; see :meth:`.Request.preference`."""


Classes = Callable[[str], DeviceClass | None]


def allocate(
    claims: Sequence[ClaimRequests],
    pools: Sequence[Pool],
    *,
    classes: Classes,
    used: UsedDevices,
    timeout: float = DEFAULT_TIMEOUT,
) -> list[ClaimAllocation] | None:
    """Return what *claims* get of *pools*, which are those of one node; ``None`` if there are too
    few devices.

    Raises:
        AllocationError: something is wrong with a claim, a class or a pool.
    """
    try:
        return _Search(claims, pools, classes, used, timeout).run()
    except RecursionError as error:  # each device that is chosen is one call deeper
        raise AllocationError("the claims of the pod ask for too many devices") from error


@dataclass(slots=True)
class _Result:
    choice: Choice
    device: Device
    capacity: Mapping[str, Quantity]
    """What it consumes of a device that is shared."""


class _Search:
    """One allocation: what is chosen so far, and what that uses."""

    def __init__(
        self,
        claims: Sequence[ClaimRequests],
        pools: Sequence[Pool],
        classes: Classes,
        used: UsedDevices,
        timeout: float,
    ) -> None:
        self._claims = claims
        self._pools = pools
        self._classes = classes
        self._used = used
        self._results: list[list[_Result]] = [[] for _ in claims]
        self._taken: dict[DeviceRef, set[int]] = {}
        """Claims that have got a device, by the device."""
        self._shares: Counter[DeviceRef] = Counter()
        self._consumed: dict[DeviceRef, Counter[str]] = {}
        """What is chosen of devices that are shared, in billionths."""
        self._matching: dict[Choice, list[Device]] = {}
        self._pools_by_ref = {(each.driver, each.name): each for each in pools}
        self._steps = 0
        self._deadline = time.monotonic() + timeout if timeout else math.inf

    def run(self) -> list[ClaimAllocation] | None:
        for claim in self._claims:
            for choice in claim.choices():
                self._devices_for(choice)
        if not self._next_request(0, 0):
            return None
        return [
            self._allocation(claim, results)
            for claim, results in zip(self._claims, self._results, strict=True)
        ]

    # -- search --------------------------------------------------------------------------------

    def _next_request(self, claim: int, request: int) -> bool:
        if claim == len(self._claims):
            return True
        requests = self._claims[claim].requests
        if request == len(requests):
            return self._next_request(claim + 1, 0)
        return any(
            self._next_device(claim, request, choice, 0, 0) for choice in requests[request].choices
        )

    def _next_device(self, claim: int, request: int, choice: Choice, done: int, start: int) -> bool:
        """Choose devices for *choice* from *start* on, of which *done* are chosen.

        Devices of one choice are interchangeable, so each set of them is tried once.
        """
        devices = self._devices_for(choice)
        count = choice.count or len(devices)
        if not count:
            return False
        if done == count:
            return self._next_request(claim, request + 1)
        if len(self._results[claim]) + count - done > MAX_RESULTS:
            return False
        last = start + 1 if not choice.count else len(devices) - (count - done) + 1
        for position in range(start, last):
            device = devices[position]
            self._steps += 1
            if self._steps > _MAX_STEPS or time.monotonic() > self._deadline:
                raise AllocationError(TIMED_OUT)
            if not self._fits(claim, choice, device):
                continue
            result = _Result(choice, device, _consumption_of(choice, device) or {})
            self._choose(claim, result, 1)
            if self._next_device(claim, request, choice, done + 1, position + 1):
                return True
            self._choose(claim, result, -1)
        return False

    def _choose(self, claim: int, result: _Result, sign: int) -> None:
        """Add *result* to what the claim has; with *sign* -1, remove it again."""
        results, ref = self._results[claim], result.device.ref
        if sign > 0:
            results.append(result)
        else:
            results.pop()
        if result.device.is_shared:
            self._shares[ref] += sign
            consumed = self._consumed.setdefault(ref, Counter())
            for name, amount in result.capacity.items():
                consumed[name] += sign * amount.nanos
        elif sign > 0:
            self._taken.setdefault(ref, set()).add(claim)
        else:
            self._taken[ref].discard(claim)

    def _fits(self, claim: int, choice: Choice, device: Device) -> bool:
        """Return whether *device* may be added to what the claim has."""
        ref = device.ref
        taken = self._taken.get(ref, set())
        if choice.admin_access:
            if claim in taken:
                return False
        elif (
            taken
            or self._used.is_whole(ref)
            or (not (device.is_shared and self._is_taken(ref)) and not self._has_counters(device))
        ):
            return False
        if _is_tainted(choice, device):
            return False  # if all devices are wanted, it is one of them
        if not self._has_capacity(choice, device):
            return False
        satisfied = all(
            self._satisfies(constraint, claim, choice, device)
            for constraint in self._claims[claim].constraints
        )
        if not satisfied and not choice.count:
            raise AllocationError(
                f"request {choice.name}: cannot add device {'/'.join(device.ref)} because a claim "
                "constraint would not be satisfied"
            )
        return satisfied

    def _satisfies(
        self, constraint: Constraint, claim: int, choice: Choice, device: Device
    ) -> bool:
        if not constraint.concerns(choice):
            return True
        value = _attribute(device, constraint.attribute)
        if value is None:
            return False
        others = (
            _attribute(each.device, constraint.attribute)
            for each in self._results[claim]
            if constraint.concerns(each.choice)
        )
        if constraint.is_distinct:
            return all(each != value for each in others)
        return all(each == value for each in others)

    def _has_counters(self, device: Device) -> bool:
        """Return whether the shared counters of the pool suffice for *device*."""
        wanted = _consumption(device.content)
        if not wanted or (device.is_shared and self._is_taken(device.ref)):
            return True
        pool = self._pools_by_ref[device.ref.driver, device.ref.pool]
        used: dict[tuple[str, str], int] = {}
        for name, content in pool.consumers.items():
            ref = device.ref._replace(device=name)
            if self._is_taken(ref):
                for key, amount in _consumption(content).items():
                    used[key] = used.get(key, 0) + amount
        return all(
            used.get((of, name), 0) + amount <= pool.counters.get(of, {}).get(name, 0)
            for (of, name), amount in wanted.items()
        )

    def _is_taken(self, ref: DeviceRef) -> bool:
        """Return whether a claim has a device, or a share of it."""
        return bool(self._taken.get(ref) or self._shares[ref] or self._used.is_used(ref))

    def _has_capacity(self, choice: Choice, device: Device) -> bool:
        """Return whether a device has the capacity that *choice* requests."""
        wanted = _consumption_of(choice, device)
        if wanted is None:
            return False
        chosen: Mapping[str, int] = self._consumed.get(device.ref) or {}
        return fits(device.content, wanted, chosen, self._used.consumed(device.ref))

    # -- candidates ----------------------------------------------------------------------------

    def _devices_for(self, choice: Choice) -> list[Device]:
        """Return the devices that match *choice*, apart from what is in use."""
        known = self._matching.get(choice)
        if known is None:
            known = self._matching[choice] = [*self._candidates(choice)]
        return known

    def _candidates(self, choice: Choice) -> Iterator[Device]:
        found = self._classes(choice.device_class)
        if found is None:
            raise AllocationError(
                f"request {choice.name}: device class {choice.device_class} does not exist"
            )
        selectors = _expressions(found)
        for pool in self._pools:
            if pool.problem and not choice.count:
                raise AllocationError(
                    f"request {choice.name}: asks for all devices, but resource pool "
                    f"{pool.driver}/{pool.name} is currently {pool.problem}"
                )
            for device in () if pool.problem else pool.devices:
                if (
                    _matches(selectors, device, f"class {choice.device_class}")
                    and _matches(choice.selectors, device, f"request {choice.name}")
                    and self._has_capacity(choice, device)
                ):
                    yield device

    # -- result --------------------------------------------------------------------------------

    def _allocation(self, claim: ClaimRequests, results: Sequence[_Result]) -> ClaimAllocation:
        found: list[Json] = []
        for each in results:
            ref = each.device.ref
            result: Json = {
                "request": each.choice.name,
                "driver": ref.driver,
                "pool": ref.pool,
                "device": ref.device,
            }
            if each.choice.admin_access:
                result["adminAccess"] = True
            if each.choice.tolerations:
                result["tolerations"] = [dict(toleration) for toleration in each.choice.tolerations]
            if each.device.is_shared:
                result["shareID"] = ""
                if each.capacity:
                    result["consumedCapacity"] = {
                        name: str(amount) for name, amount in each.capacity.items()
                    }
            for conditions in ("bindingConditions", "bindingFailureConditions"):
                if names := each.device.content.get(conditions):
                    result[conditions] = names
            found.append(result)
        devices: Json = {"results": found}
        chosen = dict.fromkeys(each.choice for each in results)
        if config := [*self._config(claim, list(chosen))]:
            devices["config"] = config
        content: Json = {"devices": devices}
        selector = _node_selector([each.device for each in results])
        if selector is not None:
            content["nodeSelector"] = msgspec.to_builtins(selector)
        used = (_use(each) for each in results if not each.choice.admin_access)
        preference = sum(each.preference(chosen) for each in claim.requests)
        return ClaimAllocation(tuple(used), content, selector, preference)

    def _config(self, claim: ClaimRequests, choices: Sequence[Choice]) -> Iterator[Json]:
        """Yield the parameters of drivers: those of the classes, then those of the claim."""
        by_class: dict[str, list[str]] = {}
        for choice in choices:
            by_class.setdefault(choice.device_class, []).append(choice.name)
        for name, requests in by_class.items():
            found = self._classes(name)
            for config in found.spec.config if found is not None else ():
                yield {**config, "source": "FromClass", "requests": requests}
        names = {choice.name for choice in choices}
        names |= {name.partition("/")[0] for name in names}
        for config in claim.config:
            if not config.get("requests") or not names.isdisjoint(config["requests"]):
                yield {**config, "source": "FromClaim"}


def _expressions(device_class: DeviceClass) -> list[str]:
    return [(each.get("cel") or {}).get("expression", "") for each in device_class.spec.selectors]


def is_of_class(device_class: DeviceClass, device: Device) -> bool:
    """Return whether a device matches the selectors of a class."""
    try:
        return _matches(_expressions(device_class), device, "class")
    except AllocationError:
        return False


def _matches(selectors: Sequence[str], device: Device, owner: str) -> bool:
    for index, expression in enumerate(selectors):
        try:
            if not device_selectors.compiled(expression).matches(device.value):
                return False
        except CompileError as error:
            text = f"{owner}: selector #{index}: CEL compile error: {error}"
            raise AllocationError(text) from error
        except EvaluationError as error:
            text = f"{owner}: selector #{index}: CEL runtime error: {error}"
            raise AllocationError(text) from error
    return True


def _consumption_of(choice: Choice, device: Device) -> Mapping[str, Quantity] | None:
    return consumption(device.content, dict(choice.capacity))


def _use(result: _Result) -> DeviceUse:
    if not result.device.is_shared:
        return DeviceUse(result.device.ref)
    capacity = ((name, amount.nanos) for name, amount in result.capacity.items())
    return DeviceUse(result.device.ref, tuple(capacity))


def _is_tainted(choice: Choice, device: Device) -> bool:
    """Return whether the device has a taint that *choice* does not tolerate."""
    return any(
        taint.get("effect") in (NO_SCHEDULE, NO_EXECUTE)
        and not any(tolerates(dict(each), taint) for each in choice.tolerations)
        for taint in device.content.get("taints") or ()
    )


def _attribute(device: Device, name: str) -> tuple[str, Any] | None:
    """Return type and value of an attribute; a name without domain is of the driver."""
    attributes = device.content.get("attributes") or {}
    found = attributes.get(name)
    if found is None and name.startswith(f"{device.ref.driver}/"):
        found = attributes.get(name.partition("/")[2])
    return next(iter(found.items()), None) if found else None


def _consumption(content: Json) -> dict[tuple[str, str], int]:
    """Return what a device uses of shared counters, by set and name."""
    return {
        (each.get("counterSet", ""), name): quantity.parse(counter.get("value", "0")).nanos
        for each in content.get("consumesCounters") or ()
        for name, counter in (each.get("counters") or {}).items()
    }


def _node_selector(devices: Sequence[Device]) -> NodeSelector | None:
    """Return where all *devices* can be used: on one node, or where all their selectors match."""
    fields: dict[Any, None] = {}
    expressions: dict[Any, None] = {}
    for device in devices:
        if device.node_name:
            field_ = {"key": "metadata.name", "operator": "In", "values": [device.node_name]}
            return msgspec.convert({"nodeSelectorTerms": [{"matchFields": [field_]}]}, NodeSelector)
        if device.node_selector is not None:
            for term in device.node_selector.node_selector_terms:
                fields |= dict.fromkeys(term.match_fields)
                expressions |= dict.fromkeys(term.match_expressions)
    if not fields and not expressions:
        return None
    built = msgspec.to_builtins({"matchFields": [*fields], "matchExpressions": [*expressions]})
    terms = [{key: value for key, value in built.items() if value}]
    return msgspec.convert({"nodeSelectorTerms": terms}, NodeSelector)
