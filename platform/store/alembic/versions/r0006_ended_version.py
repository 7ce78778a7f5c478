"""The resourceVersions at which jobs ended and gaps began."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the columns; of jobs that have ended and of gaps so far, only the times are known."""
    for table, column in (("history_jobs", "ended_version"), ("history_gaps", "started_version")):
        new = sa.Column(column, sa.BigInteger, nullable=False, server_default="0")
        op.add_column(table, new)
    jobs = sa.table("history_jobs", sa.column("ended_at"), sa.column("ended_version"))
    unfinished = jobs.c.ended_at == 2**63 - 1
    op.execute(sa.update(jobs).where(unfinished).values(ended_version=jobs.c.ended_at))
