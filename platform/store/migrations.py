"""Schema migrations, in order; append, never edit."""

import sqlalchemy as sa

from .commands import COMMANDS
from .database import Migration
from .idempotency import IDEMPOTENCY_KEYS


def _create_commands_table(db: sa.Connection) -> None:
    COMMANDS.create(db, checkfirst=True)


def _widen_user_column(db: sa.Connection) -> None:
    # SQLite does not enforce text lengths.
    if db.dialect.name == "postgresql":
        db.execute(sa.text("ALTER TABLE commands ALTER COLUMN who TYPE TEXT"))


def _index_command_names(db: sa.Connection) -> None:
    db.execute(
        sa.text("CREATE INDEX IF NOT EXISTS commands_by_command ON commands (namespace, command)")
    )


def _add_targets_and_keys(db: sa.Connection) -> None:
    """Add the targets of commands, an index of the open ones, and the idempotency keys."""
    known = {column["name"] for column in sa.inspect(db).get_columns(COMMANDS.name)}
    columns = {
        "kind": "VARCHAR(16) NOT NULL DEFAULT 'jobs'",
        "task": "VARCHAR(253) NOT NULL DEFAULT ''",
        "pod": "VARCHAR(253) NOT NULL DEFAULT ''",
        "partition": "VARCHAR(253) NOT NULL DEFAULT ''",
    }
    for name, kind in columns.items():
        if name not in known:  # the first migration creates the table as it is now
            db.execute(sa.text(f'ALTER TABLE commands ADD COLUMN "{name}" {kind}'))
    db.execute(sa.text("DROP INDEX IF EXISTS commands_by_state"))
    db.execute(
        sa.text(
            "CREATE INDEX IF NOT EXISTS commands_open ON commands (received_at, id) "
            "WHERE finished_at IS NULL"
        )
    )
    IDEMPOTENCY_KEYS.create(db, checkfirst=True)


MIGRATIONS: tuple[Migration, ...] = (
    _create_commands_table,
    _widen_user_column,
    _index_command_names,
    _add_targets_and_keys,
)
