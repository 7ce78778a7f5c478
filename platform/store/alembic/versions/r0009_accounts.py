"""Accounts of jobs, and usage by account."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"

_KEYS = ("step", "bucket", "queue", "username", "namespace", "resource")


def upgrade() -> None:
    """Add the columns; jobs and usage so far have no account.

    It is part of the primary key of the usage, which SQLite cannot change in an existing table.
    """
    op.add_column("history_jobs", sa.Column("account", sa.Text, nullable=False, server_default=""))
    op.create_index("history_jobs_by_account", "history_jobs", ["account", "ended_at", "uid"])
    op.create_table(
        "history_usage_by_account",
        sa.Column("step", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("bucket", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("queue", sa.Text, primary_key=True),
        sa.Column("username", sa.Text, primary_key=True),
        sa.Column("account", sa.Text, primary_key=True),
        sa.Column("namespace", sa.Text, primary_key=True),
        sa.Column("resource", sa.Text, primary_key=True),
        sa.Column("amount", sa.Double, nullable=False),
        sa.Column("inexact", sa.Integer, nullable=False),
    )
    columns = ", ".join((*_KEYS, "amount", "inexact"))
    op.execute(
        f"INSERT INTO history_usage_by_account ({columns}, account)"  # noqa: S608 - constants
        f" SELECT {columns}, '' FROM history_usage"
    )
    op.drop_table("history_usage")
    op.rename_table("history_usage_by_account", "history_usage")
