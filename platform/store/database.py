"""One SQL database and its schema version; SQLite by default, PostgreSQL for several replicas."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import sqlalchemy as sa

T = TypeVar("T")
Migration = Callable[[sa.Connection], None]

VERSION = sa.Table(
    "schema_version",
    sa.MetaData(),
    sa.Column("only", sa.Integer, primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
)


_MIGRATING = 7_205_759_403
"""Number of the lock that replicas take before they touch the schema of a shared PostgreSQL."""


class StoreError(Exception):
    """The database cannot be used; the text names it, but not its password, and says why."""


class SchemaTooNewError(StoreError):
    """The database was written by a newer Batholith; upgrade, do not downgrade in place."""


class Database:
    """Runs functions over a connection in a thread of its own, each in one transaction."""

    def __init__(self, url: str) -> None:
        """Take the database at *url*, as SQLAlchemy writes it.

        Raises:
            StoreError: it is no such URL, its driver is missing, or its file cannot be made.
        """
        with _told(url):
            self._engine = _engine(url)
        # SQLite takes one writer at a time anyway; one thread also keeps the order of writes.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")

    async def migrate(self, migrations: Sequence[Migration]) -> None:
        """Bring the schema to version ``len(migrations)``, each step in one transaction.

        Replicas that start together may all try; they do so one after the other.

        Raises:
            StoreError: it does not answer, or lets us do nothing.
            SchemaTooNewError: the database is ahead of *migrations*.
        """
        with _told(self._engine.url):
            await self.run(_make_version)
            for number, migration in enumerate(migrations, start=1):
                await self.run(partial(_step, number=number, migration=migration))
            have = await self.run(_version)
        if have > len(migrations):
            raise SchemaTooNewError(
                f"database is at version {have}, this Batholith knows {len(migrations)}"
            )

    async def run(self, work: Callable[[sa.Connection], T]) -> T:
        """Do *work* in one transaction; it is rolled back when *work* raises."""

        def transaction() -> T:
            with self._engine.begin() as connection:
                return work(connection)

        return await asyncio.get_running_loop().run_in_executor(self._thread, transaction)

    async def close(self) -> None:
        """Wait for the work under way and close all connections."""
        await asyncio.to_thread(self._thread.shutdown)
        self._engine.dispose()


def _engine(url: str) -> sa.Engine:
    # A server that was started again leaves dead connections behind, which are tried first.
    engine = sa.create_engine(url, pool_pre_ping=not url.startswith("sqlite"))
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", _durable)
        if engine.url.database:
            # History names who did what: for its owner alone.
            Path(engine.url.database).touch(mode=0o600)
    return engine


@contextmanager
def _told(url: str | sa.URL) -> Iterator[None]:
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


def _durable(connection: object, _record: object) -> None:
    cursor = connection.cursor()  # type: ignore[attr-defined]  # a DB-API connection has no type
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA busy_timeout=5000")
    cursor.close()


def _alone(db: sa.Connection) -> None:
    """Keep others from the schema until the transaction ends; SQLite does so by itself."""
    if db.dialect.name == "postgresql":
        db.execute(sa.select(sa.func.pg_advisory_xact_lock(_MIGRATING)))


def _make_version(db: sa.Connection) -> None:
    _alone(db)
    VERSION.create(db, checkfirst=True)


def _version(db: sa.Connection) -> int:
    return db.execute(sa.select(VERSION.c.version)).scalar() or 0


def _step(db: sa.Connection, *, number: int, migration: Migration) -> None:
    _alone(db)
    have = _version(db)
    if have >= number:
        return
    migration(db)
    if have:
        db.execute(sa.update(VERSION).values(version=number))
    else:
        db.execute(sa.insert(VERSION).values(only=1, version=number))
