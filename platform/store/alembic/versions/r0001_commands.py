"""The table of commands, as version 1 of the first releases created it."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the table, which a release before Alembic may have left without its version."""
    op.create_table(
        "commands",
        sa.Column("id", sa.String(36), primary_key=True),
        sa.Column("namespace", sa.String(63), nullable=False),
        sa.Column("job", sa.String(253), nullable=False),
        sa.Column("job_uid", sa.String(36), nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("who", sa.Text, nullable=False),
        sa.Column("command", sa.String(253), nullable=False),
        sa.Column("command_uid", sa.String(36), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("received_at", sa.String(27), nullable=False),
        sa.Column("finished_at", sa.String(27)),
        if_not_exists=True,
    )
    op.create_index(
        "commands_by_job", "commands", ["namespace", "job", "received_at"], if_not_exists=True
    )
    op.create_index("commands_by_state", "commands", ["state"], if_not_exists=True)
