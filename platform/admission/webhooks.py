"""The admission paths of Volcano, each with its rules."""

from collections.abc import Callable

from ..model.admission import Json, Lookup, Review, Webhook
from ..model.job import Job
from ..model.names import JOBS, PODGROUPS, PODS, QUEUES, Resource
from . import job_defaults, namespaces, podgroups, pods, queue_validation, resource_groups
from .decoding import decode
from .job_update_validation import check_changed_job
from .job_validation import check_new_job
from .settings import AdmissionSettings

Mutate = Callable[[Review, Lookup], Json]
Validate = Callable[[Review, Lookup], None]

_CREATE = frozenset(("CREATE",))
_WRITE = frozenset(("CREATE", "UPDATE"))


def webhooks(settings: AdmissionSettings) -> tuple[Webhook, ...]:
    """All admission paths under *settings*, in the order in which they are asked."""

    def mutate_job(review: Review, lookup: Lookup) -> Json:
        job = job_defaults.fill_in(
            review.object or {},
            scheduler_name=settings.scheduler_names[0],
            keep_zero=review.operation == "UPDATE",
        )
        # Volcano redirects only the PodGroup, and the job and its pods show another queue.
        return namespaces.redirect(job, review, lookup)

    def mutate_queue(review: Review, lookup: Lookup) -> Json:
        return queue_validation.fill_in(review.object or {})

    def mutate_podgroup(review: Review, lookup: Lookup) -> Json:
        return namespaces.redirect(review.object or {}, review, lookup)

    def mutate_pod(review: Review, lookup: Lookup) -> Json:
        groups = settings.resource_groups
        pod = resource_groups.fill_in(review.object or {}, review.namespace, groups)
        return pods.gated(pod, settings) if settings.queue_gates else pod

    def validate_job(review: Review, lookup: Lookup) -> None:
        obj = review.object or {}
        job = decode(obj, Job)
        if review.old is None:
            check_new_job(job, lookup, settings)
        else:
            # It may be from a time without webhooks: what /jobs/mutate fills in is no change.
            names = settings.scheduler_names
            old = job_defaults.fill_in(review.old, scheduler_name=names[0], keep_zero=True)
            check_changed_job(job, obj, old)

    def validate_queue(review: Review, lookup: Lookup) -> None:
        queue_validation.validate(review, lookup, settings)

    def validate_pod(review: Review, lookup: Lookup) -> None:
        pods.validate(review, settings)

    return (
        # Volcano fills in a job at its creation only; then a manifest that leaves a default
        # out cannot be applied again. Filling in at each write cures that.
        _mutating(JOBS, _WRITE, mutate_job),
        _mutating(QUEUES, _CREATE, mutate_queue),
        _mutating(PODGROUPS, _CREATE, mutate_podgroup),
        _mutating(PODS, _CREATE, mutate_pod),
        _validating(JOBS, _WRITE, validate_job),
        _validating(QUEUES, _WRITE | {"DELETE"}, validate_queue),
        _validating(PODGROUPS, _CREATE, podgroups.validate),
        _validating(PODS, _CREATE, validate_pod),
    )


def _mutating(resource: Resource, operations: frozenset[str], mutate: Mutate) -> Webhook:
    return Webhook(
        name=f"mutate{resource.kind.lower()}.volcano.sh",
        path=f"/{resource.plural}/mutate",
        resource=resource,
        operations=operations,
        mutate=mutate,
    )


def _validating(resource: Resource, operations: frozenset[str], validate: Validate) -> Webhook:
    return Webhook(
        name=f"validate{resource.kind.lower()}.volcano.sh",
        path=f"/{resource.plural}/validate",
        resource=resource,
        operations=operations,
        validate=validate,
    )


WEBHOOKS = webhooks(AdmissionSettings())
"""All admission paths with default settings."""
