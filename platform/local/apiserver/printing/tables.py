"""Lists as tables: the columns of each kind, and the cells of each object.

Cells of built-in kinds are in :mod:`.printers`, :mod:`.workload_printers` and
:mod:`.cluster_printers`; custom kinds have JSON paths; all other kinds show name and creation time.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from ..custom import jsonpath
from ..custom.kinds import DEFAULT_COLUMN
from ..kinds.info import Column, KindInfo
from . import column_descriptions
from .ages import age
from .cluster_printers import CLUSTER_PRINTERS
from .printers import PRINTERS, Printer
from .workload_printers import WORKLOAD_PRINTERS

Json = dict[str, Any]

_PRINTERS: Mapping[tuple[str, str], Printer] = {
    **PRINTERS,
    **WORKLOAD_PRINTERS,
    **CLUSTER_PRINTERS,
}
_CUSTOM_COLUMN = "Custom resource definition column (in JSONPath format)"
_NUMBERS = {"integer": int, "number": float}
_NAMES = ("Name", "Attacher")
"""Columns of the format ``name``."""


def column_definitions(kind: KindInfo) -> list[Json]:
    """Return the ``columnDefinitions`` of a table of *kind*."""
    if kind.custom:
        columns = (_custom_definition(kind, column) for column in kind.columns)
        return [_definition(kind, "Name"), *columns]
    printer = _printer_of(kind)
    if printer is None:
        return [_definition(kind, "Name"), _definition(kind, "Created At", type="date")]
    return [_definition(kind, **column) for column in printer.columns()]


def cells(kind: KindInfo, obj: Json, now: datetime) -> list[Any]:
    """Return the cells of the row of *obj*; *now* is the reference time of ages."""
    metadata = obj.get("metadata", {})
    if kind.custom:
        return [metadata.get("name", ""), *(_custom_cell(c, obj, now) for c in kind.columns)]
    printer = _printer_of(kind)
    if printer is None:
        return [metadata.get("name", ""), metadata.get("creationTimestamp")]
    return printer.row(kind.to_stored(obj) if kind.stored_as is not None else obj, now)


def _printer_of(kind: KindInfo) -> Printer | None:
    """Return the printer of *kind*, which is that of its stored form."""
    resource = kind.stored_as or kind.resource
    return _PRINTERS.get((resource.group, resource.kind))


def _definition(kind: KindInfo, name: str, type: str = "string", priority: int = 0) -> Json:  # noqa: A002
    return {
        "name": name,
        "type": type,
        "format": "name" if name in _NAMES else "",
        "description": column_descriptions.description(kind.resource, name),
        "priority": priority,
    }


def _custom_definition(kind: KindInfo, column: Column) -> Json:
    description = column.description
    if column is DEFAULT_COLUMN:
        description = column_descriptions.description(kind.resource, column.name)
    return {
        "name": column.name,
        "type": column.type,
        "format": column.format,
        "description": description or f"{_CUSTOM_COLUMN}: {column.json_path}",
        "priority": column.priority,
    }


def _custom_cell(column: Column, obj: Json, now: datetime) -> Any:
    found = jsonpath.find(column.json_path, obj)
    if not found or found[0] is None:
        return None
    value = found[0]
    if column.type == "date":
        return age(value, now) if isinstance(value, str) else None
    if column.type in _NUMBERS:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return _NUMBERS[column.type](value) if number else None
    if column.type == "boolean":
        return value if isinstance(value, bool) else None
    return ",".join(_text(each) for each in found)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        return jsonpath.as_json(value)
    return str(value)
