"""Routes of CronJobs: list, suspend and resume, and create a Job now."""

import uuid

from fastapi import APIRouter
from pydantic import ConfigDict, Field

from ...kube.client.client import ObjectList
from ...kube.errors import AlreadyExistsError, NotFoundError
from ...model import cronjob as objects
from ...model import times
from ...model.cronjob import build_manual_job
from ...model.job import Job
from ...model.names import CRONJOBS, INSTANTIATE, JOBS, MANUAL
from ...model.validation import DNS1123_SUBDOMAIN
from ...wire.flows import CronJob, CronJobList
from ...wire.jobs import JobSummary
from ..identity.caller import AuthenticatedCaller
from ..jobs.summaries import summarize_volcano
from ..problems import ProblemError, problem_responses
from ..schemas.responses import WireRoute
from ..schemas.strict import StrictBody
from .dependencies import Caller, Name, Namespace, OperationId

_MAX_NAME = 63
_GENERATED = 5
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
"""As in names that Kubernetes generates."""

router = APIRouter(prefix="/v1", tags=["cronjobs"], route_class=WireRoute)


def _convert(cronjob: objects.CronJob) -> CronJob:
    meta, spec, status = cronjob.metadata, cronjob.spec, cronjob.status
    return CronJob(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        schedule=spec.schedule,
        time_zone=spec.time_zone,
        concurrency_policy=spec.concurrency_policy,
        suspend=bool(spec.suspend),
        active=[each.name for each in status.active or ()],
        last_schedule_time=times.known(status.last_schedule_time),
        last_successful_time=times.known(status.last_successful_time),
        created_at=times.known(meta.creation_timestamp),
    )


class CronJobPatch(StrictBody):
    """A change of a CronJob."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"suspend": True}]})

    suspend: bool = Field(description="Whether no jobs are started; active jobs go on.")


class ManualJobIn(StrictBody):
    """A job to create now."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "nightly-extra"}]})

    name: str | None = Field(
        default=None,
        max_length=_MAX_NAME,
        pattern=f"^{DNS1123_SUBDOMAIN}$",
        description="Name of the job; with a name the request can be repeated, and creates one "
        "job. Generated if it is missing.",
    )


@router.get("/cronjobs", summary="CronJobs of all namespaces")
async def list_all_cronjobs(caller: Caller) -> CronJobList:
    """List the CronJobs of all namespaces."""
    return await _list(caller, namespace="")


@router.get("/namespaces/{namespace}/cronjobs", summary="CronJobs of one namespace")
async def list_cronjobs(namespace: Namespace, caller: Caller) -> CronJobList:
    """List the CronJobs of a namespace in key order; an unknown namespace has none."""
    return await _list(caller, namespace=namespace)


@router.get(
    "/namespaces/{namespace}/cronjobs/{name}",
    summary="One CronJob",
    responses=problem_responses(404),
)
async def get_cronjob(namespace: Namespace, name: Name, caller: Caller) -> CronJob:
    """Return schedule and active jobs of a CronJob."""
    return _convert(await _get(caller, namespace=namespace, name=name))


@router.patch(
    "/namespaces/{namespace}/cronjobs/{name}",
    summary="Suspend or resume a CronJob",
    responses=problem_responses(404, 409),
)
async def patch_cronjob(
    namespace: Namespace, name: Name, body: CronJobPatch, caller: Caller
) -> CronJob:
    """Suspend or resume a CronJob; resumed, it starts the latest missed time."""
    change = {"spec": {"suspend": body.suspend}}
    try:
        changed = await caller.client.patch(
            CRONJOBS, name, change, namespace=namespace, view=objects.CronJob
        )
    except NotFoundError:
        raise _not_found(namespace, name) from None
    return _convert(changed)


@router.post(
    "/namespaces/{namespace}/cronjobs/{name}/jobs",
    status_code=201,
    summary="Create a job of a CronJob now",
    responses=problem_responses(404, 409),
)
async def create_job_of_cronjob(
    namespace: Namespace,
    name: Name,
    caller: Caller,
    operation: OperationId,
    body: ManualJobIn | None = None,
) -> JobSummary:
    """Create a job from the template, independent of schedule, ``suspend`` and policy."""
    cronjob = await _get(caller, namespace=namespace, name=name)
    job_name = (body.name if body else None) or _generate_name(name, operation)
    job = build_manual_job(cronjob, job_name, cronjobs=CRONJOBS, jobs=JOBS)
    try:
        created = await caller.client.create(JOBS, job, namespace=namespace, view=Job)
    except AlreadyExistsError:
        existing = await caller.client.get(JOBS, job_name, namespace=namespace, view=Job)
        meta = existing.metadata
        if not cronjob.metadata.controls(meta) or meta.annotations.get(INSTANTIATE) != MANUAL:
            text = f"job {job_name!r} exists, and was not created by such a request"
            raise ProblemError(409, text) from None
        created = existing
    return summarize_volcano(created)


async def _list(caller: AuthenticatedCaller, *, namespace: str) -> CronJobList:
    found: ObjectList[objects.CronJob] = await caller.client.list(
        CRONJOBS, namespace=namespace, view=objects.CronJob
    )
    return CronJobList(items=[_convert(each) for each in found.items])


async def _get(caller: AuthenticatedCaller, *, namespace: str, name: str) -> objects.CronJob:
    try:
        return await caller.client.get(CRONJOBS, name, namespace=namespace, view=objects.CronJob)
    except NotFoundError:
        raise _not_found(namespace, name) from None


def _not_found(namespace: str, name: str) -> ProblemError:
    return ProblemError(404, f"CronJob {name!r} not found in namespace {namespace!r}")


def _generate_name(cronjob: str, operation: uuid.UUID) -> str:
    number, suffix = operation.int, ""
    for _ in range(_GENERATED):
        number, digit = divmod(number, len(_ALPHABET))
        suffix += _ALPHABET[digit]
    return f"{cronjob[: _MAX_NAME - len(suffix) - 1]}-{suffix}"
