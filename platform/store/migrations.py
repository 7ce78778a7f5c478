"""The steps that bring an empty or older database to the present schema; append, never edit."""

import sqlalchemy as sa

from .commands import COMMANDS
from .database import Migration


def _make_commands(db: sa.Connection) -> None:
    COMMANDS.create(db, checkfirst=True)


MIGRATIONS: tuple[Migration, ...] = (_make_commands,)
