"""Executes effects: every write of the JobFlow controller is here.

A Job has a fixed name, so that a second request for it finds that it exists. Once it is in
``status.jobStatusList`` it is never created again, even if it was deleted since. One exception
remains: a Job that was deleted before the status was written is created again after a crash.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

import msgspec

from ..kube.errors import AlreadyExistsError, ApiError, was_rejected
from ..machinery.batches import run_concurrently, slow_start
from ..machinery.clock import Clock
from ..machinery.controller import RequeueError
from ..machinery.merge_patch import merge_patch
from ..machinery.reconcile.cache import WriteThroughCache
from ..machinery.reconcile.controller import Sync
from ..machinery.reconcile.events import Event, Events, Notices
from ..machinery.reconcile.state import CountThrottle, KeyStates
from ..model.flow import FlowPhase, JobFlow
from .build import Json
from .core_types import Job
from .decide import AwaitProbes, CreateJobs, DeleteJobs, Effect, UpdateStatus
from .metrics import FlowMetrics
from .prober import Prober
from .status import next_status
from .view import FlowView

log = logging.getLogger(__name__)

BY_FLOW = "flow"
"""Index of Jobs by the identity of the JobFlow that controls them."""

_CONFLICT_RECHECK = 30.0
"""Seconds until the creation of a Job is tried again whose name is in use."""
_WRITE_INTERVAL = 0.001
"""Seconds per Job between two status writes without a change of the phase: the status of a large
flow is a large object."""


@dataclass(slots=True)
class JobFlowState:
    """What is known of a flow besides its objects."""

    deleted: dict[str, str] = field(default_factory=dict)
    """Phases of Jobs when they were deleted, by name, until the status shows them."""
    passed: set[tuple[str, str]] = field(default_factory=set)
    """Requests that have passed: name of the flow, and uid of the Job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowExecutor:
    """Executes the effects on one JobFlow and its Jobs in their order."""

    flows: WriteThroughCache[JobFlow]
    jobs: WriteThroughCache[Job]
    states: KeyStates[JobFlowState]
    events: Events
    notices: Notices
    throttle: CountThrottle
    prober: Prober
    metrics: FlowMetrics
    clock: Clock

    async def execute(self, sync: Sync, view: FlowView, effect: Effect) -> None:
        """Execute one effect; a Job that cannot be created does not prevent the rest.

        Raises:
            RequeueError: an object was modified concurrently.
            ApiError, ConnectionLostError: a write failed, or may have failed.
        """
        match effect:
            case AwaitProbes(probes):
                self.prober.set_awaited(sync.key, probes)
            case CreateJobs():
                await self._create_jobs(sync, view.jobflow, effect)
            case DeleteJobs(jobs):
                await self._delete_jobs(sync, jobs)
            case UpdateStatus():
                await self._update_status(sync, view)
            case _:
                assert_never(effect)

    # Jobs.

    async def _create_jobs(self, sync: Sync, flow: JobFlow, effect: CreateJobs) -> None:
        notices = list(effect.notices)

        async def create(body: Json) -> None:
            name = body["metadata"]["name"]
            try:
                if await self._create_job(flow, body):
                    return
            except ApiError as error:
                if not was_rejected(error):
                    raise
                sync.errors.append(error)
                text = f"cannot create job {name}: {error.message}"
                self.events.warning(flow.metadata, "FailedCreate", text)
                return
            text = f"a job {name} exists that this JobFlow does not control"
            notices.append(Event("JobExists", text, warning=True))
            sync.after(_CONFLICT_RECHECK)

        result = await slow_start(effect.bodies, create)
        if result.first_error is not None:
            sync.errors.insert(0, result.first_error)
        self.notices.update(flow.metadata, notices)

    async def _create_job(self, flow: JobFlow, body: Json) -> bool:
        """Create a Job, or find that it exists; false if the existing one is not the flow's.

        Raises:
            ApiError, ConnectionLostError: it was not created, or may have been.
            RequeueError: the existing one is being deleted.
        """
        meta, name = flow.metadata, body["metadata"]["name"]
        try:
            await self.jobs.create(body, namespace=meta.namespace)
        except AlreadyExistsError:
            return await self._find_existing(flow, name)
        log.info("job created", extra={"jobflow": meta.key, "job": name})
        self.events.normal(meta, "Created", f"created job {name}")
        return True

    async def _find_existing(self, flow: JobFlow, name: str) -> bool:
        """Return whether the Job of that name is the flow's.

        Raises:
            RequeueError: it is being deleted, perhaps with an earlier flow of the same name.
        """
        job = await self.jobs.read(f"{flow.metadata.namespace}/{name}")
        if job is None:
            raise RequeueError("job was deleted concurrently")
        if job.is_controlled_by(flow):
            return True
        if job.metadata.deletion_timestamp is not None or job.flow_uid:
            raise RequeueError("job of an earlier flow is being deleted")
        return False

    async def _delete_jobs(self, sync: Sync, jobs: Sequence[Job]) -> None:
        async def delete(job: Job) -> None:
            if await self.jobs.delete(job.metadata, propagation="Background"):
                fields = {"jobflow": sync.key, "job": job.metadata.name}
                log.info("job deleted", extra=fields)

        result = await run_concurrently(jobs, delete)
        if result.first_error is not None:
            raise result.first_error

    # The status.

    async def _update_status(self, sync: Sync, view: FlowView) -> None:
        """Write the status, or request to do so later if only few Jobs have changed."""
        flow, meta = view.jobflow, view.jobflow.metadata
        created = {job.metadata.name: job for job in self.jobs.by_index(BY_FLOW, meta.identity)}
        view = replace(view, jobs={**view.jobs, **created})
        status = next_status(view, self.clock.now())
        if status == flow.status:
            return
        phase = status.state.phase
        entered = phase != flow.status.state.phase
        delay = self.throttle.delay(sync.key, len(view.jobs) * _WRITE_INTERVAL)
        if delay is not None and not entered:
            sync.after(delay)
            return
        before, after = (msgspec.to_builtins(each) for each in (flow.status, status))
        await self.flows.patch_status(meta, merge_patch(before, after))
        self.throttle.wrote(sync.key)
        state = self.states.of(meta)
        for each in status.job_status_list:
            state.deleted.pop(each.name, None)
        if entered:
            self._phase_entered(view, FlowPhase(phase))

    def _phase_entered(self, view: FlowView, phase: FlowPhase) -> None:
        meta = view.jobflow.metadata
        log.info("phase entered", extra={"jobflow": meta.key, "phase": str(phase)})
        self.metrics.phase_entered(meta.namespace, phase)
        if phase is FlowPhase.FAILED:
            for failure in view.failures:
                self.events.warning(meta, failure.reason, failure.message)
        elif phase is FlowPhase.SUCCEED:
            text = f"all jobs have completed: {len(view.flows)}"
            self.events.normal(meta, "Succeeded", text)
