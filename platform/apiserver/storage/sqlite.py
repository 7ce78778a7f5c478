"""The SQLite file of the server: every acknowledged write is in it.

One thread writes, in groups: all writes queued while a group is being committed form the next
one. Each group updates the table of objects and appends to a log, from which watches resume
after a restart. Resource versions are never reused: they are reserved in blocks, so that even a
power cut that loses the last asynchronous commits (events, leases) cannot repeat their versions.

On a full disk, reserved space is released for deletions; all other writes fail until there is
space again.
"""

import contextlib
import logging
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ...kube.private_files import GROUP_OTHER_WRITE, open_private
from . import disk_reserve
from .disk_reserve import DiskReserve

log = logging.getLogger(__name__)

VERSION_BLOCK_SIZE = 100_000
"""Resource versions reserved at a time."""

MAX_LOG_ENTRIES = 50_000
"""Changes from which watches can resume after a restart."""

MAX_LOG_ENTRIES_WHEN_FULL = 1
"""The same while the disk is full: watchers can relist."""

COMPACTION_BATCH_SIZE = 2_000
"""Changes deleted in one transaction, so that writes need not wait long."""

_CHECKPOINT, _CHECKPOINT_WHEN_FULL = 4_000, 100
"""Pages of the write-ahead log after which it is checkpointed."""

_UPSERT = (
    "INSERT INTO objects (grp, plural, ns, name, rv, data) VALUES (?,?,?,?,?,?) "
    "ON CONFLICT (grp, plural, ns, name) DO UPDATE SET rv=excluded.rv, data=excluded.data"
)
_DELETE = "DELETE FROM objects WHERE grp=? AND plural=? AND ns=? AND name=?"
_APPEND = "INSERT INTO log (rv, grp, plural, ns, name, type, data) VALUES (?,?,?,?,?,?,?)"
_SET_META = "INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)"


class LogEntry(NamedTuple):
    """One row of the log."""

    rv: int
    group: str
    plural: str
    namespace: str
    name: str
    type: str
    data: bytes


class DiskFullError(Exception):
    """Nothing was written: the disk is full."""

    def __init__(self) -> None:
        super().__init__("disk full")


class OutcomeUnknownError(Exception):
    """The transaction may or may not be in the file; see :meth:`SqliteStore.contains_version`."""


