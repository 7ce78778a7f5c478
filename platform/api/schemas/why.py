"""Bodies of the route of the reason why a job waits."""

from pydantic import BaseModel, Field

from ...model.podgroup import PodGroupCondition
from ..jobs.explanations import Explanation
from ..jobs.waits import Wait, WaitReason


class PodGroupConditionOut(BaseModel):
    """A condition of a PodGroup."""

    type: str
    status: str
    reason: str
    message: str
    at: str | None = Field(description="When it was set last.")

    @classmethod
    def of(cls, condition: PodGroupCondition) -> "PodGroupConditionOut":
        """Convert a condition."""
        return cls(
            type=condition.type,
            status=condition.status,
            reason=condition.reason,
            message=condition.message,
            at=condition.last_transition_time,
        )


class QueuePositionOut(BaseModel):
    """Where the job waits."""

    name: str
    position: int | None = Field(description="Rank among the jobs that wait in the queue, from 1.")
    waiting: int | None = Field(description="Number of jobs that wait there.")


class GangCountsOut(BaseModel):
    """Pods of the job."""

    needed: int
    existing: int
    ready: int
    fitting: int


class LimitOut(BaseModel):
    """A limit that leaves too little of a resource."""

    requested: str
    limit: str
    used: str
    overcommit_factor: float | None


class LackOut(BaseModel):
    """A resource of which a node has too little."""

    requested: str
    free: str


class NearestOut(BaseModel):
    """The node with the smallest shortage."""

    name: str
    lacks: dict[str, LackOut]
    reason: str = Field(description="Why the node is excluded although it has enough.")


class NodesOut(BaseModel):
    """Why no node fits the pod."""

    total: int
    excluded: dict[str, int] = Field(description="Number of nodes by reason.")
    nearest: NearestOut | None


class ExplanationOut(BaseModel):
    """The scheduler's last attempt to start the job."""

    stage: str = Field(
        description="`queue`, `quota`, `gang`, `pod`, `nodes` or `scheduler`: what it failed at."
    )
    reason: str
    message: str
    queue: QueuePositionOut
    pods: GangCountsOut
    limits: dict[str, LimitOut] = Field(description="By resource.")
    pod: str = Field(description="The pod that does not fit; empty if the reason is another one.")
    nodes: NodesOut | None

    @classmethod
    def of(cls, explanation: Explanation) -> "ExplanationOut":
        """Convert an explanation."""
        return cls.model_validate(explanation, from_attributes=True)


class WhyOut(BaseModel):
    """Whether and why a job waits."""

    waiting: bool
    reason: WaitReason
    summary: str = Field(description="For people.")
    conditions: list[PodGroupConditionOut] = Field(
        description="Those of the job's PodGroup, or that of its pod."
    )
    explanation: ExplanationOut | None = Field(
        description="Null unless Batholith's scheduler has written one."
    )

    @classmethod
    def of(cls, wait: Wait) -> "WhyOut":
        """Convert the result."""
        explanation, podgroup = wait.explanation, wait.podgroup
        conditions = podgroup.status.conditions if podgroup is not None else ()
        return cls(
            waiting=wait.waiting,
            reason=wait.reason,
            summary=wait.summary,
            conditions=[PodGroupConditionOut.of(each) for each in conditions],
            explanation=ExplanationOut.of(explanation) if explanation is not None else None,
        )
