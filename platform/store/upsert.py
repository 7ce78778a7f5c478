"""``INSERT … ON CONFLICT`` of both databases."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

T = TypeVar("T")

CHUNK = 500
"""Values in one ``IN``."""


def upsert(
    db: sa.Connection,
    table: sa.Table,
    rows: Sequence[Mapping[str, Any]],
    *,
    add: Sequence[str] = (),
) -> None:
    """Insert *rows*; where the primary key exists, replace the other columns, or *add* to them."""
    if not rows:
        return
    insert = (postgresql.insert if db.dialect.name == "postgresql" else sqlite.insert)(table)
    keys = [column.name for column in table.primary_key]
    changed = {
        name: table.c[name] + insert.excluded[name] if name in add else insert.excluded[name]
        for name in rows[0]
        if name not in keys
    }
    db.execute(insert.on_conflict_do_update(index_elements=keys, set_=changed), list(rows))


def chunks(values: Iterable[T], size: int = CHUNK) -> Iterator[list[T]]:
    """Yield *values* in lists of at most *size*."""
    iterator = iter(values)
    while chunk := list(islice(iterator, size)):
        yield chunk
