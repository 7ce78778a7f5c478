"""The page of all jobs of one kind: filters, pages, changes as they happen, and commands."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from http import HTTPStatus

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp

from ...wire.commands import BulkResults
from ...wire.jobs import Explanation, JobKindName, JobPage, JobSummary, Phase
from ...wire.queues import PodGroupPage
from .live import ChangeFilter
from .rendering import timestamp
from .rest import Query, RestError, encode_query, rest_path
from .web import Page

SORTS = {
    "-created": "newest first",
    "created": "oldest first",
    "name": "name",
    "phase": "phase",
    "queue": "queue",
}
LIMIT = 100
"""Jobs on one page."""

ACTIONS = {"suspend": "Suspend", "resume": "Resume", "restart": "Restart", "terminate": "Cancel"}
"""Commands by the name that the REST API has for them."""
ACTIONS_OF_ALL_KINDS = ("suspend", "resume")
"""Those that jobs of other kinds than Volcano's have."""
WAITING = ("Pending", "Inqueue")
MAX_WAITING = 500
"""PodGroups that are read to find out when jobs of a page start: the oldest that wait."""
UID_LENGTH = 36
MAX_PROBLEMS = 20
"""Rejected jobs that a message names."""


def actions_of(kind: str) -> dict[str, str]:
    """Return the commands of a kind of jobs, with their labels."""
    names = ACTIONS if kind == JobKindName.JOBS else ACTIONS_OF_ALL_KINDS
    return {name: ACTIONS[name] for name in names}


def collection(kind: str, namespace: str) -> tuple[str, ...]:
    """Return the segments of the path of the jobs of a namespace, or of all."""
    return ("namespaces", namespace, kind) if namespace else (kind,)


async def list_jobs(page: Page) -> Response:
    """Show the jobs that match the filters."""
    query = page.query
    values = {
        name: query.get(name, "").strip()
        for name in ("namespace", "search", "queue", "user", "labels", "cursor")
    }
    kind = query.get("kind", JobKindName.JOBS)
    phase, sort = query.get("phase", ""), query.get("sort", "-created")
    wanted: Query = {
        "search": values["search"],
        "queue": values["queue"],
        "user": values["user"],
        "label_selector": values["labels"],
        "phase": phase,
        "sort": sort,
        "cursor": values["cursor"],
        "limit": LIMIT,
    }
    namespace = values["namespace"]
    shown: dict[str, object] = {
        "kind": kind,
        "kinds": list(JobKindName),
        "phase": phase,
        "phases": list(Phase),
        "sort": sort,
        "sorts": SORTS,
        "actions": actions_of(kind),
        "values": values,
        "jobs": [],
        "waits": {},
        "total": 0,
        "next_url": "",
        "problem": "",
        "retry": False,
        "live_url": "/live/jobs?" + encode_query({"kind": kind, "namespace": namespace}),
    }
    filters = {**values, "kind": kind, "phase": phase, "sort": sort}
    shown["list_url"] = "/jobs?" + encode_query(filters)
    try:
        found = await page.rest.get(rest_path(*collection(kind, namespace)), JobPage, wanted)
    except RestError as error:
        if error.status == HTTPStatus.UNAUTHORIZED:
            raise
        shown["problem"] = error.detail
        shown["retry"] = error.status == HTTPStatus.TOO_MANY_REQUESTS or error.status >= 500
        if not shown["retry"]:
            shown["live_url"] = ""  # the filters can be corrected
    else:
        shown["jobs"], shown["total"] = found.items, found.total
        shown["waits"] = await _waits(page, found.items, namespace)
        if found.next_cursor is not None:
            shown["next_url"] = "/jobs?" + encode_query({**filters, "cursor": found.next_cursor})
    return page.render("jobs_list.html" if page.is_fragment else "jobs.html", **shown)


async def _waits(page: Page, jobs: Sequence[JobSummary], namespace: str) -> dict[str, str]:
    """Return the position and the expected start of jobs that wait, by uid, as far as the PodGroups
    may be read: those of the oldest. The name of a PodGroup ends with the uid of its job."""
    found = defaultdict[str, str](str)
    if not any(job.phase == Phase.PENDING for job in jobs):
        return found
    scope = ("namespaces", namespace) if namespace else ()
    query: Query = {"phase": WAITING, "sort": "created", "limit": MAX_WAITING}
    try:
        groups = await page.rest.get(rest_path(*scope, "podgroups"), PodGroupPage, query)
    except RestError as error:
        if error.status == HTTPStatus.UNAUTHORIZED:
            raise
        return found
    for group in groups.items:
        wait = group.explanation
        if wait is not None:
            found[group.name[-UID_LENGTH:]] = "; ".join(_wait_texts(wait))
    return found


def _wait_texts(wait: Explanation) -> Iterator[str]:
    if wait.queue.position is not None:
        yield f"{wait.queue.position} of {wait.queue.waiting}"
    start = wait.start
    if start is not None and start.is_known and start.earliest is not None:
        yield f"starts from {timestamp(start.earliest)} UTC"


async def command_jobs(page: Page) -> Response:
    """Send a command to the selected jobs, namespace by namespace, and show what became of it."""
    form = await page.form()
    kind, action = form.get("kind", [""])[0], form.get("action", [""])[0]
    names = defaultdict(list)
    for selected in form.get("job", []):
        namespace, _, name = selected.partition("/")
        names[namespace].append(name)
    accepted, problems = 0, list[str]()
    for namespace, members in names.items():
        path = rest_path("namespaces", namespace, "commands")
        body = {"action": action, "kind": kind, "names": members}
        content = await page.rest.call("POST", path, body=body)
        results = msgspec.json.decode(content, type=BulkResults).results
        missing = sorted(set(members) - {result.name for result in results})
        problems += [f"{namespace}/{name}: not found" for name in missing]
        for result in results:
            if result.problem is None:
                accepted += 1
            else:
                problems.append(f"{result.namespace}/{result.name}: {result.problem.detail}")
    return page.render(
        "command_results.html",
        label=ACTIONS.get(action, action),
        accepted=accepted,
        problems=problems[:MAX_PROBLEMS],
        more=max(len(problems) - MAX_PROBLEMS, 0),
    )


async def watch_jobs(page: Page) -> ASGIApp:
    """Stream that jobs have changed."""
    kind, namespace = page.query.get("kind", ""), page.query.get("namespace", "")
    path = rest_path("watch", *collection(kind, namespace))
    return page.stream(path, {}, ChangeFilter())


ROUTES = (
    ("GET", "/jobs", list_jobs),
    ("POST", "/jobs/commands", command_jobs),
    ("GET", "/live/jobs", watch_jobs),
)
