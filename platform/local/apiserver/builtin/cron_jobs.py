"""Defaults, validation and warnings of CronJobs, with kube-apiserver's messages."""

from typing import Any

from ....machinery import cron
from ..errors.fields import NOT_NEGATIVE, FieldError, invalid, not_supported, required
from .batch_jobs import (
    default_job_template,
    job_spec_warnings,
    name_warnings,
    shown_selector,
    validate_job_spec,
)

Json = dict[str, Any]

_POLICIES = ("Allow", "Forbid", "Replace")
_MAX_NAME_LENGTH = 52
"""The names of Jobs are longer by a time, and at most a DNS label."""


def default_cron_job(obj: Json) -> None:
    """Default a CronJob.

    Of its Job template only what is inside the pods and policies: the rest is defaulted when a Job
    is created from it.
    """
    spec = obj.setdefault("spec", {})
    default_job_template(spec.get("jobTemplate", {}).get("spec", {}))
    if not spec.get("concurrencyPolicy"):
        spec["concurrencyPolicy"] = "Allow"
    spec.setdefault("suspend", False)
    spec.setdefault("successfulJobsHistoryLimit", 3)
    spec.setdefault("failedJobsHistoryLimit", 1)


def validate_cron_job(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a CronJob, or with *old* an update of it."""
    spec, name = obj.get("spec", {}), obj["metadata"].get("name", "")
    if old is not None:
        before = old.get("spec", {})
        # Unchanged specs are valid, and all that may be needed is to remove a finalizer.
        return [] if spec == before else _validate_spec(spec, before)
    errors = _validate_spec(spec, None)
    if len(name) > _MAX_NAME_LENGTH:
        text = f"must be no more than {_MAX_NAME_LENGTH} characters"
        errors.append(invalid("metadata.name", name, text))
    return errors


def validate_cron_job_status(obj: Json, old: Json) -> list[FieldError]:
    """Accept any status: kube-apiserver has no rules for it."""
    return []


def _validate_spec(spec: Json, before: Json | None) -> list[FieldError]:
    schedule = spec.get("schedule", "")
    errors = (
        _validate_schedule(schedule, spec.get("timeZone"), before)
        if schedule
        else [required("spec.schedule")]
    )
    errors += _validate_count(spec, "startingDeadlineSeconds")
    zone = spec.get("timeZone")
    if zone is not None and (before is None or zone != before.get("timeZone")):
        errors += _validate_zone(zone, "spec.timeZone")
    if (policy := spec.get("concurrencyPolicy")) not in _POLICIES:
        errors.append(not_supported("spec.concurrencyPolicy", policy, _POLICIES))
    errors += _validate_job_template(spec.get("jobTemplate", {}).get("spec", {}))
    errors += _validate_count(spec, "successfulJobsHistoryLimit")
    errors += _validate_count(spec, "failedJobsHistoryLimit")
    return errors


def _validate_count(spec: Json, key: str) -> list[FieldError]:
    value = spec.get(key, 0)
    return [invalid(f"spec.{key}", value, NOT_NEGATIVE)] if value < 0 else []


def _validate_schedule(schedule: str, zone: str | None, before: Json | None) -> list[FieldError]:
    """Validate a schedule; one with a time zone is accepted only where it was there before."""
    errors: list[FieldError] = []
    try:
        cron.parse(schedule)
    except cron.ScheduleError as error:
        errors.append(invalid("spec.schedule", schedule, error.reason))
    if not cron.mentions_time_zone(schedule):
        return errors
    if before is None or not cron.mentions_time_zone(before.get("schedule", "")):
        text = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
        errors.append(invalid("spec.schedule", schedule, text))
    elif zone is not None:
        text = "cannot use both timeZone field and TZ or CRON_TZ in schedule"
        errors.append(invalid("spec.schedule", schedule, text))
    return errors


def _validate_zone(zone: str, path: str) -> list[FieldError]:
    problem = cron.time_zone_problem(zone)
    if problem is None:
        return []
    if problem is cron.TimeZoneProblem.EMPTY:
        return [invalid(path, zone, "timeZone must be nil or non-empty string")]
    unknown = invalid(path, zone, f"unknown time zone {zone}")
    if problem is not cron.TimeZoneProblem.LOCAL:
        return [unknown]
    text = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"
    explicit = invalid(path, zone, text)
    return [explicit] if zone == "Local" else [explicit, unknown]


def _validate_job_template(job: Json) -> list[FieldError]:
    path = "spec.jobTemplate.spec"
    errors = validate_job_spec(job, path)
    if "selector" in job:
        shown = shown_selector(job["selector"])
        errors.append(invalid(f"{path}.selector", shown, "`selector` will be auto-generated"))
    if job.get("manualSelector"):
        errors.append(not_supported(f"{path}.manualSelector", True, ("nil", "false")))
    return errors


def cron_job_warnings(obj: Json, old: Json | None) -> list[str]:
    """Return kube-apiserver's warnings for a new CronJob, or for an update of it."""
    spec = obj.get("spec", {})
    job, path = spec.get("jobTemplate", {}).get("spec", {}), "spec.jobTemplate.spec"
    if old is None:
        return [*name_warnings(obj), *job_spec_warnings(job, path)]
    found = job_spec_warnings(job, path) if spec != old.get("spec") else []
    if cron.mentions_time_zone(spec.get("schedule", "")):
        found.append(
            "cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see "
            "https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details"
        )
    return found
