"""The pages of the history: jobs that may be deleted, and what queues and users have used."""

import csv
import io
from collections.abc import Iterator
from typing import Any

import msgspec
import yaml
from starlette.responses import Response

from ...wire.history import JobHistory, RecordedJob, RecordedJobPage, Usage
from ...wire.jobs import JobKindName, Phase
from .rest import RestError, encode_query, rest_path
from .usage_chart import draw
from .web import Page

LIMIT = 100
"""Jobs on one page."""
FILTERS = ("name", "namespace", "queue", "user", "phase", "kind", "from", "to")
USAGE_BY = ("queue", "user", "namespace")
STEPS = {"1h": "the last 24 hours", "1d": "the last 30 days"}
COLUMNS = (
    *("namespace", "kind", "name", "uid", "queue", "user", "phase", "reason", "message"),
    *("created_at", "started_at", "finished_at", "deleted_at", "complete"),
)
"""Columns of the CSV file."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def _filters(page: Page) -> dict[str, str]:
    return {name: page.query.get(name, "").strip() for name in FILTERS}


def _request(filters: dict[str, str]) -> tuple[str, dict[str, object]]:
    """Return path and query of the list over REST; times are dates, in UTC."""
    namespace = filters["namespace"]
    scope = ("namespaces", namespace) if namespace else ()
    query: dict[str, object] = {
        name: filters[name] for name in ("name", "queue", "user", "phase", "kind")
    }
    for name in ("from", "to"):
        query[name] = f"{filters[name]}T00:00:00Z" if filters[name] else ""
    return rest_path(*scope, "history", "jobs"), query


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
    output = io.StringIO()
    writer = csv.writer(output)
    writer.writerow(COLUMNS)
    async for job in page.rest.items(path, RecordedJobPage, query):
        writer.writerow(_cells(job))
    headers = {
        "Content-Disposition": 'attachment; filename="jobs.csv"',
        "Cache-Control": "no-store",
    }
    return Response(output.getvalue(), headers=headers, media_type="text/csv; charset=utf-8")


def _cells(job: RecordedJob) -> Iterator[str]:
    """Yield the cells of a row; none of them is a formula for a spreadsheet."""
    for column in COLUMNS:
        value = getattr(job, column)
        text = "" if value is None else value.isoformat() if "_at" in column else str(value)
        yield f"'{text}" if text.startswith(_FORMULA) else text


async def show_recorded(page: Page) -> Response:
    """Show what is recorded of one job."""
    job = await page.rest.get(rest_path("history", "jobs", page.path["uid"]), JobHistory)
    spec = ""
    if job.spec is not None:
        spec = yaml.dump(
            msgspec.to_builtins(job.spec), Dumper=_dumper, sort_keys=False, allow_unicode=True
        )
    return page.render("recorded_job.html", job=job, spec=spec)


async def show_usage(page: Page) -> Response:
    """Show what queues, users or namespaces have used over time."""
    by, step = page.query.get("by", "queue"), page.query.get("step", "1h")
    resource = page.query.get("resource", "cpu")
    usage, problem = Usage(), ""
    try:
        usage = await page.rest.get(rest_path("usage"), Usage, {"by": by, "step": step})
    except RestError as error:
        if error.status == 401:
            raise
        problem = error.detail
    totals = usage.totals()
    resources = sorted({name for total in totals.values() for name in total} | {"cpu"})
    return page.render(
        "usage.html",
        by=by,
        bys=USAGE_BY,
        step=step,
        steps=STEPS,
        resource=resource,
        resources=resources,
        totals=totals,
        chart=draw(usage, resource),
        problem=problem,
    )


ROUTES = (
    ("GET", "/history", list_history),
    ("GET", "/history/jobs.csv", download_history),
    ("GET", "/history/usage", show_usage),
    ("GET", "/history/jobs/{uid}", show_recorded),
)
