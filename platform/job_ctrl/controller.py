"""Job controller: informers, event handlers and the reconcile loop.

Event handlers update the job's pod tracker and enqueue its key. One worker at a time then
reconciles the job: it decides (``decide``) and executes the effects (``executor``) until there are
none. After a crash the controller continues without its in-memory state.
"""

import asyncio
import logging

from ..kube.client.client import Client
from ..kube.errors import NotFoundError
from ..kube.informer.factory import InformerFactory, NewInformers
from ..kube.informer.informer import Informer, KindSource
from ..kube.informer.reflector import InformerOptions
from ..machinery.change_rate import ChangeRate
from ..machinery.clock import Clock, SystemClock
from ..machinery.controller import RequeueError, ShardedQueue, WorkerSettings, run_workers
from ..machinery.delay_heap import DelayHeap
from ..machinery.event_recorder import Recorder
from ..machinery.expectations import Expectations
from ..machinery.lifecycle import Source, run_controller
from ..machinery.rate_limiters import default_controller_rate_limiter
from ..machinery.shards import WHOLE, Shard
from ..model import names, times
from ..model.command import Command, target_kind_error, target_name_error
from ..model.described_podgroup import PodGroupsOf
from ..model.job import Job, JobEvent
from ..model.job_defaults import DefaultedJob
from ..model.job_reasons import Reason
from ..model.job_size import too_many_pods_error, volcano_pods
from ..model.meta import HasMeta, ObjectMeta
from ..model.podgroup import PodGroup, PodGroupPhase
from . import podgroups
from .creation.described_podgroups import DescribedPodGroups, SchedulerSilentError, WithoutPodGroup
from .creation.desired_states import DesiredStates
from .creation.planned_creation import PlannedCreation
from .creation.plugin_objects import WATCHED_PLUGIN_KINDS
from .creation.pod_rules import PodRules
from .decide import decide
from .execution import ExecutorDeps, SyncContext
from .executor import Executor
from .job_info import UNOBSERVED_TIMEOUT, JobInfo, is_newer
from .metrics import JobMetrics
from .plugins.registry import Registry
from .settings import JobSettings
from .status.job_view import CommandRef, JobView
from .status.policies import policy_inputs
from .status.recovery import errors_from_status, restore
from .tracker.core_types import MetadataOnly, Pod, PriorityClass
from .tracker.pod_info import LifecycleEvent, PodInfo, has_same_job, parse_pod
from .tracker.pod_tracker import PodTracker

log = logging.getLogger(__name__)

_BATCH_DELAY = 0.05
"""Seconds for which changes of a job's pods are collected under load, so that the start of
thousands of pods does not cause as many syncs."""

_MAX_STEPS = 32
"""Decisions about one job in one reconcile, before the worker takes the next key."""

_MAX_BACKOFF = 60.0
"""Maximum seconds between retries: no event reports that quota or a name is available again."""

_UNOBSERVED_RECHECK = 3.0
"""Seconds until the next sync of a job with unobserved writes. The informers mostly report them by
then; they never report an object that was deleted while a watch was broken."""


