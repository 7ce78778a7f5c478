"""One SQL database and its schema version; SQLite by default, PostgreSQL for several replicas."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

T = TypeVar("T")
Migration = Callable[[sa.Connection], None]

SCHEMA_VERSION = sa.Table(
    "schema_version",
    sa.MetaData(),
    sa.Column("only", sa.Integer, primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
)


TRANSACTION_TIMEOUT = 1.5
"""Seconds that a transaction gets, waiting for its turn included."""

_LIBPQ_DEFAULTS = {
    "connect_timeout": 2,
    "tcp_user_timeout": 2000,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
}
"""Connection parameters unless the URL has its own: a dead server is noticed in seconds."""

_BUSY_TIMEOUT = 1.0
"""How long SQLite waits for another process's lock; below TIMEOUT, so that its error is seen."""

_PERMANENT_ERRORS = (
    sa.exc.DataError,
    sa.exc.IntegrityError,
    sa.exc.NotSupportedError,
    sa.exc.ProgrammingError,
)
"""Errors of a statement itself, which the same statement meets again."""

_MIGRATION_LOCK_ID = 7_205_759_403
"""Number of the lock that replicas take before they touch the schema of a shared PostgreSQL."""


class StoreError(Exception):
    """The database cannot be used; the text names it, but not its password, and says why."""


class StoreUnavailableError(StoreError):
    """The database did not answer in time, or refused for now; a write may have come through."""


class SchemaTooNewError(StoreError):
    """The database was written by a newer Batholith; upgrade, do not downgrade in place."""


class Database:
    """Runs functions over a connection in a thread of its own, each in one transaction.

    :meth:`migrate` comes first; until it has succeeded, nothing else can be run.
    """

    def __init__(self, url: str) -> None:
        """Take the database at *url*, as SQLAlchemy writes it.

        Raises:
            StoreError: it is no such URL, its driver is missing, or its file cannot be made.
        """
        with _store_errors(url):
            self._engine = _create_engine(url)
        # SQLite takes one writer at a time anyway; one thread also keeps the order of writes.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._migrated = False

    async def migrate(self, migrations: Sequence[Migration]) -> None:
        """Bring the schema to version ``len(migrations)``, each step in one transaction.

        Replicas that start together may all try; they do so one after the other.

        Raises:
            StoreError: it does not answer, or lets us do nothing.
            SchemaTooNewError: the database is ahead of *migrations*.
        """
        with _store_errors(self._engine.url):
            await self._submit(_create_version_table)
            for number, migration in enumerate(migrations, start=1):
                await self._submit(partial(_apply_migration, number=number, migration=migration))
            have = await self._submit(_read_version)
        if have > len(migrations):
            raise SchemaTooNewError(
                f"database is at version {have}, this Batholith knows {len(migrations)}"
            )
        self._migrated = True

    async def run(self, work: Callable[[sa.Connection], T]) -> T:
        """Do *work* in one transaction; it is rolled back when *work* raises.

        *work* is done again after a connection broke, even in the commit, whose outcome is unknown
        then: doing it twice must come to the same.

        Raises:
            StoreUnavailableError: the database does not answer in time, or not at all.
        """
        if not self._migrated:
            raise StoreUnavailableError("the store cannot be used yet")
        try:
            async with asyncio.timeout(TRANSACTION_TIMEOUT):
                return await self._submit(work, limit=TRANSACTION_TIMEOUT)
        except TimeoutError as error:
            raise StoreUnavailableError(
                f"no answer from the store in {TRANSACTION_TIMEOUT} s"
            ) from error
        except _PERMANENT_ERRORS:
            raise
        except (sa.exc.DBAPIError, sa.exc.TimeoutError) as error:
            why = getattr(error, "orig", None) or error
            raise StoreUnavailableError(f"the store cannot be used: {why}") from error

    async def close(self) -> None:
        """Close all connections; a transaction that hangs is given up after a while."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        ending = asyncio.create_task(asyncio.to_thread(self._executor.shutdown))
        await asyncio.wait((ending,), timeout=TRANSACTION_TIMEOUT)
        self._engine.dispose()

    async def _submit(self, work: Callable[[sa.Connection], T], limit: float | None = None) -> T:
        attempt = partial(_transact, self._engine, work, limit=limit)
        return await asyncio.get_running_loop().run_in_executor(self._executor, attempt)


def _transact(engine: sa.Engine, work: Callable[[sa.Connection], T], *, limit: float | None) -> T:
    """Do *work* in a transaction, and once more if its connection breaks."""
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
            # A statement that waits for a lock ends when its caller has stopped waiting for it.
            connection.execute(sa.text(f"SET LOCAL statement_timeout = {int(limit * 1000)}"))
        return work(connection)


def _create_engine(url: str) -> sa.Engine:
    # A server that was started again leaves dead connections behind, which are tried first.
    engine = sa.create_engine(url, pool_pre_ping=not url.startswith("sqlite"))
    if engine.dialect.driver in ("psycopg", "psycopg2"):
        sa.event.listen(engine, "do_connect", partial(_with_defaults, _LIBPQ_DEFAULTS))
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "do_connect", partial(_with_defaults, {"timeout": _BUSY_TIMEOUT}))
        sa.event.listen(engine, "connect", _set_durable_pragmas)
        if engine.url.database:
            # History names who did what: for its owner alone.
            Path(engine.url.database).touch(mode=0o600)
    return engine


@contextmanager
def _store_errors(url: str | sa.URL) -> Iterator[None]:
    """Make a StoreError of whatever keeps the database at *url* from being used."""
    try:
        where = sa.make_url(url).render_as_string(hide_password=True)
    except sa.exc.ArgumentError as error:  # which may say what was given, password and all
        raise StoreError("the store's address is no URL that SQLAlchemy understands") from error
    try:
        yield
    except (OSError, ImportError, sa.exc.SQLAlchemyError) as error:
        why = getattr(error, "orig", None) or error
        raise StoreError(f"the store {where} cannot be used: {why}") from error


def _with_defaults(
    defaults: Mapping[str, object], _dialect: object, _record: object, *given: Any
) -> None:
    """Add *defaults* to the parameters of a new connection."""
    _, parameters = given
    for name, value in defaults.items():
        parameters.setdefault(name, value)


def _set_durable_pragmas(connection: object, _record: object) -> None:
    cursor = connection.cursor()  # type: ignore[attr-defined]  # a DB-API connection has no type
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def _lock_schema(db: sa.Connection) -> None:
    """Keep others from the schema until the transaction ends; SQLite does so by itself."""
    if db.dialect.name == "postgresql":
        db.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATION_LOCK_ID)))


def _create_version_table(db: sa.Connection) -> None:
    _lock_schema(db)
    SCHEMA_VERSION.create(db, checkfirst=True)


def _read_version(db: sa.Connection) -> int:
    return db.execute(sa.select(SCHEMA_VERSION.c.version)).scalar() or 0


def _apply_migration(db: sa.Connection, *, number: int, migration: Migration) -> None:
    _lock_schema(db)
    have = _read_version(db)
    if have >= number:
        return
    migration(db)
    if have:
        db.execute(sa.update(SCHEMA_VERSION).values(version=number))
    else:
        db.execute(sa.insert(SCHEMA_VERSION).values(only=1, version=number))
