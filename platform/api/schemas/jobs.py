"""Bodies of the routes of jobs."""

from typing import Self

from pydantic import BaseModel, Field

from ..job_summaries import JobKindName, JobSummary, Phase


class TaskOut(BaseModel):
    """One task of a job: a task of Volcano, a replica type of a training job, all pods else."""

    name: str
    replicas: int
    min_available: int | None
    phases: dict[str, int] = Field(description="Number of pods by phase.")


class JobOut(BaseModel):
    """Summary of a job."""

    namespace: str
    name: str
    uid: str
    kind: JobKindName
    resource_version: str = Field(description="For `If-Match`.")
    queue: str = Field(description="Empty if the pods are not scheduled by queue.")
    phase: Phase
    reason: str
    message: str
    priority_class_name: str
    suspend: bool = Field(description="Whether the spec asks for no pods.")
    user: str = Field(description="Who created the job through this API; empty if unknown.")
    labels: dict[str, str]
    min_available: int
    replicas: int
    completions: int | None = Field(description="Of batch/v1: pods that must succeed.")
    pending: int
    running: int
    succeeded: int
    failed: int
    terminating: int
    unknown: int
    retry_count: int
    version: int
    tasks: list[TaskOut]
    created_at: str | None
    started_at: str | None
    finished_at: str | None
    running_duration: str | None
    deleting: bool = Field(description="Whether the job is being deleted.")

    @classmethod
    def of(cls, summary: JobSummary) -> Self:
        """Convert the summary of a job of any kind."""
        return cls.model_validate(summary, from_attributes=True)


class JobList(BaseModel):
    """One page of jobs."""

    items: list[JobOut]
    next_cursor: str | None = Field(description="Cursor of the next page; null on the last one.")
    total: int = Field(description="Number of jobs that match, on all pages.")
