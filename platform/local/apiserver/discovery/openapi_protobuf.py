"""OpenAPI v2 in protobuf, as clients in Go request it (``OpenAPISchema`` of client-go).

The messages are those of gnostic's ``openapi.v2``; fields that documents of Kubernetes do not have
are left out, and so are values of a wrong type, as another API server may have written them.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ....machinery.varints import encode_varint

Json = dict[str, Any]
Encode = Callable[[int, Any], bytes]
"""Encodes a value as the field with a number; empty if it has the wrong type."""

Fields = dict[str, tuple[int, Encode]]
"""The fields of a message by their names in JSON."""


def encode(document: Json) -> bytes:
    """Return the message ``Document`` of an OpenAPI v2 document."""
    return _content(_DOCUMENT, document)


def _delimited(number: int, content: bytes) -> bytes:
    return encode_varint(number << 3 | 2) + encode_varint(len(content)) + content


def _text(number: int, value: Any) -> bytes:
    return _delimited(number, value.encode()) if isinstance(value, str) else b""


def _flag(number: int, value: Any) -> bytes:
    return encode_varint(number << 3) + b"\1" if value is True else b""


def _integer(number: int, value: Any) -> bytes:
    return (
        encode_varint(number << 3) + encode_varint(value % 2**64) if isinstance(value, int) else b""
    )


def _double(number: int, value: Any) -> bytes:
    if not isinstance(value, int | float) or abs(value) > 2**1000:
        return b""
    return encode_varint(number << 3 | 1) + struct.pack("<d", value)


def _any(number: int, value: Any) -> bytes:
    """Encode any value as YAML; JSON is YAML, too."""
    return _delimited(number, _delimited(2, msgspec.json.encode(value)))


def _each(encode: Encode) -> Encode:
    def encode_each(number: int, value: Any) -> bytes:
        values = value if isinstance(value, list) else []
        return b"".join(encode(number, each) for each in values)

    return encode_each


def _named(encode: Encode) -> Encode:
    """Return an encoder of the members of an object, each with its name."""

    def encode_named(number: int, value: Any) -> bytes:
        members = value.items() if isinstance(value, dict) else ()
        return b"".join(
            _delimited(number, _text(1, name) + encode(2, each)) for name, each in members
        )

    return encode_named


def _message(fields: Fields) -> Encode:
    def encode_message(number: int, value: Any) -> bytes:
        return _delimited(number, _content(fields, value)) if isinstance(value, dict) else b""

    return encode_message


def _wrapped(encode: Encode, inner: int = 1) -> Encode:
    """Return an encoder of a message whose only field has the number *inner*."""
    return lambda number, value: _delimited(number, encode(inner, value))


def _content(fields: Fields, value: Mapping[str, Any]) -> bytes:
    found = [
        encode(number, value[name]) for name, (number, encode) in fields.items() if name in value
    ]
    if _EXTENSIONS in fields:
        number, encode = fields[_EXTENSIONS]
        found.append(encode(number, {k: v for k, v in value.items() if k.startswith("x-")}))
    return b"".join(found)


def _additional_properties(number: int, value: Any) -> bytes:
    if isinstance(value, bool):
        return _delimited(number, encode_varint(2 << 3) + bytes([value]))
    return _wrapped(_SCHEMA_MESSAGE)(number, value)


def _one_or_more(encode: Encode) -> Encode:
    """Return an encoder of a list, or of what is the only item of one."""
    each = _wrapped(_each(encode))
    return lambda number, value: each(number, value if isinstance(value, list) else [value])


def _parameter(number: int, value: Any) -> bytes:
    if not isinstance(value, dict):
        return b""
    if "$ref" in value:
        return _delimited(number, _delimited(2, _content({"$ref": (1, _text)}, value)))
    match value.get("in"):
        case "body":
            found = _message(_BODY)(1, value)
        case "header":
            found = _delimited(2, _message(_HEADER)(1, value))
        case "query":
            found = _delimited(2, _message(_QUERY)(3, value))
        case "path":
            found = _delimited(2, _message(_HEADER)(4, value))
        case _:
            return b""
    return _delimited(number, _delimited(1, found))


_EXTENSIONS = "x-"
_SCHEMA: Fields = {}
_SCHEMA_MESSAGE = _message(_SCHEMA)
_SCHEMA |= {
    "$ref": (1, _text),
    "format": (2, _text),
    "title": (3, _text),
    "description": (4, _text),
    "default": (5, _any),
    "multipleOf": (6, _double),
    "maximum": (7, _double),
    "exclusiveMaximum": (8, _flag),
    "minimum": (9, _double),
    "exclusiveMinimum": (10, _flag),
    "maxLength": (11, _integer),
    "minLength": (12, _integer),
    "pattern": (13, _text),
    "maxItems": (14, _integer),
    "minItems": (15, _integer),
    "uniqueItems": (16, _flag),
    "maxProperties": (17, _integer),
    "minProperties": (18, _integer),
    "required": (19, _each(_text)),
    "enum": (20, _each(_any)),
    "additionalProperties": (21, _additional_properties),
    "type": (22, _one_or_more(_text)),
    "items": (23, _one_or_more(_SCHEMA_MESSAGE)),
    "allOf": (24, _each(_SCHEMA_MESSAGE)),
    "properties": (25, _wrapped(_named(_SCHEMA_MESSAGE))),
    "discriminator": (26, _text),
    "readOnly": (27, _flag),
    "example": (30, _any),
    _EXTENSIONS: (31, _named(_any)),
}
_BODY: Fields = {
    "description": (1, _text),
    "name": (2, _text),
    "in": (3, _text),
    "required": (4, _flag),
    "schema": (5, _SCHEMA_MESSAGE),
    _EXTENSIONS: (6, _named(_any)),
}
_PARAMETER: Fields = {
    "required": (1, _flag),
    "in": (2, _text),
    "description": (3, _text),
    "name": (4, _text),
}
# Parameters in headers and in paths have the same numbers.
_HEADER = _PARAMETER | {"type": (5, _text), "format": (6, _text), "uniqueItems": (19, _flag)}
_QUERY = _PARAMETER | {"type": (6, _text), "format": (7, _text), "uniqueItems": (20, _flag)}
_RESPONSE: Fields = {
    "description": (1, _text),
    "schema": (2, _wrapped(_SCHEMA_MESSAGE)),
    _EXTENSIONS: (5, _named(_any)),
}
_OPERATION: Fields = {
    "tags": (1, _each(_text)),
    "summary": (2, _text),
    "description": (3, _text),
    "operationId": (5, _text),
    "produces": (6, _each(_text)),
    "consumes": (7, _each(_text)),
    "parameters": (8, _each(_parameter)),
    "responses": (9, _wrapped(_named(_wrapped(_message(_RESPONSE))))),
    "schemes": (10, _each(_text)),
    "deprecated": (11, _flag),
    _EXTENSIONS: (13, _named(_any)),
}
_PATH: Fields = {
    "get": (2, _message(_OPERATION)),
    "put": (3, _message(_OPERATION)),
    "post": (4, _message(_OPERATION)),
    "delete": (5, _message(_OPERATION)),
    "options": (6, _message(_OPERATION)),
    "head": (7, _message(_OPERATION)),
    "patch": (8, _message(_OPERATION)),
    "parameters": (9, _each(_parameter)),
    _EXTENSIONS: (10, _named(_any)),
}
_DOCUMENT: Fields = {
    "swagger": (1, _text),
    "info": (2, _message({"title": (1, _text), "version": (2, _text)})),
    "paths": (8, _wrapped(_named(_message(_PATH)), 2)),
    "definitions": (9, _wrapped(_named(_SCHEMA_MESSAGE))),
}
