"""The pages of the history: jobs that may be deleted, and what queues and users have used."""

import csv
import io
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec
import yaml
from starlette.responses import Response

from ...wire.history import JobHistory, RecordedJobPage, Usage
from ...wire.jobs import JobKindName, Phase
from .rest import RestError, encode_query, rest_path
from .usage_chart import draw
from .web import Page

LIMIT = 100
"""Jobs on one page."""
FILTERS = ("name", "namespace", "queue", "user", "account", "phase", "kind", "from", "to")
USAGE_BY = ("queue", "user", "account", "namespace")
USAGE_FILTERS = ("by", "step", *USAGE_BY, "from", "to")
STEPS = {"1h": "the last 24 hours", "1d": "the last 30 days"}
COLUMNS = (
    *("namespace", "kind", "name", "uid", "queue", "user", "phase", "reason", "message"),
    *("created_at", "started_at", "finished_at", "deleted_at", "complete", "exit_code"),
)
"""Columns of the CSV file before those of the resources."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def _filters(page: Page) -> dict[str, str]:
    return {name: page.query.get(name, "").strip() for name in FILTERS}


def _request(filters: dict[str, str]) -> tuple[str, dict[str, object]]:
    """Return path and query of the list over REST; times are dates, in UTC."""
    namespace = filters["namespace"]
    scope = ("namespaces", namespace) if namespace else ()
    query: dict[str, object] = {
        name: filters[name] for name in ("name", "queue", "user", "account", "phase", "kind")
    }
    for name in ("from", "to"):
        query[name] = f"{filters[name]}T00:00:00Z" if filters[name] else ""
    return rest_path(*scope, "history", "jobs"), query


def _usage_filters(filters: dict[str, str]) -> dict[str, str]:
    """Return the parameters with which the usage page has the queue, user and time of *filters*."""
    chosen = {name: filters[name] for name in (*USAGE_BY, "from", "to")}
    by = "user" if filters["queue"] and not filters["user"] else "queue"
    step = "1d" if filters["from"] or filters["to"] else "1h"
    return {"by": by, "step": step, **chosen}


async def list_history(page: Page) -> Response:
    """Show the recorded jobs that match the filters."""
    filters = _filters(page)
    shown: dict[str, Any] = {
        "filters": filters,
        "kinds": list(JobKindName),
        "phases": list(Phase),
        "jobs": [],
        "next_url": "",
        "problem": "",
        "csv_url": "/history/jobs.csv?" + encode_query(filters),
        "usage_url": "/history/usage?" + encode_query(_usage_filters(filters)),
    }
    path, query = _request(filters)
    try:
        found = await page.rest.get(
            path, RecordedJobPage, {**query, "limit": LIMIT, "cursor": page.query.get("cursor")}
        )
    except RestError as error:
        if error.status == 401:
            raise
        shown["problem"] = error.detail  # the filters can be corrected
    else:
        shown["jobs"] = found.items
        if found.next_cursor is not None:
            following = {**filters, "cursor": found.next_cursor}
            shown["next_url"] = "/history?" + encode_query(following)
    return page.render("history.html", **shown)


async def download_history(page: Page) -> Response:
    """Send the recorded jobs that match the filters as CSV."""
    path, query = _request(_filters(page))
    jobs = [job async for job in page.rest.items(path, RecordedJobPage, query)]
    resources = sorted({name for job in jobs for name in job.resource_seconds})
    rows = (
        [
            *(_cell(getattr(job, column)) for column in COLUMNS),
            *(_cell(job.resource_seconds.get(name)) for name in resources),
        ]
        for job in jobs
    )
    columns = (*COLUMNS, *(_cell(f"resource_seconds.{name}") for name in resources))
    return _csv("jobs.csv", columns, rows)


async def show_recorded(page: Page) -> Response:
    """Show what is recorded of one job."""
    job = await page.rest.get(rest_path("history", "jobs", page.path["uid"]), JobHistory)
    spec = ""
    if job.spec is not None:
        spec = yaml.dump(
            msgspec.to_builtins(job.spec), Dumper=_dumper, sort_keys=False, allow_unicode=True
        )
    return page.render("recorded_job.html", job=job, spec=spec)


def _usage_query(page: Page) -> dict[str, str]:
    """Return what the usage page shows, as parameters of its URL."""
    found = {name: page.query.get(name, "").strip() for name in USAGE_FILTERS}
    return {"by": "queue", "step": "1h", **{name: text for name, text in found.items() if text}}


async def _usage(page: Page, query: dict[str, str]) -> Usage:
    sent: dict[str, object] = {**query}
    for name in ("from", "to"):
        if name in query:
            sent[name] = f"{query[name]}T00:00:00Z"
    return await page.rest.get(rest_path("usage"), Usage, sent)


async def show_usage(page: Page) -> Response:
    """Show what queues, users, accounts or namespaces have used over time."""
    query = _usage_query(page)
    resource = page.query.get("resource", "cpu")
    usage, problem = Usage(), ""
    try:
        usage = await _usage(page, query)
    except RestError as error:
        if error.status == 401:
            raise
        problem = error.detail
    totals = usage.totals()
    resources = sorted({name for total in totals.values() for name in total} | {"cpu"})
    return page.render(
        "usage.html",
        query=query,
        bys=USAGE_BY,
        steps=STEPS,
        resource=resource,
        resources=resources,
        totals=totals,
        details={name: _details_url(query, name) for name in totals if name},
        chart=draw(usage, resource),
        csv_url="/history/usage.csv?" + encode_query(query),
        problem=problem,
    )


def _details_url(query: dict[str, str], name: str) -> str:
    """Return the URL of what one row of the table has used, divided by users or queues."""
    by = query["by"]
    following = {**query, "by": "queue" if by == "user" else "user", by: name}
    return "/history/usage?" + encode_query(following)


async def download_usage(page: Page) -> Response:
    """Send what the usage page shows as CSV, with one row for each interval and resource."""
    query = _usage_query(page)
    usage = await _usage(page, query)
    rows = (
        (point.start, series.name, resource, amount)
        for series in usage.series
        for point in series.points
        for resource, amount in sorted(point.resource_seconds.items())
    )
    columns = ("start", query["by"], "resource", "resource_seconds")
    return _csv("usage.csv", columns, ([_cell(each) for each in row] for row in rows))


def _csv(name: str, columns: Sequence[str], rows: Iterable[Iterable[str]]) -> Response:
    output = io.StringIO()
    writer = csv.writer(output)
    writer.writerow(columns)
    writer.writerows(rows)
    headers = {
        "Content-Disposition": f'attachment; filename="{name}"',
        "Cache-Control": "no-store",
    }
    return Response(output.getvalue(), headers=headers, media_type="text/csv; charset=utf-8")


def _cell(value: object) -> str:
    """Return the text of a cell, which is no formula for a spreadsheet."""
    text = "" if value is None else value.isoformat() if isinstance(value, datetime) else str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text


ROUTES = (
    ("GET", "/history", list_history),
    ("GET", "/history/jobs.csv", download_history),
    ("GET", "/history/usage", show_usage),
    ("GET", "/history/usage.csv", download_usage),
    ("GET", "/history/jobs/{uid}", show_recorded),
)
