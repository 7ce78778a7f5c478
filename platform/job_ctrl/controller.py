"""Job controller: event handlers of jobs, their objects and Commands; what is known of a job.

Event handlers update the job's pod tracker and enqueue its key. :mod:`.decide` computes the
effects, :mod:`.executor` executes them. After a crash the controller continues without its state
in memory.
"""

import logging
from collections.abc import Sequence

from ..kube.client.client import Client
from ..kube.informer.factory import InformerFactory, NewInformers
from ..kube.informer.informer import Informer, KindSource
from ..kube.informer.reflector import InformerOptions
from ..machinery.change_rate import ChangeRate
from ..machinery.clock import Clock, SystemClock
from ..machinery.delay_heap import DelayHeap
from ..machinery.event_recorder import Recorder
from ..machinery.expectations import Expectations
from ..machinery.lifecycle import Source
from ..machinery.rate_limiters import default_controller_rate_limiter
from ..machinery.reconcile.cache import WriteThroughCache
from ..machinery.reconcile.commands import Commands, target_key
from ..machinery.reconcile.controller import Controller, Sync
from ..machinery.reconcile.events import Events, Notices
from ..machinery.reconcile.state import KeyStates
from ..machinery.shards import WHOLE, Shard
from ..model import names, times
from ..model.command import Command
from ..model.described_podgroup import PodGroupsOf
from ..model.job import Job, JobEvent
from ..model.job_defaults import DefaultedJob
from ..model.job_reasons import Reason
from ..model.job_size import too_many_pods_error, volcano_pods
from ..model.meta import HasMeta, MetadataOnly, ObjectMeta
from ..model.podgroup import PodGroup, PodGroupPhase
from . import podgroups
from .creation.dependencies import Dependencies
from .creation.described_podgroups import (
    DescribedPodGroups,
    SchedulerSilentError,
    WithoutPodGroup,
)
from .creation.desired_states import DesiredState, DesiredStates
from .creation.planned_creation import PlannedCreation
from .creation.plugin_objects import WATCHED_PLUGIN_KINDS
from .creation.pod_rules import PodRules
from .decide import decide
from .effects import DeleteCommand, Effect
from .executor import JobExecutor
from .job_info import JobInfo, JobSync, MissingJob
from .metrics import JobMetrics
from .native_podgroups import JobPodGroup
from .plugins.registry import Registry
from .settings import JobSettings
from .status.job_view import JobView
from .status.policies import policy_inputs
from .status.recovery import errors_from_status, restore
from .tracker.core_types import Pod, PriorityClass
from .tracker.pod_info import LifecycleEvent, PodInfo, has_same_job, parse_pod
from .tracker.pod_tracker import PodTracker
from .tracker.pod_trackers import PodTrackers

log = logging.getLogger(__name__)

_BATCH_DELAY = 0.05
"""Seconds for which changes of a job's pods are collected under load, so that the start of
thousands of pods does not cause as many syncs."""

_MAX_BACKOFF = 60.0
"""Maximum seconds between retries: no event reports that quota or a name is available again."""

_UNOBSERVED_RECHECK = 3.0
"""Seconds until the next sync of a job with unobserved writes. The informers mostly report them by
then; they never report an object that was deleted while a watch was broken."""


