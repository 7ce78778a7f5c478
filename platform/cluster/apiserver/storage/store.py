"""The SQLite file behind the server: what is acknowledged is in here.

One thread writes, in groups: all writes that wait while a group is being committed form the next
one. Each group updates the table of objects and appends to a log, from which watchers resume
after a restart. Resource versions are never used twice: they are reserved in blocks, so that even
a power cut that takes the last relaxed writes (events, leases) with it cannot bring them back.
"""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ....kube.private_files import OTHERS_WRITE, open_private

RESERVED_BLOCK = 100_000
"""Resource versions that are promised at a time."""

LOG_KEPT = 50_000
"""Changes that a restarted server can still tell its watchers about."""

_PUT = (
    "INSERT INTO objects (grp, plural, ns, name, rv, data) VALUES (?,?,?,?,?,?) "
    "ON CONFLICT (grp, plural, ns, name) DO UPDATE SET rv=excluded.rv, data=excluded.data"
)
_DROP = "DELETE FROM objects WHERE grp=? AND plural=? AND ns=? AND name=?"
_APPEND = "INSERT INTO log (rv, grp, plural, ns, name, type, data) VALUES (?,?,?,?,?,?,?)"
_REMEMBER = "INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)"


class Change(NamedTuple):
    """One row of the log."""

    rv: int
    group: str
    plural: str
    namespace: str
    name: str
    type: str
    data: bytes


class Store:
    """The tables, written by whoever calls :meth:`commit`, from one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with suppress(FileNotFoundError):
            os.close(open_private(path, forbidden=OTHERS_WRITE))
        self._make_tables()
        # The write path spends its time in SQLite itself; SQLAlchemy would cost half as much again.
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        path.chmod(0o600)
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "wal_autocheckpoint=4000"):
            self._connection.execute(f"PRAGMA {pragma}").close()
        self._synchronous = "FULL"
        self._reserved = self._meta("reserved")
        self._compacted = self._meta("compacted")
        newest = self._connection.execute("SELECT max(rv) FROM log").fetchone()[0] or 0
        self._last = max(self._reserved, newest)

    @property
    def last_rv(self) -> int:
        """A version that is not older than any that was ever given out."""
        return self._last

    @property
    def compacted_rv(self) -> int:
        """The log knows every change after this version."""
        return self._compacted

    def objects(self, group: str, plural: str) -> Iterator[bytes]:
        """All stored objects of one resource."""
        query = "SELECT data FROM objects WHERE grp=? AND plural=? ORDER BY ns, name"
        for (data,) in self._connection.execute(query, (group, plural)):
            yield data

    def changes(self) -> Iterator[Change]:
        """The log, oldest first."""
        query = "SELECT rv, grp, plural, ns, name, type, data FROM log ORDER BY rv"
        return map(Change._make, self._connection.execute(query))

    def commit(self, changes: Sequence[Change], *, durable: bool) -> None:
        """Write *changes*, in ascending order of version, as one transaction.

        Args:
            changes: what to write; at least one.
            durable: whether it must outlive a power cut, not only the process.

        Raises:
            sqlite3.Error: nothing of it was written.
        """
        last = changes[-1].rv
        reserve = last + RESERVED_BLOCK if last >= self._reserved else None
        self._set_synchronous("FULL" if durable or reserve else "NORMAL")
        latest = {change[1:5]: change for change in changes}
        gone = [key for key, change in latest.items() if change.type == "DELETED"]
        kept = [
            (*key, change.rv, change.data)
            for key, change in latest.items()
            if change.type != "DELETED"
        ]
        run = self._connection
        run.execute("BEGIN IMMEDIATE")
        try:
            run.executemany(_APPEND, changes)
            if kept:
                run.executemany(_PUT, kept)
            if gone:
                run.executemany(_DROP, gone)
            if reserve:
                run.execute(_REMEMBER, ("reserved", reserve))
            run.execute("COMMIT")
        except BaseException:
            if run.in_transaction:
                run.execute("ROLLBACK")
            raise
        self._reserved = reserve or self._reserved
        self._last = last

    def compact(self) -> None:
        """Forget the oldest changes; call it now and then, from the writing thread."""
        upto = self._connection.execute(
            "SELECT rv FROM log ORDER BY rv DESC LIMIT 1 OFFSET ?", (LOG_KEPT,)
        ).fetchone()
        if upto is None:
            return
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute("DELETE FROM log WHERE rv <= ?", upto)
        self._connection.execute(_REMEMBER, ("compacted", upto[0]))
        self._connection.execute("COMMIT")
        self._compacted = upto[0]

    def close(self) -> None:
        """Close the file after an orderly end: what was reserved and not used is given back."""
        self._connection.execute(_REMEMBER, ("reserved", self._last))
        self._connection.close()

    def _make_tables(self) -> None:
        if self._path.exists():
            return
        # Importing SQLAlchemy takes longer than the rest of a start, and is needed only once.
        from .database import create

        create(self._path)

    def _meta(self, key: str) -> int:
        row = self._connection.execute("SELECT value FROM meta WHERE key=?", (key,)).fetchone()
        return row[0] if row else 0

    def _set_synchronous(self, wanted: str) -> None:
        if wanted != self._synchronous:
            self._connection.execute(f"PRAGMA synchronous={wanted}").close()
            self._synchronous = wanted