class JobController:
    """Reconciles Volcano's Jobs; see :meth:`run`."""

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
        self._client = client
        self._settings = settings = settings or JobSettings()
        self._clock = clock if clock is not None else SystemClock()
        self._workqueue = ShardedQueue(
            name="job",
            shards=settings.workers,
            limiter=default_controller_rate_limiter(self._clock, max_delay=_MAX_BACKOFF),
            clock=self._clock,
            metrics=settings.work_metrics,
            owned=shard,
        )
        self._rechecks = DelayHeap(self._clock, self._recheck)
        self._expectations = Expectations(self._clock, ttl=UNOBSERVED_TIMEOUT)
        self._metrics = settings.metrics or JobMetrics(settings.registry)
        self._change_rate = settings.change_rate or ChangeRate(self._clock)
        self._job_infos: dict[str, JobInfo] = {}
        self._new_jobs: set[str] = set()  # keys of the jobs without a status
        # Commands of the initial list, which is not in the order of their creation.
        self._initial_commands: list[Command] | None = []
        self._described = DescribedPodGroups(
            enabled=settings.podgroups is PodGroupsOf.GANGS,
            scheduler_names=settings.scheduler_names,
            clock=self._clock,
        )
        self._desired = DesiredStates(plugins or Registry.load(), self._described.scheduler_of)
        factory = informers or NewInformers(client)
        self._create_informers(factory, podgroups)
        self._planned = self._planned_creation(factory)
        self._executor = Executor(
            ExecutorDeps(
                client=client,
                clock=self._clock,
                workqueue=self._workqueue,
                expectations=self._expectations,
                recorder=recorder,
                metrics=self._metrics,
                settings=settings,
                change_rate=self._change_rate,
                planned=self._planned,
                podgroup_of=self._podgroup,
            )
        )

    def _create_informers(
        self, factory: InformerFactory, podgroup_informer: Informer[PodGroup] | None
    ) -> None:
        namespace = self._settings.namespace
        self._jobs = factory.informer(
            names.JOBS, DefaultedJob, owner_key=_own_key, namespace=namespace
        )
        self._pods = factory.informer(
            names.PODS,
            Pod,
            owner_key=_job_of_child,
            namespace=namespace,
            label_selector=names.JOB_NAME,
        )
        if podgroup_informer is None:
            podgroup_informer = factory.informer(
                names.PODGROUPS, PodGroup, owner_key=_job_of_child, namespace=namespace
            )
        self._podgroups = podgroup_informer
        self._commands = factory.informer(
            names.COMMANDS,
            Command,
            owner_key=_job_of_command,
            namespace=namespace,
            options=InformerOptions(ordered=True),
        )
        self._priority_classes = factory.informer(names.PRIORITYCLASSES, PriorityClass)
        self._desired.priority_classes = self._priority_classes
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
        self._sources: list[Source] = [
            KindSource(self._jobs, self._on_job),
            KindSource(self._pods, self._on_pod),
            KindSource(self._podgroups, self._on_podgroup),
            KindSource(self._commands, self._on_command),
            KindSource(self._priority_classes, self._desired.on_priority_class),
            *(KindSource(informer, self._on_plugin_object) for informer in plugin_objects),
        ]

    def _planned_creation(self, factory: InformerFactory) -> PlannedCreation:
        """Return what decides on the nodes of new pods; it needs the cluster's rules for them."""
        enabled, rules = self._settings.place_at_creation, None
        if enabled:
            rules = PodRules(
                self._client, factory, clock=self._clock, namespace=self._settings.namespace
            )
            self._sources += rules.sources()
        return PlannedCreation(
            enabled=enabled,
            clock=self._clock,
            priority_classes=self._priority_classes,
            exclude=rules.exclude if rules is not None else lambda namespace, pods: None,
            count=self._metrics.job_unplaced,
        )

    async def run(
        self, *, ready: asyncio.Event | None = None, elected: asyncio.Event | None = None
    ) -> None:
        """Sync the informers, set *ready*, and reconcile after *elected* until cancelled.

        When cancelled, it finishes the keys that are processed or queued, then writes nothing.
        """
        await run_controller(
            self._sources,
            self._run_workers,
            on_synced=self._on_synced,
            ready=ready,
            elected=elected,
        )

    async def _run_workers(self) -> None:
        settings = WorkerSettings(timeout=self._settings.reconcile_timeout)
        try:
            await run_workers(self._workqueue, self._reconcile, settings=settings)
        finally:
            self._rechecks.close()

    def _on_synced(self) -> None:
        commands, self._initial_commands = self._initial_commands or [], None
        for command in sorted(commands, key=lambda command: command.sort_key):
            self._on_command(None, command)

    # Event handlers.

    def _on_job(self, old: Job | None, new: Job | None) -> None:
        job = new or old
        if job is None:
            return
        self._change_rate.observe()
        key = job.metadata.key
        is_new = new is not None and not new.status.state.phase
        (self._new_jobs.add if is_new else self._new_jobs.discard)(key)
        if new is None:
            self._metrics.job_deleted(job)
            self._clean_up(key)
            self._workqueue.add(key)
            log.info("job deleted", extra={"job": key, "phase": job.status.state.phase})
            return
        if old is None and is_new:
            log.info("job created", extra={"job": key, "queue": new.spec.queue})
        written = self._job_info(key).last_written_job
        if written is None or written.metadata.resource_version != new.metadata.resource_version:
            # Not the echo of an own write. Jobs that were begun precede new ones.
            self._workqueue.add(key, low_priority=old is None and is_new)

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
        first = self._expectations.observe(key, pod.name) in ("", pod.uid)
        info = self._job_info(key)
        tracker = info.pod_tracker
        if info.desired_state is not None:
            self._described.observe(info.desired_state.scheduler, old, new)
        known = tracker.get(pod.uid)
        if tracker.update(pod, now=self._event_time(pod), first_observed=first):
            if pod.rejection and not (known is not None and known.rejection):
                self._metrics.pod_rejected(pod.rejection)
            self._enqueue(key)

    def _parse(self, key: str, pod: Pod) -> PodInfo | None:
        """Parse *pod* of job *key*, unless the tracker has this version, which was just created."""
        info = self._job_infos.get(key)
        known = info.pod_tracker.get(pod.metadata.uid) if info is not None else None
        if known is not None and known.resource_version == pod.metadata.resource_version:
            return known
        return parse_pod(pod)

    def _pod_deleted(self, key: str, pod: PodInfo) -> None:
        if self._expectations.created(key).get(pod.name) == pod.uid:
            self._expectations.observe(key, pod.name)
        info = self._job_info(key)
        info.pod_tracker.remove(pod.uid, now=self._event_time(pod))
        if self._settings.place_at_creation:
            info.plan_use.observe_created(pod.task, pod.index)
        # The next pod of this name may need an object whose deletion no informer reports.
        info.plugin_object_deletions += any(
            kind not in WATCHED_PLUGIN_KINDS for kind, _ in info.plugin_object_uids
        )
        self._clean_up(key)
        self._enqueue(key)

    def _enqueue(self, key: str) -> None:
        """Enqueue a job whose pods have changed; after a delay under load."""
        self._change_rate.observe()
        if self._change_rate.quiet_in():
            self._workqueue.add_after(key, _BATCH_DELAY)
        else:
            self._workqueue.add(key)

    def _event_time(self, pod: PodInfo) -> float:
        """Return the time of a change: now, but for the initial list the time in the pod."""
        now = self._clock.monotonic()
        if self._initial_commands is None or pod.event_time is None:
            return now
        try:
            age = (self._clock.now() - times.parse(pod.event_time)).total_seconds()
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
        info = self._job_info(key)
        written = info.last_written_podgroup
        if new is None and written and written.metadata.uid == podgroup.metadata.uid:
            info.last_written_podgroup = None  # deleted before the next sync
        if new is not None and new.status.phase == PodGroupPhase.UNKNOWN:
            now = self._clock.monotonic()
            info.pod_tracker.add_event(
                LifecycleEvent(event_type=JobEvent.JOB_UNKNOWN, owner=owner.uid, occurred_at=now)
            )
        else:
            info.pod_tracker.clear_event(JobEvent.JOB_UNKNOWN)
        self._clean_up(key)
        written = info.last_written_podgroup
        if old is not None and new is not None and not podgroups.differ(old, new):
            return
        if new is not None and info.creating_podgroup and podgroups.is_waiting(new):
            return  # the response follows
        if new is None or written is None or written.metadata != new.metadata:
            self._workqueue.add(key)  # not the echo of this controller's own write

    def _on_plugin_object(self, old: MetadataOnly | None, new: MetadataOnly | None) -> None:
        """Sync the plugins' objects again after one was deleted."""
        owner = old.metadata.controller if old is not None and new is None else None
        if old is None or owner is None:
            return
        key = _owner_key(old.metadata)
        info = self._job_infos.get(key)
        if info is not None and info.uid == owner.uid:
            info.plugin_object_deletions += 1
            self._workqueue.add(key)

    def _on_command(self, old: Command | None, new: Command | None) -> None:
        if old is not None or new is None:
            return
        if new.target is None or not new.targets_kind(names.JOBS):
            if problem := target_kind_error(new):
                self._executor.record_invalid_command(new.metadata, problem)
            return
        if self._initial_commands is not None:
            self._initial_commands.append(new)
            return
        annotations = new.metadata.annotations
        command = CommandRef(
            name=new.metadata.name,
            uid=new.metadata.uid,
            action=new.action,
            task=annotations.get(names.TASK, ""),
            pod=annotations.get(names.POD, ""),
            partition=annotations.get(names.PARTITION, ""),
            operation=new.operation,
            job_uid=new.target.uid,
        )
        self._workqueue.add_item(f"{new.metadata.namespace}/{new.target.name}", command)

    # Reconcile.

    async def _reconcile(self, key: str) -> float | None:
        """Sync the job until nothing remains to be done; return the seconds until the next sync."""
        for _ in range(_MAX_STEPS):
            self._workqueue.include_changes(key)
            command = self._next_command(key)
            job = self._latest(key)
            if job is None:
                await self._job_not_found(key, command)
                return None
            info = self._job_info(key)
            context = self._sync_context(key, job, info, command)
            effects = decide(self._view(context), command)
            try:
                await self._executor.execute(context, effects)
            except Exception:
                if context.requeue_after is not None:  # must not wait for the retry
                    self._workqueue.add_after(key, context.requeue_after)
                raise
            if not context.status_delayed:
                info.counts_stale_since = None
            if not context.requeue:
                if info.last_written_podgroup is not None or key in self._expectations:
                    self._rechecks.add(key, _UNOBSERVED_RECHECK)
                return context.requeue_after
        return 0.0

    def _recheck(self, key: str) -> None:
        """Sync a job again if the informers still have not reported all that was written for it."""
        info = self._job_infos.get(key)
        written = info.last_written_podgroup if info is not None else None
        observed = self._podgroups.get(written.metadata.key) if written is not None else None
        if key in self._expectations or (
            written is not None and (observed is None or is_newer(written, observed))
        ):
            self._workqueue.add(key)

    def _sync_context(
        self, key: str, job: Job, info: JobInfo, command: CommandRef | None
    ) -> SyncContext:
        """Update the job's state for the next decision."""
        info.reset_for(job, too_large=bool(self._size_error(job)))
        self._executor.confirm_transition(key, job, info)
        if info.first_sync:
            restore(job, info.pod_tracker, now=self._clock.monotonic())
        if key in self._expectations:
            self._remove_unobserved(key, info.pod_tracker)
        desired_state = self._desired.of(job, info.desired_state)
        if desired_state is not info.desired_state:
            info.desired_state = desired_state
            # Known errors may concern the previous spec.
            info.last_errors = errors_from_status(job) if info.first_sync else {}
        info.first_sync = False
        return SyncContext(
            key=key, job=job, job_info=info, desired_state=desired_state, command=command
        )

    def _remove_unobserved(self, key: str, tracker: PodTracker) -> None:
        """Remove created pods that the informer will never report."""
        synced_version = int(self._pods.resource_version or 0)
        for name, uid in self._expectations.created(key).items():
            pod = tracker.get(uid)
            if pod is not None and int(pod.resource_version or 0) <= synced_version:
                # Deleted before the informer could report it.
                self._expectations.observe(key, name)
                tracker.remove(uid, now=self._clock.monotonic())
        for uid in self._expectations.expire(key):
            tracker.remove_created(uid)

    def _view(self, context: SyncContext) -> JobView:
        """Return the state of the job, including this controller's own last writes."""
        info, podgroup = context.job_info, self._podgroup(context.job, context.job_info)
        meta = podgroup.metadata if podgroup is not None else ObjectMeta()
        now = self._clock.monotonic()
        if info.pod_tracker.has_events:
            info.pod_tracker.activate_events(now, inputs=policy_inputs(context.job))
        return JobView(
            job=context.job,
            pod_tracker=info.pod_tracker,
            podgroup_spec=context.desired_state.podgroup_spec,
            now=self._clock.now(),
            monotonic_now=now,
            podgroup=podgroup,
            without_podgroup=self._without_podgroup(context) if podgroup is None else None,
            podgroup_terminating=bool(
                meta.deletion_timestamp or (meta.uid and meta.uid == info.deleting_podgroup_uid)
            ),
            plugin_objects_stale=info.plugin_objects_synced_for
            != info.plugin_objects_key(context.desired_state),
            pvcs_stale=bool(context.job.spec.volumes)
            and info.pvcs_synced_for != context.desired_state.spec_key,
            ttl_waits_for_history=self._settings.ttl_waits_for_history,
            defer_first_status=len(self._new_jobs) > self._settings.burst_size,
            last_errors=dict(info.last_errors),
            size_error=self._size_error(context.job),
        )

    def _size_error(self, job: Job) -> str:
        return too_many_pods_error(volcano_pods(job.spec), self._settings.max_pods_per_job)

    def _without_podgroup(self, context: SyncContext) -> WithoutPodGroup | None:
        """Return how a job that has no PodGroup does without one; None if it needs one."""
        job, info, desired = context.job, context.job_info, context.desired_state
        if not desired.scheduler or info.podgroup_needed:
            return None
        try:
            found = self._described.without_podgroup(
                job,
                desired.podgroup_spec,
                scheduler=desired.scheduler,
                pods=info.pod_tracker.active(),
            )
        except SchedulerSilentError as error:
            info.podgroup_needed = True
            self._executor.record_event(job, Reason.PODGROUP_NEEDED, str(error), warning=True)
            return None
        if found is not None and found.check_after is not None:
            context.request_requeue(found.check_after)
        return found

    def _latest(self, key: str) -> Job | None:
        """Return the job from the informer, or from the last own write if that is newer."""
        observed, info = self._jobs.get(key), self._job_infos.get(key)
        written = info.last_written_job if info is not None else None
        if observed is None or written is None:
            return observed
        same = written.metadata.uid == observed.metadata.uid
        return written if same and is_newer(written, observed) else observed

    def _podgroup(self, job: Job, job_info: JobInfo) -> PodGroup | None:
        """Return the job's PodGroup, likewise."""
        observed = self._podgroups.get(f"{job.metadata.namespace}/{podgroups.name_of(job)}")
        written = job_info.last_written_podgroup
        if written is None:
            return observed
        expired = self._clock.monotonic() - job_info.podgroup_written_at > UNOBSERVED_TIMEOUT
        synced = int(self._podgroups.resource_version or 0) >= int(
            written.metadata.resource_version or 0
        )
        if expired or synced or (observed is not None and not is_newer(written, observed)):
            job_info.last_written_podgroup = None
            return observed
        return written

    def _next_command(self, key: str) -> CommandRef | None:
        """Return the oldest Command for the job; drop items whose Command was deleted."""
        while isinstance(command := self._workqueue.peek_item(key), CommandRef):
            observed = self._commands.get(f"{key.partition('/')[0]}/{command.name}")
            if observed is not None and observed.metadata.uid == command.uid:
                return command
            self._workqueue.pop_item(key)
        return None

    async def _job_not_found(self, key: str, command: CommandRef | None) -> None:
        """Requeue if the informer is behind; else delete the Command, and the job's state."""
        if command is None:
            self._clean_up(key)
            return
        namespace, _, name = key.partition("/")
        if problem := target_name_error(name):
            await self._executor.reject_command(key, command, problem)
            self._workqueue.add(key)
            return
        try:
            await self._client.get(names.JOBS, name, namespace=namespace, view=Job)
        except NotFoundError:
            await self._executor.delete_command(key, command)
            self._workqueue.add(key)  # more Commands may be pending
        else:
            raise RequeueError("job not in the informer yet")

    # Helpers.

    def _job_info(self, key: str) -> JobInfo:
        info = self._job_infos.get(key)
        if info is None:
            info = self._job_infos[key] = JobInfo()
        return info

    def _clean_up(self, key: str) -> None:
        """Drop the state of a job that is deleted with all its pods."""
        info = self._job_infos.get(key)
        if info is not None and self._jobs.get(key) is None and not len(info.pod_tracker):
            del self._job_infos[key]
            self._expectations.delete(key)

    def statistics(self) -> dict[str, int]:
        """Return the number of known jobs and of queued keys."""
        return {"jobs": len(self._job_infos), "queued": self._workqueue.depth()}


def _own_key(job: Job) -> str:
    return job.metadata.key


def _job_of_child(child: HasMeta) -> str:
    """Return the key of the job of a pod, PodGroup or object of a plugin."""
    return _owner_key(child.metadata)


def _job_of_command(command: Command) -> str:
    target = command.target
    return f"{command.metadata.namespace}/{target.name if target else ''}"


def _owner_key(meta: ObjectMeta) -> str:
    owner = meta.controller
    return f"{meta.namespace}/{owner.name if owner else ''}"
