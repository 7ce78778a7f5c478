"""The summary of a queue: what lists and streams contain. Pure."""

import msgspec

from ..model.queue import Quantities, Queue, QueueState


class QueueSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of a queue; quantities are those of Kubernetes."""

    name: str
    uid: str
    resource_version: str
    state: QueueState
    parent: str
    weight: int
    priority: int
    reclaimable: bool
    labels: dict[str, str]
    capability: dict[str, str]
    deserved: dict[str, str]
    guarantee: dict[str, str]
    allocated: dict[str, str]
    pending: int
    inqueue: int
    running: int
    completed: int
    unknown: int
    created_at: str | None
    deleting: bool


def summarize_queue(queue: Queue) -> QueueSummary:
    """Return the summary of a queue."""
    meta, spec, status = queue.metadata, queue.spec, queue.status
    return QueueSummary(
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        state=_state(status.state),
        parent=spec.parent,
        weight=spec.weight,
        priority=spec.priority,
        reclaimable=spec.reclaimable is not False,
        labels=meta.labels,
        capability=_quantities(spec.capability),
        deserved=_quantities(spec.deserved),
        guarantee=_quantities(spec.guarantee.resource),
        allocated=_quantities(status.allocated),
        pending=status.pending,
        inqueue=status.inqueue,
        running=status.running,
        completed=status.completed,
        unknown=status.unknown,
        created_at=meta.creation_timestamp,
        deleting=meta.deletion_timestamp is not None,
    )


def _state(state: str) -> QueueState:
    if not state:
        return QueueState.OPEN
    return QueueState(state) if state in QueueState.__members__.values() else QueueState.UNKNOWN


def _quantities(quantities: Quantities) -> dict[str, str]:
    """Return *quantities* as text, as Kubernetes writes them."""
    return {name: str(value) for name, value in quantities.items()}
