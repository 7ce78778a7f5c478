"""What a reconcile of a JobFlow knows: its Jobs, templates and passed probes. Pure."""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from ..model.flow import Flow, JobFlow, JobTemplate, TaskStatusProbe
from ..model.flow_validation import COMPLETED, RUNNING, SUCCEEDED
from ..model.job import JobPhase
from .build import template_tasks
from .core_types import Job, Task
from .phases import FlowProgress

JOB_DELETED, PROBE_NOT_PASSED = "JobDeleted", "ProbeNotPassed"
"""Reasons of failures other than the end of a Job."""

_PASSED_BY_COMPLETION = (RUNNING, SUCCEEDED, COMPLETED)
"""Phases that the pods of a completed Job have had."""

_FAILED_PHASES = (JobPhase.FAILED, JobPhase.TERMINATED, JobPhase.ABORTED)


class Progress(Enum):
    """What became of the Job of a flow."""

    NOT_CREATED = "not created"
    ACTIVE = "active"
    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a Job fails the flow."""

    job: str
    reason: str
    message: str


@dataclass(frozen=True, kw_only=True)
class FlowView:
    """A JobFlow with its Jobs; without slots, for what is computed once."""

    jobflow: JobFlow
    jobs: Mapping[str, Job] = field(default_factory=dict)
    """Jobs that the flow controls, by name."""
    deleted: Mapping[str, str] = field(default_factory=dict)
    """Last known phase of Jobs that do not exist any more, by name."""
    templates: Mapping[str, JobTemplate] = field(default_factory=dict)
    """Templates by name, as far as they exist."""
    network_passed: Set[tuple[str, str]] = frozenset()
    """Flows whose requests to a Job have passed: name of the flow, and uid of the Job."""

    @cached_property
    def flows(self) -> Mapping[str, Flow]:
        """The declared flows by name, in their order; those of one name are merged."""
        return self.jobflow.spec.merged_flows()

    @cached_property
    def _progress(self) -> Mapping[str, Progress]:
        return {flow: self._progress_of(self.jobflow.job_name(flow)) for flow in self.flows}

    def phase(self, job: str) -> str:
        """Return the last known phase of a Job; empty if there is none."""
        if (existing := self.jobs.get(job)) is not None:
            return existing.phase
        return self.deleted.get(job, "")

    def progress(self, flow: str) -> Progress:
        """Return what became of the Job of *flow*."""
        return self._progress.get(flow, Progress.NOT_CREATED)

    def _progress_of(self, name: str) -> Progress:
        if name not in self.jobs and name not in self.deleted:
            return Progress.NOT_CREATED
        if self.failure(name) is not None:
            return Progress.FAILED
        completed = self.phase(name) == JobPhase.COMPLETED
        return Progress.COMPLETED if completed else Progress.ACTIVE

    def failure(self, name: str) -> Failure | None:
        """Return why a Job fails the flow, ``None`` if it does not.

        A Job that ``spec.suspend`` has stopped waits until it is resumed.
        """
        job, phase = self.jobs.get(name), self.phase(name)
        if job is None:
            if name not in self.deleted or phase == JobPhase.COMPLETED:
                return None
            if phase in _FAILED_PHASES[:2]:
                return Failure(name, f"Job{phase}", f"job {name} is {phase}")
            return Failure(name, JOB_DELETED, f"job {name} was deleted before it ended")
        if phase not in _FAILED_PHASES or (phase == JobPhase.ABORTED and job.spec.suspend):
            return None
        state = job.status.state
        details = ": ".join(text for text in (state.reason, state.message) if text)
        message = f"job {name} is {phase}" + (f": {details}" if details else "")
        return Failure(name, f"Job{phase}", message)

    @cached_property
    def failures(self) -> tuple[Failure, ...]:
        """Return why the flow fails: the Jobs that failed, and probes that cannot pass any more."""
        names = map(self.jobflow.job_name, self.flows)
        failed = [failure for name in names if (failure := self.failure(name)) is not None]
        return (*failed, *self._probe_failures())

    def _probe_failures(self) -> Iterator[Failure]:
        for name, flow in self.flows.items():
            if self.progress(name) is not Progress.NOT_CREATED:
                continue
            for target in dict.fromkeys(flow.targets):
                completed = self.progress(target) is Progress.COMPLETED
                if completed and self.is_probed(flow, target) and not self.passed(flow, target):
                    job = self.jobflow.job_name(target)
                    text = f"job {job} completed before the probe of {name} passed"
                    yield Failure(job, PROBE_NOT_PASSED, text)

    def flow_progress(self) -> FlowProgress:
        """Count the declared flows."""
        found = [self.progress(name) for name in self.flows]
        phases = [self.phase(self.jobflow.job_name(name)) for name in self.flows]
        return FlowProgress(
            total=len(found),
            completed=found.count(Progress.COMPLETED),
            failed=len(self.failures),
            running=phases.count(JobPhase.RUNNING),
        )

    # Targets and probes

    def is_satisfied(self, flow: Flow, target: str) -> bool:
        """Whether *flow* need not wait for *target*: it has completed, or the probe has passed."""
        if self.is_probed(flow, target):
            return self.passed(flow, target)
        return self.progress(target) is Progress.COMPLETED

    def is_probed(self, flow: Flow, target: str) -> bool:
        """Whether the probe of *flow* has a condition on a task of *target*."""
        tasks = self.tasks(target)
        return any(not task or task in tasks for task in flow.probe.tasks)

    def tasks(self, flow: str) -> Mapping[str, Task]:
        """Return the tasks of the Job of *flow*, or else of its template."""
        job = self.jobs.get(self.jobflow.job_name(flow))
        if job is not None:
            return job.tasks
        template = self.templates.get(flow)
        return {} if template is None else template_tasks(template)

    def passed(self, flow: Flow, target: str) -> bool:
        """Whether the probe of *flow* on *target* has passed, now or before."""
        name = self.jobflow.job_name(target)
        recorded = self.jobflow.status.conditions.get(name)
        if recorded is not None and flow.name in recorded.passed_probes:
            return True
        job = self.jobs.get(name)
        if job is None:
            return self._passed_by_completion(flow, name)
        if self.has_requests(flow, job) and (flow.name, job.metadata.uid) not in (
            self.network_passed
        ):
            return False
        return all(_has_status(job, each) for each in flow.probe.task_status_list)

    def _passed_by_completion(self, flow: Flow, name: str) -> bool:
        """Whether the completion of a Job, which was deleted since, is all that is required."""
        probe = flow.probe
        return (
            self.phase(name) == JobPhase.COMPLETED
            and not probe.request_tasks
            and all(each.phase in _PASSED_BY_COMPLETION for each in probe.task_status_list)
        )

    @staticmethod
    def has_requests(flow: Flow, job: Job) -> bool:
        """Whether the probe of *flow* sends requests to pods of *job*."""
        return any(not task or task in job.tasks for task in flow.probe.request_tasks)


def _has_status(job: Job, item: TaskStatusProbe) -> bool:
    """Whether enough pods of the item's tasks are in its phase; tasks of other Jobs do not count.

    A pod that has succeeded has run. The pods of a completed Job have both.
    """
    if job.phase == JobPhase.COMPLETED and item.phase in _PASSED_BY_COMPLETION:
        return True
    phases = {SUCCEEDED if item.phase == COMPLETED else item.phase}
    if RUNNING in phases:
        phases.add(SUCCEEDED)
    for name, task in job.tasks.items():
        if item.task_name in ("", name):
            counts = job.status.task_status_count.get(name)
            found = sum(counts.phase.get(each, 0) for each in phases) if counts else 0
            if found < task.required_pods:
                return False
    return True
