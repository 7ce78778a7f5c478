"""User names of any length, in databases whose table of commands is of the first release."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Widen the column; SQLite does not enforce lengths."""
    if op.get_bind().dialect.name == "postgresql":
        op.alter_column("commands", "who", type_=sa.Text, existing_nullable=False)
