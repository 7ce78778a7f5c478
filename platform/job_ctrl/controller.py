"""The job controller's shell: watches, keeps the books, asks for decisions, has them carried out.

Handlers do no more than to keep each job's ledger and to mark its key; one worker at a time then
looks at the job, decides and acts until nothing is left to do. What it decides is in ``decide``,
what it writes in ``executor``. Nothing that is only in memory is needed to go on after a crash.
"""

import asyncio
import logging

from ..kube.client.client import Client
from ..kube.errors import NotFoundError
from ..kube.informer.informer import Informer, KindSource
from ..kube.informer.reflector import InformerOptions
from ..machinery.change_rate import ChangeRate
from ..machinery.clock import Clock, SystemClock
from ..machinery.controller import RequeueError, ShardedQueue, WorkerSettings, run_workers
from ..machinery.event_recorder import Recorder
from ..machinery.expectations import Expectations
from ..machinery.lifecycle import Source, run_controller
from ..machinery.rate_limiters import default_controller_rate_limiter
from ..model import names, times
from ..model.command import Command, target_kind_error, target_name_error
from ..model.job import Job, JobEvent
from ..model.meta import ObjectMeta
from ..model.podgroup import PodGroup, PodGroupPhase
from . import pod_tracker, podgroups
from .core_types import MetadataOnly, Pod, PriorityClass
from .decide import decide
from .defaults import DefaultedJob
from .effects import SetStatus
from .executor import Executor, ExecutorDeps, SyncContext
from .job_info import UNOBSERVED_TIMEOUT, DesiredState, JobInfo, is_newer
from .job_view import CommandRef, JobView
from .metrics import JobMetrics
from .plugins.registry import Registry
from .recovery import errors_from_status, restore
from .settings import JobSettings

log = logging.getLogger(__name__)

_BATCH_DELAY = 0.05
"""Seconds for which changes of a job's pods are collected while much is going on: a job that
thousands of pods start for is not looked at for each of them."""
WATCHED_PLUGIN_KINDS = (names.SERVICES, names.NETWORKPOLICIES, names.CONFIGMAPS)
"""Kinds of plugins' objects that come back at once when somebody deletes them; to watch Secrets
would be the right to read everybody's, so they come back when a pod has to be made again."""

_MAX_STEPS = 32
"""Decisions about one job in a row before others get their turn."""


_MAX_BACKOFF = 60.0
"""Seconds that a job waits at most before what was refused is tried again: nobody tells us of a
quota that is freed, or of a name that is given up."""

_UNOBSERVED_RECHECK = 3.0
"""Seconds until a job is looked at again of which the caches do not show all that we wrote. Mostly
they do by then; what went while a watch was broken they never will."""


