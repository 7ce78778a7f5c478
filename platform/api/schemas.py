"""Request and response bodies of the REST API, as in its OpenAPI document."""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

from ..model.flow import JobFlow, RetainPolicy
from ..model.job import Action, Job
from ..store.commands import CommandRecord


class CommandAction(StrEnum):
    """Action on a job."""

    SUSPEND = "suspend"
    RESUME = "resume"
    RESTART = "restart"
    ABORT = "abort"
    TERMINATE = "terminate"
    COMPLETE = "complete"


ACTIONS = {
    CommandAction.SUSPEND: Action.ABORT_JOB,
    CommandAction.RESUME: Action.RESUME_JOB,
    CommandAction.RESTART: Action.RESTART_JOB,
    CommandAction.ABORT: Action.ABORT_JOB,
    CommandAction.TERMINATE: Action.TERMINATE_JOB,
    CommandAction.COMPLETE: Action.COMPLETE_JOB,
}


class CommandIn(BaseModel):
    """A command for a job."""

    model_config = ConfigDict(extra="forbid")

    action: CommandAction = Field(
        description="`suspend` and `abort` stop the pods and keep the job; `resume` starts it "
        "again; `restart` runs it from the start; `terminate` and `complete` end it for good."
    )


class CommandOut(BaseModel):
    """A command with its state and outcome."""

    id: str
    namespace: str
    job: str
    action: str = Field(description="The Command's action, e.g. `AbortJob`.")
    who: str
    state: str = Field(
        description="`Accepted`, `Issued`, `Executed`, `Ignored`, `Unknown` or `Failed`."
    )
    detail: str
    received_at: str
    finished_at: str | None

    @classmethod
    def of(cls, record: CommandRecord) -> "CommandOut":
        """Convert a row of the store."""
        return cls.model_validate(record, from_attributes=True)


class CommandList(BaseModel):
    """Commands of one job, newest first."""

    items: list[CommandOut]


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


class FlowJobOut(BaseModel):
    """A Job of a job flow."""

    flow: str
    job: str
    targets: list[str]
    phase: str = Field(description="Empty if the Job has not been created.")
    reason: str = Field(description="Why the Job fails the flow.")
    message: str


class JobFlowOut(BaseModel):
    """Summary of a job flow."""

    namespace: str
    name: str
    uid: str
    phase: str
    retain_policy: str
    jobs: list[FlowJobOut] = Field(description="In the order of the flows in the spec.")
    created_at: str | None

    @classmethod
    def of(cls, jobflow: JobFlow) -> "JobFlowOut":
        """Convert a JobFlow."""
        conditions = jobflow.status.conditions
        phases = {each.name: each.state for each in jobflow.status.job_status_list}
        jobs = []
        for flow in jobflow.spec.flows:
            name = jobflow.job_name(flow.name)
            condition = conditions.get(name)
            jobs.append(
                FlowJobOut(
                    flow=flow.name,
                    job=name,
                    targets=list(flow.targets),
                    phase=phases.get(name, "") or ("Pending" if name in phases else ""),
                    reason=condition.reason if condition else "",
                    message=condition.message if condition else "",
                )
            )
        return cls(
            namespace=jobflow.metadata.namespace,
            name=jobflow.metadata.name,
            uid=jobflow.metadata.uid,
            phase=jobflow.phase,
            retain_policy=jobflow.spec.job_retain_policy or RetainPolicy.RETAIN,
            jobs=jobs,
            created_at=jobflow.metadata.creation_timestamp,
        )


class JobFlowList(BaseModel):
    """Job flows of one namespace, or of all."""

    items: list[JobFlowOut]


class Problem(BaseModel):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[dict[str, str]] | None = None