class SqliteStore:
    """The database, written by the caller of :meth:`commit`, from one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with contextlib.suppress(FileNotFoundError):
            os.close(open_private(path, forbidden=GROUP_OTHER_WRITE))
        self._create_tables()
        self._disk_reserve = DiskReserve(path.with_suffix(".reserve"))
        self.full = False
        """Whether the disk has space for deletions only."""

        self._connection = self._open()
        path.chmod(0o600)
        self.check_disk_space()
        self._reserved_rv = self._meta("reserved")
        self._compacted_rv = self._meta("compacted")
        newest = self._connection.execute("SELECT max(rv) FROM log").fetchone()[0] or 0
        self._last_rv = max(self._reserved_rv, newest)

    @property
    def last_rv(self) -> int:
        """A version not older than any that was ever assigned."""
        return self._last_rv

    @property
    def compacted_rv(self) -> int:
        """The log contains every change after this version."""
        return self._compacted_rv

    def objects(self, group: str, plural: str) -> Iterator[bytes]:
        """Yield the stored objects of one resource."""
        query = "SELECT data FROM objects WHERE grp=? AND plural=? ORDER BY ns, name"
        for (data,) in self._connection.execute(query, (group, plural)):
            yield data

    def log_entries(self) -> Iterator[LogEntry]:
        """Yield the log, oldest entry first."""
        query = "SELECT rv, grp, plural, ns, name, type, data FROM log ORDER BY rv"
        return map(LogEntry._make, self._connection.execute(query))

    def commit(self, changes: Sequence[LogEntry], *, durable: bool) -> None:
        """Write *changes*, in ascending order of version, as one transaction.

        Args:
            changes: at least one.
            durable: whether they must survive a power cut, not only the end of the process.

        Raises:
            sqlite3.Error: nothing was written.
            DiskFullError: nothing was written.
            OutcomeUnknownError: the disk failed during the commit.
        """
        last = changes[-1].rv
        disk_reserve = last + VERSION_BLOCK_SIZE if last >= self._reserved_rv else None
        self._set_synchronous("FULL" if durable or disk_reserve else "NORMAL")
        latest = {change[1:5]: change for change in changes}
        deleted = [key for key, change in latest.items() if change.type == "DELETED"]
        kept = [
            (*key, change.rv, change.data)
            for key, change in latest.items()
            if change.type != "DELETED"
        ]
        with self._transaction() as run:
            run.executemany(_APPEND, changes)
            if kept:
                run.executemany(_UPSERT, kept)
            if deleted:
                run.executemany(_DELETE, deleted)
            if disk_reserve:
                run.execute(_SET_META, ("reserved", disk_reserve))
        self._reserved_rv = disk_reserve or self._reserved_rv
        self._last_rv = last

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        run = self._connection
        ending = False
        try:
            run.execute("BEGIN IMMEDIATE")
            yield run
            ending = True
            run.execute("COMMIT")
        except sqlite3.Error as error:
            is_full = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
            try:
                if run.in_transaction:
                    run.execute("ROLLBACK")
            except sqlite3.Error as rollback:
                raise OutcomeUnknownError(str(error)) from rollback
            if is_full:
                self._enter_full_mode()
                raise DiskFullError from error
            if ending:
                raise OutcomeUnknownError(str(error)) from error
            raise

    def contains_version(self, rv: int) -> bool:
        """Return whether the change to version *rv* is in the file, after :meth:`commit` failed.

        Raises:
            sqlite3.Error: it is still unknown.
        """
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()
        # Opening the file recovers the rest of its log, or drops it.
        self._connection = self._open()
        found = self._connection.execute("SELECT 1 FROM log WHERE rv=?", (rv,)).fetchone()
        if found is not None:
            self._last_rv = rv
            # The log was not synced; the database will be.
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").close()
        return found is not None

    def _enter_full_mode(self) -> None:
        """Release the reserved space, and use as little of it as possible."""
        if not self.full:
            log.error("disk full", extra={"path": str(self._path)})
        self.full = True
        self._disk_reserve.release()
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").close()
            self._set_checkpoint(_CHECKPOINT_WHEN_FULL)

    def check_disk_space(self) -> None:
        """Check whether there is space for more than deletions; call it from the writer thread."""
        was_full, self.full = self.full, not (self._disk_reserve.ensure() or self._has_free_pages())
        if self.full != was_full:
            self._set_checkpoint(_CHECKPOINT_WHEN_FULL if self.full else _CHECKPOINT)
            log.warning(
                "disk full" if self.full else "disk has space again",
                extra={"path": str(self._path)},
            )

    def _has_free_pages(self) -> bool:
        """Whether the free pages of the database are as large as the reserve."""
        (pages,) = self._connection.execute("PRAGMA freelist_count").fetchone()
        (size,) = self._connection.execute("PRAGMA page_size").fetchone()
        return bool(pages * size >= disk_reserve.RESERVE_SIZE)

    def compact(self) -> bool:
        """Delete some of the oldest log entries; call it from the writer thread.

        Returns:
            Whether there are more to delete.

        Raises:
            sqlite3.Error, DiskFullError, OutcomeUnknownError: nothing may have been deleted.
        """
        kept = MAX_LOG_ENTRIES_WHEN_FULL if self.full else MAX_LOG_ENTRIES
        run = self._connection
        limit = run.execute(
            "SELECT rv FROM log ORDER BY rv DESC LIMIT 1 OFFSET ?", (kept,)
        ).fetchone()
        if limit is None:
            return False
        oldest = run.execute(
            "SELECT rv FROM log WHERE rv <= ? ORDER BY rv LIMIT 1 OFFSET ?",
            (*limit, COMPACTION_BATCH_SIZE),
        ).fetchone()
        upto = (oldest or limit)[0]
        with self._transaction():
            run.execute("DELETE FROM log WHERE rv <= ?", (upto,))
            run.execute(_SET_META, ("compacted", upto))
        self._compacted_rv = upto
        return oldest is not None

    def close(self) -> None:
        """Close the file; unused reserved versions are returned."""
        try:
            self._connection.execute(_SET_META, ("reserved", self._last_rv))
        except sqlite3.Error:
            log.warning("cannot return reserved versions", exc_info=True)
        self._connection.close()

    def _open(self) -> sqlite3.Connection:
        try:
            return self._connect()
        except sqlite3.OperationalError:
            # Shared memory of connections is a file, and the disk may have no space for one.
            return self._connect("locking_mode=EXCLUSIVE")

    def _connect(self, *first: str) -> sqlite3.Connection:
        # SQLite dominates the write path; SQLAlchemy would add half as much again.
        connection = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None)
        checkpoint = _CHECKPOINT_WHEN_FULL if self.full else _CHECKPOINT
        last = ("journal_mode=WAL", "synchronous=FULL", f"wal_autocheckpoint={checkpoint}")
        try:
            for pragma in (*first, *last):
                connection.execute(f"PRAGMA {pragma}").close()
            # Only a read needs the shared memory.
            connection.execute("SELECT 1 FROM meta LIMIT 1").close()
        except BaseException:
            connection.close()
            raise
        self._synchronous = "FULL"
        return connection

    def _set_checkpoint(self, pages: int) -> None:
        self._connection.execute(f"PRAGMA wal_autocheckpoint={pages}").close()

    def _create_tables(self) -> None:
        if self._path.exists():
            return
        # Importing SQLAlchemy takes longer than the rest of the start, and is needed only once.
        from .database import create

        create(self._path)

    def _meta(self, key: str) -> int:
        row = self._connection.execute("SELECT value FROM meta WHERE key=?", (key,)).fetchone()
        return row[0] if row else 0

    def _set_synchronous(self, mode: str) -> None:
        if mode != self._synchronous:
            self._connection.execute(f"PRAGMA synchronous={mode}").close()
            self._synchronous = mode
