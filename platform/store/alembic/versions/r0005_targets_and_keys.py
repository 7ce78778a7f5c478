"""The targets of commands, an index of the open ones, and the idempotency keys."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the columns, and create the index and the table."""
    _add_text("kind", length=16, default="jobs")
    for name in ("task", "pod", "partition"):
        _add_text(name, length=253, default="")
    op.drop_index("commands_by_state", "commands")
    op.create_index(
        "commands_open",
        "commands",
        ["received_at", "id"],
        sqlite_where=sa.text("finished_at IS NULL"),
        postgresql_where=sa.text("finished_at IS NULL"),
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


def _add_text(name: str, *, length: int, default: str) -> None:
    column = sa.Column(name, sa.String(length), nullable=False, server_default=default)
    op.add_column("commands", column)
