"""Types and values of structural schemas in CEL.

Each object of a schema becomes a message type, so that the checker knows its fields. A value is the
object itself, with times and durations as messages, the only form that the library takes inside of
objects, and with fields renamed whose names are no identifiers.
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any, NamedTuple

from ....model import durations, times

Schema = Mapping[str, Any]
Convert = Callable[[Any], Any]

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ESCAPED = re.compile(r"__|[.\-/]")
_ESCAPES = {"__": "__underscores__", ".": "__dot__", "-": "__dash__", "/": "__slash__"}
_RESERVED = frozenset(
    (
        "true", "false", "null", "in", "as", "break", "const", "continue", "else", "for",
        "function", "if", "import", "let", "loop", "package", "namespace", "return", "var", "void",
        "while",
    )
)  # fmt: skip
_EMBEDDED: Schema = {
    "apiVersion": {"type": "string"},
    "kind": {"type": "string"},
    "metadata": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "generateName": {"type": "string"}},
    },
}
"""Fields that each resource has in CEL."""

_DYNAMIC = ".google.protobuf.Value"
_SCALARS = {"integer": "int", "number": "double", "boolean": "bool", "string": "string"}
_FORMATS = {
    "date-time": "timestamp",
    "date": "timestamp",
    "duration": "duration",
    "byte": "bytes",
}


class SchemaType(NamedTuple):
    """Type of the values of a schema."""

    name: str
    """As in CEL: ``int``, ``list(string)``, or the name of a message."""

    descriptors: Any
    """Pool of the messages."""


def escape(name: str) -> str | None:
    """Return a property's name in CEL; ``None`` if it has none."""
    if name in _RESERVED:
        return f"__{name}__"
    escaped = _ESCAPED.sub(lambda match: _ESCAPES[match[0]], name)
    return escaped if _IDENTIFIER.fullmatch(escaped) else None


def schema_type(schema: Schema, *, is_resource: bool) -> SchemaType:
    """Return the type of *schema*; *is_resource*: its values have a kind and metadata."""
    from google.protobuf import (
        descriptor_pb2,
        descriptor_pool,
        duration_pb2,
        struct_pb2,
        timestamp_pb2,
    )

    pool = descriptor_pool.DescriptorPool()
    names = []
    for module in (struct_pb2, timestamp_pb2, duration_pb2):
        known = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(known)
        pool.Add(known)
        names.append(known.name)
    file = descriptor_pb2.FileDescriptorProto(
        name="schema.proto", package="schema", syntax="proto2", dependency=names
    )
    name = _Messages(file, descriptor_pb2.FieldDescriptorProto).type_of(
        schema, is_resource=is_resource
    )
    pool.Add(file)
    return SchemaType(name, pool)


class _Messages:
    """The messages of one schema."""

    def __init__(self, file: Any, field: Any) -> None:
        self._file = file
        self._field = field
        self._numbers = count()

    def type_of(self, schema: Schema, *, is_resource: bool = False) -> str:
        """Return the type of a value, as in CEL."""
        is_resource = is_resource or bool(schema.get("x-kubernetes-embedded-resource"))
        if schema.get("x-kubernetes-int-or-string"):
            return "dyn"
        kind = schema.get("type", "")
        if kind == "array":
            return f"list({self.type_of(schema.get('items') or {})})"
        if kind == "object":
            additional = schema.get("additionalProperties")
            if isinstance(additional, dict):
                return f"map(string, {self.type_of(additional)})"
            return f"schema.{self._message(_properties(schema, is_resource=is_resource))}"
        if kind == "string" and schema.get("format") in _FORMATS:
            return _FORMATS[schema["format"]]
        return _SCALARS.get(kind, "dyn")

    def _message(self, properties: Schema) -> str:
        name = f"M{next(self._numbers)}"
        message = self._file.message_type.add(name=name)
        for number, (key, node) in enumerate(properties.items(), 1):
            if (field := escape(key)) is not None:
                # Numbers 19000 to 19999 are reserved.
                self._add(message, field, self.type_of(node), number + 1000 * (number >= 19000))
        return name

    def _add(self, message: Any, name: str, text: str, number: int) -> None:
        field = self._field
        label = field.LABEL_OPTIONAL
        if text.startswith("list("):
            label, text = field.LABEL_REPEATED, _nested(text[5:-1])
        elif text.startswith("map("):
            self._add_map(message, name, _nested(text.partition(", ")[2][:-1]), number)
            return
        kind, type_name = self._kind(text)
        message.field.add(
            name=name, number=number, label=label, type=kind, type_name=type_name, json_name=name
        )

    def _add_map(self, message: Any, name: str, value: str, number: int) -> None:
        field = self._field
        entry_name = "".join(each[:1].upper() + each[1:] for each in name.split("_")) + "Entry"
        if any(each.name == entry_name for each in message.nested_type):
            self._add(message, name, ".google.protobuf.Struct", number)
            return
        entry = message.nested_type.add(name=entry_name)
        entry.options.map_entry = True
        for key, index, text in (("key", 1, "string"), ("value", 2, value)):
            kind, type_name = self._kind(text)
            entry.field.add(
                name=key, number=index, label=field.LABEL_OPTIONAL, type=kind, type_name=type_name
            )
        message.field.add(
            name=name,
            number=number,
            label=field.LABEL_REPEATED,
            type=field.TYPE_MESSAGE,
            type_name=f".schema.{message.name}.{entry_name}",
            json_name=name,
        )

    def _kind(self, text: str) -> tuple[int, str | None]:
        """Return the kind of a field, and of a message its name."""
        field = self._field
        scalars: dict[str, int] = {
            "int": field.TYPE_INT64, "double": field.TYPE_DOUBLE, "bool": field.TYPE_BOOL,
            "string": field.TYPE_STRING, "bytes": field.TYPE_BYTES,
        }  # fmt: skip
        if text in scalars:
            return scalars[text], None
        known = {
            "dyn": _DYNAMIC,
            "timestamp": ".google.protobuf.Timestamp",
            "duration": ".google.protobuf.Duration",
        }
        return field.TYPE_MESSAGE, known.get(text, text if text.startswith(".") else f".{text}")


