"""The SQLite file of the server: every acknowledged write is in it.

One thread writes, in groups: all writes queued while a group is being committed form the next
one. Each group updates the table of objects and appends to a log, from which watches resume
after a restart. Resource versions are never reused: they are reserved in blocks, so that even a
power cut that loses the last asynchronous commits (events, leases) cannot repeat their versions.

On a full disk, deletions are still written, even if another process takes what becomes free; all
other writes fail. For that, nothing is ever released to be allocated again: each page of the
database has disk space before it is in the write-ahead log. So a checkpoint needs no space, and
after it the log starts again in its file, whose space is allocated, too. Deletions need no new
pages, because older log entries are deleted first.
"""

import contextlib
import logging
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ....kube.private_files import GROUP_OTHER_WRITE, open_private
from .disk_reserve import DiskReserve, allocate

log = logging.getLogger(__name__)

VERSION_BLOCK_SIZE = 100_000
"""Resource versions reserved at a time."""

MAX_LOG_ENTRIES = 50_000
"""Changes from which watches can resume after a restart."""

MAX_LOG_ENTRIES_WHEN_FULL = 0
"""The same without a disk reserve: watchers can relist."""

COMPACTION_BATCH_SIZE = 2_000
"""Changes deleted in one transaction, so that writes need not wait long."""

_CHECKPOINT, _CHECKPOINT_WHEN_FULL = 3_200, 100
"""Pages of the write-ahead log after which it is checkpointed.

With the largest group of writes they are less than the 4,062 pages of which the shared memory, a
file on the same disk, has numbers without being extended.
"""

LOG_SIZE = 8 * 2**20
"""Allocated bytes of the write-ahead log: more than the largest group of writes needs."""

KEPT_SIZE = 2 * 2**20
"""Bytes of free pages that remain for deletions when the database cannot grow."""

FREE_PAGES_SIZE = 4 * 2**20
"""Bytes of free pages with which writes are accepted although the database cannot grow."""

_GROWTH = 2**20
"""Bytes that are allocated in advance, so that not every group of writes has to do it."""

_OVERHEAD, _TWO_PAGES, _KEY_SIZE = 2**16, 2 * 8192, 512
"""Bytes of pages above the leaves of a tree; of two pages; of the keys of a row and its indexes."""

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


