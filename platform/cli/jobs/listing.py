"""Jobs of all kinds as one list, and their changes as one stream."""

import contextlib
import itertools
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from ...client import Client
    from ...client.client import Jobs
    from ...wire.jobs import JobSummary

PAGE_SIZE = 500
"""Jobs of a page: as many as the server returns at most."""


def list_jobs(client: "Client", kinds: Iterable[str], **filters: Any) -> "list[JobSummary]":
    """Return the jobs of several kinds.

    Raises:
        ClientError: they cannot be read; a kind that may not be read, or is not installed, is
            left out while there are others.
    """

    def read(jobs: "Jobs") -> "list[JobSummary]":
        rows: list[JobSummary] = []
        cursor: str | None = None
        while True:
            page = jobs.page(limit=PAGE_SIZE, cursor=cursor, **filters)
            rows += page.items
            cursor = page.next_cursor
            if cursor is None:
                return rows

    by_kind = _of_permitted_kinds(client, kinds, read)
    found = list(itertools.chain.from_iterable(by_kind))
    sort = filters.get("sort") or "name"
    found.sort(key=lambda job: (job.namespace, job.name))
    order = {"created": "created_at"}.get(sort.lstrip("-"), sort.lstrip("-"))
    found.sort(key=lambda job: str(getattr(job, order)), reverse=sort.startswith("-"))
    return found


def _of_permitted_kinds(
    client: "Client", kinds: Iterable[str], read: "Callable[[Jobs], list[JobSummary]]"
) -> "Iterator[list[JobSummary]]":
    from ...client.errors import ForbiddenError, NotFoundError

    errors: list[ForbiddenError | NotFoundError] = []
    count = 0
    for kind in kinds:
        try:
            yield read(client.jobs.of_kind(kind))
            count += 1
        except (ForbiddenError, NotFoundError) as error:
            errors.append(error)
    if not count and errors:
        raise errors[0]
    for each in errors:
        if isinstance(each, ForbiddenError):
            typer.echo(f"batholith: left out: {each.detail}", err=True)


def watch_jobs(
    client: "Client", kinds: Sequence[str], **filters: Any
) -> "Iterator[tuple[str, JobSummary]]":
    """Yield the jobs of several kinds as ``added``, then their changes, without end.

    A thread per kind reads its stream.

    Raises:
        ClientError: no kind can be read, or the server is not reachable any more.
    """
    from ...client.errors import ForbiddenError, NotFoundError

    received: queue.SimpleQueue[tuple[str, JobSummary] | Exception] = queue.SimpleQueue()

    def read(kind: str) -> None:
        try:
            with contextlib.closing(client.jobs.of_kind(kind).watch(**filters)) as changes:
                for change in changes:
                    received.put((change.type, change.object))
        except Exception as error:
            received.put(error)

    for kind in kinds:
        threading.Thread(target=read, args=(kind,), daemon=True).start()
    running = len(kinds)
    while True:
        found = received.get()
        if not isinstance(found, Exception):
            yield found
            continue
        running -= 1
        if not running or not isinstance(found, ForbiddenError | NotFoundError):
            raise found
