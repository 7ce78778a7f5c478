"""Bodies of requests for queues, and the conversion of queues."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ...model import times
from ...model.names import DEFAULT_IMAGE, ROOT_QUEUE, WORKDIR_CLAIM
from ...model.podgroup import PodGroupPhase
from ...model.queue import Queue, QueueState
from ...model.validation import DNS1123_SUBDOMAIN
from ...wire import queues
from .strict import StrictBody

Quantity = Annotated[str, Field(min_length=1, max_length=64)] | Annotated[int, Field(ge=0)] | float
Quantities = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=253)], Quantity], Field(max_length=100)
]
"""Quantities by resource."""
Weight = Annotated[int, Field(ge=1, le=65535, strict=True)]
Priority = Annotated[int, Field(ge=0, le=2**31 - 1, strict=True)]
QueueName = Annotated[str, Field(max_length=253, pattern=f"^{DNS1123_SUBDOMAIN}$")]


def queue_of(queue: Queue) -> queues.Queue:
    """Convert a queue."""
    meta, spec, status = queue.metadata, queue.spec, queue.status
    counts: dict[str, int] = {
        PodGroupPhase.PENDING: status.pending,
        PodGroupPhase.INQUEUE: status.inqueue,
        PodGroupPhase.RUNNING: status.running,
        PodGroupPhase.UNKNOWN: status.unknown,
        PodGroupPhase.COMPLETED: status.completed,
    }
    return queues.Queue(
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        state=state_of(queue),
        parent=parent_of(queue),
        weight=spec.weight or 1,
        priority=spec.priority,
        reclaimable=spec.reclaimable is not False,
        dequeue_strategy=spec.dequeue_strategy or "traverse",
        capability=_texts(spec.capability),
        guarantee=_texts(spec.guarantee.resource),
        deserved=_texts(spec.deserved),
        allocated=_texts(status.allocated),
        podgroups=counts,
        labels=meta.labels,
        default_image=meta.annotations.get(DEFAULT_IMAGE, ""),
        workdir_claim=meta.annotations.get(WORKDIR_CLAIM, ""),
        created_at=times.known(meta.creation_timestamp),
        deleting=meta.deletion_timestamp is not None,
    )


def state_of(queue: Queue) -> QueueState:
    """Return the state of a queue; a new one is open."""
    try:
        return QueueState(queue.status.state or QueueState.OPEN)
    except ValueError:
        return QueueState.UNKNOWN


def parent_of(queue: Queue) -> str:
    """Return the parent of a queue, which is the root queue unless another one is set."""
    if queue.metadata.name == ROOT_QUEUE:
        return ""
    return queue.spec.parent or ROOT_QUEUE


def _texts(quantities: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in quantities.items()}


class ShortQueue(StrictBody):
    """A queue, in short."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "research",
                    "weight": 2,
                    "capability": {"cpu": "64", "nvidia.com/gpu": 8},
                    "deserved": {"cpu": "32"},
                }
            ]
        },
    )

    name: QueueName
    parent: QueueName | None = None
    weight: Weight | None = None
    priority: Priority | None = None
    reclaimable: bool | None = None
    capability: Quantities | None = None
    guarantee: Quantities | None = None
    deserved: Quantities | None = None
    dequeue_strategy: Literal["fifo", "traverse"] | None = None
    labels: Annotated[dict[str, str], Field(max_length=1000)] = {}


class QueueManifest(BaseModel):
    """A queue as for `kubectl create`."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {
                    "apiVersion": "scheduling.volcano.sh/v1beta1",
                    "kind": "Queue",
                    "metadata": {"name": "research"},
                    "spec": {"weight": 2, "capability": {"cpu": "64"}},
                }
            ]
        },
    )

    apiVersion: Literal["scheduling.volcano.sh/v1beta1"]  # noqa: N815 - as in manifests
    kind: Literal["Queue"]
    metadata: dict[str, Any]
    spec: dict[str, Any] = {}


class QueuePatch(StrictBody):
    """Changes of a queue. What is not named stays; null restores the default."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"weight": 3, "capability": {"cpu": "128"}}]},
    )

    parent: QueueName | None = None
    weight: Weight | None = None
    priority: Priority | None = None
    reclaimable: bool | None = None
    capability: Quantities | None = Field(default=None, description="Replaces all limits.")
    guarantee: Quantities | None = Field(default=None, description="Replaces all reservations.")
    deserved: Quantities | None = Field(default=None, description="Replaces all shares.")
    dequeue_strategy: Literal["fifo", "traverse"] | None = None
