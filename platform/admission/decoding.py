"""Decode raw JSON objects to typed ones, for validation.

Rules validate typed objects, but return raw ones, so that unknown fields survive.
"""

import re
from typing import Any, TypeVar

import msgspec

from ..model.admission import DeniedError, Json
from ..model.base import ApiStruct

T = TypeVar("T", bound=ApiStruct)

_WHERE = re.compile(r"(.*) - at `(?:key in )?\$(.*)`")


def decode(obj: Json, view: type[T]) -> T:
    """Decode *obj* as *view*; a null counts as a missing field, as in Go.

    Raises:
        DeniedError: a field has another type; the text names its path and the expected type.
    """
    data = msgspec.json.encode(obj)
    if b"null" in data:
        data = msgspec.json.encode(without_nulls(obj))
    try:
        return msgspec.json.decode(data, type=view)
    except msgspec.ValidationError as error:
        raise DeniedError(describe_error(error)) from error


def describe_error(error: msgspec.ValidationError, *, under: str = "") -> str:
    """Return the message for a wrong type, prefixed with the field's path below *under*."""
    match = _WHERE.fullmatch(str(error))
    if match is None:
        return f"{under}: {error}" if under else str(error)
    path = f"{under}{match[2].replace('[...]', '[*]')}".lstrip(".")
    return f"{path}: {match[1].replace('`', '')}"


def without_nulls(value: Any) -> Any:
    """Return a copy of *value* without the null members of objects."""
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [without_nulls(inner) for inner in value]
    return value
