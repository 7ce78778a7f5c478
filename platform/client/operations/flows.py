"""JobFlows and CronJobs of Volcano."""

from typing import Any

from ...wire.flows import CronJob, CronJobList, JobFlow, JobFlowList
from ...wire.jobs import JobSummary
from ..calls import call
from ..effects import Emit, Operation, Stream
from ..requests import ApiRequest, encode, get, post
from .scopes import Collection, ObjectRef


def list_flows(
    flows: Collection, *, namespace: str | None = None, all_namespaces: bool = False
) -> Stream[JobFlow]:
    """List job flows."""
    target = flows.list_path(namespace=namespace, all_namespaces=all_namespaces)
    found = yield from call(flows.session, get(target), JobFlowList)
    yield from map(Emit, found.items)


def get_flow(flow: ObjectRef) -> Operation[JobFlow]:
    """Read the phase of a job flow and of its jobs.

    Raises:
        NotFoundError: it does not exist.
    """
    return (yield from call(flow.session, get(flow.path()), JobFlow))


def list_cronjobs(
    cronjobs: Collection, *, namespace: str | None = None, all_namespaces: bool = False
) -> Stream[CronJob]:
    """List CronJobs."""
    target = cronjobs.list_path(namespace=namespace, all_namespaces=all_namespaces)
    found = yield from call(cronjobs.session, get(target), CronJobList)
    yield from map(Emit, found.items)


def get_cronjob(cronjob: ObjectRef) -> Operation[CronJob]:
    """Read schedule and active jobs of a CronJob.

    Raises:
        NotFoundError: it does not exist.
    """
    return (yield from call(cronjob.session, get(cronjob.path()), CronJob))


def suspend_cronjob(cronjob: ObjectRef) -> Operation[CronJob]:
    """Start no further jobs; active ones go on."""
    return _patch(cronjob, {"suspend": True})


def resume_cronjob(cronjob: ObjectRef) -> Operation[CronJob]:
    """Start jobs again, beginning with the latest missed time."""
    return _patch(cronjob, {"suspend": False})


def start_now(
    cronjob: ObjectRef, *, name: str | None = None, idempotency_key: str | None = None
) -> Operation[JobSummary]:
    """Create a job of the template now, independent of schedule, ``suspend`` and policy.

    Args:
        cronjob: which one.
        name: of the job; generated if it is missing.
        idempotency_key: for a call that is repeated by another process within 24 hours.

    Raises:
        ConflictError: another job of this name exists.
        NotFoundError: the CronJob does not exist.
    """
    body = {} if name is None else {"name": name}
    request = post(cronjob.path("jobs"), body, idempotency_key=idempotency_key)
    return (yield from call(cronjob.session, request, JobSummary))


def _patch(cronjob: ObjectRef, change: dict[str, Any]) -> Operation[CronJob]:
    request = ApiRequest(method="PATCH", path=cronjob.path(), body=encode(change))
    return (yield from call(cronjob.session, request, CronJob))
