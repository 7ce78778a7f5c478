"""Validation of training jobs, at the paths of Kubeflow's training operator.

Kubeflow's webhooks validate each update. Here an update that leaves the spec unchanged is valid, so
that a job stored without validation does not block updates of labels or finalizers. Defaults are
not set on admission: the controller sets them for each reconcile.
"""

from functools import partial
from typing import Any

from ..model.admission import (
    AdmissionRequest,
    DeniedError,
    Json,
    ObjectReader,
    Webhook,
    nested_object,
)
from ..model.field_errors import aggregate_errors
from ..model.job_size import too_many_pods_error, training_pods
from ..model.names import DEFAULT_QUEUE
from ..model.training.framework_api import FrameworkApi
from ..model.training.types import TrainingJob
from .decoding import decode
from .other_jobs import other_kind_warnings, validate_other_kind
from .settings import AdmissionSettings


def webhooks(settings: AdmissionSettings) -> tuple[Webhook, ...]:
    """Return the webhook of each kind."""
    return tuple(_webhook(framework, settings) for framework in settings.frameworks)


def _webhook(framework: FrameworkApi[Any], settings: AdmissionSettings) -> Webhook:
    return Webhook(
        name=framework.kind.webhook_name,
        path=framework.kind.webhook_path,
        resource=framework.kind.resource,
        operations=frozenset(("CREATE", "UPDATE")),
        validate=partial(_validate, framework, settings),
        warn=partial(_warn, framework, settings),
    )


def _validate(
    framework: FrameworkApi[Any],
    settings: AdmissionSettings,
    request: AdmissionRequest,
    reader: ObjectReader,
) -> None:
    validate_other_kind(request, reader, _queue, ("spec", "runPolicy", "activeDeadlineSeconds"))
    obj, old = request.object or {}, request.old_object
    if old is not None and nested_object(obj, "spec") == nested_object(old, "spec"):
        return
    job = _decode(framework, obj)
    pods = training_pods(job.spec.replica_specs.values())
    if error := too_many_pods_error(pods, settings.max_pods_per_job):
        raise DeniedError(f"spec.{framework.kind.replica_field}[*].replicas: {error}")
    errors = framework.validate(job)
    if old is not None and (old_job := _decode_stored(framework, old)) is not None:
        errors += framework.validate_update(job, old_job)
    if errors:
        raise DeniedError(aggregate_errors(errors))


def _warn(
    framework: FrameworkApi[Any],
    settings: AdmissionSettings,
    request: AdmissionRequest,
    reader: ObjectReader,
) -> list[str]:
    ignored = other_kind_warnings(request, f"a {framework.kind.resource.kind}", settings)
    return [*framework.warnings(_decode(framework, request.object or {})), *ignored]


def _queue(job: Json) -> str:
    policy = nested_object(nested_object(job, "spec"), "runPolicy")
    return str(nested_object(policy, "schedulingPolicy").get("queue") or DEFAULT_QUEUE)


def _decode(framework: FrameworkApi[Any], obj: Json) -> TrainingJob[Any]:
    # Kubeflow's definitions do not require a spec.
    job: TrainingJob[Any] = decode({"spec": {}} | obj, framework.job_type)
    return job


def _decode_stored(framework: FrameworkApi[Any], obj: Json) -> TrainingJob[Any] | None:
    """Return the stored job, ``None`` if a field has another type, which an update may fix."""
    try:
        return _decode(framework, obj)
    except DeniedError:
        return None
