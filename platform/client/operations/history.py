"""History of jobs that were deleted, too, and usage over time."""

from collections.abc import Iterable
from datetime import datetime
from functools import partial
from typing import TypedDict, Unpack

from ...wire.history import JobHistory, RecordedJob, RecordedJobPage, Usage
from ..calls import call
from ..effects import Operation, Stream
from ..requests import QueryValue, check_name, get, path
from .jobs import phases, texts
from .paging import PAGE_SIZE, pages
from .scopes import ObjectRef, Server


class HistoryFilters(TypedDict, total=False):
    """Which jobs of the history a list contains."""

    namespace: str | None
    """By default that of the client."""
    all_namespaces: bool
    kind: str | Iterable[str] | None
    """E.g. ``jobs`` or ``pytorchjobs``."""
    name: str | None
    phase: str | Iterable[str] | None
    queue: str | None
    user: str | None
    account: str | None
    """Label ``batholith.io/account``."""
    start: datetime | None
    """Jobs that have ended since, or have not."""
    end: datetime | None
    """Jobs that ended before."""


def list_history(
    server: Server, *, page_size: int = PAGE_SIZE, **filters: Unpack[HistoryFilters]
) -> Stream[RecordedJob]:
    """List jobs, also deleted ones: first those that have not ended, then those that ended last."""
    everywhere = filters.get("all_namespaces", False)
    inside = server.inside(filters.get("namespace"), all_namespaces=everywhere)
    query: dict[str, QueryValue] = {
        "kind": texts(filters.get("kind")),
        "name": filters.get("name"),
        "phase": phases(filters.get("phase")),
        "queue": filters.get("queue"),
        "user": filters.get("user"),
        "account": filters.get("account"),
        "from": filters.get("start"),
        "to": filters.get("end"),
        "limit": page_size,
    }
    return pages(partial(_page, server, inside, query))


def _page(
    server: Server, inside: tuple[str, ...], query: dict[str, QueryValue], cursor: str | None
) -> Operation[RecordedJobPage]:
    target = path(*inside, "history", "jobs", query={**query, "cursor": cursor})
    return (yield from call(server.session, get(target), RecordedJobPage))


def get_history(server: Server, uid: str) -> Operation[JobHistory]:
    """Read all that is recorded of a job: spec, phases, resource-seconds, commands.

    Raises:
        NotFoundError: the history has no such job.
    """
    target = path("history", "jobs", check_name("uid", uid))
    return (yield from call(server.session, get(target), JobHistory))


def history_of_job(job: ObjectRef, *, page_size: int = PAGE_SIZE) -> Stream[RecordedJob]:
    """List the jobs that have, or had, this name."""

    def read(cursor: str | None) -> Operation[RecordedJobPage]:
        target = job.path("history", query={"limit": page_size, "cursor": cursor})
        return (yield from call(job.session, get(target), RecordedJobPage))

    return pages(read)


def usage(
    server: Server,
    by: str = "queue",
    *,
    start: datetime | None = None,
    end: datetime | None = None,
    step: str | None = None,
    queue: str | None = None,
    user: str | None = None,
    account: str | None = None,
    namespace: str | None = None,
) -> Operation[Usage]:
    """Read resource-seconds over time.

    Args:
        server: the REST API.
        by: ``queue``, ``user``, ``account`` or ``namespace``.
        start: of the time range.
        end: of the time range.
        step: ``1h`` or ``1d``.
        queue: only this queue.
        user: only this user.
        account: only this account.
        namespace: only this namespace.
    """
    query: dict[str, QueryValue] = {
        "by": by,
        "from": start,
        "to": end,
        "step": step,
        "queue": queue,
        "user": user,
        "account": account,
        "namespace": namespace,
    }
    return (yield from call(server.session, get(path("usage", query=query)), Usage))
