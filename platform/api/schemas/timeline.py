"""Bodies of the route of the timeline."""

from pydantic import BaseModel, Field

from ..jobs.summaries import Phase


class PhaseOut(BaseModel):
    """A phase that the job has, or had."""

    phase: Phase
    entered_at: str | None = Field(description="Null if it is not known.")
    left_at: str | None = Field(
        description="Null in the current phase, and if it is not known: a job keeps only the last "
        "time of each phase."
    )
    reason: str
    message: str


class TimelineOut(BaseModel):
    """The phases of a job, the current one last."""

    phases: list[PhaseOut]
    pods: dict[str, int] = Field(description="Number of pods by phase.")
    recorded: bool = Field(
        description="Whether the phases are those of the history, which has each entry."
    )
    incomplete_reason: str = Field(
        description="What the history has missed; empty if nothing, or if it is not used."
    )
