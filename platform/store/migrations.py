"""Schema migrations by Alembic; the revisions are in ``alembic/versions``.

An empty database gets all tables as they are now, without Alembic: its import takes longer, and
needs more memory, than all else that the REST API does at its first start. There is no downgrade:
restore a backup instead.
"""

import logging
import threading
from pathlib import Path

import sqlalchemy as sa

# The modules that declare tables in METADATA.
from . import commands, history_tables, idempotency, notifications  # noqa: F401
from .commands import METADATA
from .database import SchemaTooNewError

HEAD = "0009"
"""The newest revision."""
EMPTY = "0000"
"""The revision of an empty database."""

ALEMBIC_VERSION = sa.Table(
    "alembic_version", sa.MetaData(), sa.Column("version_num", sa.String(32), primary_key=True)
)

_LOCK_ID = 7_205_759_403
"""Advisory lock that serializes migrations by replicas with a common PostgreSQL."""

_alembic_lock = threading.Lock()
"""Alembic has state that is global to the process."""


class SchemaMigrations:
    """Upgrades a database to the newest revision."""

    def upgrade(self, db: sa.Connection) -> None:
        """Upgrade the schema in the transaction of *db*, which the caller commits.

        Safe with several replicas: the first one upgrades, the others wait for it.

        Raises:
            SchemaTooNewError: the schema is of a newer release.
        """
        _lock_schema(db)
        revision = _current_revision(db)
        if revision == HEAD:
            return
        if revision > HEAD:
            raise SchemaTooNewError(
                f"database schema is at revision {revision}, newest supported: {HEAD}; downgrades "
                "are not supported"
            )
        if revision == EMPTY:
            METADATA.create_all(db)
            ALEMBIC_VERSION.create(db, checkfirst=True)
            db.execute(sa.insert(ALEMBIC_VERSION).values(version_num=HEAD))
        else:
            with _alembic_lock:
                _run_alembic(db)


MIGRATIONS = SchemaMigrations()


def _lock_schema(db: sa.Connection) -> None:
    """Lock the schema until the transaction ends."""
    if db.dialect.name == "postgresql":
        db.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK_ID)))
    elif db.dialect.name == "sqlite":
        # Python's driver would begin a transaction only before the first row is written.
        db.exec_driver_sql("BEGIN IMMEDIATE")


def _current_revision(db: sa.Connection) -> str:
    """Return the revision of the schema, or `EMPTY`."""
    if not sa.inspect(db).has_table(ALEMBIC_VERSION.name):
        return EMPTY
    return db.scalar(sa.select(ALEMBIC_VERSION.c.version_num)) or EMPTY


def _run_alembic(db: sa.Connection) -> None:
    # Loaded only for this: most starts find a current schema.
    logging.getLogger("alembic").setLevel(logging.WARNING)  # before the import, which logs plugins
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "alembic"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = db
    command.upgrade(config, HEAD)
