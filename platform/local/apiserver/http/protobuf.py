"""Decode request bodies in protobuf, which client-go sends for built-in kinds.

Responses are always JSON, which such clients accept. The decoder is driven by the table in
:mod:`..kinds.go_types`; a message becomes the object that its JSON form would decode to.
"""

import base64
import functools
import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from ....model import times
from ..kinds import go_types

MAGIC = b"k8s\x00"

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Reader = Callable[[Any], Any]
"""Converts the raw value of a field (an int or a slice of bytes) to its JSON form."""


class ProtobufError(Exception):
    """The body is not protobuf of a known kind."""


def decode(body: bytes) -> dict[str, Any]:
    """Decode a request body into an object with apiVersion and kind.

    Raises:
        ProtobufError: the bytes are malformed, or of an unknown kind.
    """
    if not body.startswith(MAGIC):
        raise ProtobufError("provided data does not appear to be a protobuf message")
    try:
        return _decode(memoryview(body)[len(MAGIC) :])
    except RecursionError as error:
        raise ProtobufError("cannot decode protobuf: nested too deep") from error
    except (LookupError, ValueError, TypeError, OverflowError, struct.error) as error:
        raise ProtobufError(f"cannot decode protobuf: {error}") from error


def _decode(data: memoryview) -> dict[str, Any]:
    api_version = kind = ""
    raw = memoryview(b"")
    for number, value in _fields(data):
        if number == 1:
            types = {field: _text(text) for field, text in _fields(value)}
            api_version, kind = types.get(1, ""), types.get(2, "")
        elif number == 2:
            raw = value
    message = go_types.message_name(api_version, kind)
    if not message:
        raise ProtobufError(f'no kind "{kind}" is registered for version "{api_version}"')
    return {"kind": kind, "apiVersion": api_version, **_read_message(message, raw)}


def _fields(data: memoryview) -> list[tuple[int, Any]]:
    """Split a message into (field number, raw value)."""
    found: list[tuple[int, Any]] = []
    position, end = 0, len(data)
    while position < end:
        key, position = _varint(data, position)
        kind = key & 7
        value: Any
        if kind == _BYTES:
            length, position = _varint(data, position)
            value = data[position : position + length]
            position += length
        elif kind == _VARINT:
            value, position = _varint(data, position)
        elif kind == _FIXED64:
            value = data[position : position + 8]
            position += 8
        elif kind == _FIXED32:
            value = data[position : position + 4]
            position += 4
        else:
            raise ValueError(f"wire type {kind}")
        if position > end:
            raise ValueError("unexpected end of data")
        found.append((key >> 3, value))
    return found


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    byte = data[position]
    if byte < 0x80:
        return byte, position + 1
    value, shift = byte & 0x7F, 7
    while byte >= 0x80:
        position += 1
        byte = data[position]
        value |= (byte & 0x7F) << shift
        shift += 7
        if shift > 70:
            raise ValueError("number too long")
    return value, position + 1


class _MessagePlan:
    """Decoders of the fields of one message, created once, on first use."""

    def __init__(self, message: str) -> None:
        self.inlined: dict[int, str] = {}
        self.fields: dict[int, tuple[str, str, Reader, bool]] = {}
        for field in go_types.messages()[message]:
            if field.name:
                reader = _map_entry(field.type) if field.shape == "map" else _reader(field.type)
                self.fields[field.number] = (field.name, field.shape, reader, field.pointer)
            else:
                self.inlined[field.number] = field.type


_plan = functools.cache(_MessagePlan)


def _read_message(message: str, data: memoryview) -> dict[str, Any]:
    plan = _plan(message)
    out: dict[str, Any] = {}
    for number, raw in _fields(data):
        field = plan.fields.get(number)
        if field is None:
            if inner := plan.inlined.get(number):
                out |= _read_message(inner, raw)
            continue
        name, shape, read, pointer = field
        value = read(raw)
        if shape == "opt":
            # Go writes fields that were never set, too; a struct is kept even when empty.
            if value is not None and (pointer or value or type(value) is dict):
                out[name] = value
        elif shape == "rep":
            out.setdefault(name, []).append(value)
        else:
            out.setdefault(name, {})[value[0]] = value[1]
    return out


