"""Queues, their commands and usage, and PodGroups."""

from collections.abc import Iterable, Mapping
from typing import Any

from ...wire.commands import Command, CommandPage, CommandResult
from ...wire.queues import PodGroup, PodGroupPage, Queue, QueuePage, QueueUsage
from ..calls import call, decode_reply, send_call
from ..effects import Operation, Stream
from ..requests import ApiRequest, QueryValue, check_name, encode, get, path, post
from ..watch_state import Change
from .commands import send_command, wait_query
from .jobs import etag_headers, texts
from .paging import PAGE_SIZE, pages
from .scopes import Collection, ObjectRef
from .watching import watch


def list_queues(
    queues: Collection,
    *,
    state: str | Iterable[str] | None = None,
    parent: str | None = None,
    sort: str | None = None,
    page_size: int = PAGE_SIZE,
) -> Stream[Queue]:
    """List queues.

    Args:
        queues: all of them.
        state: only queues in these states, e.g. ``Open``.
        parent: only children of this queue.
        sort: ``name``, ``created``, ``weight`` or ``priority``; with a ``-`` before it, descending.
        page_size: number of queues that one request reads.
    """

    def read(cursor: str | None) -> Operation[QueuePage]:
        query: dict[str, QueryValue] = {"state": texts(state), "parent": parent, "sort": sort}
        target = queues.path(query={**query, "limit": page_size, "cursor": cursor})
        return (yield from call(queues.session, get(target), QueuePage))

    return pages(read)


def get_queue(queues: Collection, name: str) -> Operation[Queue]:
    """Read the state of a queue.

    Raises:
        NotFoundError: it does not exist.
    """
    return (yield from call(queues.session, get(_queue(queues, name)), Queue))


def create_queue(
    queues: Collection, queue: Mapping[str, Any], *, idempotency_key: str | None = None
) -> Operation[Queue]:
    """Create a queue from a manifest, or from some fields, e.g. ``{"name": "a", "weight": 2}``.

    Raises:
        ConflictError: a queue of this name exists.
        InvalidError: a field is invalid.
    """
    request = post(queues.path(), queue, idempotency_key=idempotency_key)
    return (yield from call(queues.session, request, Queue))


def delete_queue(
    queues: Collection, name: str, *, if_match: str | None = None
) -> Operation[Queue | None]:
    """Delete a queue; return its last state, or ``None`` if the response that had it was lost.

    Raises:
        NotFoundError: it does not exist.
        ConflictError: it is in use.
    """
    request = ApiRequest(method="DELETE", path=_queue(queues, name), headers=etag_headers(if_match))
    result = yield from send_call(queues.session, request)
    if result.lost and result.reply.status == 404:
        return None
    return decode_reply(result.reply, Queue)


def change_queue(
    queues: Collection, name: str, changes: Mapping[str, Any], *, if_match: str | None = None
) -> Operation[Queue]:
    """Change some fields of a queue, e.g. ``{"weight": 3}``; ``None`` restores a default.

    Raises:
        InvalidError: a field is invalid.
        PreconditionFailedError: it was changed; after a lost response possibly by this call.
    """
    request = ApiRequest(
        method="PATCH",
        path=_queue(queues, name),
        body=encode(changes),
        headers=etag_headers(if_match),
    )
    return (yield from call(queues.session, request, Queue))


def queue_usage(queues: Collection, name: str) -> Operation[QueueUsage]:
    """Read what a queue has allocated, deserves and may use."""
    return (yield from call(queues.session, get(_queue(queues, name, "usage")), QueueUsage))


def open_queue(
    queues: Collection,
    name: str,
    *,
    wait: int | None = None,
    idempotency_key: str | None = None,
) -> Operation[CommandResult]:
    """Admit jobs to a queue; *wait* for the outcome for at most 60 seconds."""
    return _command(queues, name, "open", wait=wait, key=idempotency_key)


def close_queue(
    queues: Collection,
    name: str,
    *,
    wait: int | None = None,
    idempotency_key: str | None = None,
) -> Operation[CommandResult]:
    """Admit no further jobs to a queue; *wait* for the outcome for at most 60 seconds."""
    return _command(queues, name, "close", wait=wait, key=idempotency_key)


def queue_commands(queues: Collection, name: str, *, page_size: int = PAGE_SIZE) -> Stream[Command]:
    """List the commands of a queue, newest first, with their outcomes."""
    segments = (check_name("queue", name), "commands")

    def read(cursor: str | None) -> Operation[CommandPage]:
        target = queues.path(*segments, query={"limit": page_size, "cursor": cursor})
        return (yield from call(queues.session, get(target), CommandPage))

    return pages(read)


def watch_queues(
    queues: Collection, *, state: str | Iterable[str] | None = None, parent: str | None = None
) -> Stream[Change[Queue]]:
    """Emit the queues that match as added, then every change; never ends."""
    target = path("watch", "queues", query={"state": texts(state), "parent": parent})
    return watch(queues.session, target, Queue)


def list_podgroups(
    podgroups: Collection,
    *,
    namespace: str | None = None,
    all_namespaces: bool = False,
    phase: str | Iterable[str] | None = None,
    queue: str | None = None,
    sort: str | None = None,
    page_size: int = PAGE_SIZE,
) -> Stream[PodGroup]:
    """List PodGroups; *sort* is ``name`` (default) or ``created``, with a ``-`` if descending."""
    query: dict[str, QueryValue] = {
        "phase": texts(phase),
        "queue": queue,
        "sort": sort,
        "limit": page_size,
    }

    def read(cursor: str | None) -> Operation[PodGroupPage]:
        target = podgroups.list_path(
            namespace=namespace, all_namespaces=all_namespaces, query={**query, "cursor": cursor}
        )
        return (yield from call(podgroups.session, get(target), PodGroupPage))

    return pages(read)


def get_podgroup(podgroup: ObjectRef) -> Operation[PodGroup]:
    """Read the state of a PodGroup.

    Raises:
        NotFoundError: it does not exist.
    """
    return (yield from call(podgroup.session, get(podgroup.path()), PodGroup))


def _command(
    queues: Collection, name: str, action: str, *, wait: int | None, key: str | None
) -> Operation[CommandResult]:
    query, hold = wait_query(wait)
    target = queues.path(check_name("queue", name), "commands", query=query)
    request = post(target, {"action": action}, idempotency_key=key, hold=hold)
    return (yield from send_command(queues.session, request))


def _queue(queues: Collection, name: str, *segments: str) -> str:
    return queues.path(check_name("queue", name), *segments)
