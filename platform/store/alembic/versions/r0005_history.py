"""The tables of the history; commands by the time of their outcome, for retention."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Create the tables and the index."""
    op.create_index("commands_by_finish", "commands", ["finished_at"])
    _create_jobs()
    _create_usage()
    _create_recorder()


def _create_jobs() -> None:
    op.create_table(
        "history_jobs",
        sa.Column("uid", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("namespace", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("queue", sa.Text, nullable=False),
        sa.Column("username", sa.Text, nullable=False),
        sa.Column("phase", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("spec", sa.Text),
        sa.Column("spec_bytes", sa.Integer, nullable=False),
        sa.Column("labels", sa.Text, nullable=False),
        sa.Column("tasks", sa.Text, nullable=False),
        sa.Column("resource_version", sa.Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("started_at", sa.BigInteger),
        sa.Column("finished_at", sa.BigInteger),
        sa.Column("deleted_at", sa.BigInteger),
        sa.Column("ended_at", sa.BigInteger, nullable=False),
        sa.Column("incomplete", sa.Text, nullable=False),
    )
    op.create_index("history_jobs_by_end", "history_jobs", ["ended_at", "uid"])
    op.create_index("history_jobs_by_namespace", "history_jobs", ["namespace", "ended_at", "uid"])
    op.create_index("history_jobs_by_queue", "history_jobs", ["queue", "ended_at", "uid"])
    op.create_index("history_jobs_by_user", "history_jobs", ["username", "ended_at", "uid"])
    op.create_index("history_jobs_by_phase", "history_jobs", ["phase", "ended_at", "uid"])
    op.create_index(
        "history_jobs_by_namespace_phase", "history_jobs", ["namespace", "phase", "ended_at", "uid"]
    )
    op.create_index("history_jobs_by_name", "history_jobs", ["namespace", "name", "ended_at"])
    op.create_index("history_jobs_by_deletion", "history_jobs", ["deleted_at", "kind"])
    op.create_table(
        "history_phases",
        sa.Column("job_uid", sa.Text, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("phase", sa.Text, nullable=False),
        sa.Column("entered_at", sa.BigInteger, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
    )
    op.create_table(
        "history_marks",
        sa.Column("job_uid", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("namespace", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("value", sa.Text, nullable=False),
    )


def _create_usage() -> None:
    op.create_table(
        "history_job_usage",
        sa.Column("job_uid", sa.Text, primary_key=True),
        sa.Column("resource", sa.Text, primary_key=True),
        sa.Column("amount", sa.Double, nullable=False),
    )
    op.create_table(
        "history_pods",
        sa.Column("uid", sa.Text, primary_key=True),
        sa.Column("job_uid", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("namespace", sa.Text, nullable=False),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("queue", sa.Text, nullable=False),
        sa.Column("requests", sa.Text, nullable=False),
        sa.Column("started_at", sa.BigInteger, nullable=False),
        sa.Column("ended_at", sa.BigInteger),
        sa.Column("exact", sa.Boolean, nullable=False),
        sa.Column("counted", sa.Boolean, nullable=False),
        sa.Column("present", sa.Boolean, nullable=False),
    )
    op.create_index("history_pods_by_job", "history_pods", ["job_uid"])
    op.create_index("history_pods_by_state", "history_pods", ["counted", "present"])
    op.create_table(
        "history_usage",
        sa.Column("step", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("bucket", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("queue", sa.Text, primary_key=True),
        sa.Column("username", sa.Text, primary_key=True),
        sa.Column("namespace", sa.Text, primary_key=True),
        sa.Column("resource", sa.Text, primary_key=True),
        sa.Column("amount", sa.Double, nullable=False),
        sa.Column("inexact", sa.Integer, nullable=False),
    )


def _create_recorder() -> None:
    op.create_table(
        "history_streams",
        sa.Column("resource", sa.Text, primary_key=True),
        sa.Column("position", sa.Text, nullable=False),
        sa.Column("observed_at", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "history_gaps",
        sa.Column("resource", sa.Text, primary_key=True),
        sa.Column("started_at", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("ended_at", sa.BigInteger, nullable=False),
    )
    op.create_index("history_gaps_by_end", "history_gaps", ["ended_at"])
    op.create_table(
        "history_recorder",
        sa.Column("only", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("epoch", sa.Integer, nullable=False),
    )
