"""Annotations of jobs of all kinds: who acts on them, and what their values may be."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ..model.admission import (
    AdmissionRequest,
    DeniedError,
    Json,
    ObjectReader,
    Webhook,
    nested_object,
)
from ..model.dependencies import dependency_errors
from ..model.field_errors import join_errors
from ..model.lost_pods import replace_nodes_error
from ..model.names import (
    BATCH_JOBS,
    BEGIN,
    DEFAULT_QUEUE,
    DEPENDS_ON,
    MAX_PARALLEL,
    NOTIFY,
    NOTIFY_EVENTS,
    PODGROUP_QUEUE,
    REPLACE_NODES,
    RUNNING_ESTIMATE,
    TIME_LIMIT,
    TIME_LIMIT_WARNING,
)
from .notifications import notify_errors, notify_warnings
from .settings import AdmissionSettings
from .time_limits import job_errors


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotatedJob:
    """What the values of annotations are checked against."""

    name: str
    annotations: Mapping[str, str]
    queue: str
    """Empty if the job is not scheduled in one."""
    is_update: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Annotations that are checked together."""

    names: tuple[str, ...]
    errors: Callable[[AnnotatedJob, ObjectReader], Iterator[str]]
    volcano_only: bool = False
    """Whether the controllers of other kinds do not act on them."""


def _time_errors(job: AnnotatedJob, reader: ObjectReader) -> Iterator[str]:
    removed = job.is_update and TIME_LIMIT not in job.annotations
    return job_errors(job.annotations, job.queue, reader, removed=removed)


def _dependency_errors(job: AnnotatedJob, _: ObjectReader) -> Iterator[str]:
    return dependency_errors(job.name, job.annotations)


def _notify_errors(job: AnnotatedJob, _: ObjectReader) -> Iterator[str]:
    return notify_errors(job.annotations)


def _replacement_errors(job: AnnotatedJob, _: ObjectReader) -> Iterator[str]:
    if error := replace_nodes_error(job.annotations):
        yield error


def _no_errors(_: AnnotatedJob, __: ObjectReader) -> Iterator[str]:
    return iter(())


RULES = (
    Rule(names=(TIME_LIMIT, TIME_LIMIT_WARNING, RUNNING_ESTIMATE), errors=_time_errors),
    Rule(names=(DEPENDS_ON, BEGIN), errors=_dependency_errors, volcano_only=True),
    Rule(names=(NOTIFY, NOTIFY_EVENTS), errors=_notify_errors),
    Rule(names=(REPLACE_NODES,), errors=_replacement_errors),
    # Depends on the tasks: see array_errors.
    Rule(names=(MAX_PARALLEL,), errors=_no_errors, volcano_only=True),
)


def annotation_errors(
    job: AnnotatedJob, old: Mapping[str, object] | None, reader: ObjectReader, *, volcano: bool
) -> Iterator[str]:
    """Yield what is wrong with the annotations that a write adds to *old* or changes; ``None`` is
    a new job."""
    for rule in RULES:
        if rule.volcano_only and not volcano:
            continue
        if old is None or any(job.annotations.get(each) != old.get(each) for each in rule.names):
            yield from rule.errors(job, reader)


def validate_other_kind(
    request: AdmissionRequest, reader: ObjectReader, queue: Callable[[Json], str]
) -> None:
    """Validate the annotations of a job that is not Volcano's; *queue* returns its queue.

    Raises:
        DeniedError: with all errors, in one line.
    """
    obj = request.object or {}
    new, old = _annotations(obj), None
    if request.old_object is not None:
        old = _annotations(request.old_object)
    if new == old:
        return
    job = AnnotatedJob(
        name=request.name,
        annotations={name: str(text) for name, text in new.items()},
        queue=queue(obj),
        is_update=old is not None,
    )
    if message := join_errors(annotation_errors(job, old, reader, volcano=False)):
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
    is not available could not create any Job. There, a policy has the same rules.
    """

    def queue(job: Json) -> str:
        template = nested_object(nested_object(job, "spec"), "template")
        if nested_object(template, "spec").get("schedulerName") not in settings.scheduler_names:
            return ""
        return str(_annotations(template).get(PODGROUP_QUEUE) or DEFAULT_QUEUE)

    def validate(request: AdmissionRequest, reader: ObjectReader) -> None:
        validate_other_kind(request, reader, queue)

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


def _annotations(obj: Json) -> Json:
    return nested_object(nested_object(obj, "metadata"), "annotations")
