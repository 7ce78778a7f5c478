"""Exit codes of the pods of jobs."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Add the table and the column; the exit codes of pods that have ended so far are not known."""
    op.create_table(
        "history_job_exits",
        sa.Column("job_uid", sa.Text, primary_key=True),
        sa.Column("exit_code", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("pods", sa.Integer, nullable=False),
    )
    op.add_column("history_pods", sa.Column("exit_code", sa.Integer))
