"""Commands on jobs, tasks, pods and partitions; on many jobs; their outcomes."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from ...wire.commands import BulkResults, Command, CommandPage, CommandResult
from ..calls import Session, call, decode_reply, send_call
from ..effects import Operation, Stream
from ..requests import ApiRequest, QueryValue, check_name, get, path, post
from .jobs import phases, texts
from .paging import PAGE_SIZE, pages
from .scopes import Collection, ObjectRef

ACCEPTED = 202
MAX_WAIT = 60
"""Seconds that the server waits for an outcome at most."""


def command(
    job: ObjectRef,
    action: str,
    *,
    task: str | None = None,
    pod: str | None = None,
    partition: int | str | None = None,
    wait: int | None = None,
    idempotency_key: str | None = None,
) -> Operation[CommandResult]:
    """Send a command; sent again after a lost response, it is executed once.

    Args:
        job: which one.
        action: ``suspend``, ``resume``, ``restart``, ``abort``, ``terminate`` or ``complete``.
        task: restart the pods of this task alone.
        pod: restart this pod alone.
        partition: restart the pods of this partition of *task* alone.
        wait: seconds, at most 60, to wait for the outcome.
        idempotency_key: for a call that is repeated by another process within 24 hours.

    Raises:
        ConflictError: the phase does not allow it; see :attr:`ConflictError.allowed_phases`.
        InvalidError: the action does not exist for this kind of job or target.
        NotFoundError: the job does not exist.
    """
    body: dict[str, Any] = {"action": action}
    index = None if partition is None else str(partition)
    target = {"task": task, "pod": pod, "partition": index}
    body |= {name: value for name, value in target.items() if value is not None}
    query, hold = wait_query(wait)
    request = post(
        job.path("commands", query=query), body, idempotency_key=idempotency_key, hold=hold
    )
    return (yield from send_command(job.session, request))


def send_command(session: Session, request: ApiRequest) -> Operation[CommandResult]:
    """Send the request of a command: the response is a command, or after a wait its result."""
    result = yield from send_call(session, request)
    if result.reply.status == ACCEPTED:
        return CommandResult(command=decode_reply(result.reply, Command))
    return decode_reply(result.reply, CommandResult)


def wait_query(wait: int | None) -> tuple[dict[str, QueryValue], float]:
    """Return the query of a command, and the seconds that its response is held back.

    Raises:
        ValueError: *wait* is not between 1 and 60.
    """
    if wait is None:
        return {}, 0.0
    if not 1 <= wait <= MAX_WAIT:
        raise ValueError(f"wait must be between 1 and {MAX_WAIT} seconds")
    return {"wait": f"{wait}s"}, float(wait)


def suspend(
    job: ObjectRef, *, wait: int | None = None, idempotency_key: str | None = None
) -> Operation[CommandResult]:
    """Terminate the pods and keep the job, which can be resumed; as :func:`command`."""
    return command(job, "suspend", wait=wait, idempotency_key=idempotency_key)


def resume(
    job: ObjectRef, *, wait: int | None = None, idempotency_key: str | None = None
) -> Operation[CommandResult]:
    """Start a suspended or aborted job again; as :func:`command`."""
    return command(job, "resume", wait=wait, idempotency_key=idempotency_key)


def restart(
    job: ObjectRef,
    *,
    task: str | None = None,
    pod: str | None = None,
    partition: int | str | None = None,
    wait: int | None = None,
    idempotency_key: str | None = None,
) -> Operation[CommandResult]:
    """Terminate the pods of the job, or of one task, pod or partition, and create them again."""
    return command(
        job,
        "restart",
        task=task,
        pod=pod,
        partition=partition,
        wait=wait,
        idempotency_key=idempotency_key,
    )


def abort(
    job: ObjectRef, *, wait: int | None = None, idempotency_key: str | None = None
) -> Operation[CommandResult]:
    """Terminate the pods and keep the job as Aborted; as :func:`command`."""
    return command(job, "abort", wait=wait, idempotency_key=idempotency_key)


def terminate(
    job: ObjectRef, *, wait: int | None = None, idempotency_key: str | None = None
) -> Operation[CommandResult]:
    """End the job as Terminated, for good; as :func:`command`."""
    return command(job, "terminate", wait=wait, idempotency_key=idempotency_key)


def complete(
    job: ObjectRef, *, wait: int | None = None, idempotency_key: str | None = None
) -> Operation[CommandResult]:
    """End the job as Completed, for good; as :func:`command`."""
    return command(job, "complete", wait=wait, idempotency_key=idempotency_key)


def list_commands(job: ObjectRef, *, page_size: int = PAGE_SIZE) -> Stream[Command]:
    """List the commands of a job, newest first, with their outcomes."""
    return pages(partial(_page_of_commands, job, page_size))


def _page_of_commands(job: ObjectRef, limit: int, cursor: str | None) -> Operation[CommandPage]:
    target = job.path("commands", query={"limit": limit, "cursor": cursor})
    return (yield from call(job.session, get(target), CommandPage))


def get_command(job: ObjectRef, id_: str) -> Operation[Command]:
    """Read the state and outcome of a command."""
    return (yield from call(job.session, get(job.path("commands", check_name("id", id_))), Command))


def bulk(
    jobs: Collection,
    action: str,
    *,
    namespace: str | None = None,
    all_namespaces: bool = False,
    label_selector: str | None = None,
    phase: str | Iterable[str] | None = None,
    queue: str | None = None,
    names: Iterable[str] | None = None,
    dry_run: bool = False,
    idempotency_key: str | None = None,
) -> Operation[BulkResults]:
    """Send a command to all jobs that match, at most 1,000; one row each in the result.

    Args:
        jobs: their kind.
        action: as of :func:`command`.
        namespace: by default that of the client.
        all_namespaces: jobs of all namespaces.
        label_selector: jobs with these labels.
        phase: jobs in these phases.
        queue: jobs of this queue.
        names: these jobs.
        dry_run: only report what would be done.
        idempotency_key: for a call that is repeated by another process within 24 hours.

    Raises:
        InvalidError: too many jobs match, and nothing was done; or nothing selects jobs.
    """
    inside = jobs.server.inside(namespace, all_namespaces=all_namespaces)
    filters = {
        "label_selector": label_selector,
        "phase": phases(phase),
        "queue": queue,
        "names": texts(names),
    }
    body: dict[str, Any] = {"action": action, "kind": jobs.kind, "dry_run": dry_run}
    body |= {name: value for name, value in filters.items() if value is not None}
    request = post(path(*inside, "commands"), body, idempotency_key=idempotency_key)
    return (yield from call(jobs.session, request, BulkResults))