class JobController:
    """Runs Volcano's Jobs; see :meth:`run_in_thread`."""

    def __init__(
        self,
        client: Client,
        *,
        settings: JobSettings | None = None,
        clock: Clock | None = None,
        recorder: Recorder | None = None,
        plugins: Registry | None = None,
        podgroups: Informer[PodGroup] | None = None,
    ) -> None:
        """*podgroups* holds PodGroups, at least those of the jobs' namespace.

        Several controllers may share it, each running it.
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
        )
        self._expectations = Expectations(self._clock, ttl=UNOBSERVED_TIMEOUT)
        self._metrics = JobMetrics(settings.registry)
        self._change_rate = ChangeRate(self._clock)
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
            )
        )
        self._plugins = plugins or Registry.load()
        self._job_infos: dict[str, JobInfo] = {}
        # Commands of the first list, which comes in no useful order.
        self._initial_commands: list[Command] | None = []
        self._priority_classes_generation = 0
        self._create_informers(podgroups)

    def _create_informers(self, podgroup_informer: Informer[PodGroup] | None) -> None:
        client, space = self._client, self._settings.namespace
        self._jobs = Informer(client, names.JOBS, DefaultedJob, namespace=space)
        self._pods = Informer(
            client, names.PODS, Pod, namespace=space, label_selector=names.JOB_NAME
        )
        if podgroup_informer is None:
            podgroup_informer = Informer(client, names.PODGROUPS, PodGroup, namespace=space)
        self._podgroups = podgroup_informer
        obeyed = InformerOptions(ordered=True)
        self._commands = Informer(client, names.COMMANDS, Command, namespace=space, options=obeyed)
        self._priority_classes = Informer(client, names.PRIORITYCLASSES, PriorityClass)
        made = [
            Informer(client, kind, MetadataOnly, namespace=space, label_selector=names.JOB_NAME)
            for kind in WATCHED_PLUGIN_KINDS
        ]
        self._sources: list[Source] = [
            KindSource(self._jobs, self._on_job),
            KindSource(self._pods, self._on_pod),
            KindSource(self._podgroups, self._on_podgroup),
            KindSource(self._commands, self._on_command),
            KindSource(self._priority_classes, self._on_priority_class),
            *(KindSource(cache, self._on_plugin_object) for cache in made),
        ]

    async def run(
        self, *, ready: asyncio.Event | None = None, elected: asyncio.Event | None = None
    ) -> None:
        """Watch, then work (not before *lead*), until cancelled; *ready* is set in between.

        When cancelled, it finishes what is in hand and queued, and writes nothing after.
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
        await run_workers(self._workqueue, self._reconcile, settings=settings)

    def _on_synced(self) -> None:
        early, self._initial_commands = self._initial_commands or [], None
        for command in sorted(early, key=lambda command: command.sort_key):
            self._on_command(None, command)

    # What is seen.

    def _on_job(self, old: Job | None, new: Job | None) -> None:
        about = new or old
        if about is None:
            return
        self._change_rate.observe()
        key = about.metadata.key
        if new is None:
            self._metrics.job_deleted(about)
            self._clean_up(key)
            self._workqueue.add(key)
            log.info("job deleted", extra={"job": key, "phase": about.status.state.phase})
            return
        if old is None and not new.status.state.phase:
            log.info("job created", extra={"job": key, "queue": new.spec.queue})
        written = self._job_info(key).last_written_job
        if written is None or written.metadata.resource_version != new.metadata.resource_version:
            self._workqueue.add(key)  # our own write has been looked at already

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        was, entry = _pod_info(old), _pod_info(new)
        if old is not None and was is not None and (entry is None or entry.owner != was.owner):
            self._pod_deleted(_owner_key(old.metadata), was)  # deleted, or not its job's any longer
        if new is not None and entry is not None:
            key = _owner_key(new.metadata)
            self._expectations.observe(key, entry.name)
            if self._job_info(key).pod_tracker.update(entry, now=self._event_time(entry)):
                self._enqueue(key)

    def _pod_deleted(self, key: str, entry: pod_tracker.PodInfo) -> None:
        self._expectations.observe(key, entry.name)
        case = self._job_info(key)
        case.pod_tracker.remove(entry.uid, now=self._event_time(entry))
        # Its successor may need what nobody tells us of if it goes.
        case.plugin_object_deletions += any(
            kind not in WATCHED_PLUGIN_KINDS for kind, _ in case.plugin_object_uids
        )
        self._clean_up(key)
        self._enqueue(key)

    def _enqueue(self, key: str) -> None:
        """Have a look at a job of whose pods something is new."""
        self._change_rate.observe()
        if self._change_rate.quiet_in():
            self._workqueue.add_after(key, _BATCH_DELAY)
        else:
            self._workqueue.add(key)

    def _event_time(self, entry: pod_tracker.PodInfo) -> float:
        """When that happened to the pod: just now, or before we came as long ago as it says."""
        now = self._clock.monotonic()
        if self._initial_commands is None or entry.event_time is None:
            return now
        try:
            age = (self._clock.now() - times.parse(entry.event_time)).total_seconds()
        except times.TimeError:
            return now
        return now - max(age, 0.0)

    def _on_podgroup(self, old: PodGroup | None, new: PodGroup | None) -> None:
        about = new or old
        owner = about.metadata.controller if about is not None else None
        ours = (names.JOBS.api_version, names.JOBS.kind)
        if about is None or owner is None or (owner.api_version, owner.kind) != ours:
            return
        self._change_rate.observe()
        key = _owner_key(about.metadata)
        case = self._job_info(key)
        books = case.pod_tracker
        if (
            new is None
            and case.last_written_podgroup
            and case.last_written_podgroup.metadata.uid == about.metadata.uid
        ):
            case.last_written_podgroup = None  # it came and went before we had another look
        if new is not None and new.status.phase == PodGroupPhase.UNKNOWN:
            now = self._clock.monotonic()
            books.add_event(
                pod_tracker.LifecycleEvent(
                    event_type=JobEvent.JOB_UNKNOWN, owner=owner.uid, occurred_at=now
                )
            )
        else:
            books.clear_event(JobEvent.JOB_UNKNOWN)
        self._clean_up(key)
        made = case.last_written_podgroup
        if new is None or made is None or made.metadata != new.metadata:
            self._workqueue.add(key)  # our own write has been looked at already

    def _on_plugin_object(self, old: MetadataOnly | None, new: MetadataOnly | None) -> None:
        """An object of a plugin's; if it went, by whomever, it is time to look after them."""
        owner = old.metadata.controller if old is not None and new is None else None
        if old is None or owner is None:
            return
        key = _owner_key(old.metadata)
        case = self._job_infos.get(key)
        if case is not None and case.uid == owner.uid:
            case.plugin_object_deletions += 1
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
        order = CommandRef(name=new.metadata.name, uid=new.metadata.uid, action=new.action)
        self._workqueue.add_item(f"{new.metadata.namespace}/{new.target.name}", order)

    def _on_priority_class(self, old: PriorityClass | None, new: PriorityClass | None) -> None:
        self._priority_classes_generation += (
            1  # gangs are worked out anew when their jobs are looked at
        )

    # What is done.

    async def _reconcile(self, key: str) -> float | None:
        """Look at the job and act until nothing is left to do; seconds until the next look."""
        for _ in range(_MAX_STEPS):
            order = await self._next_command(key)
            job = self._latest(key)
            if job is None:
                await self._job_not_found(key, order)
                return None
            case = self._job_info(key)
            case.reset_for(job)
            self._executor.confirm_transition(key, job, case)
            if case.first_sync:
                restore(job, case.pod_tracker, now=self._clock.monotonic())
            self._remove_unobserved(key, case.pod_tracker)
            plan = self._desired_state(job, case)
            if plan is not case.desired_state:
                case.desired_state = plan
                # Those that are known may have been of the spec before.
                case.last_errors = errors_from_status(job) if case.first_sync else {}
            case.first_sync = False
            turn = SyncContext(key=key, job=job, job_info=case, desired_state=plan, command=order)
            effects = decide(self._view(turn), order)
            try:
                await self._executor.execute(turn, effects)
            except Exception:
                if (
                    turn.requeue_after is not None
                ):  # what is due then must not wait for a late retry
                    self._workqueue.add_after(key, turn.requeue_after)
                raise
            if not any(isinstance(effect, SetStatus) for effect in effects):
                case.counts_stale_since = None
            if not turn.requeue:
                if case.last_written_podgroup is not None or case.pod_tracker.has_unobserved:
                    turn.request_requeue(_UNOBSERVED_RECHECK)
                return turn.requeue_after
        return 0.0

    def _remove_unobserved(self, key: str, tracker: pod_tracker.PodTracker) -> None:
        """Strike pods that we made and that went before any cache could show them."""
        for pod in tracker.missing_from_informer(int(self._pods.resource_version or 0)):
            self._expectations.observe(key, pod.name)
            tracker.remove(pod.uid, now=self._clock.monotonic())
        tracker.remove_unobserved(self._expectations.pending(key))

    def _view(self, context: SyncContext) -> JobView:
        """What there is to see of the job, our own last writes included."""
        case, podgroup = context.job_info, self._podgroup(context.job, context.job_info)
        meta = podgroup.metadata if podgroup is not None else ObjectMeta()
        return JobView(
            job=context.job,
            pod_tracker=case.pod_tracker,
            podgroup_spec=context.desired_state.podgroup_spec,
            now=self._clock.now(),
            monotonic_now=self._clock.monotonic(),
            podgroup=podgroup,
            podgroup_terminating=bool(
                meta.deletion_timestamp or (meta.uid and meta.uid == case.deleting_podgroup_uid)
            ),
            plugin_objects_stale=case.plugin_objects_synced_for
            != case.plugin_objects_key(context.desired_state),
            pvcs_stale=bool(context.job.spec.volumes)
            and case.pvcs_synced_for != context.desired_state.spec_key,
            last_errors=case.last_errors,
        )

    def _latest(self, key: str) -> Job | None:
        """The job as the cache shows it, or as our own write left it if that is newer."""
        seen, case = self._jobs.get(key), self._job_infos.get(key)
        if seen is None or case is None or case.last_written_job is None:
            return seen
        if case.last_written_job.metadata.uid == seen.metadata.uid and is_newer(
            case.last_written_job, seen
        ):
            return case.last_written_job
        return seen

    def _podgroup(self, job: Job, job_info: JobInfo) -> PodGroup | None:
        """The job's PodGroup, likewise."""
        seen = self._podgroups.get(f"{job.metadata.namespace}/{podgroups.name_of(job)}")
        made = job_info.last_written_podgroup
        if made is None:
            return seen
        late = self._clock.monotonic() - job_info.podgroup_written_at > UNOBSERVED_TIMEOUT
        shown = int(self._podgroups.resource_version or 0) >= int(
            made.metadata.resource_version or 0
        )
        if late or shown or (seen is not None and not is_newer(made, seen)):
            job_info.last_written_podgroup = None
            return seen
        return made

    def _desired_state(self, job: Job, job_info: JobInfo) -> DesiredState:
        """What follows from the job's spec; worked out anew only when that has changed."""
        meta = job.metadata
        of = (meta.uid, meta.generation or meta.resource_version)
        known = job_info.desired_state
        if known is not None and (known.spec_key, known.priority_classes_generation) == (
            of,
            self._priority_classes_generation,
        ):
            return known
        values = {one.metadata.name: one.value for one in self._priority_classes}
        return DesiredState(
            spec_key=of,
            priority_classes_generation=self._priority_classes_generation,
            podgroup_spec=podgroups.desired_spec(job, priorities=values),
            plugins=self._plugins.for_job(job),
        )

    async def _next_command(self, key: str) -> CommandRef | None:
        """The oldest Command that nobody has taken back."""
        namespace = key.partition("/")[0]
        while True:
            order = self._workqueue.peek_item(key)
            if not isinstance(order, CommandRef):
                return None
            there = self._commands.get(f"{namespace}/{order.name}")
            if there is not None and there.metadata.uid == order.uid:
                return order
            self._workqueue.pop_item(key)

    async def _job_not_found(self, key: str, command: CommandRef | None) -> None:
        """No cache shows the job: wait for it if it is only late, else forget about it."""
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
            self._workqueue.add(key)  # there may be more of them
        else:
            raise RequeueError("the job is not in the cache yet")

    # Helpers.

    def _job_info(self, key: str) -> JobInfo:
        case = self._job_infos.get(key)
        if case is None:
            case = self._job_infos[key] = JobInfo()
        return case

    def _clean_up(self, key: str) -> None:
        """Forget a job that is gone with all its pods."""
        case = self._job_infos.get(key)
        if case is not None and self._jobs.get(key) is None and not len(case.pod_tracker):
            del self._job_infos[key]
            self._expectations.delete(key)

    def statistics(self) -> dict[str, int]:
        """How many jobs are remembered, and how many keys wait for a worker."""
        return {"cases": len(self._job_infos), "queued": self._workqueue.depth()}


def _pod_info(pod: Pod | None) -> pod_tracker.PodInfo | None:
    return pod_tracker.parse_pod(pod) if pod is not None else None


def _owner_key(meta: ObjectMeta) -> str:
    owner = meta.controller
    return f"{meta.namespace}/{owner.name if owner else ''}"
