"""The requests and constraints of claims, decoded once for all equal claims."""

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from ..resources import Amounts, amount, units_of

Json = dict[str, Any]

DEVICE_CLASS = "deviceclass/"
"""What the names of limits on devices of claims begin with, in the resources of a queue; limits on
a capacity of these have its name and a dot before that."""

MAX_ALTERNATIVES = 8
"""Sub-requests of a request."""

_CACHED = 1_000


@dataclass(frozen=True, slots=True)
class Choice:
    """Devices that satisfy a request: of a request as a whole, or of one of its sub-requests."""

    name: str
    """As in the results of an allocation: ``request`` or ``request/sub-request``."""
    device_class: str
    count: int
    """How many; 0: all that match."""
    selectors: tuple[str, ...] = ()
    tolerations: tuple[tuple[tuple[str, Any], ...], ...] = ()
    """The fields of each."""
    admin_access: bool = False
    capacity: tuple[tuple[str, str], ...] = ()
    """What a device must have at least, by name."""

    @property
    def is_alternative(self) -> bool:
        """Whether it is a sub-request."""
        return "/" in self.name

    def amounts_of_device(self, consumed: Mapping[str, str | int | float] | None = None) -> Amounts:
        """Return what each device counts as in a queue: one, and of its capacities what is
        *consumed* of them, or else requested."""
        name = f"{DEVICE_CLASS}{self.device_class}"
        capacities = {
            f"{key}.{name}": value for key, value in (consumed or dict(self.capacity)).items()
        }
        return {name: units_of(name)} | {
            key: amount(key, value) for key, value in capacities.items()
        }


@dataclass(frozen=True, slots=True)
class Request:
    """A request, of which the first choice that can be satisfied counts."""

    name: str
    choices: tuple[Choice, ...]

    def preference(self, chosen: Container[Choice]) -> int:
        """Return how good the sub-request among *chosen* is: the earlier ones are better."""
        return sum(
            MAX_ALTERNATIVES - position
            for position, each in enumerate(self.choices)
            if each.is_alternative and each in chosen
        )


@dataclass(frozen=True, slots=True)
class Constraint:
    """Devices of several requests have the same value of an attribute, or different ones."""

    attribute: str
    is_distinct: bool
    requests: frozenset[str]
    """Names of requests or sub-requests; all if there are none."""

    def concerns(self, choice: Choice) -> bool:
        """Return whether the devices of *choice* count."""
        request = choice.name.partition("/")[0]
        return not self.requests or request in self.requests or choice.name in self.requests


@dataclass(frozen=True, slots=True)
class ClaimRequests:
    """What a claim asks for."""

    requests: tuple[Request, ...]
    constraints: tuple[Constraint, ...]
    config: tuple[Json, ...]
    unsupported: tuple[str, ...] = ()
    """Fields that the scheduler does not know: those of later versions of Kubernetes."""

    def choices(self) -> Iterable[Choice]:
        """Yield the choices of all requests."""
        for request in self.requests:
            yield from request.choices


encode = msgspec.json.Encoder(order="deterministic").encode
"""Encodes ``spec.devices`` of a claim: equal claims are equal bytes."""


@lru_cache(maxsize=_CACHED)
def decode(devices: bytes) -> ClaimRequests:
    """Return what ``spec.devices`` of a claim asks for."""
    spec: Json = msgspec.json.decode(devices)
    requests = []
    for each in spec.get("requests") or ():
        name = each.get("name", "")
        if "exactly" in each:
            choices: tuple[Choice, ...] = (_choice(name, each["exactly"]),)
        else:
            subs = each.get("firstAvailable") or ()
            choices = tuple(_choice(f"{name}/{sub.get('name', '')}", sub) for sub in subs)
        requests.append(Request(name, choices))
    constraints = tuple(
        Constraint(
            each.get("matchAttribute") or each.get("distinctAttribute") or "",
            is_distinct=not each.get("matchAttribute"),
            requests=frozenset(each.get("requests") or ()),
        )
        for each in spec.get("constraints") or ()
    )
    config, unsupported = tuple(spec.get("config") or ()), tuple(_unsupported(spec))
    return ClaimRequests(tuple(requests), constraints, config, unsupported)


_CHOICE = {
    "deviceClassName": None,
    "selectors": {"cel": {"expression": None}},
    "allocationMode": None,
    "count": None,
    "tolerations": {"key": None, "operator": None, "value": None, "effect": None,
                    "tolerationSeconds": None},
    "capacity": {"requests": None},
}  # fmt: skip
_FIELDS: Json = {
    "requests": {
        "name": None,
        "exactly": {**_CHOICE, "adminAccess": None},
        "firstAvailable": {"name": None, **_CHOICE},
    },
    "constraints": {"requests": None, "matchAttribute": None, "distinctAttribute": None},
    "config": {"requests": None, "opaque": None},
}
"""The fields of ``spec.devices`` that are known, and theirs; ``None`` for those with any value."""

_VALUES = {"allocationMode": ("ExactCount", "All"), "operator": ("Exists", "Equal")}


def _unsupported(given: Json, known: Json = _FIELDS, path: str = "spec.devices") -> Iterator[str]:
    for name, value in given.items():
        where, fields = f"{path}.{name}", known.get(name)
        if name not in known:
            yield where
        elif name in _VALUES and value and value not in _VALUES[name]:
            yield f"{where}: {value}"
        elif isinstance(fields, dict):
            entries = enumerate(value) if isinstance(value, list) else ((None, value),)
            for index, entry in entries:
                at = where if index is None else f"{where}[{index}]"
                yield from _unsupported(entry or {}, fields, at)


def _choice(name: str, spec: Json) -> Choice:
    selectors = (each.get("cel") or {} for each in spec.get("selectors") or ())
    capacity = (spec.get("capacity") or {}).get("requests") or {}
    is_all = spec.get("allocationMode") == "All"
    return Choice(
        name,
        spec.get("deviceClassName", ""),
        0 if is_all else spec.get("count", 1),
        tuple(each.get("expression", "") for each in selectors),
        tuple(tuple(sorted(each.items())) for each in spec.get("tolerations") or ()),
        bool(spec.get("adminAccess")),
        tuple(sorted(capacity.items())),
    )
