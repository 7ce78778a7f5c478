"""Targets of commands, an index of the open ones, and the idempotency keys."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_OPEN = sa.text("finished_at IS NULL")


def upgrade() -> None:
    """Add columns and an index to the table of commands; create the table of keys."""
    for name, size, default in (
        ("kind", 16, "jobs"),
        ("task", 253, ""),
        ("pod", 253, ""),
        ("partition", 253, ""),
    ):
        column = sa.Column(name, sa.String(size), nullable=False, server_default=default)
        op.add_column("commands", column)
    op.drop_index("commands_by_state", "commands")
    op.create_index(
        "commands_open",
        "commands",
        ["received_at", "id"],
        sqlite_where=_OPEN,
        postgresql_where=_OPEN,
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("key", sa.String(64), primary_key=True),
        sa.Column("operation", sa.String(36), nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("owner", sa.String(36), nullable=False),
        sa.Column("lease_until", sa.String(27), nullable=False),
        sa.Column("received_at", sa.String(27), nullable=False),
        sa.Column("plan", sa.LargeBinary),
        sa.Column("status", sa.Integer),
        sa.Column("body", sa.LargeBinary),
        sa.Column("media_type", sa.String(100)),
        sa.Column("location", sa.Text),
    )
    op.create_index("idempotency_keys_by_time", "idempotency_keys", ["received_at"])
