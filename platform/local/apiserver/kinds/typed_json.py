"""Decode objects of built-in kinds like their Go types: known fields of the right types.

Each message of :mod:`.go_types` is decoded in place by a closure, compiled on first use: unknown
fields are removed and reported, empty values are dropped or added as Go encodes them, quantities
and times are canonicalized.
"""

import base64
import functools
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from ....model import quantity, times
from ....model.names import Resource
from ..errors.fields import MalformedError
from . import go_types

Unknown = list[list[str]]
"""Paths of unknown fields, each as a list: ``["spec", "containers", "[0]", "foo"]``."""

Reader = Callable[[Any, Unknown], Any]
"""Returns the value to keep, often the same; ``_DROP`` to remove the field."""

_DROP: Any = object()
_EMPTY: Mapping[str, Any] = {
    "string": "",
    "bool": False,
    "int32": 0,
    "int64": 0,
    "double": 0,
    "bytes": None,
    "Quantity": "0",
    "QuantityValue": "0",
    "IntOrString": 0,
    "meta.Duration": "0s",
}
"""Encoding of empty values of types that are not objects; the others are null."""

_REJECTED_IF_EMPTY = frozenset({("autoscaling.v2.HPAScalingRules", "policies")})
"""Lists of which an empty one is an error and an unset one is defaulted: Go distinguishes them
until it encodes them, so the decoder keeps an empty one for the validation."""

_INT_LIMITS = {"int32": 2**31, "int64": 2**63}
_JSON_NAMES = {dict: "object", list: "array", str: "string", bool: "bool", int: "number"}


