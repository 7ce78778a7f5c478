"""Bodies of the routes of job flows."""

from pydantic import BaseModel, Field

from ...model.flow import JobFlow, RetainPolicy


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
