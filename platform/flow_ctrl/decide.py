"""Decisions of the JobFlow controller: a pure function from a flow's view to its effects."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ..machinery.reconcile.events import Event
from ..model.flow import Flow, HttpGetProbe, JobFlow, RetainPolicy, TcpSocketProbe
from ..model.flow_validation import blocking_errors, duplicate_warnings, spec_errors
from .build import build_job
from .core_types import Job, Task
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


@dataclass(frozen=True, slots=True)
class AwaitProbes:
    """Send the requests of these probes until they pass, instead of those of the last decision."""

    probes: tuple[AwaitedProbe, ...]


@dataclass(frozen=True, slots=True)
class CreateJobs:
    """Create Jobs, in the order of the flows."""

    bodies: tuple[Json, ...]
    notices: tuple[Event, ...]
    """Events on conditions that last until a user changes something. Others are added: that a
    name is in use."""


@dataclass(frozen=True, slots=True)
class DeleteJobs:
    """Delete Jobs."""

    jobs: tuple[Job, ...]


@dataclass(frozen=True, slots=True)
class UpdateStatus:
    """Write the status that the Jobs require, the created ones included, if it differs."""


Effect = AwaitProbes | CreateJobs | DeleteJobs | UpdateStatus


def decide(view: FlowView) -> list[Effect]:
    """Return what a flow that is not being deleted needs, in order."""
    jobflow = view.jobflow
    rules = RULES[jobflow.phase]
    if rules.deletes_jobs and jobflow.spec.job_retain_policy == RetainPolicy.DELETE:
        remaining = (job for job in view.jobs.values() if not job.metadata.deletion_timestamp)
        if jobs := tuple(remaining):
            return [AwaitProbes(()), DeleteJobs(jobs)]
    probes: tuple[AwaitedProbe, ...] = ()
    create = CreateJobs((), ())
    if rules.creates_jobs and not view.failures:
        probes, create = _deploy(view)
    return [AwaitProbes(probes), create, UpdateStatus()]


def _deploy(view: FlowView) -> tuple[tuple[AwaitedProbe, ...], CreateJobs]:
    """Return the probes to send and the Jobs to create, with notices on what prevents others."""
    spec = view.jobflow.spec
    errors = spec_errors(spec)
    notices = [_warning("InvalidSpec", "; ".join(errors))] if errors else []
    notices += [_warning("DuplicateFlow", each) for each in duplicate_warnings(spec.flows)]
    if blocking_errors(spec):
        return (), CreateJobs((), tuple(notices))
    create: list[Json] = []
    probes: list[AwaitedProbe] = []
    for flow in view.flows.values():
        if view.progress(flow.name) is not Progress.NOT_CREATED:
            continue
        probes += _awaited(view, flow)
        unknown = _unknown_tasks(view, flow)
        for task in unknown:
            text = f"flow {flow.name}: no target has a task {task}"
            notices.append(_warning("ProbeTaskNotFound", text))
        if flow.name not in view.templates:
            # Also for a Job whose targets are not satisfied yet, so that users notice at once.
            notices.append(_warning("JobTemplateNotFound", f'JobTemplate "{flow.name}" not found'))
            continue
        if unknown or not all(view.is_satisfied(flow, each) for each in flow.targets):
            continue
        try:
            create.append(build_job(view.jobflow, flow, view.templates[flow.name]))
        except (PatchError, msgspec.DecodeError) as error:
            text = f"flow {flow.name}: cannot apply patch.jobSpec: {error}"
            notices.append(_warning("InvalidPatch", text))
    return tuple(probes), CreateJobs(tuple(create), tuple(notices))


def _warning(reason: str, message: str) -> Event:
    return Event(reason, message, warning=True)


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
