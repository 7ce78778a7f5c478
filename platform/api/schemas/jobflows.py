"""Convert job flows."""

from ...model import flow, times
from ...wire.flows import FlowJob, JobFlow


def jobflow_of(jobflow: flow.JobFlow) -> JobFlow:
    """Convert a JobFlow."""
    conditions = jobflow.status.conditions
    phases = {each.name: each.state for each in jobflow.status.job_status_list}
    jobs = []
    for each in jobflow.spec.flows:
        name = jobflow.job_name(each.name)
        condition = conditions.get(name)
        jobs.append(
            FlowJob(
                flow=each.name,
                job=name,
                targets=list(each.targets),
                phase=phases.get(name, "") or ("Pending" if name in phases else ""),
                reason=condition.reason if condition else "",
                message=condition.message if condition else "",
            )
        )
    return JobFlow(
        namespace=jobflow.metadata.namespace,
        name=jobflow.metadata.name,
        uid=jobflow.metadata.uid,
        phase=jobflow.phase,
        retain_policy=jobflow.spec.job_retain_policy or flow.RetainPolicy.RETAIN,
        jobs=jobs,
        created_at=times.known(jobflow.metadata.creation_timestamp),
    )
