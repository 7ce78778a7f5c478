"""Validation of CronJobs, and warnings about Job templates from which no Job can be created.

Volcano validates the whole CronJob on each update. Here an update is only denied for what it
changes, so that a CronJob stored without validation can be suspended.
"""

from collections.abc import Iterable

from ..machinery import cron
from ..machinery.cron import TimeZoneProblem
from ..model import job_defaults, unscheduled_fields, validation
from ..model.admission import AdmissionRequest, DeniedError, Json, ObjectReader, nested_object
from ..model.field_errors import join_errors, quote
from ..model.job import Job
from ..model.names import QUEUES, Resource
from ..model.queue import QueueState
from .decoding import decode
from .job_validation import validate_job_create
from .settings import AdmissionSettings

_MAX_JOB_NAME = 63
_SUFFIX = "-12345678"
"""As long as a time in the name of a Job."""
_MAX_NAME = _MAX_JOB_NAME - 11
"""Volcano's limit, one or two characters below what the suffix requires."""

_ZONE_PROBLEMS = {
    TimeZoneProblem.EMPTY: "timeZone must be nil or non-empty string, got empty string",
    TimeZoneProblem.MALFORMED: "invalid timeZone {name}",
    TimeZoneProblem.LOCAL: (
        "timeZone can't be Local, and must be defined in https://www.iana.org/time-zones"
    ),
    TimeZoneProblem.UNKNOWN: "unknown timeZone {name}",
}


def validate(request: AdmissionRequest, reader: ObjectReader) -> None:
    """Validate a CronJob.

    Raises:
        DeniedError: with all errors, in one line.
    """
    new, old = request.object or {}, request.old_object
    spec, before = nested_object(new, "spec"), nested_object(old, "spec")
    errors = []
    if old is None or spec.get("schedule") != before.get("schedule"):
        errors.append(_schedule_error(spec.get("schedule") or ""))
    if old is None or spec.get("timeZone") != before.get("timeZone"):
        errors.append(_zone_error(spec.get("timeZone")))
    if old is None:
        errors.append(_name_error(nested_object(new, "metadata").get("name") or request.name))
    if message := join_errors(errors):
        raise DeniedError(message)


def warnings(request: AdmissionRequest, settings: AdmissionSettings) -> list[str]:
    """Return why no Job can be created from the template, or what the scheduler ignores of it.

    Nothing if an update leaves the template unchanged.
    """
    new = request.object or {}
    template = _template(new)
    if request.old_object is not None and template == _template(request.old_object):
        return []
    name = nested_object(new, "metadata").get("name") or request.name
    job = job_defaults.set_defaults(
        {"metadata": {"name": f"{name}{_SUFFIX}"}, "spec": template},
        scheduler_name=settings.scheduler_names[0],
    )
    try:
        validate_job_create(decode(job, Job), _OpenQueues(), settings)
    except DeniedError as error:
        return [f"spec.jobTemplate: no job can be created from it: {error}"]
    fields = unscheduled_fields.of_job(template, "spec.jobTemplate.spec")
    return unscheduled_fields.warnings(fields, ())


class _OpenQueues:
    """A reader for which each queue exists and is open: it may be when a Job is created."""

    def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """Return an open queue."""
        if resource != QUEUES:
            return None
        return {"metadata": {"name": name}, "status": {"state": QueueState.OPEN}}

    def list(self, resource: Resource) -> Iterable[Json]:
        """Return no objects."""
        return ()


def _template(cronjob: Json) -> Json:
    return nested_object(nested_object(nested_object(cronjob, "spec"), "jobTemplate"), "spec")


def _schedule_error(schedule: str) -> str:
    if not schedule:
        return "spec.schedule: schedule is required, but got empty"
    if cron.mentions_time_zone(schedule):
        return (
            "spec.schedule: schedule should not contain TZ or CRON_TZ, TZ should only be set in"
            " the timeZone field"
        )
    try:
        cron.parse(schedule)
    except cron.ScheduleError as error:
        return f"spec.schedule: schedule is not a valid cron expression: {error}"
    return ""


def _zone_error(name: str | None) -> str:
    problem = None if name is None else cron.time_zone_problem(name)
    if problem is None:
        return ""
    return f"spec.timeZone: {_ZONE_PROBLEMS[problem].format(name=quote(name))}"


def _name_error(name: str) -> str:
    if len(name) > _MAX_NAME:
        return (
            f"metadata.name: cronJob name must be no more than {_MAX_NAME} characters to"
            f" accommodate job name suffix (max {_MAX_JOB_NAME} total)"
        )
    error = validation.qualified_name_error(name)
    return f"metadata.name: invalid cronJob name {quote(name)}: {error}" if error else ""
