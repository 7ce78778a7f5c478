"""Bodies of the routes of jobs."""

from pydantic import BaseModel

from ...model.job import Job


class JobOut(BaseModel):
    """Summary of a job."""

    namespace: str
    name: str
    uid: str
    queue: str
    phase: str
    reason: str
    message: str
    min_available: int
    replicas: int
    pending: int
    running: int
    succeeded: int
    failed: int
    terminating: int
    unknown: int
    retry_count: int
    version: int
    created_at: str | None
    running_duration: str | None

    @classmethod
    def of(cls, job: Job) -> "JobOut":
        """Convert a Job."""
        status = job.status
        return cls(
            namespace=job.metadata.namespace,
            name=job.metadata.name,
            uid=job.metadata.uid,
            queue=job.spec.queue,
            phase=status.state.phase or "Pending",
            reason=status.state.reason,
            message=status.state.message,
            min_available=job.spec.min_available,
            replicas=sum(task.replicas for task in job.spec.tasks),
            pending=status.pending,
            running=status.running,
            succeeded=status.succeeded,
            failed=status.failed,
            terminating=status.terminating,
            unknown=status.unknown,
            retry_count=status.retry_count,
            version=status.version,
            created_at=job.metadata.creation_timestamp,
            running_duration=status.running_duration,
        )


class JobList(BaseModel):
    """Jobs of one namespace, or of all."""

    items: list[JobOut]
