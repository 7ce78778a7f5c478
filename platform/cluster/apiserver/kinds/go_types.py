"""The fields of the built-in types: their JSON names, their types and their protobuf numbers.

One table serves the protobuf decoder, the typed reading of JSON, strategic merges and OpenAPI.
It is package data, made by machine from the public API.
"""

import functools
import importlib.resources
from collections.abc import Mapping
from typing import NamedTuple

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


class WireField(NamedTuple):
    """One field of a message."""

    number: int
    name: str
    """JSON name; empty if the fields of the message in it stand in the message around it."""

    shape: str
    """``opt``, ``rep`` (a list) or ``map`` (by text; *type* is that of the values)."""

    type: str
    keep_zero: bool
    """Whether a zero value means something: the field is a pointer in Go."""


class _Table(msgspec.Struct, frozen=True):
    messages: dict[str, tuple[WireField, ...]]


@functools.cache
def messages() -> Mapping[str, tuple[WireField, ...]]:
    """Return all messages by name, e.g. ``core.v1.Pod``."""
    data = importlib.resources.files(__package__).joinpath("data/protobuf-fields.json")
    return msgspec.json.decode(data.read_bytes(), type=_Table, strict=False).messages


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


def message_name(api_version: str, kind: str) -> str:
    """Name the message of a kind: ``core.v1.Pod`` for ``v1`` and ``Pod``; ``""`` if unknown.

    Options such as DeleteOptions come under the version of whatever they are sent to.
    """
    group, _, version = api_version.rpartition("/")
    package = group.partition(".")[0] or "core"
    for name in (f"{package}.{version}.{kind}", f"meta.{kind}"):
        if name in messages():
            return name
    return ""
