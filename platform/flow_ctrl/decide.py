"""What to do for a JobFlow. Pure: the controller executes the plan."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from ..model.flow import Flow, HttpGetProbe, JobFlow, RetainPolicy, TcpSocketProbe
from ..model.flow_validation import blocking_errors, duplicate_warnings, spec_errors
from .build import build_job
from .core_types import Event, Job, Task
from .patching import PatchError
from .phases import RULES
from .view import FlowView, Progress

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedProbe:
    """Requests to the pods of a Job that a flow waits for."""

    flow: str
    namespace: str
    job: str
    job_uid: str
    tasks: tuple[tuple[str, int], ...]
    """Tasks of the Job, with the number of pods that must respond."""
    http: tuple[HttpGetProbe, ...]
    tcp: tuple[TcpSocketProbe, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to do; *notices* are conditions that persist until a user changes something."""

    create: tuple[Json, ...] = ()
    """Jobs to create, in the order of the flows."""
    delete: tuple[Job, ...] = ()
    probe: tuple[AwaitedProbe, ...] = ()
    notices: tuple[Event, ...] = ()


def decide(view: FlowView) -> Plan:
    """Return what to do for a flow that is not being deleted."""
    jobflow = view.jobflow
    rules = RULES[jobflow.phase]
    if rules.deletes_jobs and jobflow.spec.job_retain_policy == RetainPolicy.DELETE:
        remaining = (job for job in view.jobs.values() if not job.metadata.deletion_timestamp)
        return Plan(delete=tuple(remaining))
    if not rules.creates_jobs:
        return Plan()
    if view.failures:
        return Plan()
    errors = spec_errors(jobflow.spec)
    notices = [Event("Warning", "InvalidSpec", "; ".join(errors))] if errors else []
    duplicates = duplicate_warnings(jobflow.spec.flows)
    notices += [Event("Warning", "DuplicateFlow", each) for each in duplicates]
    if blocking_errors(jobflow.spec):
        return Plan(notices=tuple(notices))
    plan = _deploy(view)
    return replace(plan, notices=(*notices, *plan.notices))


def _deploy(view: FlowView) -> Plan:
    create: list[Json] = []
    probes: list[AwaitedProbe] = []
    notices: list[Event] = []
    for flow in view.flows.values():
        if view.progress(flow.name) is not Progress.NOT_CREATED:
            continue
        probes += _awaited(view, flow)
        unknown = _unknown_tasks(view, flow)
        notices += [
            Event("Warning", "ProbeTaskNotFound", f"flow {flow.name}: no target has a task {task}")
            for task in unknown
        ]
        if flow.name not in view.templates:
            # Also for a Job whose targets are not satisfied yet, so that users notice at once.
            text = f'JobTemplate "{flow.name}" not found'
            notices.append(Event("Warning", "JobTemplateNotFound", text))
            continue
        if unknown or not all(view.is_satisfied(flow, each) for each in flow.targets):
            continue
        try:
            create.append(build_job(view.jobflow, flow, view.templates[flow.name]))
        except (PatchError, msgspec.DecodeError) as error:
            text = f"flow {flow.name}: cannot apply patch.jobSpec: {error}"
            notices.append(Event("Warning", "InvalidPatch", text))
    return Plan(create=tuple(create), probe=tuple(probes), notices=tuple(notices))


def _awaited(view: FlowView, flow: Flow) -> Iterator[AwaitedProbe]:
    """Yield the requests that *flow* waits for, to Jobs that exist."""
    for target in dict.fromkeys(flow.targets):
        job = view.jobs.get(view.jobflow.job_name(target))
        if job is None or not view.has_requests(flow, job) or view.passed(flow, target):
            continue
        if (flow.name, job.metadata.uid) in view.network_passed:
            continue
        yield _awaited_probe(view.jobflow, flow, job)


def _awaited_probe(jobflow: JobFlow, flow: Flow, job: Job) -> AwaitedProbe:
    tasks: Mapping[str, Task] = job.tasks
    return AwaitedProbe(
        flow=flow.name,
        namespace=jobflow.metadata.namespace,
        job=job.metadata.name,
        job_uid=job.metadata.uid,
        tasks=tuple((name, task.required_pods) for name, task in tasks.items()),
        http=tuple(each for each in flow.probe.http_get_list if _concerns(each.task_name, tasks)),
        tcp=tuple(each for each in flow.probe.tcp_socket_list if _concerns(each.task_name, tasks)),
    )


def _concerns(task: str, tasks: Mapping[str, Task]) -> bool:
    return not task or task in tasks


def _unknown_tasks(view: FlowView, flow: Flow) -> list[str]:
    """Return the tasks of the probe that no target has, once all targets are known."""
    named = {task for task in flow.probe.tasks if task}
    if not named or not all(map(view.tasks, flow.targets)):  # a template does not exist yet
        return []
    known = {task for target in flow.targets for task in view.tasks(target)}
    return sorted(named - known)
