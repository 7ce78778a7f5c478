"""Run a job again: the same manifest under a new name, as ``batholith rerun`` does."""

from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response

from ...wire.history import JobHistory
from ...wire.jobs import JobSummary
from ...wire.renewal import new_number, recorded_manifest, renewed
from .rest import RestError, rest_path
from .web import Page


async def rerun_job(page: Page) -> Response:
    """Submit a job that exists again."""
    found = page.path
    path = rest_path("namespaces", found["namespace"], found["kind"], found["name"], "manifest")
    manifest = msgspec.json.decode(await page.rest.call("GET", path))
    return await _submit(page, found["kind"], manifest, is_recorded=False)


async def rerun_recorded(page: Page) -> Response:
    """Submit a job of the history again: its object, while that exists."""
    job = await page.rest.get(rest_path("history", "jobs", page.path["uid"]), JobHistory)
    if job.deleted_at is None:
        path = rest_path("namespaces", job.namespace, job.kind, job.name, "manifest")
        manifest = msgspec.json.decode(await page.rest.call("GET", path))
        return await _submit(page, job.kind, manifest, is_recorded=False)
    try:
        manifest = recorded_manifest(job)
    except ValueError as error:
        return page.render("rerun_result.html", problem=str(error))
    return await _submit(page, job.kind, manifest, is_recorded=True)


async def _submit(
    page: Page, kind: str, manifest: dict[str, Any], *, is_recorded: bool
) -> Response:
    try:
        body = renewed(manifest, number=new_number())
    except ValueError as error:
        return page.render("rerun_result.html", problem=str(error))
    path = rest_path("namespaces", body["metadata"]["namespace"], kind)
    try:
        created = await page.rest.call("POST", path, body=body)
    except RestError as error:
        if error.status == HTTPStatus.UNAUTHORIZED:
            raise
        return page.render("rerun_result.html", problem=error.detail)
    job = msgspec.json.decode(created, type=JobSummary)
    return page.render("rerun_result.html", problem="", job=job, kind=kind, is_recorded=is_recorded)


ROUTES = (
    ("POST", "/jobs/{namespace}/{kind}/{name}/rerun", rerun_job),
    ("POST", "/history/jobs/{uid}/rerun", rerun_recorded),
)
