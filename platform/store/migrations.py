"""Schema migrations, in order; append, never edit."""

import sqlalchemy as sa

from .commands import COMMANDS
from .database import Migration


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


MIGRATIONS: tuple[Migration, ...] = (
    _create_commands_table,
    _widen_user_column,
    _index_command_names,
)
