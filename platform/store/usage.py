"""Read resource-seconds over time, by queue, user, account or namespace.

Pods that have ended are in ``history_usage``, added up by hour and by day. Those that run are added
here until now; the database groups them, so that it returns a few rows for many pods.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
import sqlalchemy as sa

from ..wire.history import UsagePoint, UsageSeries
from .database import Database
from .history_tables import GAPS, JOBS, PODS, USAGE, is_pod_of_job
from .job_records import PODS_RESOURCE
from .records import SECOND, to_micros

GroupName = Literal["queue", "user", "account", "namespace"]

MAX_VALUES = 50_000
"""Maximum number of values that a query may select."""

_COLUMNS: Mapping[GroupName, str] = {
    "queue": "queue",
    "user": "username",
    "account": "account",
    "namespace": "namespace",
}


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which usage to return; filters that are ``None`` select all."""

    by: GroupName
    start: datetime
    end: datetime
    step: int
    """3600 or 86400 seconds; *start* and *end* are multiples of it."""
    queue: str | None = None
    user: str | None = None
    account: str | None = None
    namespace: str | None = None


class TooMuchUsageError(Exception):
    """The query selects more values than one response may contain."""


class UsageStore:
    """Reads the usage; raises :class:`StoreUnavailableError`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def series(self, query: UsageQuery, *, now: datetime) -> Sequence[UsageSeries]:
        """Return the usage by name; pods that run count until *now*.

        Raises:
            TooMuchUsageError: there are more than :data:`MAX_VALUES` values.
        """
        until = to_micros(now)
        counted, running, gaps = await self._database.read(lambda db: _rows(db, query, until))
        if len(counted) > MAX_VALUES:
            raise TooMuchUsageError(f"more than {MAX_VALUES} values")
        return _series(query, until, counted, running=running, gaps=gaps)


def _rows(
    db: sa.Connection, query: UsageQuery, now: int
) -> tuple[Sequence[Any], Sequence[Any], Sequence[tuple[int, int]]]:
    """Return what has been counted, the pods that run, and the gaps."""
    counted = db.execute(_counted(query).limit(MAX_VALUES + 1)).all()
    running = db.execute(_running(query, query.step * SECOND, now)).all()
    return counted, running, _gaps(db, query)


def _series(
    query: UsageQuery,
    now: int,
    counted: Sequence[Any],
    *,
    running: Sequence[Any],
    gaps: Sequence[tuple[int, int]],
) -> Sequence[UsageSeries]:
    totals: dict[tuple[str, int], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    inexact: set[tuple[str, int]] = set()
    for name, bucket, resource, amount, uncertain in counted:
        totals[name, bucket][resource] += amount
        if uncertain:
            inexact.add((name, bucket))
    _add_running(query, now, running, totals)
    series: dict[str, list[UsagePoint]] = defaultdict(list)
    for (name, bucket), amounts in sorted(totals.items()):
        has_gap = any(start < bucket + query.step and bucket < end for start, end in gaps)
        point = UsagePoint(
            start=datetime.fromtimestamp(bucket, UTC),
            resource_seconds=dict(sorted(amounts.items())),
            complete=not has_gap and (name, bucket) not in inexact,
        )
        series[name].append(point)
    return [UsageSeries(name=name, points=points) for name, points in series.items()]


def _filters(query: UsageQuery) -> list[tuple[str, str]]:
    """Return the columns that the query selects by, with their values."""
    found = ((column, getattr(query, name)) for name, column in _COLUMNS.items())
    return [(column, value) for column, value in found if value is not None]


def _counted(query: UsageQuery) -> sa.Select[Any]:
    name = USAGE.c[_COLUMNS[query.by]].label("name")
    where = [USAGE.c[column] == value for column, value in _filters(query)]
    low, high = (to_micros(each) // SECOND for each in (query.start, query.end))
    during = (USAGE.c.step == query.step, USAGE.c.bucket >= low, USAGE.c.bucket < high)
    amount = sa.func.sum(USAGE.c.amount).label("amount")
    inexact = sa.func.sum(USAGE.c.inexact).label("inexact")
    keys = (name, USAGE.c.bucket, USAGE.c.resource)
    return sa.select(*keys, amount, inexact).where(*during, *where).group_by(*keys)


def _add_running(
    query: UsageQuery,
    now: int,
    running: Sequence[Any],
    totals: dict[tuple[str, int], dict[str, float]],
) -> None:
    """Add the pods that run, from their start to *now*.

    Those that have started in the same bucket have used its rest together, and each later bucket
    wholly.
    """
    width = query.step * SECOND
    low = to_micros(query.start) // width
    high = min(to_micros(query.end), now)
    for row in running:
        requests = msgspec.json.decode(row.requests)
        for bucket in range(max(row.first, low), -(-high // width)):
            end = min((bucket + 1) * width, now)
            micros = row.pods * (end - bucket * width)
            if bucket == row.first:
                micros -= int(row.offsets)
            amounts = totals[row.name, bucket * query.step]
            for resource, amount in requests.items():
                amounts[resource] += amount * micros / SECOND


def _running(query: UsageQuery, width: int, now: int) -> sa.Select[Any]:
    name = JOBS.c[_COLUMNS[query.by]].label("name")
    where = [JOBS.c[column] == value for column, value in _filters(query)]
    started = PODS.c.started_at
    first = (started // width).label("first")
    keys = (name, PODS.c.requests, first)
    running = (PODS.c.counted.is_(False), PODS.c.ended_at.is_(None), started < now)
    return (
        sa.select(
            *keys, sa.func.count().label("pods"), sa.func.sum(started % width).label("offsets")
        )
        .join_from(PODS, JOBS, is_pod_of_job())
        .where(*running, *where)
        .group_by(*keys)
    )


def _gaps(db: sa.Connection, query: UsageQuery) -> Sequence[tuple[int, int]]:
    low, high = to_micros(query.start), to_micros(query.end)
    during = (GAPS.c.ended_at > low, GAPS.c.started_at < high)
    found = sa.select(GAPS).where(GAPS.c.resource == PODS_RESOURCE, *during)
    return [(row.started_at // SECOND, -(-row.ended_at // SECOND)) for row in db.execute(found)]
