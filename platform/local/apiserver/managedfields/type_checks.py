"""Whether an applied object has its type, with the messages of kube-apiserver."""

from collections.abc import Iterator
from typing import Any

from .fieldsets import element_text
from .typed import ItemError, element_of, shape_of
from .types import FieldType, ListType, MapType


def validate(type: FieldType, value: Any) -> list[str]:  # noqa: A002
    """Return what is wrong with an applied object: ``.path: problem``; duplicates are, too."""
    return [f"{path}: {text}" if path else text for path, text in _validate(type, value)]


def atomics(type: FieldType, value: Any, path: str = "") -> Iterator[str]:  # noqa: A002
    """Yield the paths of the lists and maps of *value* that are replaced as a whole."""
    if isinstance(value, dict) and type.map is not None:
        if type.map.atomic:
            yield path
        for key, item in value.items():
            if key in type.map.declared and (declared := type.map.type_of(key)) is not None:
                yield from atomics(declared, item, f"{path}.{key}")
    elif isinstance(value, list) and type.items is not None:
        if type.items.atomic:
            yield path
        for index, item in enumerate(value):
            yield from atomics(type.items.element, item, f"{path}[{index}]")


_Problems = list[tuple[str, str]]


def _validate(type: FieldType, value: Any) -> _Problems:  # noqa: A002
    if value is None:
        return []
    shape = shape_of(type, value)
    if shape == "map" and type.map is not None:
        if not isinstance(value, dict):
            return [("", f"expected map, got {_shown(value)}")]
        return _validate_map(type.map, value)
    if shape == "list" and type.items is not None:
        if not isinstance(value, list):
            return [("", f"expected list, got {_shown(value)}")]
        return _validate_list(type.items, value)
    return _validate_scalar(type.scalar or "", value)


def _validate_map(type: MapType, value: dict[str, Any]) -> _Problems:  # noqa: A002
    problems: _Problems = []
    for key in sorted(value):
        declared = type.type_of(key)
        if declared is None:
            problems.append((f".{key}", "field not declared in schema"))
            break
        problems += ((f".{key}{path}", text) for path, text in _validate(declared, value[key]))
    return problems


def _validate_list(type: ListType, value: list[Any]) -> _Problems:  # noqa: A002
    problems: _Problems = []
    seen = set()
    for index, item in enumerate(value):
        element = f"i:{index}"
        if not type.atomic:
            try:
                element = element_of(type, item)
            except ItemError as error:
                return [*problems, ("", f"element {index}: {error}")]
            if element in seen:
                problems.append(("", f"duplicate entries for key {element_text(element)}"))
            seen.add(element)
        at = element_text(element)
        problems += ((f"{at}{path}", text) for path, text in _validate(type.element, item))
    return problems


def _validate_scalar(scalar: str, value: Any) -> _Problems:
    if scalar == "numeric":
        if isinstance(value, bool) or not isinstance(value, int | float):
            return [("", f"expected numeric (int or float), got {_go_type(value)}")]
    elif scalar == "string":
        if not isinstance(value, str):
            return [("", f"expected string, got {_go_value(value)}")]
    elif scalar == "boolean":
        if not isinstance(value, bool):
            return [("", f"expected boolean, got {_shown(value)}")]
    elif isinstance(value, dict | list):
        return [("", f"expected any scalar, got {_shown(value)}")]
    return []


def _go_type(value: Any) -> str:
    names = {bool: "bool", str: "string", list: "[]interface {}", dict: "map[string]interface {}"}
    return names.get(type(value), "interface {}")


def _go_value(value: Any) -> str:
    return f"&value.valueUnstructured{{Value:{_go_literal(value)}}}"


def _go_literal(value: Any) -> str:
    if isinstance(value, dict):
        items = (f'"{key}":{_go_literal(each)}' for key, each in sorted(value.items()))
        return "map[string]interface {}{" + ", ".join(items) + "}"
    if isinstance(value, list):
        return "[]interface {}{" + ", ".join(map(_go_literal, value)) + "}"
    return "interface {}(nil)" if value is None else _shown(value)


def _shown(value: Any) -> str:
    """Return *value* as Go's diagnostics of typed values show it."""
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ",".join(map(_shown, value)) + "]"
    if isinstance(value, dict):
        return "{" + ";".join(f"{key}={_shown(each)}" for key, each in sorted(value.items())) + "}"
    return "null" if value is None else str(value)
