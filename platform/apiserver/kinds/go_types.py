"""The built-in types: how Go reads and writes their fields, and the schemas that are published.

Both are package data, which ``make api-types`` makes from the public API: the table of fields
serves the protobuf decoder and the typed reading of JSON, the schemas strategic merges and OpenAPI.
"""

import functools
import importlib.resources
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

SCALARS = frozenset({"string", "bool", "int32", "int64", "double", "bytes"})

ANY_JSON = frozenset({"meta.FieldsV1", "runtime.RawExtension", "apiextensions.v1.JSON"})
"""Types that hold a JSON value of any shape."""

SPECIAL = ANY_JSON | {
    "meta.Time",
    "meta.MicroTime",
    "meta.Duration",
    "Quantity",
    "QuantityValue",
    "IntOrString",
    "apiextensions.v1.JSONSchemaPropsOrBool",
    "apiextensions.v1.JSONSchemaPropsOrArray",
    "apiextensions.v1.JSONSchemaPropsOrStringArray",
}
"""Messages whose JSON form is not an object of their fields."""

OBJECT_META = "meta.ObjectMeta"

_PACKAGES = {
    "meta": "io.k8s.apimachinery.pkg.apis.meta.v1",
    "runtime": "io.k8s.apimachinery.pkg.runtime",
    "apiextensions.v1": "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1",
}
_COMPONENTS = {
    "Quantity": "io.k8s.apimachinery.pkg.api.resource.Quantity",
    "IntOrString": "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
}


class WireField(NamedTuple):
    """One field of a message."""

    number: int
    """Protobuf number; 0 for a field that only JSON has."""

    name: str
    """JSON name; empty if the fields of the message in it stand in the message around it."""

    shape: str
    """``opt``, ``rep`` (a list) or ``map`` (by text; *type* is that of the values)."""

    type: str
    pointer: bool
    """Whether a zero value means something: the field is a pointer in Go."""

    shown: bool
    """Whether the field is written out even if nobody set it."""

    @property
    def keep_zero(self) -> bool:
        """Whether an empty value that was sent is written out."""
        return self.pointer or self.shown


def _data(name: str) -> bytes:
    return importlib.resources.files(__package__).joinpath("data", name).read_bytes()


@functools.cache
def messages() -> Mapping[str, tuple[WireField, ...]]:
    """Return all messages by name, e.g. ``core.v1.Pod``."""
    table = dict[str, tuple[WireField, ...]]
    return msgspec.json.decode(_data("go-types.json"), type=table, strict=False)


@functools.cache
def schemas() -> Mapping[str, Mapping[str, Any]]:
    """Return the published schemas by the names of their components, without prose."""
    table = dict[str, dict[str, Any]]
    return msgspec.json.decode(_data("openapi-schemas.json"), type=table)


def component(message: str) -> str:
    """Return the name under which *message* is published."""
    if message in _COMPONENTS:
        return _COMPONENTS[message]
    package, _, name = message.rpartition(".")
    return f"{_PACKAGES.get(package, f'io.k8s.api.{package}')}.{name}"


@functools.cache
def properties(message: str) -> Mapping[str, Mapping[str, Any]]:
    """Return the published properties of *message*; none if it is not published."""
    found: Mapping[str, Any] = schemas().get(component(message), {})
    return found.get("properties", {})  # type: ignore[no-any-return]


@functools.cache
def json_fields(message: str) -> Mapping[str, WireField]:
    """Return the fields of *message* by JSON name, those of inlined messages among them."""
    fields: dict[str, WireField] = {}
    for field in messages()[message]:
        if field.name:
            fields[field.name] = field
        else:
            fields |= json_fields(field.type)
    return fields


def name_of(api_version: str, kind: str) -> str:
    """Name the message of a kind: ``core.v1.Pod`` for ``v1`` and ``Pod``."""
    group, _, version = api_version.rpartition("/")
    return f"{group.partition('.')[0] or 'core'}.{version}.{kind}"


def message_name(api_version: str, kind: str) -> str:
    """Name the message of a kind as it is in the table; ``""`` if unknown.

    Options such as DeleteOptions come under the version of whatever they are sent to.
    """
    for name in (name_of(api_version, kind), f"meta.{kind}"):
        if name in messages():
            return name
    return ""