class JobController(Controller[JobSync | MissingJob, Effect]):
    """Controller of Volcano's Jobs; see :meth:`run`."""

    def __init__(
        self,
        client: Client,
        *,
        settings: JobSettings | None = None,
        clock: Clock | None = None,
        recorder: Recorder | None = None,
        plugins: Registry | None = None,
        podgroups: Informer[PodGroup] | None = None,
        informers: InformerFactory | None = None,
        shard: Shard = WHOLE,
    ) -> None:
        """*podgroups* holds the PodGroups at least of the jobs' namespace.

        Several controllers may use one informer; each runs it. Only the jobs of *shard* are
        reconciled, whose objects the other *informers* deliver.
        """
        self._settings = settings = settings or JobSettings()
        clock = clock if clock is not None else SystemClock()
        limiter = default_controller_rate_limiter(clock, max_delay=_MAX_BACKOFF)
        super().__init__("job", settings, clock=clock, limiter=limiter, shard=shard)
        self._rechecks = DelayHeap(clock, self._recheck)
        self.expectations = Expectations(clock)
        """Pods that are created, by name, until the informer reports them."""
        self._metrics = settings.metrics or JobMetrics(settings.registry)
        self._change_rate = settings.change_rate or ChangeRate(clock)
        self._trackers = PodTrackers(self.expectations)
        self._infos = KeyStates(JobInfo)
        self._new_jobs: set[str] = set()  # keys of the jobs without a status
        self._events = Events(recorder, names.JOBS)
        self._notices = Notices(self._events)
        self._described = DescribedPodGroups(
            enabled=settings.podgroups is PodGroupsOf.GANGS and not settings.native_podgroups,
            scheduler_names=settings.scheduler_names,
            clock=clock,
        )
        factory = informers or NewInformers(client)
        self._create_caches(client, factory, podgroups, recorder)
        self._desired = DesiredStates(
            plugins or Registry.load(), self._described.scheduler_of, self._priority_classes
        )
        sources, planned = self._planned_creation(client, factory)
        self.sources = [
            *self._create_sources(factory),
            KindSource(self._priority_classes, self._desired.on_priority_class),
            *sources,
        ]
        self.keep(self._jobs, self._infos, self._notices, self._trackers)
        self._dependencies = Dependencies(
            client, self._jobs.get, clock=clock, enqueue=self.queue.add
        )
        self._executor = self._create_executor(client, planned)

    def _create_executor(self, client: Client, planned: PlannedCreation) -> JobExecutor:
        return JobExecutor(
            client=client,
            clock=self.clock,
            settings=self._settings,
            jobs=self._jobs,
            podgroups=self._podgroups,
            commands=self._commands,
            expectations=self.expectations,
            events=self._events,
            notices=self._notices,
            metrics=self._metrics,
            change_rate=self._change_rate,
            planned=planned,
            recheck=lambda key: self._rechecks.add(key, _UNOBSERVED_RECHECK),
        )

    def _create_caches(
        self,
        client: Client,
        factory: InformerFactory,
        podgroup_informer: Informer[PodGroup] | None,
        recorder: Recorder | None,
    ) -> None:
        namespace = self._settings.namespace
        jobs = factory.informer(names.JOBS, DefaultedJob, owner_key=_own_key, namespace=namespace)
        self._jobs = WriteThroughCache(client, names.JOBS, DefaultedJob, jobs, clock=self.clock)
        native = self._settings.native_podgroups
        resource, view = names.PODGROUPS, PodGroup
        if native is not None:
            resource, view, podgroup_informer = native, JobPodGroup, None
        if podgroup_informer is None:
            podgroup_informer = factory.informer(
                resource, view, owner_key=_job_of_child, namespace=namespace
            )
        self._podgroups = WriteThroughCache(
            client, resource, view, podgroup_informer, clock=self.clock
        )
        commands = factory.informer(
            names.COMMANDS,
            Command,
            owner_key=target_key,
            namespace=namespace,
            options=InformerOptions(ordered=True),
        )
        self._commands = Commands(
            client,
            commands,
            self.queue,
            kind=names.JOBS,
            recorder=recorder,
            reports_unknown_kinds=True,
        )
        self._priority_classes = factory.informer(names.PRIORITYCLASSES, PriorityClass)

    def _create_sources(self, factory: InformerFactory) -> list[Source]:
        namespace = self._settings.namespace
        self._pods = factory.informer(
            names.PODS,
            Pod,
            owner_key=_job_of_child,
            namespace=namespace,
            label_selector=names.JOB_NAME,
        )
        plugin_objects = [
            factory.informer(
                kind,
                MetadataOnly,
                owner_key=_job_of_child,
                namespace=namespace,
                label_selector=names.JOB_NAME,
            )
            for kind in WATCHED_PLUGIN_KINDS
        ]
        return [
            KindSource(self._jobs.informer, self._on_job),
            KindSource(self._pods, self._on_pod),
            KindSource(self._podgroups.informer, self._on_podgroup),
            KindSource(self._commands.informer, self._commands.on_command),
            *(KindSource(informer, self._on_plugin_object) for informer in plugin_objects),
        ]

    def _planned_creation(
        self, client: Client, factory: InformerFactory
    ) -> tuple[Sequence[Source], PlannedCreation]:
        """Return what decides on the nodes of new pods, and the cluster's rules that it needs."""
        enabled, rules = self._settings.plans_creation, None
        if enabled:
            rules = PodRules(client, factory, clock=self.clock, namespace=self._settings.namespace)
        planned = PlannedCreation(
            enabled=enabled,
            clock=self.clock,
            priority_classes=self._priority_classes,
            exclude=rules.exclude if rules is not None else lambda namespace, pods: None,
            count=self._metrics.job_unplaced,
        )
        return rules.sources() if rules is not None else [], planned

    async def work(self) -> None:
        """Run the workers until cancelled."""
        try:
            await super().work()
        finally:
            self._rechecks.close()

    def on_synced(self) -> None:
        """Add the Commands of the initial list."""
        self._commands.on_synced()

    # Event handlers.

    def _on_job(self, old: DefaultedJob | None, new: DefaultedJob | None) -> None:
        job = new or old
        if job is None:
            return
        self._change_rate.observe()
        self._dependencies.on_job(job, deleted=new is None)
        key = job.metadata.key
        is_new = new is not None and not new.status.state.phase
        (self._new_jobs.add if is_new else self._new_jobs.discard)(key)
        if new is None:
            self._metrics.job_deleted(job)
            self._forget_deleted(key)
            self.queue.add(key)
            log.info("job deleted", extra={"job": key, "phase": job.status.state.phase})
            return
        if old is None and is_new:
            log.info("job created", extra={"job": key, "queue": new.spec.queue})
        if not self._jobs.is_own_write(new):
            # Jobs that were begun precede new ones.
            self.queue.add(key, low_priority=old is None and is_new)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        key = _owner_key(new.metadata) if new is not None else ""
        pod = self._parse(key, new) if new is not None else None
        if old is not None and (new is None or pod is None or not has_same_job(old, new)):
            before = parse_pod(old)
            if before is not None and (pod is None or pod.owner != before.owner):
                self._pod_deleted(_owner_key(old.metadata), before)  # deleted or orphaned
        if new is None or pod is None:
            return
        # The uid is empty as long as the response to the creation has not been received.
        first = self.expectations.observe(key, pod.name) in ("", pod.uid)
        info, tracker = self._infos.get(key), self._trackers.of(key)
        if info is not None and info.desired_state is not None:
            self._described.observe(info.desired_state.scheduler, old, new)
        known = tracker.get(pod.uid)
        if tracker.update(pod, now=self._event_time(pod), first_observed=first):
            if pod.rejection and not (known is not None and known.rejection):
                self._metrics.pod_rejected(pod.rejection)
            self._enqueue(key)

    def _parse(self, key: str, pod: Pod) -> PodInfo | None:
        """Parse *pod* of job *key*, unless the tracker has this version, which was just created."""
        tracker = self._trackers.get(key)
        known = tracker.get(pod.metadata.uid) if tracker is not None else None
        if known is not None and known.resource_version == pod.metadata.resource_version:
            return known
        return parse_pod(pod)

    def _pod_deleted(self, key: str, pod: PodInfo) -> None:
        if self.expectations.created(key).get(pod.name) == pod.uid:
            self.expectations.observe(key, pod.name)
        self._trackers.of(key).remove(pod.uid, now=self._event_time(pod))
        info = self._infos.get(key)
        if info is not None:
            if self._settings.plans_creation:
                info.plan_use.observe_created(pod.task, pod.index)
            # The next pod of this name may need an object whose deletion no informer reports.
            info.plugin_object_deletions += any(
                kind not in WATCHED_PLUGIN_KINDS for kind, _ in info.plugin_object_uids
            )
        self._forget_deleted(key)
        self._enqueue(key)

    def _enqueue(self, key: str) -> None:
        """Enqueue a job whose pods have changed; after a delay under load."""
        self._change_rate.observe()
        if self._change_rate.quiet_in():
            self.queue.add_after(key, _BATCH_DELAY)
        else:
            self.queue.add(key)

    def _event_time(self, pod: PodInfo) -> float:
        """Return the time of a change: now, but for the initial list the time in the pod."""
        now = self.clock.monotonic()
        if self._commands.synced or pod.event_time is None:
            return now
        try:
            age = (self.clock.now() - times.parse(pod.event_time)).total_seconds()
        except times.TimeError:
            return now
        return now - max(age, 0.0)

    def _on_podgroup(self, old: PodGroup | None, new: PodGroup | None) -> None:
        podgroup = new or old
        owner = podgroup.metadata.controller if podgroup is not None else None
        job_kind = (names.JOBS.api_version, names.JOBS.kind)
        if podgroup is None or owner is None or (owner.api_version, owner.kind) != job_kind:
            return
        self._change_rate.observe()
        key = _owner_key(podgroup.metadata)
        tracker, now = self._trackers.of(key), self.clock.monotonic()
        if new is not None and new.status.phase == PodGroupPhase.UNKNOWN:
            tracker.add_event(
                LifecycleEvent(event_type=JobEvent.JOB_UNKNOWN, owner=owner.uid, occurred_at=now)
            )
        else:
            tracker.clear_event(JobEvent.JOB_UNKNOWN)
        self._forget_deleted(key)
        if old is not None and new is not None and not podgroups.differ(old, new):
            return
        if new is not None and self._podgroups.is_own_write(new):
            return
        creating = self._podgroups.is_creating(podgroup.metadata.key)
        if new is None or not (creating and podgroups.is_waiting(new)):  # the response follows
            self.queue.add(key)

    def _on_plugin_object(self, old: MetadataOnly | None, new: MetadataOnly | None) -> None:
        """Sync the plugins' objects again after one was deleted."""
        owner = old.metadata.controller if old is not None and new is None else None
        if old is None or owner is None:
            return
        key = _owner_key(old.metadata)
        info = self._infos.get(key, owner.uid)
        if info is not None:
            info.plugin_object_deletions += 1
            self.queue.add(key)

    def _recheck(self, key: str) -> None:
        """Sync a job again if the informers still have not reported all that was written for it.

        ``sync.after`` would sync every job again some seconds after each write.
        """
        job = self._jobs.get(key)
        lost = job is not None and self._podgroups.is_unobserved(podgroups.key_of(job))
        if lost or key in self.expectations:
            self.queue.add(key)
            self._rechecks.add(key, _UNOBSERVED_RECHECK)

    def _forget_deleted(self, key: str) -> None:
        """Drop what is kept for a job that is deleted."""
        if self._jobs.informer.get(key) is None:
            self.forget(key)

    # Reconcile.

    async def observe(self, sync: Sync) -> JobSync | MissingJob | None:
        """Return the state of the job, and its oldest Command."""
        key = sync.key
        command, job = await self._commands.next(key), self._jobs.get(key)
        if job is None:
            return None if command is None else MissingJob(command)
        info, tracker = self._infos.of(job.metadata), self._trackers.of(key)
        size_error = too_many_pods_error(volcano_pods(job.spec), self._settings.max_pods_per_job)
        tracker.set_job(job, lists_missing=not size_error)
        self._observe_phase(job, info)
        now = self.clock.monotonic()
        if info.first_sync:
            restore(job, tracker, now=now)
        if key in self.expectations:
            self._remove_unobserved(key, tracker)
        desired = self._desired.of(job, info.desired_state)
        if desired is not info.desired_state:
            info.desired_state = desired
            # Known errors may concern the previous spec.
            info.last_errors = errors_from_status(job) if info.first_sync else {}
        info.first_sync = False
        if not info.status_delayed:
            info.counts_stale_since = None
        info.status_delayed = False
        if tracker.has_events:
            tracker.activate_events(now, inputs=policy_inputs(job))
        podgroup = self._podgroups.get(podgroups.key_of(job))
        meta = podgroup.metadata if podgroup is not None else ObjectMeta()
        view = JobView(
            job=job,
            pod_tracker=tracker,
            podgroup_spec=desired.podgroup_spec,
            now=self.clock.now(),
            monotonic_now=now,
            podgroup=podgroup,
            without_podgroup=self._without_podgroup(sync, job, info, desired, tracker)
            if podgroup is None
            else None,
            podgroup_terminating=meta.deletion_timestamp is not None,
            plugin_objects_stale=info.plugin_objects_synced_for != info.plugin_objects_key(desired),
            pvcs_stale=bool(job.spec.volumes) and info.pvcs_synced_for != desired.spec_key,
            ttl_waits_for_history=self._settings.ttl_waits_for_history,
            defer_first_status=len(self._new_jobs) > self._settings.burst_size,
            last_errors=dict(info.last_errors),
            dependencies=await self._dependencies.state_of(job),
            size_error=size_error,
        )
        return JobSync(view=view, info=info, desired_state=desired, command=command)

    def _observe_phase(self, job: Job, info: JobInfo) -> None:
        """Count that the job has entered another phase since the last sync."""
        before, phase = info.phase, job.status.state.phase
        info.phase = phase
        if info.first_sync or phase == before:
            return
        self._metrics.phase_entered(job, phase)
        info.last_errors.clear()  # the next phase collects its own errors
        fields = {"job": job.metadata.key, "phase": phase, "from": before}
        log.info("job phase", extra=fields)

    def _remove_unobserved(self, key: str, tracker: PodTracker) -> None:
        """Remove created pods that the informer will never report."""
        synced_version = int(self._pods.resource_version or 0)
        for name, uid in self.expectations.created(key).items():
            pod = tracker.get(uid)
            if pod is not None and int(pod.resource_version or 0) <= synced_version:
                # Deleted before the informer could report it.
                self.expectations.observe(key, name)
                tracker.remove(uid, now=self.clock.monotonic())
        for uid in self.expectations.expire(key):
            tracker.remove_created(uid)

    def _without_podgroup(
        self, sync: Sync, job: Job, info: JobInfo, desired: DesiredState, tracker: PodTracker
    ) -> WithoutPodGroup | None:
        """Return what a job that has no PodGroup has instead; ``None`` if it needs one."""
        if not desired.scheduler or info.podgroup_needed:
            return None
        try:
            found = self._described.without_podgroup(
                job, desired.podgroup_spec, scheduler=desired.scheduler, pods=tracker.active()
            )
        except SchedulerSilentError as error:
            info.podgroup_needed = True
            self._events.warning(job.metadata, Reason.PODGROUP_NEEDED, str(error))
            return None
        if found is not None:
            sync.after(found.check_after)
        return found

    def decide(self, view: JobSync | MissingJob) -> list[Effect]:
        """Return the next step for the job; see :func:`.decide.decide`."""
        if isinstance(view, MissingJob):
            return [DeleteCommand()]
        return decide(view.view, view.command)

    async def execute(self, sync: Sync, view: JobSync | MissingJob, effect: Effect) -> None:
        """Execute one effect; see :class:`.executor.JobExecutor`."""
        if isinstance(view, JobSync):
            await self._executor.execute(sync, view, effect)
        else:
            await self._commands.target_not_found(sync.key, view.command)
            sync.again = True  # more Commands may be pending

    def statistics(self) -> dict[str, int]:
        """Return the number of known jobs, of queued keys, and of pods that wait to be written."""
        return {
            "jobs": max(len(self._trackers), len(self._infos)),
            "queued": self.queue.depth(),
            "waiting_writes": self._executor.waiting_writes,
        }


def _own_key(job: Job) -> str:
    return job.metadata.key


def _job_of_child(child: HasMeta) -> str:
    """Return the key of the job of a pod, PodGroup or object of a plugin."""
    return _owner_key(child.metadata)


def _owner_key(meta: ObjectMeta) -> str:
    owner = meta.controller
    return f"{meta.namespace}/{owner.name if owner else ''}"