class _CompactionLimit(NamedTuple):
    rv: int
    more: bool
    """Whether entries to delete remain after this batch."""


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
        self._log_path = path.with_name(f"{path.name}-wal")
        with contextlib.suppress(FileNotFoundError):
            os.close(open_private(path, forbidden=GROUP_OTHER_WRITE))
        self._create_tables()
        # It is closed after all connections: closing it releases SQLite's locks.
        self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._start_reserve = DiskReserve(path.with_suffix(".reserve"))
        self.full = False
        """Whether the disk has space for deletions only."""
        self.can_grow = False
        """Whether there was disk space when the database last needed more.

        Otherwise only deletions and what fits into free pages is written. The log is compacted
        entirely then, which frees most.
        """

        self.connection = self._open()
        """The open database; may be replaced by one that injects errors."""
        (self._page_size,) = self.connection.execute("PRAGMA page_size").fetchone()
        path.chmod(0o600)
        self.check_disk_space()
        self._reserved_rv = self._meta("reserved")
        self._compacted_rv = self._meta("compacted")
        newest = self.connection.execute("SELECT max(rv) FROM log").fetchone()[0] or 0
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
        for (data,) in self.connection.execute(query, (group, plural)):
            yield data

    def log_entries(self) -> Iterator[LogEntry]:
        """Yield the log, oldest entry first."""
        query = "SELECT rv, grp, plural, ns, name, type, data FROM log ORDER BY rv"
        return map(LogEntry._make, self.connection.execute(query))

    def commit(
        self, changes: Sequence[LogEntry], *, durable: bool, deletions: bool = False
    ) -> None:
        """Write *changes*, in ascending order of version, as one transaction.

        Args:
            changes: at least one.
            durable: whether they must survive a power cut, not only the end of the process.
            deletions: whether they free space, and are written on a full disk.

        Raises:
            sqlite3.Error: nothing was written.
            DiskFullError: nothing was written.
            OutcomeUnknownError: the disk failed during the commit.
        """
        self._reserve_pages(_size_in_database(changes), deletions=deletions)
        try:
            self._write(changes, durable=durable)
        except DiskFullError:
            # The log had no space behind what it contained. Now that is checkpointed.
            self._write(changes, durable=durable)
        self._check_pages()

    def _write(self, changes: Sequence[LogEntry], *, durable: bool) -> None:
        last = changes[-1].rv
        reserved_rv = last + VERSION_BLOCK_SIZE if last >= self._reserved_rv else None
        self._set_synchronous("FULL" if durable or reserved_rv else "NORMAL")
        latest = {change[1:5]: change for change in changes}
        deleted = [key for key, change in latest.items() if change.type == "DELETED"]
        kept = [
            (*key, change.rv, change.data)
            for key, change in latest.items()
            if change.type != "DELETED"
        ]
        # The rest is written to the pages of older log entries, so that the file does not grow.
        limit = None if self.can_grow else self._compaction_limit()
        with self._transaction() as run:
            if limit:
                self._delete_log(limit.rv)
            if deleted:
                run.executemany(_DELETE, deleted)
            if kept:
                run.executemany(_UPSERT, kept)
            run.executemany(_APPEND, changes)
            if reserved_rv:
                run.execute(_SET_META, ("reserved", reserved_rv))
        self._reserved_rv = reserved_rv or self._reserved_rv
        self._last_rv = last
        if limit:
            self._compacted_rv = limit.rv

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        run = self.connection
        ending = False
        try:
            run.execute("BEGIN IMMEDIATE")
            yield run
            ending = True
            run.execute("COMMIT")
        except sqlite3.Error as error:
            try:
                if run.in_transaction:
                    run.execute("ROLLBACK")
            except sqlite3.Error as rollback:
                raise OutcomeUnknownError(str(error)) from rollback
            if _is_full(error):
                self._stop_growth()
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
            self.connection.close()
        # Opening the file recovers the rest of its log, or drops it.
        self.connection = self._open()
        allocate(self._log_path, LOG_SIZE)
        found = self.connection.execute("SELECT 1 FROM log WHERE rv=?", (rv,)).fetchone()
        if found is not None:
            self._last_rv = rv
            # The log was not synced; the database will be.
            self._checkpoint()
        return found is not None

    def check_disk_space(self) -> None:
        """Check whether there is space for more than deletions; call it from the writer thread."""
        was_full = self.full
        if not self.can_grow:
            self.can_grow = self._start_reserve.ensure() and allocate(self._log_path, LOG_SIZE)
            if self.can_grow:
                self._set_checkpoint()
        self.full = not (self.can_grow or self._free_size() >= FREE_PAGES_SIZE)
        if self.full != was_full:
            log.warning(
                "disk full" if self.full else "disk has space again",
                extra={"path": str(self._path)},
            )

    def _stop_growth(self) -> None:
        """Write only to free pages, and to the allocated part of the write-ahead log."""
        if not self.full:
            log.error("disk full", extra={"path": str(self._path)})
        self.can_grow, self.full = False, True
        with contextlib.suppress(sqlite3.Error):
            self._set_checkpoint()
            self._checkpoint()

    def _reserve_pages(self, size: int, *, deletions: bool) -> None:
        """Have space for *size* bytes of pages, free ones or at the end of the database's file.

        Raises:
            DiskFullError: there is none, and the caller does more than deletions.
        """
        if self.can_grow and self._allocate(max(0, size - self._free_size())):
            return
        if self.can_grow:
            self._stop_growth()
        if not deletions:
            size += KEPT_SIZE
        while self._free_size() < size and self.compact():
            pass
        if self._free_size() < size and not deletions:
            raise DiskFullError

    def _free_size(self) -> int:
        """Return the bytes of the free pages."""
        (pages,) = self.connection.execute("PRAGMA freelist_count").fetchone()
        return int(pages * self._page_size)

    def _allocate(self, size: int) -> bool:
        """Allocate *size* bytes after the last page of the database; return whether they are.

        A checkpoint that contains the whole log cuts them off again.
        """
        (pages,) = self.connection.execute("PRAGMA page_count").fetchone()
        present = os.fstat(self._file).st_size
        needed = pages * self._page_size + size - present
        if needed <= 0:
            return True
        for more in (_GROWTH, 0):
            with contextlib.suppress(OSError):
                os.posix_fallocate(self._file, present, needed + more)
                return True
        return False

    def _check_pages(self) -> None:
        """Allocate pages that the last writes have added although free ones were expected to do.

        The commit has succeeded, so this never raises; the next one tries it again.
        """
        try:
            if self.can_grow:
                if not self._allocate(0):
                    self._stop_growth()
            else:
                self.full = self._free_size() < FREE_PAGES_SIZE
        except (OSError, sqlite3.Error):
            log.warning("cannot determine the size of the database", exc_info=True)

    def compact(self) -> bool:
        """Delete some of the oldest log entries; call it from the writer thread.

        Returns:
            Whether there are more to delete.

        Raises:
            sqlite3.Error, DiskFullError, OutcomeUnknownError: nothing may have been deleted.
        """
        limit = self._compaction_limit()
        if limit is None:
            return False
        with self._transaction():
            self._delete_log(limit.rv)
        self._compacted_rv = limit.rv
        return limit.more

    def _compaction_limit(self) -> "_CompactionLimit | None":
        """Return the newest entry of the next batch to delete, if any."""
        kept = MAX_LOG_ENTRIES if self.can_grow else MAX_LOG_ENTRIES_WHEN_FULL
        run = self.connection
        limit = run.execute(
            "SELECT rv FROM log ORDER BY rv DESC LIMIT 1 OFFSET ?", (kept,)
        ).fetchone()
        if limit is None:
            return None
        oldest = run.execute(
            "SELECT rv FROM log WHERE rv <= ? ORDER BY rv LIMIT 1 OFFSET ?",
            (*limit, COMPACTION_BATCH_SIZE),
        ).fetchone()
        return _CompactionLimit((oldest or limit)[0], oldest is not None)

    def _delete_log(self, upto: int) -> None:
        self.connection.execute("DELETE FROM log WHERE rv <= ?", (upto,))
        self.connection.execute(_SET_META, ("compacted", upto))

    def close(self) -> None:
        """Close the file; unused reserved versions are returned."""
        try:
            self.connection.execute(_SET_META, ("reserved", self._last_rv))
        except sqlite3.Error:
            log.warning("cannot return reserved versions", exc_info=True)
        self.connection.close()
        os.close(self._file)

    def _open(self) -> sqlite3.Connection:
        try:
            return self._connect()
        except sqlite3.OperationalError:
            # Shared memory of connections is a file, and the disk may have no space for one.
            return self._connect("locking_mode=EXCLUSIVE")

    def _connect(self, *first: str) -> sqlite3.Connection:
        # SQLite dominates the write path; SQLAlchemy would add half as much again.
        connection = sqlite3.connect(self._path, check_same_thread=False, isolation_level=None)
        # The default of some builds, to overwrite deleted pages, needs their size in the log.
        last = ("journal_mode=WAL", "synchronous=FULL", "secure_delete=FAST")
        try:
            for pragma in (*first, *last, *self._checkpoint_pragmas()):
                connection.execute(f"PRAGMA {pragma}").close()
            # Only a read needs the shared memory.
            connection.execute("SELECT 1 FROM meta LIMIT 1").close()
        except BaseException:
            connection.close()
            raise
        self._synchronous = "FULL"
        return connection

    def _checkpoint_pragmas(self) -> tuple[str, str]:
        if self.can_grow:
            return f"wal_autocheckpoint={_CHECKPOINT}", "journal_size_limit=-1"
        return f"wal_autocheckpoint={_CHECKPOINT_WHEN_FULL}", f"journal_size_limit={LOG_SIZE}"

    def _set_checkpoint(self) -> None:
        for pragma in self._checkpoint_pragmas():
            self.connection.execute(f"PRAGMA {pragma}").close()

    def _checkpoint(self) -> None:
        self.connection.execute("PRAGMA wal_checkpoint(PASSIVE)").close()

    def _create_tables(self) -> None:
        if self._path.exists():
            return
        # Importing SQLAlchemy takes longer than the rest of the start, and is needed only once.
        from .database import create

        create(self._path)

    def _meta(self, key: str) -> int:
        row = self.connection.execute("SELECT value FROM meta WHERE key=?", (key,)).fetchone()
        return row[0] if row else 0

    def _set_synchronous(self, mode: str) -> None:
        if mode != self._synchronous:
            self.connection.execute(f"PRAGMA synchronous={mode}").close()
            self._synchronous = mode


def _size_in_database(changes: Sequence[LogEntry]) -> int:
    """Return a bound of the bytes of the pages that *changes* add to the tables and their index."""
    lengths = [len(change.data) for change in changes]
    # A row of more than half a page has one alone, and a large one shares no more than two.
    return _OVERHEAD + sum(2 * (size + min(size, _TWO_PAGES) + _KEY_SIZE) for size in lengths)


def _is_full(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
