"""Convert PodGroups."""

from ...model import times
from ...model.names import DEFAULT_QUEUE, WHY
from ...model.podgroup import PodGroup, PodGroupPhase
from ...wire import queues
from ..explanations import decode_explanation
from .why import condition_of


def podgroup_of(podgroup: PodGroup) -> queues.PodGroup:
    """Convert a PodGroup."""
    meta, spec, status = podgroup.metadata, podgroup.spec, podgroup.status
    owner = meta.controller
    minimum = spec.min_resources or {}
    return queues.PodGroup(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        queue=queue_of(podgroup),
        phase=phase_of(podgroup),
        min_member=spec.min_member,
        min_resources={name: str(value) for name, value in minimum.items()},
        priority_class_name=spec.priority_class_name,
        running=status.running,
        succeeded=status.succeeded,
        failed=status.failed,
        owner=queues.Owner(kind=owner.kind, name=owner.name) if owner else None,
        conditions=[condition_of(each) for each in status.conditions],
        explanation=decode_explanation(meta.annotations.get(WHY, "")),
        labels=meta.labels,
        created_at=times.known(meta.creation_timestamp),
        deleting=meta.deletion_timestamp is not None,
    )


def phase_of(podgroup: PodGroup) -> PodGroupPhase:
    """Return the phase; without one it is pending."""
    try:
        return PodGroupPhase(podgroup.status.phase or PodGroupPhase.PENDING)
    except ValueError:
        return PodGroupPhase.UNKNOWN


def queue_of(podgroup: PodGroup) -> str:
    """Return the queue of a PodGroup."""
    return podgroup.spec.queue or DEFAULT_QUEUE