def _map_entry(value_type: str) -> Reader:
    read = _reader(value_type)

    def entry(raw: memoryview) -> tuple[str, Any]:
        fields = dict(_fields(raw))
        missing: Any = 0 if value_type in ("bool", "int32", "int64") else memoryview(b"")
        return _text(fields.get(1, b"")), read(fields.get(2, missing))

    return entry


def _text(raw: Any) -> str:
    return str(raw, "utf-8")


def _int64(raw: int) -> int:
    return raw - (1 << 64) if raw >> 63 else raw


def _double(raw: memoryview) -> float:
    (number,) = struct.unpack("<d", raw)
    return float(number)


def _base64(raw: memoryview) -> str:
    return base64.b64encode(raw).decode()


def _timestamp(raw: memoryview) -> datetime | None:
    fields = dict(_fields(raw))
    if not fields:
        return None
    return _EPOCH + timedelta(
        seconds=_int64(fields.get(1, 0)), microseconds=fields.get(2, 0) // 1000
    )


def _time(raw: memoryview) -> str | None:
    moment = _timestamp(raw)
    return times.format(moment) if moment else None


def _micro_time(raw: memoryview) -> str | None:
    moment = _timestamp(raw)
    return times.format_micros(moment) if moment else None


def _duration(raw: memoryview) -> str:
    return f"{_int64(dict(_fields(raw)).get(1, 0)) / 1e9:g}s"


def _first_text(raw: memoryview) -> str:
    return _text(dict(_fields(raw)).get(1, b""))


def _int_or_string(raw: memoryview) -> int | str:
    fields = dict(_fields(raw))
    return _text(fields.get(3, b"")) if fields.get(1) else _int64(fields.get(2, 0))


def _json(raw: memoryview) -> Any:
    data = dict(_fields(raw)).get(1, b"")
    return msgspec.json.decode(data) if len(data) else None


def _schema(raw: memoryview) -> dict[str, Any]:
    return _read_message("apiextensions.v1.JSONSchemaProps", raw)


def _schema_or_bool(raw: memoryview) -> Any:
    fields = dict(_fields(raw))
    return _schema(fields[2]) if 2 in fields else bool(fields.get(1))


def _schema_or_array(raw: memoryview) -> Any:
    found = _fields(raw)
    if several := [_schema(value) for number, value in found if number == 2]:
        return several
    return _schema(dict(found)[1])


def _schema_or_texts(raw: memoryview) -> Any:
    found = _fields(raw)
    schema = next((_schema(value) for number, value in found if number == 1), None)
    return schema or [_text(value) for number, value in found if number == 2]


_READERS: dict[str, Reader] = {
    "string": _text,
    "bool": bool,
    "int32": _int64,
    "int64": _int64,
    "double": _double,
    "bytes": _base64,
    "meta.Time": _time,
    "meta.MicroTime": _micro_time,
    "meta.Duration": _duration,
    "Quantity": _first_text,
    "QuantityValue": _first_text,
    "IntOrString": _int_or_string,
    "meta.FieldsV1": _json,
    "runtime.RawExtension": _json,
    "apiextensions.v1.JSON": _json,
    "apiextensions.v1.JSONSchemaPropsOrBool": _schema_or_bool,
    "apiextensions.v1.JSONSchemaPropsOrArray": _schema_or_array,
    "apiextensions.v1.JSONSchemaPropsOrStringArray": _schema_or_texts,
}


def _reader(type_name: str) -> Reader:
    if reader := _READERS.get(type_name):
        return reader
    if type_name.endswith(".ExtraValue"):
        return lambda raw: [_text(value) for _, value in _fields(raw)]
    return functools.partial(_read_message, type_name)
