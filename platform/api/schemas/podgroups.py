"""Bodies of the routes of PodGroups."""

from pydantic import BaseModel, Field

from ...model.names import DEFAULT_QUEUE, WHY
from ...model.podgroup import PodGroup, PodGroupPhase
from ..jobs.explanations import decode_explanation
from .why import ExplanationOut, PodGroupConditionOut


class OwnerOut(BaseModel):
    """The object that a PodGroup was created for."""

    kind: str
    name: str


class PodGroupOut(BaseModel):
    """A gang of pods."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    queue: str
    phase: PodGroupPhase
    min_member: int
    min_resources: dict[str, str]
    priority_class_name: str
    running: int
    succeeded: int
    failed: int
    owner: OwnerOut | None
    conditions: list[PodGroupConditionOut]
    explanation: ExplanationOut | None = Field(
        description="Why it waits; null unless Batholith's scheduler has written it."
    )
    labels: dict[str, str]
    created_at: str | None
    deleting: bool

    @classmethod
    def of(cls, podgroup: PodGroup) -> "PodGroupOut":
        """Convert a PodGroup."""
        meta, spec, status = podgroup.metadata, podgroup.spec, podgroup.status
        controller = meta.controller
        explanation = decode_explanation(meta.annotations.get(WHY, ""))
        minimum = spec.min_resources or {}
        return cls(
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
            owner=OwnerOut(kind=controller.kind, name=controller.name) if controller else None,
            conditions=[PodGroupConditionOut.of(each) for each in status.conditions],
            explanation=ExplanationOut.of(explanation) if explanation is not None else None,
            labels=meta.labels,
            created_at=meta.creation_timestamp,
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


class PodGroupList(BaseModel):
    """One page of PodGroups."""

    items: list[PodGroupOut]
    next_cursor: str | None = Field(description="Cursor of the next page; null on the last one.")
    total: int = Field(description="Number of PodGroups that match, on all pages.")
