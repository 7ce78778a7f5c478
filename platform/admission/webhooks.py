"""The admission paths, Volcano's and those of training jobs, with their rules."""

from collections.abc import Callable

from ..model import job_defaults, unscheduled_fields
from ..model.admission import AdmissionRequest, Json, ObjectReader, Webhook
from ..model.job import Job
from ..model.names import CRONJOBS, HYPERNODES, JOBFLOWS, JOBS, PODGROUPS, PODS, QUEUES, Resource
from ..model.unscheduled_fields import Found
from . import (
    cronjobs,
    hypernodes,
    jobflows,
    namespaces,
    podgroups,
    pods,
    queue_validation,
    queue_warnings,
    resource_groups,
    time_limits,
    training,
)
from .decoding import decode
from .job_update_validation import validate_job_update
from .job_validation import validate_job_create
from .notifications import notify_warnings
from .settings import AdmissionSettings

Mutate = Callable[[AdmissionRequest, ObjectReader], Json]
Validate = Callable[[AdmissionRequest, ObjectReader], None]
Warn = Callable[[AdmissionRequest, ObjectReader], list[str]]

_CREATE = frozenset(("CREATE",))
_WRITE = frozenset(("CREATE", "UPDATE"))

_VALIDATING_NAMES = {HYPERNODES: "validatehypernodes.volcano.sh"}
"""Names of Volcano that do not have the kind."""


def webhooks(settings: AdmissionSettings) -> tuple[Webhook, ...]:
    """Return the webhooks under *settings*, in call order: Volcano's kinds, then training jobs."""

    def mutate_job(request: AdmissionRequest, reader: ObjectReader) -> Json:
        job = job_defaults.set_defaults(
            request.object or {},
            scheduler_name=settings.scheduler_names[0],
            keep_zero=request.operation == "UPDATE",
        )
        # Volcano sets only the PodGroup's queue, so that Job and pods name another one.
        in_queue = namespaces.set_namespace_queue(job, request, reader)
        return time_limits.set_default(in_queue, request, reader)

    def mutate_podgroup(request: AdmissionRequest, reader: ObjectReader) -> Json:
        return namespaces.set_namespace_queue(request.object or {}, request, reader)

    def mutate_pod(request: AdmissionRequest, reader: ObjectReader) -> Json:
        groups = settings.resource_groups
        pod = resource_groups.apply_groups(request.object or {}, request.namespace, groups)
        return pods.with_queue_gate(pod, settings) if settings.queue_gates else pod

    def validate_job(request: AdmissionRequest, reader: ObjectReader) -> None:
        obj = request.object or {}
        job = decode(obj, Job)
        if request.old_object is None:
            validate_job_create(job, reader, settings)
        else:
            # The stored job may lack defaults: adding them in /jobs/mutate is not a change.
            names = settings.scheduler_names
            old = job_defaults.set_defaults(
                request.old_object, scheduler_name=names[0], keep_zero=True
            )
            validate_job_update(job, obj, old, reader, max_pods=settings.max_pods_per_job)

    def validate_queue(request: AdmissionRequest, reader: ObjectReader) -> None:
        queue_validation.validate(request, reader, settings)

    def validate_pod(request: AdmissionRequest, reader: ObjectReader) -> None:
        pods.validate(request, settings)

    def warn_cronjob(request: AdmissionRequest, reader: ObjectReader) -> list[str]:
        return cronjobs.warnings(request, settings)

    warn_queue = _with_notifications(queue_warnings.queue_warnings, settings)
    return (
        # Volcano sets defaults of a Job on create only; then a manifest that omits a default
        # cannot be applied again. Defaulting on update, too, avoids that.
        _mutating(JOBS, _WRITE, mutate_job),
        _mutating(QUEUES, _CREATE, _mutate_queue),
        _mutating(PODGROUPS, _CREATE, mutate_podgroup),
        _mutating(PODS, _CREATE, mutate_pod),
        _validating(JOBFLOWS, _WRITE, jobflows.validate, jobflows.warnings),
        _validating(JOBS, _WRITE, validate_job, _with_notifications(_warn_job, settings)),
        _validating(QUEUES, _WRITE | {"DELETE"}, validate_queue, warn_queue),
        _validating(PODGROUPS, _CREATE, podgroups.validate, _warn_podgroup),
        _validating(PODS, _CREATE, validate_pod),
        _validating(CRONJOBS, _WRITE, cronjobs.validate, warn_cronjob),
        _validating(HYPERNODES, _WRITE, hypernodes.validate, hypernodes.warnings),
        *training.webhooks(settings),
    )


def _with_notifications(warn: Warn, settings: AdmissionSettings) -> Warn:
    """Return *warn* with warnings of a URL that would not be notified."""

    def warn_of_both(request: AdmissionRequest, reader: ObjectReader) -> list[str]:
        return [*warn(request, reader), *notify_warnings(request, settings.notifications)]

    return warn_of_both


def _warn_job(request: AdmissionRequest, reader: ObjectReader) -> list[str]:
    ignored = _unscheduled(request, unscheduled_fields.of_job)
    topology = hypernodes.topology_warnings(request, reader)
    return [*queue_warnings.job_warnings(request, reader), *topology, *ignored]


def _warn_podgroup(request: AdmissionRequest, reader: ObjectReader) -> list[str]:
    topology = hypernodes.topology_warnings(request, reader)
    return [*topology, *_unscheduled(request, unscheduled_fields.of_podgroup)]


def _unscheduled(request: AdmissionRequest, fields: Callable[[object, str], Found]) -> list[str]:
    """Return warnings of the fields that a write adds and the scheduler does not act on."""
    new, old = ((obj or {}).get("spec") for obj in (request.object, request.old_object))
    return unscheduled_fields.warnings(fields(new, "spec"), fields(old, "spec"))


def _mutate_queue(request: AdmissionRequest, _: ObjectReader) -> Json:
    return queue_validation.set_defaults(request.object or {})


def _mutating(resource: Resource, operations: frozenset[str], mutate: Mutate) -> Webhook:
    return Webhook(
        name=f"mutate{resource.kind.lower()}.volcano.sh",
        path=f"/{resource.plural}/mutate",
        resource=resource,
        operations=operations,
        mutate=mutate,
    )


def _validating(
    resource: Resource,
    operations: frozenset[str],
    validate: Validate,
    warn: Warn | None = None,
) -> Webhook:
    return Webhook(
        name=_VALIDATING_NAMES.get(resource, f"validate{resource.kind.lower()}.volcano.sh"),
        path=f"/{resource.plural}/validate",
        resource=resource,
        operations=operations,
        validate=validate,
        warn=warn,
    )


WEBHOOKS = webhooks(AdmissionSettings())
"""The webhooks of Volcano's kinds with default settings."""
