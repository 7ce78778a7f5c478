"""Notifications of jobs that are to be sent."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add the table."""
    op.create_table(
        "notifications",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("job_uid", sa.Text, nullable=False),
        sa.Column("event", sa.Text, nullable=False),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("due_at", sa.BigInteger, nullable=False),
        sa.Column("attempts", sa.Integer, nullable=False),
    )
    op.create_index("notifications_by_time", "notifications", ["due_at"])
    op.create_index("notifications_by_job", "notifications", ["job_uid"])
