"""The tables of the history. Times are microseconds since the epoch.

``history_pods`` has one row per pod that exists and has started: its interval is added to the usage
once, when it ends, and so is its exit code to ``history_job_exits``. The rows of
``history_streams`` are the positions in the watches up to which everything is recorded, written in
the same transaction as what they cover. ``ended_version`` is the resourceVersion of the first state
of a job that was final, and ``started_version`` the position before a gap: the watch of pods has
delivered all that happened before a job ended if its position is not before ``ended_version``.
Rows of an earlier schema have 0 there.
"""

import sqlalchemy as sa

from .commands import METADATA

UNFINISHED = 2**63 - 1
"""``ended_at`` and ``ended_version`` of a job that has neither finished nor been deleted: it sorts
last."""

JOBS = sa.Table(
    "history_jobs",
    METADATA,
    sa.Column("uid", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("namespace", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("queue", sa.Text, nullable=False),
    sa.Column("username", sa.Text, nullable=False),
    sa.Column("account", sa.Text, nullable=False, server_default=""),
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
    sa.Column("ended_version", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("incomplete", sa.Text, nullable=False),
    sa.Index("history_jobs_by_end", "ended_at", "uid"),
    sa.Index("history_jobs_by_namespace", "namespace", "ended_at", "uid"),
    sa.Index("history_jobs_by_queue", "queue", "ended_at", "uid"),
    sa.Index("history_jobs_by_user", "username", "ended_at", "uid"),
    sa.Index("history_jobs_by_account", "account", "ended_at", "uid"),
    sa.Index("history_jobs_by_phase", "phase", "ended_at", "uid"),
    sa.Index("history_jobs_by_namespace_phase", "namespace", "phase", "ended_at", "uid"),
    sa.Index("history_jobs_by_name", "namespace", "name", "ended_at"),
    sa.Index("history_jobs_by_deletion", "deleted_at", "kind"),
)

PHASES = sa.Table(
    "history_phases",
    METADATA,
    sa.Column("job_uid", sa.Text, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("phase", sa.Text, nullable=False),
    sa.Column("entered_at", sa.BigInteger, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("message", sa.Text, nullable=False),
)

JOB_USAGE = sa.Table(
    "history_job_usage",
    METADATA,
    sa.Column("job_uid", sa.Text, primary_key=True),
    sa.Column("resource", sa.Text, primary_key=True),
    sa.Column("amount", sa.Double, nullable=False),
)

JOB_EXITS = sa.Table(
    "history_job_exits",
    METADATA,
    sa.Column("job_uid", sa.Text, primary_key=True),
    sa.Column("exit_code", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("pods", sa.Integer, nullable=False),
)

PODS = sa.Table(
    "history_pods",
    METADATA,
    sa.Column("uid", sa.Text, primary_key=True),
    sa.Column("job_uid", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("namespace", sa.Text, nullable=False),
    sa.Column("job", sa.Text, nullable=False),
    sa.Column("queue", sa.Text, nullable=False),
    sa.Column("requests", sa.Text, nullable=False),
    sa.Column("started_at", sa.BigInteger, nullable=False),
    sa.Column("ended_at", sa.BigInteger),
    sa.Column("exit_code", sa.Integer),
    sa.Column("exact", sa.Boolean, nullable=False),
    sa.Column("counted", sa.Boolean, nullable=False),
    sa.Column("present", sa.Boolean, nullable=False),
    sa.Index("history_pods_by_job", "job_uid"),
    sa.Index("history_pods_by_state", "counted", "present"),
)

USAGE = sa.Table(
    "history_usage",
    METADATA,
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

STREAMS = sa.Table(
    "history_streams",
    METADATA,
    sa.Column("resource", sa.Text, primary_key=True),
    sa.Column("position", sa.Text, nullable=False),
    sa.Column("observed_at", sa.BigInteger, nullable=False),
)

GAPS = sa.Table(
    "history_gaps",
    METADATA,
    sa.Column("resource", sa.Text, primary_key=True),
    sa.Column("started_at", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("ended_at", sa.BigInteger, nullable=False),
    sa.Column("started_version", sa.BigInteger, nullable=False, server_default="0"),
    sa.Index("history_gaps_by_end", "ended_at"),
)

RECORDER = sa.Table(
    "history_recorder",
    METADATA,
    sa.Column("only", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("epoch", sa.Integer, nullable=False),
)

MARKS = sa.Table(
    "history_marks",
    METADATA,
    sa.Column("job_uid", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("namespace", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("value", sa.Text, nullable=False),
)


def is_pod_of_job() -> sa.ColumnElement[bool]:
    """Return the condition under which a row of pods belongs to a row of jobs.

    The reference of a pod is not checked by the API server: its uid alone may be forged.
    """
    return sa.and_(
        PODS.c.job_uid == JOBS.c.uid,
        PODS.c.namespace == JOBS.c.namespace,
        PODS.c.job == JOBS.c.name,
    )
