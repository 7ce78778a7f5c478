"""Lists that are read page by page."""

from collections.abc import Callable
from typing import TypeVar

from ...wire.base import Page, Rows
from ..effects import Effect, Emit, Operation, Stream, TransportError

ItemT = TypeVar("ItemT")
T = TypeVar("T")

PAGE_SIZE = 100
"""Default number of objects that one request of a list reads."""


def pages(read: Callable[[str | None], Operation[Page[ItemT]]]) -> Stream[ItemT]:
    """Emit the items of all pages; each page is read when the one before it was consumed."""
    cursor: str | None = None
    while True:
        page = yield from read(cursor)
        for item in page.items:
            yield Emit(item)
        cursor = page.next_cursor
        if cursor is None:
            return


def collect(stream: Stream[ItemT]) -> Operation[Rows[ItemT]]:
    """Return all items of a stream operation."""
    items: Rows[ItemT] = Rows()

    def accept(item: ItemT) -> None:
        items.append(item)

    yield from consume(stream, accept)
    return items


def consume(stream: Stream[ItemT], accept: Callable[[ItemT], T | None]) -> Operation[T | None]:
    """Pass the items of a stream operation to *accept* until it returns a result."""
    value: object = None
    error: TransportError | None = None
    while True:
        try:
            effect: Effect | Emit[ItemT] = (
                stream.send(value) if error is None else stream.throw(error)
            )
        except StopIteration:
            return None
        value, error = None, None
        if isinstance(effect, Emit):
            result = accept(effect.item)
            if result is not None:
                stream.close()
                return result
            continue
        try:
            value = yield effect
        except TransportError as failure:
            error = failure
