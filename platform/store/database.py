"""SQL database with a schema version: SQLite by default, PostgreSQL for several replicas."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

T = TypeVar("T")

TRANSACTION_TIMEOUT = 1.5
"""Default timeout of a transaction in seconds."""

READERS = 2
"""Concurrent reads."""

_LIBPQ_DEFAULTS = {
    "connect_timeout": 2,
    "tcp_user_timeout": 2000,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
}
"""Default connection parameters: a dead server is detected within seconds."""

_BUSY_TIMEOUT = 1.0
"""Seconds SQLite waits for another process's lock; less than TRANSACTION_TIMEOUT, so that its
error is reported."""

PERMANENT_ERRORS = (
    sa.exc.DataError,
    sa.exc.IntegrityError,
    sa.exc.NotSupportedError,
)
"""Errors of the values that are written; a retry would fail, too.

A missing table or privilege (``ProgrammingError``) is none of them: the database can be repaired.
"""

_READ_ONLY = "25006"
"""SQLSTATE of a write to a standby, or to a primary that was demoted."""


class StoreError(Exception):
    """The database cannot be used; the text names its URL without the password, and the cause."""


class StoreUnavailableError(StoreError):
    """The database timed out or failed temporarily; a write may have been committed."""


class SchemaTooNewError(StoreError):
    """The schema is of a newer Batholith; downgrades are not supported."""


class Migrations(Protocol):
    """The migrations of a schema."""

    def upgrade(self, db: sa.Connection) -> None:
        """Upgrade the schema in the transaction of *db*, however many replicas do so.

        Raises:
            SchemaTooNewError: the schema is of a newer Batholith.
        """
        ...


@dataclass(slots=True)
class _PendingWrite:
    """A write that waits for the thread of writes."""

    work: Callable[[sa.Connection], Any]
    done: asyncio.Future[Any]


class Database:
    """Runs functions in transactions: writes in one thread, reads in others.

    Writes that arrive while another one is committed share the next transaction, so that many
    callers wait for one flush of the disk. :meth:`run` and :meth:`read` fail until
    :meth:`migrate` has succeeded.
    """

    def __init__(self, url: str, *, timeout: float = TRANSACTION_TIMEOUT) -> None:
        """Open the database at *url*, an SQLAlchemy URL.

        *timeout* is of a transaction, in seconds, including the wait for the thread.

        Raises:
            StoreError: the URL is invalid, its driver is missing, or its file cannot be created.
        """
        with _store_errors(url):
            self._engine = _create_engine(url)
        self._timeout = timeout
        # SQLite allows one writer at a time; one thread also preserves the order of writes.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="store-writes")
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="store-reads")
        self._pending: list[_PendingWrite] = []
        self._writer: asyncio.Task[None] | None = None
        self._migrated = asyncio.Event()

    async def migrate(self, migrations: Migrations) -> None:
        """Migrate the schema, in one transaction.

        Raises:
            StoreError: the database does not respond or denies access.
            SchemaTooNewError: the schema is of a newer Batholith.
        """
        with _store_errors(self._engine.url):
            await self._submit(migrations.upgrade)
        self._migrated.set()

    async def wait_migrated(self) -> None:
        """Wait until :meth:`migrate` has succeeded."""
        await self._migrated.wait()

    async def run(self, work: Callable[[sa.Connection], T]) -> T:
        """Run *work*, which writes, in a transaction, rolled back if *work* raises.

        *work* must be idempotent: it is retried once after a connection failure, even of a commit
        whose outcome is unknown, and if another write of its transaction raises.

        Raises:
            StoreUnavailableError: the database does not respond in time.
        """
        self._require_migrated()
        write = _PendingWrite(work, asyncio.get_running_loop().create_future())
        self._pending.append(write)
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_pending())
        result: T = await self._checked(write.done)
        return result

    async def read(self, work: Callable[[sa.Connection], T]) -> T:
        """Run *work*, which only reads; it does not wait for writes.

        Raises:
            StoreUnavailableError: the database does not respond in time.
        """
        self._require_migrated()
        attempt = partial(_transact, self._engine, work, limit=self._timeout)
        return await self._checked(
            asyncio.get_running_loop().run_in_executor(self._readers, attempt)
        )

    async def close(self) -> None:
        """Close all connections; wait for a running transaction up to its timeout."""
        executors = (self._executor, self._readers)
        for executor in executors:
            executor.shutdown(wait=False, cancel_futures=True)
        shutdown = [
            asyncio.create_task(asyncio.to_thread(executor.shutdown)) for executor in executors
        ]
        await asyncio.wait(shutdown, timeout=self._timeout)
        self._engine.dispose()

    def _require_migrated(self) -> None:
        if not self._migrated.is_set():
            raise StoreUnavailableError("the store is not migrated yet")

    async def _checked(self, response: asyncio.Future[T]) -> T:
        """Return *response*, with the errors of the database converted."""
        try:
            async with asyncio.timeout(self._timeout):
                return await response
        except TimeoutError as error:
            raise StoreUnavailableError(
                f"no response from the store within {self._timeout} s"
            ) from error
        except PERMANENT_ERRORS:
            raise
        except (sa.exc.DBAPIError, sa.exc.TimeoutError) as error:
            cause = getattr(error, "orig", None) or error
            raise StoreUnavailableError(f"cannot use the store: {cause}") from error

    async def _write_pending(self) -> None:
        """Run the pending writes, all that have arrived in one transaction."""
        try:
            while self._pending:
                # The caller of one that is done has given up before it was begun.
                batch = [write for write in self._pending if not write.done.done()]
                self._pending = []
                await self._write_batch(batch)
        finally:
            self._writer = None

    async def _write_batch(self, batch: Sequence[_PendingWrite]) -> None:
        works = [write.work for write in batch]
        try:
            results = await self._submit(partial(_run_all, works), limit=self._timeout)
        except Exception as error:
            if len(batch) > 1 and not _is_connection_error(error):
                for write in batch:
                    await self._write_batch((write,))
                return
            for write in batch:
                if not write.done.done():
                    write.done.set_exception(error)
            return
        for write, result in zip(batch, results, strict=True):
            if not write.done.done():
                write.done.set_result(result)

    async def _submit(self, work: Callable[[sa.Connection], T], limit: float | None = None) -> T:
        attempt = partial(_transact, self._engine, work, limit=limit)
        return await asyncio.get_running_loop().run_in_executor(self._executor, attempt)


def insert_if_absent(db: sa.Connection, table: sa.Table) -> sa.Insert:
    """Return an insert into *table* that skips rows whose key exists."""
    if db.dialect.name == "postgresql":
        return postgresql.insert(table).on_conflict_do_nothing()
    return sqlite.insert(table).on_conflict_do_nothing()


def _run_all(works: Sequence[Callable[[sa.Connection], Any]], db: sa.Connection) -> list[Any]:
    return [work(db) for work in works]


def _is_connection_error(error: Exception) -> bool:
    """Return whether each write of a transaction would fail with *error*."""
    return isinstance(error, sa.exc.DBAPIError) and not isinstance(error, PERMANENT_ERRORS)


def _transact(engine: sa.Engine, work: Callable[[sa.Connection], T], *, limit: float | None) -> T:
    """Run *work* in a transaction; retry once if the connection breaks."""
    try:
        return _run_transaction(engine, work, limit=limit)
    except sa.exc.DBAPIError as error:
        if not error.connection_invalidated:
            raise
    return _run_transaction(engine, work, limit=limit)


def _run_transaction(
    engine: sa.Engine, work: Callable[[sa.Connection], T], *, limit: float | None
) -> T:
    with engine.begin() as connection:
        if limit is not None and engine.dialect.name == "postgresql":
            # End a statement that waits for a lock once its caller has timed out.
            connection.execute(sa.text(f"SET LOCAL statement_timeout = {int(limit * 1000)}"))
        return work(connection)


def _create_engine(url: str) -> sa.Engine:
    # A server restart leaves dead connections in the pool.
    engine = sa.create_engine(url, pool_pre_ping=not url.startswith("sqlite"))
    if engine.dialect.driver in ("psycopg", "psycopg2"):
        sa.event.listen(engine, "do_connect", partial(_with_defaults, _LIBPQ_DEFAULTS))
        sa.event.listen(engine, "handle_error", _reconnect_if_read_only)
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "do_connect", partial(_with_defaults, {"timeout": _BUSY_TIMEOUT}))
        sa.event.listen(engine, "connect", _set_durable_pragmas)
        if engine.url.database:
            # The history names users: readable by the owner only.
            Path(engine.url.database).touch(mode=0o600)
    return engine


@contextmanager
def _store_errors(url: str | sa.URL) -> Iterator[None]:
    """Convert errors of the database at *url* to StoreError."""
    try:
        address = sa.make_url(url).render_as_string(hide_password=True)
    except sa.exc.ArgumentError as error:  # Its text may include the password.
        raise StoreError("the store's address is not a valid SQLAlchemy URL") from error
    try:
        yield
    except (OSError, ImportError, sa.exc.SQLAlchemyError) as error:
        cause = getattr(error, "orig", None) or error
        raise StoreError(f"cannot use the store {address}: {cause}") from error


def _with_defaults(
    defaults: Mapping[str, object], _dialect: object, _record: object, *arguments: Any
) -> None:
    """Add *defaults* to the parameters of a new connection."""
    _, parameters = arguments
    for name, value in defaults.items():
        parameters.setdefault(name, value)


def _reconnect_if_read_only(context: sa.engine.ExceptionContext) -> None:
    """Close the connections to a server that has become read-only: another one is the primary."""
    if getattr(context.original_exception, "sqlstate", None) == _READ_ONLY:
        context.is_disconnect = True


def _set_durable_pragmas(connection: object, _record: object) -> None:
    cursor = connection.cursor()  # type: ignore[attr-defined]  # a DB-API connection has no type
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()
