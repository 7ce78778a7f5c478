"""Selectors of devices (``resource.k8s.io``): expressions over the one variable ``device``.

Its fields are ``driver``, ``attributes`` and ``capacity``, both by domain and name, and
``allowMultipleAllocations``. A domain that a device does not have is an empty map, so that
``has(device.attributes["example.com"].model)`` is false for it.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from ...model import quantity
from .checked import Expression
from .cost import Path, Size
from .environment import CompileError, Environment, EvaluationError, Program
from .signatures import QUANTITY, SEMVER, value_of

MAX_COST = 1_000_000
"""The most that an expression may cost; more is rejected."""

MAX_LENGTH = 10 * 1024
"""Bytes of an expression."""

_FIELDS = ("driver", "attributes", "capacity", "allowMultipleAllocations")
_BY_DOMAIN = ("attributes", "capacity")
_NOT_BOOLEAN = {"driver": "string", "attributes": "map", "capacity": "map"}
_RESULTS = ("bool", "dyn")
_MAX_ENTRIES, _MAX_DOMAIN, _MAX_NAME, _MAX_VALUE = 32, 63, 32, 64
_CACHED = 1_000
_VALUES = ("bool", "int", "string")

Json = Mapping[str, Any]


class DeviceValue(NamedTuple):
    """A device as selectors see it: plain values of CEL."""

    driver: str
    attributes: Mapping[str, Mapping[str, Any]]
    """By domain and name."""
    capacity: Mapping[str, Mapping[str, Any]]
    allow_multiple_allocations: bool


def device_value(driver: str, device: Json) -> DeviceValue:
    """Return what selectors see of *device* of a ResourceSlice.

    Raises:
        ValueError: an attribute has a value of no supported type, or a capacity is no quantity.
    """
    attributes: dict[str, dict[str, Any]] = {}
    for name, attribute in (device.get("attributes") or {}).items():
        domain, identifier = qualified_name(name, driver)
        attributes.setdefault(domain, {})[identifier] = _attribute_value(name, attribute)
    capacity: dict[str, dict[str, Any]] = {}
    for name, amount in (device.get("capacity") or {}).items():
        domain, identifier = qualified_name(name, driver)
        nanos = quantity.parse(amount.get("value", "0")).nanos
        capacity.setdefault(domain, {})[identifier] = value_of(QUANTITY, str(nanos))
    shared = bool(device.get("allowMultipleAllocations"))
    return DeviceValue(driver, attributes, capacity, shared)


def qualified_name(name: str, driver: str) -> tuple[str, str]:
    """Return domain and identifier of *name*; the default domain is the driver."""
    domain, slash, identifier = name.partition("/")
    return (domain, identifier) if slash else (driver, name)


def _attribute_value(name: str, attribute: Json) -> Any:
    for key in _VALUES:
        if attribute.get(key) is not None:
            return attribute[key]
    if attribute.get("version") is not None:
        return value_of(SEMVER, attribute["version"])
    raise ValueError(f"attribute {name}: unsupported attribute value")


class DeviceSelector:
    """A compiled selector."""

    def __init__(self, expression: str) -> None:
        """Compile *expression*.

        Raises:
            CompileError: it has an error, or no boolean result.
        """
        environment = _environment()
        self._program: Program = environment.compile(expression)
        result = self._program.result
        if result not in _RESULTS:
            raise CompileError(f"must evaluate to bool or the unknown type, not {result}")
        root = environment.checked(expression).root
        if root.kind == "select" and _is_device(root.operands[0]) and root.name in _NOT_BOOLEAN:
            raise CompileError(
                f"must evaluate to bool or the unknown type, not {_NOT_BOOLEAN[root.name]}"
            )
        self._domains: dict[str, set[str]] = {each: set() for each in _BY_DOMAIN}
        for node in _nodes(root):
            self._check(node)
        self.cost = environment.estimate(expression, _size_of)

    def matches(self, device: DeviceValue) -> bool:
        """Return whether *device* is selected.

        Raises:
            EvaluationError: the expression has no value for it, or none that is boolean.
        """
        fields = {
            "driver": device.driver,
            "attributes": self._with_domains("attributes", device.attributes),
            "capacity": self._with_domains("capacity", device.capacity),
            "allowMultipleAllocations": device.allow_multiple_allocations,
        }
        found = self._program.evaluate(_environment().activation({"device": fields}))
        if not isinstance(found, bool):
            raise EvaluationError("the result is not a bool")
        return found

    def _with_domains(
        self, field: str, values: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, Mapping[str, Any]]:
        """Return *values* with an empty map for each domain that is looked up and missing."""
        return {**{domain: {} for domain in self._domains[field]}, **values}

    def _check(self, node: Expression) -> None:
        """Reject unknown fields of the device, and note the domains that are looked up."""
        if node.kind == "select" and _is_device(node.operands[0]) and node.name not in _FIELDS:
            raise CompileError(f"undefined field '{node.name}'")
        if node.kind == "call" and node.name == "_[_]":
            container, key = node.operands
            is_field = container.kind == "select" and _is_device(container.operands[0])
            if is_field and container.name in _BY_DOMAIN and isinstance(key.value, str):
                self._domains[container.name].add(key.value)


@lru_cache(maxsize=_CACHED)
def compiled(expression: str) -> DeviceSelector:
    """Return the selector of *expression*, compiled once.

    Raises:
        CompileError: it has an error.
    """
    return DeviceSelector(expression)


@lru_cache(maxsize=1)
def _environment() -> Environment:
    return Environment({"device": "dyn"})


def _is_device(node: Expression) -> bool:
    return node.kind == "ident" and node.name == "device"


def _nodes(node: Expression) -> Iterator[Expression]:
    yield node
    if node.target is not None:
        yield from _nodes(node.target)
    for each in node.operands:
        yield from _nodes(each)


def _size_of(path: Path) -> Size | None:
    """Return the size of a part of the device, by the limits of ResourceSlices."""
    if not path or path[0] != "device":
        return None
    if path[1:2] == ("driver",):
        return Size(0, _MAX_DOMAIN)
    if path[1:2] not in (("attributes",), ("capacity",)):
        return Size(0, 1)
    if path[-1] == "@keys":
        return Size(0, _MAX_DOMAIN if len(path) == 3 else _MAX_NAME)
    return Size(0, _MAX_ENTRIES if len(path) <= 3 else _MAX_VALUE)
