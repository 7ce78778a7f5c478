"""JobFlow controller: event handlers of flows, their Jobs and templates; what is known of a flow.

:mod:`.decide` computes the effects, :mod:`.executor` executes them.
"""

from collections.abc import Iterable

from ..kube.client.client import Client
from ..kube.errors import NotFoundError
from ..kube.informer.informer import Informer, KindSource
from ..machinery.clock import Clock
from ..machinery.event_recorder import Recorder
from ..machinery.reconcile.cache import WriteThroughCache
from ..machinery.reconcile.controller import Controller, Sync
from ..machinery.reconcile.events import Events, Notices
from ..machinery.reconcile.state import CountThrottle, KeyStates
from ..model.flow import FINAL_FLOW_PHASES, JobFlow, JobTemplate
from ..model.job import FINAL_PHASES
from ..model.names import CREATED_BY_JOB_FLOW, JOBFLOWS, JOBS, JOBTEMPLATES
from .core_types import Job, index_by_flow
from .decide import AwaitedProbe, Effect, decide
from .executor import BY_FLOW, FlowExecutor, JobFlowState
from .prober import Network, Prober
from .settings import FlowSettings
from .view import FlowView

_TEMPLATE = "template"
"""Index of unfinished JobFlows by their templates' keys."""
_NAMESPACE = "namespace"


class JobFlowController(Controller[FlowView, Effect]):
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
        settings = settings or FlowSettings()
        super().__init__("jobflow", settings, clock=clock)
        self._client = client
        self._metrics = settings.metrics
        self._create_caches(client, templates)
        self._prober = Prober(
            client,
            settings=settings,
            clock=self.clock,
            on_passed=self._on_probe_passed,
            network=network,
        )
        self._states = KeyStates(JobFlowState)
        events, throttle = Events(recorder, JOBFLOWS), CountThrottle(self.clock)
        notices = Notices(events)
        self._executor = FlowExecutor(
            flows=self._flows,
            jobs=self._jobs,
            states=self._states,
            events=events,
            notices=notices,
            throttle=throttle,
            prober=self._prober,
            metrics=settings.metrics,
            clock=self.clock,
        )
        self.keep(self._flows, self._states, notices, throttle, self._prober)

    def _create_caches(self, client: Client, templates: Informer[JobTemplate] | None) -> None:
        flows = Informer(
            client,
            JOBFLOWS,
            JobFlow,
            indexes={_TEMPLATE: _template_keys, _NAMESPACE: lambda flow: [flow.metadata.namespace]},
        )
        self._flows = WriteThroughCache(client, JOBFLOWS, JobFlow, flows, clock=self.clock)
        jobs = Informer(
            client,
            JOBS,
            Job,
            label_selector=CREATED_BY_JOB_FLOW,
            indexes={BY_FLOW: index_by_flow},
        )
        self._jobs = WriteThroughCache(client, JOBS, Job, jobs, clock=self.clock)
        if templates is None:
            templates = Informer(client, JOBTEMPLATES, JobTemplate)
        self._templates = templates
        self.sources = [
            KindSource(self._templates, self._on_template),
            KindSource(jobs, self._on_job),
            KindSource(flows, self._on_flow),
        ]

    async def work(self) -> None:
        """Run the workers until cancelled, then end the requests of probes."""
        try:
            await super().work()
        finally:
            await self._prober.close()

    # Event handlers.

    def _on_flow(self, old: JobFlow | None, new: JobFlow | None) -> None:
        flow = new or old
        if flow is None:
            return
        self.queue.add(flow.metadata.key)
        namespace = flow.metadata.namespace
        if new is None and not self._flows.informer.by_index(_NAMESPACE, namespace):
            self._metrics.namespace_emptied(namespace)

    def _on_job(self, old: Job | None, new: Job | None) -> None:
        if old is not None and new is not None and _relevant_fields(old) == _relevant_fields(new):
            return
        for job in (old, new):
            owner = job.metadata.controller if job is not None else None
            if job is not None and owner is not None and job.flow_uid:
                self.queue.add(f"{job.metadata.namespace}/{owner.name}")
        if new is None and old is not None:
            self._on_job_deleted(old)

    def _on_job_deleted(self, job: Job) -> None:
        """Keep the last phase, which the status may not show."""
        owner = job.metadata.controller
        if owner is None:
            return
        flow = self._flows.informer.get(f"{job.metadata.namespace}/{owner.name}")
        if flow is not None and job.is_controlled_by(flow):
            self._states.of(flow.metadata).deleted[job.metadata.name] = job.phase

    def _on_template(self, old: JobTemplate | None, new: JobTemplate | None) -> None:
        if old is not None and new is not None and old.spec == new.spec:
            return
        template = new or old
        if template is not None:
            for flow in self._flows.informer.by_index(_TEMPLATE, template.metadata.key):
                self.queue.add(flow.metadata.key)

    def _on_probe_passed(self, key: str, probe: AwaitedProbe) -> None:
        flow = self._flows.informer.get(key)
        if flow is not None:
            self._states.of(flow.metadata).passed.add((probe.flow, probe.job_uid))
            self.queue.add(key)

    # Reconcile.

    async def observe(self, sync: Sync) -> FlowView | None:
        """Return the flow with its Jobs; a Job that seems to be deleted is confirmed to be."""
        flow = self._flows.get(sync.key)
        if flow is None or flow.metadata.deletion_timestamp is not None:
            return None
        meta, state = flow.metadata, self._states.of(flow.metadata)
        jobs = {job.metadata.name: job for job in self._jobs.by_index(BY_FLOW, meta.identity)}
        recorded = {each.name: each.state for each in flow.status.job_status_list}
        deleted = {}
        for name, phase in (recorded | state.deleted).items():
            if name in jobs:
                continue
            job = None
            if phase not in FINAL_PHASES and flow.phase not in FINAL_FLOW_PHASES:
                job = await self._get_job(flow, name)
            if job is None:
                deleted[name] = phase
            else:
                jobs[name] = job
        keys = {each.name: f"{meta.namespace}/{each.name}" for each in flow.spec.flows}
        templates = {name: self._templates.get(key) for name, key in keys.items()}
        return FlowView(
            jobflow=flow,
            jobs=jobs,
            deleted=deleted,
            templates={name: found for name, found in templates.items() if found is not None},
            network_passed=frozenset(state.passed),
        )

    async def _get_job(self, flow: JobFlow, name: str) -> Job | None:
        """Get a Job from the server; ``None`` if it does not exist or is not the flow's."""
        try:
            job = await self._client.get(JOBS, name, namespace=flow.metadata.namespace, view=Job)
        except NotFoundError:
            return None
        return job if job.is_controlled_by(flow) else None

    def decide(self, view: FlowView) -> list[Effect]:
        """Return what the flow needs; see :func:`.decide.decide`."""
        return decide(view)

    async def execute(self, sync: Sync, view: FlowView, effect: Effect) -> None:
        """Execute one effect; see :class:`.executor.FlowExecutor`."""
        await self._executor.execute(sync, view, effect)


def _template_keys(flow: JobFlow) -> Iterable[str]:
    if flow.status.state.phase in FINAL_FLOW_PHASES:
        return ()
    return {f"{flow.metadata.namespace}/{each.name}" for each in flow.spec.flows}


def _relevant_fields(job: Job) -> tuple[object, ...]:
    """Return the fields that the controller depends on."""
    meta = job.metadata
    return meta.uid, meta.deletion_timestamp, meta.controller, job.spec, job.status