class _WrongTypeError(Exception):
    """A value cannot be decoded into a field; prepends to its path on the way up."""

    def __init__(self, text: str, go_type: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.go_type = go_type
        self.path: list[str] = []
        self.struct = ""

    def message(self) -> str:
        if not self.go_type:
            return self.text
        if not self.path:
            return f"json: {self.text} into Go value of type {self.go_type}"
        where = f"{self.struct}.{'.'.join(self.path)}"
        return f"json: {self.text} into Go struct field {where} of type {self.go_type}"


def decode_object(obj: dict[str, Any], resource: Resource) -> list[str]:
    """Decode a whole object in place and return the paths of unknown fields.

    Raises:
        MalformedError: a value has a wrong type.
    """
    return _read(_message_of(resource), obj, resource, "")


def decode_metadata(metadata: Any, resource: Resource) -> list[str]:
    """Decode the metadata of a custom object in place; otherwise as :func:`decode_object`."""
    return [] if metadata is None else _read(go_types.OBJECT_META, metadata, resource, "metadata")


def add_zero_values(obj: dict[str, Any], resource: Resource) -> None:
    """Add fields that Go encodes even if empty: of *obj* itself and of its status.

    For objects changed after :func:`decode_object`, which does it for all other fields.
    """
    message = _message_of(resource)
    _fill(obj, _shown(message))
    status = go_types.json_fields(message).get("status")
    if status is not None and "status" in obj:
        _fill(obj["status"], _shown(status.type))


def zero_object(resource: Resource) -> dict[str, Any]:
    """Return the encoding of an empty object of a built-in kind."""
    obj: dict[str, Any] = {}
    _fill(obj, _shown(_message_of(resource)))
    return obj


@functools.cache
def _message_of(resource: Resource) -> str:
    """Return the message of a built-in kind."""
    return go_types.message_name(resource.api_version, resource.kind)


def _read(message: str, value: Any, resource: Resource, path: str) -> list[str]:
    unknown: Unknown = []
    try:
        _struct(message)(value, unknown)
    except _WrongTypeError as wrong:
        text = (
            f'{resource.kind} in version "{resource.version}" cannot be handled as a '
            f"{resource.kind}: {wrong.message()}"
        )
        raise MalformedError(text, reason=wrong.message()) from wrong
    head = [path] if path else []
    return [".".join(head + keys).replace(".[", "[") for keys in unknown]


def _wrong(value: Any, go_type: str) -> _WrongTypeError:
    name = _JSON_NAMES.get(type(value), f"number {value}" if type(value) is float else "null")
    return _WrongTypeError(f"cannot unmarshal {name}", go_type)


def _go_name(type_name: str) -> str:
    if "." not in type_name:
        return type_name
    package, name = type_name.split(".")[-2:]
    return f"{'v1' if package == 'meta' else package}.{name}"


@functools.cache
def _struct(message: str) -> Reader:
    """Compile the decoder of a message; fields are resolved on first use (types recurse)."""
    fields: dict[str, Reader] = {}
    shown = _shown(message)
    texts = _text_fields(message)
    go_type = _go_name(message)
    name = message.rpartition(".")[2]

    def read(obj: Any, unknown: Unknown) -> Any:
        if type(obj) is not dict:
            raise _wrong(obj, go_type)
        if not fields:
            fields.update(_field_readers(message))
        changes = []
        key, mark = "", len(unknown)
        try:
            for key, value in obj.items():
                if type(value) is str and value and key in texts:
                    continue  # most fields
                reader = fields.get(key, _unknown)
                is_null = value is None and reader is not _unknown
                new = shown.get(key, _DROP) if is_null else reader(value, unknown)
                if new is not value:
                    changes.append((key, new))
                if len(unknown) != mark:
                    mark = _prefix(unknown, mark, key)
        except _WrongTypeError as wrong:
            wrong.path.insert(0, key)
            wrong.struct = wrong.struct or name
            raise
        if changes or not shown.keys() <= obj.keys():
            _change(obj, changes, shown)
        return obj

    return read


def _text_fields(message: str) -> frozenset[str]:
    fields = go_types.json_fields(message).items()
    return frozenset(
        name for name, field in fields if field.shape == "opt" and field.type == "string"
    )


@functools.cache
def _shown(message: str) -> Mapping[str, Any]:
    """Return the fields of a message that are encoded when empty, with the empty value."""
    return {
        name: _empty(field) for name, field in go_types.json_fields(message).items() if field.shown
    }


def _empty(field: go_types.WireField) -> Any:
    if field.pointer or field.shape != "opt":
        return None
    if field.type in _EMPTY or field.type in go_types.SPECIAL:
        return _EMPTY.get(field.type)
    return _shown(field.type)


def _fill(obj: dict[str, Any], shown: Mapping[str, Any]) -> None:
    for key, value in shown.items():
        if key not in obj:
            obj[key] = _fresh(value)


def _fresh(value: Any) -> Any:
    if type(value) is not dict:
        return value
    return {key: _fresh(each) for key, each in value.items()}


def _unknown(value: Any, unknown: Unknown) -> Any:
    unknown.append([])
    return _DROP


def _prefix(unknown: Unknown, mark: int, key: str) -> int:
    for keys in unknown[mark:]:
        keys.insert(0, key)
    return len(unknown)


def _change(obj: dict[str, Any], changes: list[tuple[str, Any]], shown: Mapping[str, Any]) -> None:
    for key, value in changes:
        if value is _DROP:
            del obj[key]
        else:
            obj[key] = _fresh(value)
    _fill(obj, shown)


def _field_readers(message: str) -> dict[str, Reader]:
    return {
        # apiVersion and kind are checked elsewhere.
        name: _field_reader(
            field,
            keep=field.keep_zero or field.number == 0 or (message, name) in _REJECTED_IF_EMPTY,
        )
        for name, field in go_types.json_fields(message).items()
    }


def _field_reader(field: go_types.WireField, *, keep: bool) -> Reader:
    if field.shape == "rep":
        return _list_reader(field.type, keep=keep)
    if field.shape == "map":
        return _map_reader(field.type, keep=keep)
    return _value_reader(field.type, keep=keep)


def _value_reader(type_name: str, *, keep: bool = True) -> Reader:
    if type_name == "string":
        return _text_reader(keep)
    if type_name == "bool":
        return _bool_reader(keep)
    if type_name == "bytes":
        return _bytes_reader(keep)
    if type_name in _INT_LIMITS:
        return _int_reader(type_name, keep)
    if reader := _READERS.get(type_name):
        return reader
    if type_name.endswith(".ExtraValue"):
        return _list_reader("string", keep=True)
    return _struct(type_name)


def _text_reader(keep: bool) -> Reader:
    def read(value: Any, unknown: Unknown) -> Any:
        if type(value) is not str:
            raise _wrong(value, "string")
        return value if value or keep else _DROP

    return read


def _bool_reader(keep: bool) -> Reader:
    def read(value: Any, unknown: Unknown) -> Any:
        if type(value) is not bool:
            raise _wrong(value, "bool")
        return value if value or keep else _DROP

    return read


def _int_reader(type_name: str, keep: bool) -> Reader:
    limit = _INT_LIMITS[type_name]

    def read(value: Any, unknown: Unknown) -> Any:
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is not int:
            raise _wrong(value, type_name)
        if not -limit <= value < limit:
            raise _WrongTypeError(f"cannot unmarshal number {value}", type_name)
        return value if value or keep else _DROP

    return read


def _null_reader(type_name: str, read_item: Reader) -> Reader:
    """Return the reader of a null in a list or map, which is an empty value of *type_name*."""
    if type_name.endswith(".ExtraValue"):
        return _anything
    if type_name not in _EMPTY and type_name not in _READERS:
        return lambda value, unknown: read_item({}, unknown)
    null = "" if type_name == "bytes" else _EMPTY.get(type_name)
    return lambda value, unknown: null


def _list_reader(type_name: str, *, keep: bool) -> Reader:
    read_item = _value_reader(type_name)
    read_null = _null_reader(type_name, read_item)
    go_type = f"[]{_go_name(type_name)}"

    def read(value: Any, unknown: Unknown) -> Any:
        if type(value) is not list:
            raise _wrong(value, go_type)
        mark = len(unknown)
        for index, item in enumerate(value):
            new = read_null(item, unknown) if item is None else read_item(item, unknown)
            if new is not item:
                value[index] = new
            if len(unknown) != mark:
                mark = _prefix(unknown, mark, f"[{index}]")
        return value if value or keep else _DROP

    return read


def _map_reader(type_name: str, *, keep: bool) -> Reader:
    read_item = _value_reader(type_name)
    go_type = f"map[string]{_go_name(type_name)}"
    read_null = _null_reader(type_name, read_item)
    is_text = type_name == "string"

    def read(value: Any, unknown: Unknown) -> Any:
        if type(value) is not dict:
            raise _wrong(value, go_type)
        mark = len(unknown)
        for key, item in value.items():
            if is_text and type(item) is str:
                continue
            new = read_null(item, unknown) if item is None else read_item(item, unknown)
            if new is not item:
                value[key] = new
            if len(unknown) != mark:
                mark = _prefix(unknown, mark, key)
        return value if value or keep else _DROP

    return read


@functools.lru_cache(maxsize=8192)
def _canonical(given: str | int | float) -> str:
    try:
        return quantity.canonical(given)
    except ValueError as error:
        raise _WrongTypeError(str(error)) from error


def _quantity(value: Any, unknown: Unknown) -> Any:
    if type(value) not in (str, int, float):
        raise _wrong(value, "resource.Quantity")
    text = _canonical(value)
    return value if text == value else text


_MICROS = re.compile(r":[0-9]{2}\.[0-9]{6}(?:Z|[-+][0-9]{2}:[0-9]{2})$")
"""End of a time with microseconds, as Go's decoder requires it."""


def _time_reader(write: Callable[[datetime], str], form: re.Pattern[str] | None = None) -> Reader:
    # An object has few times, and they recur with each of its writes.
    @functools.lru_cache(maxsize=8192)
    def canonical(given: str) -> str:
        try:
            if form is not None and form.search(given) is None:
                raise ValueError("a fraction of six digits is required")
            return write(times.parse(given))
        except ValueError as error:
            raise _WrongTypeError(f'parsing time "{given}": {error}') from error

    def read(value: Any, unknown: Unknown) -> Any:
        if type(value) is not str:
            raise _wrong(value, "v1.Time")
        text = canonical(value)
        return value if text == value else text

    return read


def _bytes_reader(keep: bool) -> Reader:
    def read(value: Any, unknown: Unknown) -> Any:
        if type(value) is not str:
            raise _wrong(value, "[]uint8")
        # Go ignores line ends, as those of a YAML block, and encodes the bytes again.
        text = value.replace("\n", "").replace("\r", "")
        try:
            canonical = base64.b64encode(base64.b64decode(text, validate=True)).decode()
        except ValueError as error:
            raise _WrongTypeError(f"illegal base64 data: {error}") from error
        return canonical if canonical or keep else _DROP

    return read


def _number(value: Any, unknown: Unknown) -> Any:
    if type(value) not in (int, float):
        raise _wrong(value, "float64")
    return value


def _int_or_string(value: Any, unknown: Unknown) -> Any:
    if type(value) not in (int, str):
        raise _wrong(value, "intstr.IntOrString")
    return value


def _duration(value: Any, unknown: Unknown) -> Any:
    if type(value) is not str:
        raise _wrong(value, "v1.Duration")
    return value


def _anything(value: Any, unknown: Unknown) -> Any:
    return value


def _schema(value: Any, unknown: Unknown) -> Any:
    return _struct("apiextensions.v1.JSONSchemaProps")(value, unknown)


def _schema_or_bool(value: Any, unknown: Unknown) -> Any:
    return value if type(value) is bool else _schema(value, unknown)


def _schema_or_list(value: Any, unknown: Unknown) -> Any:
    if type(value) is not list:
        return _schema(value, unknown)
    return [_schema(item, unknown) for item in value]


_READERS: dict[str, Reader] = {
    "double": _number,
    "Quantity": _quantity,
    "QuantityValue": _quantity,
    "IntOrString": _int_or_string,
    "meta.Time": _time_reader(times.format),
    "meta.MicroTime": _time_reader(times.format_micros, _MICROS),
    "meta.Duration": _duration,
    "meta.FieldsV1": _anything,
    "runtime.RawExtension": _anything,
    "apiextensions.v1.JSON": _anything,
    "apiextensions.v1.JSONSchemaPropsOrBool": _schema_or_bool,
    "apiextensions.v1.JSONSchemaPropsOrArray": _schema_or_list,
    "apiextensions.v1.JSONSchemaPropsOrStringArray": _anything,
}