def _nested(text: str) -> str:
    """Return the type inside a list or map: there, those of lists and maps are not kept."""
    if text.startswith("list("):
        return ".google.protobuf.ListValue"
    return ".google.protobuf.Struct" if text.startswith("map(") else text


def _properties(schema: Schema, *, is_resource: bool) -> Schema:
    properties = dict(schema.get("properties") or {})
    if is_resource:
        metadata = dict(_EMBEDDED["metadata"])
        declared = (properties.get("metadata") or {}).get("properties") or {}
        metadata["properties"] = {**declared, **metadata["properties"]}
        properties = {**properties, **_EMBEDDED, "metadata": metadata}
    return properties


def converter(schema: Schema) -> Convert | None:
    """Return the conversion of a JSON value to one of CEL; ``None`` if they are the same."""
    kind = schema.get("type", "")
    if schema.get("x-kubernetes-int-or-string"):
        return None
    if kind == "array":
        below = converter(schema.get("items") or {})
        return below and _each(below)
    if kind == "object":
        additional = schema.get("additionalProperties")
        if isinstance(additional, dict):
            below = converter(additional)
            return below and _each_value(below)
        return _object(schema.get("properties") or {})
    if kind == "string":
        return _TEXTS.get(_FORMATS.get(schema.get("format", ""), ""))
    return _to_double if kind == "number" else None


def _to_double(value: Any) -> Any:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _to_time(text: Any) -> Any:
    from google.protobuf import timestamp_pb2

    try:
        moment = times.parse(text if "T" in text else f"{text}T00:00:00Z")
    except (TypeError, ValueError):
        return text
    found = timestamp_pb2.Timestamp()
    found.FromDatetime(moment)
    return found


def _to_duration(text: Any) -> Any:
    from google.protobuf import duration_pb2

    try:
        length = durations.parse(text)
    except (TypeError, ValueError):
        return text
    found = duration_pb2.Duration()
    found.FromTimedelta(length)
    return found


def _to_bytes(text: Any) -> Any:
    try:
        return base64.b64decode(text)
    except (TypeError, binascii.Error):
        return text


_TEXTS: dict[str, Convert] = {
    "timestamp": _to_time,
    "duration": _to_duration,
    "bytes": _to_bytes,
}


def _each(below: Convert) -> Convert:
    return lambda value: [below(item) for item in value] if isinstance(value, list) else value


def _each_value(below: Convert) -> Convert:
    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: below(item) for key, item in value.items()}

    return convert


def _object(properties: Schema) -> Convert | None:
    changes = dict(_changes(properties))
    if not changes:
        return None

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        found = {}
        for key, item in value.items():
            name, below = changes.get(key, (key, None))
            if name is not None:
                found[name] = below(item) if below else item
        return found

    return convert


def _changes(properties: Schema) -> Iterator[tuple[str, tuple[str | None, Convert | None]]]:
    for key, node in properties.items():
        name, below = escape(key), converter(node)
        if name != key or below:
            yield key, (name, below)
