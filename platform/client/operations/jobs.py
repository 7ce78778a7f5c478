"""Jobs of one kind: list, get, create, delete, scale, and what belongs to a job."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, TypeAlias, TypedDict, Unpack

from ...model.spelling import hint
from ...wire.base import Rows
from ...wire.jobs import (
    KINDS,
    Event,
    EventList,
    JobPage,
    JobSummary,
    Phase,
    PodPage,
    PodSummary,
    Timeline,
    Why,
)
from ...wire.simulation import Simulation
from .. import errors
from ..builder import Job
from ..calls import call, decode_reply, send_call
from ..effects import Operation, Stream
from ..requests import ApiRequest, QueryValue, encode, get, path, post
from .paging import PAGE_SIZE, collect, pages
from .scopes import Collection, ObjectRef

PHASES = tuple(map(str, Phase))

Submittable: TypeAlias = Job | Mapping[str, Any]
"""A built job, a manifest, or the short form of the REST API."""


class JobFilters(TypedDict, total=False):
    """Which jobs a list contains, and in which order."""

    namespace: str | None
    """By default that of the client."""
    all_namespaces: bool
    phase: str | Iterable[str] | None
    queue: str | None
    user: str | None
    """The user that created the job through the REST API."""
    label_selector: str | None
    created_after: datetime | None
    created_before: datetime | None
    sort: str | None
    """``name``, ``created``, ``phase`` or ``queue``; with a ``-`` before it, descending."""
    fields: Iterable[str] | None
    """Read only these fields, and namespace, name and uid."""


def texts(value: str | Iterable[str] | None) -> list[str] | None:
    """Return one or several texts as a list."""
    if value is None:
        return None
    return [value] if isinstance(value, str) else list(value)


def phases(value: str | Iterable[str] | None) -> list[str] | None:
    """Return one or several phases of jobs as a list.

    Raises:
        ValueError: there is no such phase.
    """
    found = texts(value)
    for each in found or ():
        if each not in PHASES:
            raise ValueError(f"unknown phase {each!r}; {hint(each, PHASES)}")
    return found


def list_jobs(
    jobs: Collection, *, page_size: int = PAGE_SIZE, **filters: Unpack[JobFilters]
) -> Stream[JobSummary]:
    """List jobs; each page is read when the one before it was consumed.

    Raises:
        InvalidError: a filter is invalid.
        ValueError: there is no such phase.
    """
    filters["phase"] = phases(filters.get("phase"))
    return pages(lambda cursor: page_of_jobs(jobs, limit=page_size, cursor=cursor, **filters))


def page_of_jobs(
    jobs: Collection,
    *,
    limit: int = PAGE_SIZE,
    cursor: str | None = None,
    **filters: Unpack[JobFilters],
) -> Operation[JobPage]:
    """Read one page of a list of jobs; *cursor* is the `next_cursor` of the page before it."""
    fields = texts(filters.get("fields"))
    query: dict[str, QueryValue] = {
        "phase": phases(filters.get("phase")),
        "queue": filters.get("queue"),
        "user": filters.get("user"),
        "label_selector": filters.get("label_selector"),
        "created_after": filters.get("created_after"),
        "created_before": filters.get("created_before"),
        "sort": filters.get("sort"),
        "fields": ",".join(fields) if fields is not None else None,
        "limit": limit,
        "cursor": cursor,
    }
    target = jobs.list_path(
        namespace=filters.get("namespace"),
        all_namespaces=filters.get("all_namespaces", False),
        query=query,
    )
    return (yield from call(jobs.session, get(target), JobPage))


def get_job(job: ObjectRef) -> Operation[JobSummary]:
    """Read the state of a job.

    Raises:
        NotFoundError: it does not exist.
    """
    return (yield from call(job.session, get(job.path()), JobSummary))


def get_manifest(job: ObjectRef) -> Operation[dict[str, Any]]:
    """Read the object of Kubernetes as it is."""
    return (yield from call(job.session, get(job.path("manifest")), dict[str, Any]))


def submit(
    jobs: Collection,
    job: Submittable,
    *,
    namespace: str | None = None,
    idempotency_key: str | None = None,
) -> Operation[JobSummary]:
    """Create a job; sent again after a lost response, it is created once.

    Args:
        jobs: its kind, unless the manifest names another.
        job: a built job, a manifest, or the short form.
        namespace: by default that of the manifest, else that of the client.
        idempotency_key: for a call that is repeated by another process within 24 hours.

    Raises:
        ConflictError: a job of this name exists.
        InvalidError: a field is invalid, or the key was used for something else.
        ManifestError: a built job is invalid, or the kind is not one of a job.
    """
    request = _creation(jobs, job, namespace=namespace, key=idempotency_key, dry_run=False)
    return (yield from call(jobs.session, request, JobSummary))


def validate(
    jobs: Collection, job: Submittable, *, namespace: str | None = None
) -> Operation[JobSummary]:
    """Have the server validate a job without creating it; raises as :func:`submit`."""
    request = _creation(jobs, job, namespace=namespace, key=None, dry_run=True)
    return (yield from call(jobs.session, request, JobSummary))


def simulate(
    jobs: Collection, job: Submittable, *, namespace: str | None = None
) -> Operation[Simulation]:
    """Ask whether a Volcano job would start now, and if not, why, and what would change that.

    Nothing is created, but the caller needs the right to create the job. A job of another kind is
    an error, and so is a cluster whose scheduler serves no simulations.

    Raises:
        InvalidError: a field is invalid.
        ManifestError: a built job is invalid.
        UnavailableError: no scheduler responds.
    """
    body = job.manifest() if isinstance(job, Job) else job
    metadata = body.get("metadata")
    own_namespace = metadata.get("namespace") if isinstance(metadata, Mapping) else None
    target = path(
        "simulate", query={"namespace": jobs.server.namespace(namespace or own_namespace or None)}
    )
    return (yield from call(jobs.session, post(target, body), Simulation))


def _creation(
    jobs: Collection, job: Submittable, *, namespace: str | None, key: str | None, dry_run: bool
) -> ApiRequest:
    body = job.manifest() if isinstance(job, Job) else job
    kind, own_namespace = jobs, None
    if "apiVersion" in body or "kind" in body:
        found = KINDS.get((str(body.get("apiVersion")), str(body.get("kind"))))
        if found is None:
            text = f"{body.get('apiVersion')} {body.get('kind')} is no kind of jobs"
            raise errors.ManifestError([text])
        kind = Collection(jobs.server, found)
        metadata = body.get("metadata")
        own_namespace = metadata.get("namespace") if isinstance(metadata, Mapping) else None
        if own_namespace and namespace not in (None, own_namespace):
            text = f"metadata.namespace: {own_namespace!r} is not the namespace {namespace!r}"
            raise errors.ManifestError([text])
    target = kind.path(
        namespace=jobs.server.namespace(namespace or own_namespace or None),
        query={"dry_run": dry_run or None},
    )
    return post(target, body, idempotency_key=key)


def delete(
    job: ObjectRef, *, propagation: str | None = None, if_match: str | None = None
) -> Operation[JobSummary | None]:
    """Delete a job; return its last state, or ``None`` if the response that had it was lost.

    The state has ``deleting`` set while finalizers hold the job. If a response is lost and the uid
    of the job is known, the job is read before the next attempt, which would otherwise delete a
    new job of the same name.

    Args:
        job: which one.
        propagation: ``background`` (default), ``foreground`` or ``orphan``, of its pods.
        if_match: delete this version only, see :attr:`JobSummary.resource_version`.

    Raises:
        NotFoundError: it does not exist.
        PreconditionFailedError: it was changed.
    """
    request = ApiRequest(
        method="DELETE",
        path=job.path(query={"propagation": propagation}),
        headers=etag_headers(if_match),
    )

    def is_deleted() -> Operation[bool]:
        found = yield from send_call(job.session, get(job.path()))
        if found.reply.status == 404:
            return True
        return bool(job.uid) and decode_reply(found.reply, JobSummary).uid != job.uid

    result = yield from send_call(job.session, request, is_done=is_deleted)
    if result.is_done or (result.lost and result.reply.status == 404):
        return None
    return decode_reply(result.reply, JobSummary)


def scale(
    job: ObjectRef,
    tasks: Mapping[str, int] | None = None,
    *,
    min_available: int | None = None,
    parallelism: int | None = None,
    if_match: str | None = None,
) -> Operation[JobSummary]:
    """Change the number of pods.

    Args:
        job: which one.
        tasks: replicas by task of a Volcano job, by replica type of a training job.
        min_available: of a Volcano job.
        parallelism: of a Job of batch/v1.
        if_match: change this version only.

    Raises:
        InvalidError: a task does not exist, or a number is not allowed.
        PreconditionFailedError: it was changed; after a lost response possibly by this call.
    """
    body: dict[str, Any] = {}
    if tasks is not None:
        body["tasks"] = dict(tasks)
    if min_available is not None:
        body["min_available"] = min_available
    if parallelism is not None:
        body["parallelism"] = parallelism
    request = ApiRequest(
        method="PUT", path=job.path("scale"), body=encode(body), headers=etag_headers(if_match)
    )
    return (yield from call(job.session, request, JobSummary))


def complete_submission(
    job: ObjectRef, archive: bytes = b"", *, hold: bool = False
) -> Operation[JobSummary]:
    """Store the working directory of a Volcano job that was created suspended, and let it begin.

    The job has the label ``batholith.io/submission: incomplete``, and its pods mount ConfigMaps,
    as those of ``batholith submit`` do.

    Args:
        job: which one.
        archive: a tar archive, compressed by gzip, of at most 1 MiB; nothing is stored without.
        hold: let the job remain suspended.

    Raises:
        ConflictError: it has begun without that directory.
    """
    request = ApiRequest(
        method="PUT",
        path=job.path("submission", query={"hold": hold, "uid": job.uid or None}),
        body=archive,
        content_type="application/octet-stream",
    )
    return (yield from call(job.session, request, JobSummary))


def pods(
    job: ObjectRef, *, task: str | None = None, phase: str | Iterable[str] | None = None
) -> Operation[Rows[PodSummary]]:
    """Read the pods of a job: those of one task, in one of several phases, or all."""

    def read(cursor: str | None) -> Operation[PodPage]:
        query: dict[str, QueryValue] = {"task": task, "phase": texts(phase), "cursor": cursor}
        target = job.path("pods", query=query)
        return (yield from call(job.session, get(target), PodPage))

    return (yield from collect(pages(read)))


def events(job: ObjectRef, *, limit: int | None = None) -> Operation[Rows[Event]]:
    """Read the newest events of a job, of its PodGroup and of its pods, the newest last."""
    target = job.path("events", query={"limit": limit})
    found = yield from call(job.session, get(target), EventList)
    return Rows(found.items)


def timeline(job: ObjectRef) -> Operation[Timeline]:
    """Read the phases of a job with their times; of a deleted job, from the history."""
    return (yield from call(job.session, get(job.path("timeline")), Timeline))


def why(job: ObjectRef) -> Operation[Why]:
    """Read why a job waits."""
    return (yield from call(job.session, get(job.path("why")), Why))


def etag_headers(if_match: str | None) -> tuple[tuple[str, str], ...]:
    """Return the header of a precondition: a resourceVersion, or ``*`` for any."""
    if if_match is None:
        return ()
    return (("if-match", if_match if if_match == "*" else f'"{if_match}"'),)
