"""Annotations of jobs that are not Volcano's, and the rules of Jobs of batch/v1."""

from collections.abc import Callable

from ..model.admission import (
    AdmissionRequest,
    DeniedError,
    Json,
    ObjectReader,
    Webhook,
    nested_object,
)
from ..model.field_errors import join_errors
from ..model.names import BATCH_JOBS, DEFAULT_QUEUE, PODGROUP_QUEUE, TIME_LIMIT
from .annotations import RULES, AnnotatedJob, annotation_errors
from .notifications import notify_warnings
from .settings import AdmissionSettings
from .time_limits import deadline_errors


def validate_other_kind(
    request: AdmissionRequest,
    reader: ObjectReader,
    queue: Callable[[Json], str],
    deadline: tuple[str, ...],
) -> None:
    """Validate the annotations and the deadline of a job that is not Volcano's.

    Args:
        request: the write.
        reader: reads queues.
        queue: returns the queue of the job.
        deadline: the path of the field with its deadline.

    Raises:
        DeniedError: with all errors, in one line.
    """
    obj, before = request.object or {}, request.old_object
    new, old = _annotations(obj), None if before is None else _annotations(before)
    seconds = _field(obj, deadline)
    has_new_limit = old is None or new.get(TIME_LIMIT) != old.get(TIME_LIMIT)
    has_new_limit |= before is not None and _field(before, deadline) != seconds
    if new == old and not has_new_limit:
        return
    job = AnnotatedJob(
        name=request.name,
        annotations={name: str(text) for name, text in new.items()},
        queue=queue(obj),
        is_update=old is not None,
    )
    errors = list(annotation_errors(job, old, reader, volcano=False))
    if has_new_limit:
        path = ".".join(deadline)
        errors += deadline_errors(path, seconds, job.annotations, job.queue, reader)
    if message := join_errors(errors):
        raise DeniedError(message)


def other_kind_warnings(
    request: AdmissionRequest, kind: str, settings: AdmissionSettings
) -> list[str]:
    """Return which annotations that a write adds have no effect on jobs of *kind*."""
    new, old = _annotations(request.object or {}), _annotations(request.old_object or {})
    names = (name for rule in RULES if rule.volcano_only for name in rule.names)
    ignored = [
        f"metadata.annotations[{name}]: has no effect on {kind}, only on Jobs of batch.volcano.sh"
        for name in names
        if name in new and new[name] != old.get(name)
    ]
    return [*ignored, *notify_warnings(request, settings.notifications)]


def batch_job_webhook(settings: AdmissionSettings) -> Webhook:
    """Return the rules of annotations of Jobs of batch/v1.

    They are for the embedded API server and not registered as a webhook: a cluster whose webhook
    is not available could not create any Job. There, policies have the same rules.
    """

    def queue(job: Json) -> str:
        template = nested_object(nested_object(job, "spec"), "template")
        if nested_object(template, "spec").get("schedulerName") not in settings.scheduler_names:
            return ""
        return str(_annotations(template).get(PODGROUP_QUEUE) or DEFAULT_QUEUE)

    def validate(request: AdmissionRequest, reader: ObjectReader) -> None:
        validate_other_kind(request, reader, queue, ("spec", "activeDeadlineSeconds"))

    def warn(request: AdmissionRequest, _: ObjectReader) -> list[str]:
        return other_kind_warnings(request, "Jobs of batch/v1", settings)

    return Webhook(
        name="validatebatchjob.batholith.io",
        path="/batchjobs/validate",
        resource=BATCH_JOBS,
        operations=frozenset(("CREATE", "UPDATE")),
        validate=validate,
        warn=warn,
    )


def _field(obj: Json, path: tuple[str, ...]) -> object:
    *parents, name = path
    for each in parents:
        obj = nested_object(obj, each)
    return obj.get(name)


def _annotations(obj: Json) -> Json:
    return nested_object(nested_object(obj, "metadata"), "annotations")
