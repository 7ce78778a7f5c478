"""JobFlow controller: creates the Jobs of flows in the order of their dependencies.

:mod:`.decide` and :mod:`.status` compute what to do. A Job has a fixed name, so that a second
request for it finds that it exists. Once it is in ``status.jobStatusList`` it is never created
again, even if it was deleted since. One exception remains: a Job that was deleted before the status
was written is created again after a crash.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace

import msgspec

from ..kube.client.client import Client
from ..kube.errors import AlreadyExistsError, ApiError, NotFoundError, was_rejected
from ..kube.informer.informer import Informer, KindSource
from ..machinery.batches import run_concurrently, slow_start
from ..machinery.clock import Clock, SystemClock
from ..machinery.consistency import ConsistencyStore
from ..machinery.controller import (
    RequeueError,
    ShardedQueue,
    WorkerSettings,
    requeue_on_conflict,
    run_workers,
)
from ..machinery.event_recorder import Recorder, object_reference
from ..machinery.lifecycle import Source, run_controller
from ..machinery.status_writer import merge_patch
from ..model.flow import FINAL_FLOW_PHASES, FlowPhase, JobFlow, JobFlowStatus, JobTemplate
from ..model.job import FINAL_PHASES
from ..model.meta import preconditions
from ..model.names import CREATED_BY_JOB_FLOW, JOBFLOWS, JOBS, JOBTEMPLATES
from .build import Json
from .core_types import Event, Job, index_by_flow
from .decide import AwaitedProbe, Plan, decide
from .prober import Network, Prober
from .settings import FlowSettings
from .status import next_status
from .view import FlowView

log = logging.getLogger(__name__)

_BY_FLOW = "flow"
"""Index of Jobs by the identity of the JobFlow that controls them."""
_TEMPLATE = "template"
"""Index of unfinished JobFlows by their templates' keys."""
_NAMESPACE = "namespace"

_STALE_RECHECK = 1.0
"""Seconds until a flow is reconciled again whose own writes the informers do not have yet."""
_CONFLICT_RECHECK = 30.0
"""Seconds until the creation of a Job is tried again whose name is in use."""
_FOREIGN_JOB = "a job {} exists that this JobFlow does not control"
_WRITE_INTERVAL = 0.001
"""Seconds per Job between two status writes without a change of the phase: the status of a large
flow is a large object."""


