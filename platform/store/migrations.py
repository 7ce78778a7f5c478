"""The steps that bring an empty or older database to the present schema; append, never edit."""

import sqlalchemy as sa

from .commands import COMMANDS
from .database import Migration


def _make_commands(db: sa.Connection) -> None:
    COMMANDS.create(db, checkfirst=True)


def _allow_long_users(db: sa.Connection) -> None:
    # SQLite holds no text to a length.
    if db.dialect.name == "postgresql":
        db.execute(sa.text("ALTER TABLE commands ALTER COLUMN who TYPE TEXT"))


MIGRATIONS: tuple[Migration, ...] = (_make_commands, _allow_long_users)
