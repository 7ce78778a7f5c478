"""History of jobs that were deleted, too, and usage over time."""

from collections.abc import Iterable
from datetime import datetime
from functools import partial
from typing import TypedDict, Unpack

from ..calls import call
from ..effects import Operation, Stream
from ..requests import QueryValue, check_name, get, path
from ..types.history import JobRecord, JobRecordPage, Usage
from .jobs import texts
from .paging import PAGE_SIZE, pages
from .scopes import ObjectRef, Server


class HistoryFilters(TypedDict, total=False):
    """Which jobs of the history a list contains."""

    namespace: str | None
    """By default that of the client."""
    all_namespaces: bool
    kind: str
    """E.g. ``jobs`` or ``pytorchjobs``."""
    name: str
    phase: str | Iterable[str]
    queue: str
    user: str
    start: datetime
    """Jobs that have finished since."""
    end: datetime
    """Jobs that have finished before."""


def list_history(
    server: Server, *, page_size: int = PAGE_SIZE, **filters: Unpack[HistoryFilters]
) -> Stream[JobRecord]:
    """List the jobs of the history, which survive their deletion, newest first."""
    namespace, everywhere = filters.get("namespace"), filters.get("all_namespaces", False)
    if everywhere and namespace is not None:
        raise ValueError("give either a namespace or all_namespaces")
    inside = () if everywhere else ("namespaces", server.namespace(namespace))
    query: dict[str, QueryValue] = {
        "kind": filters.get("kind"),
        "name": filters.get("name"),
        "phase": texts(filters.get("phase")),
        "queue": filters.get("queue"),
        "user": filters.get("user"),
        "from": filters.get("start"),
        "to": filters.get("end"),
        "limit": page_size,
    }
    return pages(partial(_page, server, inside, query))


def _page(
    server: Server, inside: tuple[str, ...], query: dict[str, QueryValue], cursor: str | None
) -> Operation[JobRecordPage]:
    target = path(*inside, "history", "jobs", query={**query, "cursor": cursor})
    return (yield from call(server.session, get(target), JobRecordPage))


def get_history(server: Server, uid: str) -> Operation[JobRecord]:
    """Read the record of a job by its uid.

    Raises:
        NotFoundError: the history has no such job.
    """
    target = path("history", "jobs", check_name("uid", uid))
    return (yield from call(server.session, get(target), JobRecord))


def history_of_job(job: ObjectRef) -> Stream[JobRecord]:
    """List the records of a job, newest first: it may have been created several times."""
    return list_history(
        job.collection.server, namespace=job.namespace, name=job.name, kind=job.collection.kind
    )


def usage(
    server: Server,
    by: str = "queue",
    *,
    start: datetime | None = None,
    end: datetime | None = None,
    step: str | None = None,
    queue: str | None = None,
    user: str | None = None,
) -> Operation[Usage]:
    """Read resource-seconds over time.

    Args:
        server: the REST API.
        by: ``queue``, ``user`` or ``namespace``.
        start: of the time range.
        end: of the time range.
        step: ``1h`` or ``1d``.
        queue: only this queue.
        user: only this user.
    """
    query: dict[str, QueryValue] = {
        "by": by,
        "from": start,
        "to": end,
        "step": step,
        "queue": queue,
        "user": user,
    }
    return (yield from call(server.session, get(path("usage", query=query)), Usage))