class JobFlowController:
    """Controller of JobFlows; see :meth:`run`."""

    def __init__(
        self,
        client: Client,
        *,
        settings: FlowSettings | None = None,
        clock: Clock | None = None,
        recorder: Recorder | None = None,
        templates: Informer[JobTemplate] | None = None,
        network: Network | None = None,
    ) -> None:
        """*templates*: informer of all JobTemplates; may be used and run by several controllers."""
        self._client = client
        self._settings = settings or FlowSettings()
        self._clock = clock if clock is not None else SystemClock()
        self._recorder = recorder
        self._metrics = self._settings.metrics
        self._workqueue = ShardedQueue(
            name="jobflow",
            shards=self._settings.workers,
            clock=self._clock,
            metrics=self._settings.work_metrics,
        )
        self._flows = Informer(
            client,
            JOBFLOWS,
            JobFlow,
            indexes={_TEMPLATE: _template_keys, _NAMESPACE: lambda flow: [flow.metadata.namespace]},
        )
        self._jobs = Informer(
            client,
            JOBS,
            Job,
            label_selector=CREATED_BY_JOB_FLOW,
            indexes={_BY_FLOW: index_by_flow},
        )
        self._templates = (
            Informer(client, JOBTEMPLATES, JobTemplate) if templates is None else templates
        )
        self._prober = Prober(
            client,
            settings=self._settings,
            clock=self._clock,
            on_passed=self._on_probe_passed,
            network=network,
        )
        # A flow is reconciled when the informers have what was written for it.
        self._consistency = ConsistencyStore(
            self._clock,
            {
                JOBFLOWS: lambda: self._flows.resource_version,
                JOBS: lambda: self._jobs.resource_version,
            },
        )
        # By uid of the flow: phases of Jobs when they were deleted, passed requests.
        self._deleted: dict[str, dict[str, str]] = {}
        self._passed: dict[str, set[tuple[str, str]]] = {}
        # By key: notices in the last plan, time of the last status write.
        self._notices: dict[str, frozenset[Event]] = {}
        self._written_at: dict[str, float] = {}

    async def run(
        self, *, ready: asyncio.Event | None = None, elected: asyncio.Event | None = None
    ) -> None:
        """Sync the informers and run the workers until cancelled, as `run_controller` does.

        When cancelled, it finishes keys in processing and queued, and writes nothing after that.
        """
        sources: list[Source] = [
            KindSource(self._templates, self._on_template),
            KindSource(self._jobs, self._on_job),
            KindSource(self._flows, self._on_flow),
        ]
        await run_controller(sources, self._run_workers, ready=ready, elected=elected)

    async def _run_workers(self) -> None:
        settings = WorkerSettings(timeout=self._settings.reconcile_timeout)
        try:
            await run_workers(self._workqueue, self._reconcile, settings=settings)
        finally:
            await self._prober.close()

    # Event handlers

    def _on_flow(self, old: JobFlow | None, new: JobFlow | None) -> None:
        if new is not None:
            self._workqueue.add(new.metadata.key)
        elif old is not None:
            self._forget(old)

    def _forget(self, flow: JobFlow) -> None:
        meta = flow.metadata
        self._deleted.pop(meta.uid, None)
        self._passed.pop(meta.uid, None)
        self._notices.pop(meta.key, None)
        self._written_at.pop(meta.key, None)
        self._consistency.delete(meta.key)
        self._prober.set_awaited(meta.key, ())
        if not self._flows.by_index(_NAMESPACE, meta.namespace):
            self._metrics.namespace_emptied(meta.namespace)

    def _on_job(self, old: Job | None, new: Job | None) -> None:
        if old is not None and new is not None and _relevant_fields(old) == _relevant_fields(new):
            return
        for job in (old, new):
            owner = job.metadata.controller if job is not None else None
            if job is not None and owner is not None and job.flow_uid:
                self._workqueue.add(f"{job.metadata.namespace}/{owner.name}")
        if new is None and old is not None:
            self._on_job_deleted(old)

    def _on_job_deleted(self, job: Job) -> None:
        """Keep the last phase, which the status may not show."""
        owner = job.metadata.controller
        if owner is None:
            return
        flow = self._flows.get(f"{job.metadata.namespace}/{owner.name}")
        if flow is not None and job.is_controlled_by(flow):
            self._deleted.setdefault(job.flow_uid, {})[job.metadata.name] = job.phase

    def _on_template(self, old: JobTemplate | None, new: JobTemplate | None) -> None:
        if old is not None and new is not None and old.spec == new.spec:
            return
        template = new or old
        if template is not None:
            for flow in self._flows.by_index(_TEMPLATE, template.metadata.key):
                self._workqueue.add(flow.metadata.key)

    def _on_probe_passed(self, key: str, probe: AwaitedProbe) -> None:
        flow = self._flows.get(key)
        if flow is not None:
            passed = self._passed.setdefault(flow.metadata.uid, set())
            passed.add((probe.flow, probe.job_uid))
            self._workqueue.add(key)

    # Reconciling

    async def _reconcile(self, key: str) -> float | None:
        flow = self._flows.get(key)
        if flow is None or flow.metadata.deletion_timestamp is not None:
            self._prober.set_awaited(key, ())
            return None
        if self._consistency.stale_resources(key):
            return _STALE_RECHECK
        view = await self._view(flow)
        plan = decide(view)
        self._prober.set_awaited(key, plan.probe)
        if plan.delete:
            await self._delete_jobs(flow, plan)
            return None
        return await self._execute(view, plan)

    async def _view(self, flow: JobFlow) -> FlowView:
        """Return the flow with its Jobs; a Job that seems to be deleted is confirmed to be."""
        meta = flow.metadata
        jobs = {job.metadata.name: job for job in self._jobs.by_index(_BY_FLOW, meta.identity)}
        observed = self._deleted.get(meta.uid, {})
        recorded = {each.name: each.state for each in flow.status.job_status_list}
        deleted = {}
        for name, phase in (recorded | observed).items():
            if name in jobs:
                continue
            job = None
            if phase not in FINAL_PHASES and flow.phase not in FINAL_FLOW_PHASES:
                job = await self._get_job(flow, name)
            if job is None:
                deleted[name] = phase
            else:
                jobs[name] = job
        templates = {}
        for each in flow.spec.flows:
            template = self._templates.get(f"{meta.namespace}/{each.name}")
            if template is not None:
                templates[each.name] = template
        return FlowView(
            jobflow=flow,
            jobs=jobs,
            deleted=deleted,
            templates=templates,
            network_passed=frozenset(self._passed.get(meta.uid, ())),
        )

    async def _get_job(self, flow: JobFlow, name: str) -> Job | None:
        """Get a Job from the server; ``None`` if it does not exist or is not the flow's."""
        try:
            job = await self._client.get(JOBS, name, namespace=flow.metadata.namespace, view=Job)
        except NotFoundError:
            return None
        return job if job.is_controlled_by(flow) else None

    async def _execute(self, view: FlowView, plan: Plan) -> float | None:
        """Create the Jobs of *plan* and write the status; return when to reconcile again.

        A Job that cannot be created does not prevent the rest.

        Raises:
            ApiError, ConnectionLostError: a write failed, or may have failed.
            RequeueError: the flow was modified concurrently.
        """
        flow = view.jobflow
        jobs = dict(view.jobs)
        conflicts: list[str] = []
        rejections: list[ApiError] = []

        async def create(body: Json) -> None:
            name = body["metadata"]["name"]
            try:
                job = await self._create_job(flow, body)
            except ApiError as error:
                if not was_rejected(error):
                    raise
                rejections.append(error)
                message = f"cannot create job {name}: {error.message}"
                self._record(flow, Event("Warning", "FailedCreate", message))
                return
            if job is None:
                conflicts.append(name)
            else:
                jobs[name] = job

        result = await slow_start(plan.create, create)
        foreign = [Event("Warning", "JobExists", _FOREIGN_JOB.format(name)) for name in conflicts]
        self._record_notices(flow, (*plan.notices, *foreign))
        delay = await self._write_status(replace(view, jobs=jobs))
        errors = [result.first_error, *rejections]
        if error := next(filter(None, errors), None):
            raise error
        recheck = _CONFLICT_RECHECK if conflicts else None
        return min((each for each in (delay, recheck) if each is not None), default=None)

    async def _create_job(self, flow: JobFlow, body: Json) -> Job | None:
        """Create a Job, or return the one that exists; ``None`` if that is not the flow's.

        Raises:
            ApiError, ConnectionLostError: it was not created, or may have been.
            RequeueError: the existing one is being deleted.
        """
        meta, name = flow.metadata, body["metadata"]["name"]
        try:
            job = await self._client.create(JOBS, body, namespace=meta.namespace, view=Job)
        except AlreadyExistsError:
            return await self._existing_job(flow, name)
        self._consistency.wrote(meta.key, JOBS, job.metadata.resource_version)
        log.info("job created", extra={"jobflow": meta.key, "job": name})
        self._record(flow, Event("Normal", "Created", f"created job {name}"))
        return job

    async def _existing_job(self, flow: JobFlow, name: str) -> Job | None:
        """Return the Job of that name; ``None`` if it is not the flow's.

        Raises:
            RequeueError: it is being deleted, perhaps with an earlier flow of the same name.
        """
        try:
            job = await self._client.get(JOBS, name, namespace=flow.metadata.namespace, view=Job)
        except NotFoundError:
            raise RequeueError("job was deleted concurrently") from None
        if job.is_controlled_by(flow):
            return job
        if job.metadata.deletion_timestamp is not None or job.flow_uid:
            raise RequeueError("job of an earlier flow is being deleted")
        return None

    async def _write_status(self, view: FlowView) -> float | None:
        """Write the status if it has changed; return the seconds until it may be written.

        Raises:
            RequeueError: the flow was modified concurrently.
        """
        flow, meta = view.jobflow, view.jobflow.metadata
        status = next_status(view, self._clock.now())
        if status == flow.status:
            return None
        entered = status.state.phase if status.state.phase != flow.status.state.phase else ""
        now = self._clock.monotonic()
        wait = self._written_at.get(meta.key, -1e9) + len(view.jobs) * _WRITE_INTERVAL - now
        if not entered and wait > 0:
            return wait
        before, after = (msgspec.to_builtins(each) for each in (flow.status, status))
        body = {"metadata": preconditions(meta), "status": merge_patch(before, after)}
        try:
            with requeue_on_conflict("JobFlow"):
                written = await self._client.patch(
                    JOBFLOWS,
                    meta.name,
                    body,
                    namespace=meta.namespace,
                    subresource="status",
                    view=JobFlow,
                )
        except NotFoundError:
            return None
        self._consistency.wrote(meta.key, JOBFLOWS, written.metadata.resource_version)
        self._written_at[meta.key] = now
        self._forget_recorded(meta.uid, status)
        if entered:
            self._on_phase_entered(view, FlowPhase(entered))
        return None

    def _forget_recorded(self, uid: str, status: JobFlowStatus) -> None:
        """Forget the deletions that the status shows."""
        deleted = self._deleted.get(uid, {})
        for each in status.job_status_list:
            deleted.pop(each.name, None)
        if not deleted:
            self._deleted.pop(uid, None)

    def _on_phase_entered(self, view: FlowView, phase: FlowPhase) -> None:
        flow = view.jobflow
        log_fields = {"jobflow": flow.metadata.key, "phase": str(phase)}
        log.info("phase entered", extra=log_fields)
        self._metrics.phase_entered(flow.metadata.namespace, phase)
        if phase is FlowPhase.FAILED:
            for failure in view.failures:
                self._record(flow, Event("Warning", failure.reason, failure.message))
        elif phase is FlowPhase.SUCCEED:
            message = f"all jobs have completed: {len(view.flows)}"
            self._record(flow, Event("Normal", "Succeeded", message))

    async def _delete_jobs(self, flow: JobFlow, plan: Plan) -> None:
        """Delete the Jobs of *plan*.

        Raises:
            ApiError, ConnectionLostError: one was not deleted, or may have been.
        """

        async def delete(job: Job) -> None:
            meta = job.metadata
            try:
                with requeue_on_conflict("Job"):
                    await self._client.delete(
                        JOBS,
                        meta.name,
                        namespace=meta.namespace,
                        uid=meta.uid,
                        propagation="Background",
                    )
            except NotFoundError:
                return
            log.info("job deleted", extra={"jobflow": flow.metadata.key, "job": meta.name})

        result = await run_concurrently(plan.delete, delete)
        if result.first_error is not None:
            raise result.first_error

    # Events

    def _record_notices(self, flow: JobFlow, notices: Iterable[Event]) -> None:
        """Record the notices that were not in the last plan."""
        key = flow.metadata.key
        known, current = self._notices.get(key, frozenset()), frozenset(notices)
        for event in sorted(current - known):
            self._record(flow, event)
        if current:
            self._notices[key] = current
        else:
            self._notices.pop(key, None)

    def _record(self, flow: JobFlow, event: Event) -> None:
        if self._recorder is not None:
            regarding = object_reference(JOBFLOWS, flow.metadata)
            self._recorder.record(
                regarding, type=event.type, reason=event.reason, message=event.message
            )


def _template_keys(flow: JobFlow) -> Iterable[str]:
    if flow.status.state.phase in FINAL_FLOW_PHASES:
        return ()
    return {f"{flow.metadata.namespace}/{each.name}" for each in flow.spec.flows}


def _relevant_fields(job: Job) -> tuple[object, ...]:
    """Return the fields that the controller depends on."""
    meta = job.metadata
    return meta.uid, meta.deletion_timestamp, meta.controller, job.spec, job.status
