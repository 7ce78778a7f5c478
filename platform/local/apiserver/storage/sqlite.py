"""The SQLite file of the server: every acknowledged write is in it.

One thread writes, in groups: all writes queued while a group is being committed form the next
one. Each group updates the table of objects and appends to a log, from which watches resume
after a restart. Resource versions are never reused: they are reserved in blocks, so that even a
power cut that loses the last asynchronous commits (events, leases) cannot repeat their versions.

On a full disk, reserved space is released for deletions; all other writes fail until there is
space again. The reserve suffices because the write-ahead log is checkpointed before the database
would grow by more, and because the log keeps its file then: deletions need no space that another
process could take first.
"""

import contextlib
import logging
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ....kube.private_files import GROUP_OTHER_WRITE, open_private
from . import disk_reserve
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

_CHECKPOINT, _CHECKPOINT_WHEN_FULL = 4_000, 100
"""Pages of the write-ahead log after which it is checkpointed."""

MAX_GROWTH = 2**20
"""Bytes by which a checkpoint may extend the database. With those of one more group of writes they
are less than the reserve."""

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
        self._disk_reserve = DiskReserve(path.with_suffix(".reserve"))
        self.full = False
        """Whether the disk has space for deletions only."""
        self.reserved = True
        """Whether the reserve is allocated. Otherwise the database must not grow: other writes than
        deletions need free pages."""

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
            deletions: whether they free space, and may use the reserve.

        Raises:
            sqlite3.Error: nothing was written.
            DiskFullError: nothing was written.
            OutcomeUnknownError: the disk failed during the commit.
        """
        try:
            self._write(changes, durable=durable)
        except DiskFullError:
            # The checkpoint may have freed enough: the log contained all writes since the last one.
            self.check_disk_space()
            if self.full and not deletions:
                raise
            self._write(changes, durable=durable)
        self._limit_growth()

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
        limit = None if self.reserved else self._compaction_limit()
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
            self.connection.close()
        # Opening the file recovers the rest of its log, or drops it.
        self.connection = self._open()
        found = self.connection.execute("SELECT 1 FROM log WHERE rv=?", (rv,)).fetchone()
        if found is not None:
            self._last_rv = rv
            # The log was not synced; the database will be.
            self._checkpoint("TRUNCATE")
        return found is not None

    def _enter_full_mode(self) -> None:
        if not self.full:
            log.error("disk full", extra={"path": str(self._path)})
        self.full = True
        self._use_reserve()

    def _use_reserve(self) -> None:
        """Release the reserve to a checkpoint, and allocate what remains to the write-ahead log."""
        self.reserved = False
        self._disk_reserve.release()
        with contextlib.suppress(sqlite3.Error):
            self._set_checkpoint()
            self._checkpoint("PASSIVE")
        allocate(self._log_path, disk_reserve.LOG_SIZE)
        self._disk_reserve.allocate(disk_reserve.KEPT_SIZE)

    def check_disk_space(self) -> None:
        """Check whether there is space for more than deletions; call it from the writer thread."""
        was_full, was_reserved = self.full, self.reserved
        self.reserved = self._disk_reserve.ensure() or self._exchange_log()
        if was_reserved and not self.reserved:
            self._use_reserve()
        self.full = not (self.reserved or self.has_free_pages())
        if self.reserved and not was_reserved:
            self._set_checkpoint()
        if self.full != was_full:
            log.warning(
                "disk full" if self.full else "disk has space again",
                extra={"path": str(self._path)},
            )

    def _exchange_log(self) -> bool:
        """Allocate the reserve, if it fits, in the space of the write-ahead log."""
        try:
            size = self._log_path.stat().st_size
        except OSError:
            size = 0
        if not self._disk_reserve.fits(freed=size):
            return False
        with contextlib.suppress(sqlite3.Error):
            self._checkpoint("TRUNCATE")
        if self._disk_reserve.ensure():
            return True
        allocate(self._log_path, disk_reserve.LOG_SIZE)
        return False

    def has_free_pages(self) -> bool:
        """Whether the next group of writes does not extend the database."""
        (pages,) = self.connection.execute("PRAGMA freelist_count").fetchone()
        return bool(pages * self._page_size >= disk_reserve.FREE_PAGES_SIZE)

    def _limit_growth(self) -> None:
        """Checkpoint the log before the reserve would not suffice for it; never raise.

        The commit has succeeded, and the next one tries it again.
        """
        try:
            if not self.reserved:
                self.full = not self.has_free_pages()
            (pages,) = self.connection.execute("PRAGMA page_count").fetchone()
            if pages * self._page_size - self._path.stat().st_size > MAX_GROWTH:
                self._checkpoint("PASSIVE")
        except OSError:
            log.warning("cannot determine the size of the database", exc_info=True)
        except sqlite3.Error as error:
            if _is_full(error):
                self._enter_full_mode()
            else:
                log.warning("cannot checkpoint the write-ahead log", exc_info=True)

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
        kept = MAX_LOG_ENTRIES if self.reserved else MAX_LOG_ENTRIES_WHEN_FULL
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
        if not self.reserved:
            # Closing has deleted the write-ahead log.
            self._disk_reserve.allocate(disk_reserve.RESERVE_SIZE)

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
        if self.reserved:
            return f"wal_autocheckpoint={_CHECKPOINT}", "journal_size_limit=-1"
        limit = disk_reserve.LOG_SIZE
        return f"wal_autocheckpoint={_CHECKPOINT_WHEN_FULL}", f"journal_size_limit={limit}"

    def _set_checkpoint(self) -> None:
        for pragma in self._checkpoint_pragmas():
            self.connection.execute(f"PRAGMA {pragma}").close()

    def _checkpoint(self, mode: str) -> None:
        self.connection.execute(f"PRAGMA wal_checkpoint({mode})").close()

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


def _is_full(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_FULL
