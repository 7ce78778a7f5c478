"""The page of one job: why it waits, its timeline, pods, events, logs, commands and manifest."""

import asyncio
from collections.abc import Awaitable
from typing import Any, Generic, TypeVar

import msgspec
import yaml
from starlette.responses import Response
from starlette.types import ASGIApp

from ...wire.commands import CommandPage
from ...wire.jobs import EventList, JobSummary, PodPage, Timeline, Why
from .jobs import ACTIONS, actions_of
from .live import ChangeFilter
from .rest import RestError, rest_path
from .timeline import LABELS, ROW, WIDTH, draw
from .web import Page

T = TypeVar("T")

MAX_PODS = 200
"""Pods that the page shows."""
MAX_EVENTS = 100
MAX_COMMANDS = 20
LOG_LINES = 1000
"""Lines of each container with which a log begins."""
PATH = "/{namespace}/{kind}/{name}"
_UNAUTHORIZED, _NOT_FOUND = 401, 404

_dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class Section(Generic[T]):
    """A part of the page: its content, or why the caller does not get it."""

    def __init__(self, content: T | None, problem: str = "") -> None:
        self.content = content
        self.problem = problem


async def _section(reading: Awaitable[T]) -> Section[T]:
    try:
        return Section(await reading)
    except RestError as error:
        if error.status in (_UNAUTHORIZED, _NOT_FOUND):
            raise  # this concerns the whole page
        return Section(None, error.detail)


def _path(page: Page, *more: str) -> str:
    found = page.path
    return rest_path("namespaces", found["namespace"], found["kind"], found["name"], *more)


async def show_job(page: Page) -> Response:
    """Show one job; as a fragment what changes while it runs."""
    get = page.rest.get
    job = await get(_path(page), JobSummary)
    why, timeline, pods, events, commands = await asyncio.gather(
        _section(get(_path(page, "why"), Why)),
        _section(get(_path(page, "timeline"), Timeline)),
        _section(get(_path(page, "pods"), PodPage, {"limit": MAX_PODS})),
        _section(get(_path(page, "events"), EventList, {"limit": MAX_EVENTS})),
        _section(get(_path(page, "commands"), CommandPage, {"limit": MAX_COMMANDS})),
    )
    phases = timeline.content.phases if timeline.content else []
    chart = draw(phases, pods.content.items if pods.content else [], page.now)
    url = "/".join(("/jobs", job.namespace, page.path["kind"], job.name))
    return page.render(
        "job_details.html" if page.is_fragment else "job.html",
        job=job,
        kind=page.path["kind"],
        url=url,
        live_url=f"/live{url}",
        actions=actions_of(page.path["kind"]),
        why=why,
        timeline=timeline,
        pods=pods,
        events=events,
        commands=commands,
        chart=chart,
        sizes={"width": WIDTH, "labels": LABELS, "row": ROW},
    )


async def show_manifest(page: Page) -> Response:
    """Show the object as YAML, as `kubectl get -o yaml` does."""
    manifest = msgspec.json.decode(await page.rest.call("GET", _path(page, "manifest")))
    manifest.get("metadata", {}).pop("managedFields", None)
    text = yaml.dump(manifest, Dumper=_dumper, sort_keys=False, allow_unicode=True)
    return page.render("manifest.html", text=text)


async def command_job(page: Page) -> Response:
    """Send a command to the job."""
    action = (await page.form()).get("action", [""])[0]
    try:
        await page.rest.call("POST", _path(page, "commands"), body={"action": action})
    except RestError as error:
        if error.status == _UNAUTHORIZED:
            raise
        problems, accepted = [error.detail], 0
    else:
        problems, accepted = [], 1
    label = ACTIONS.get(action, action)
    return page.render(
        "command_results.html", label=label, accepted=accepted, problems=problems, more=0
    )


async def watch_job(page: Page) -> ASGIApp:
    """Stream that the job has changed."""
    found = page.path
    path = rest_path("watch", "namespaces", found["namespace"], found["kind"], found["name"])
    return page.stream(path, {}, ChangeFilter())


async def stream_logs(page: Page) -> ASGIApp:
    """Send the log of a pod, or the logs of all pods."""
    query: dict[str, object] = {"tail_lines": LOG_LINES}
    if page.query.get("follow") == "true":
        query["follow"] = "true"
    pod = page.query.get("pod", "")
    if pod:
        return page.stream(_path(page, "pods", pod, "log"), query)
    return page.stream(_path(page, "logs"), {**query, "prefix": "true"})


ROUTES = (
    ("GET", f"/jobs{PATH}", show_job),
    ("GET", f"/jobs{PATH}/manifest", show_manifest),
    ("POST", f"/jobs{PATH}/commands", command_job),
    ("GET", f"/live/jobs{PATH}", watch_job),
    ("GET", f"/live/logs{PATH}", stream_logs),
)
