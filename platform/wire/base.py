"""Base of the structs, and their tables in notebooks."""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

import msgspec

ItemT = TypeVar("ItemT")

_MAX_ROWS = 200
"""Rows of a table; the rest is counted."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """An object of the REST API; in notebooks a table of its fields."""

    def _repr_html_(self) -> str:
        rows = [(name, getattr(self, name)) for name in self.__struct_fields__]
        return html_table(("field", "value"), [row for row in rows if not is_empty(row[1])])


@dataclass(frozen=True, slots=True)
class Sends:
    """Annotation of a field of which clients accept more than this version of the server sends."""

    type: Any
    """The type of the field in the OpenAPI document."""
    always: bool = True
    """Whether the field is in every response."""


SentTime = Annotated[datetime | None, Sends(datetime)]
"""A time that every response has."""


class Items(Record, Generic[ItemT], frozen=True):
    """A list; in notebooks a table."""

    items: list[ItemT] = []

    def _repr_html_(self) -> str:
        return records_table(self.items)


class Page(Items[ItemT], frozen=True):
    """One page of a list."""

    next_cursor: str | None = None
    """Cursor of the next page; null on the last one."""

    def _repr_html_(self) -> str:
        rest = "" if self.next_cursor is None else "<p>There are more pages.</p>"
        return records_table(self.items) + rest


class CountedPage(Page[ItemT], frozen=True):
    """One page of a list whose objects are counted."""

    total: Annotated[int | None, Sends(int)] = None
    """Number of objects that match, on all pages."""


class Rows(list[ItemT]):
    """A list of records; in notebooks a table."""

    def _repr_html_(self) -> str:
        return records_table(self)


def records_table(items: Sequence[Any]) -> str:
    """Return records as an HTML table, without the columns that are empty in all of them."""
    shown = items[:_MAX_ROWS]
    names: list[str] = []
    for item in shown:
        names += [name for name in item.__struct_fields__ if name not in names]
    used = [name for name in names if not all(is_empty(getattr(it, name, None)) for it in shown)]
    table = html_table(used, ([getattr(item, name, None) for name in used] for item in shown))
    hidden = len(items) - len(shown)
    return f"{table}<p>and {hidden} more</p>" if hidden else table


def html_table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return an HTML table of escaped cells."""
    head = "".join(f"<th>{_cell(name)}</th>" for name in header)
    body = "".join(
        f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row)}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def is_empty(value: object) -> bool:
    """Return whether a field has nothing to show: numbers and flags always have."""
    return value is None or value in ("", (), [], {})


def _cell(value: object) -> str:
    return html.escape(_text(value))


def _text(value: object) -> str:
    match value:
        case None:
            return ""
        case datetime():
            return value.isoformat(sep=" ", timespec="seconds")
        case dict():
            return ", ".join(f"{name}={_text(each)}" for name, each in value.items())
        case list() | tuple():
            return ", ".join(map(_text, value))
        case Record():
            shown = {name: getattr(value, name) for name in value.__struct_fields__}
            return _text({name: each for name, each in shown.items() if not is_empty(each)})
    return str(value)
