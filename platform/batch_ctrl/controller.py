"""Controller of batch/v1 Jobs: informers, event handlers, work queues.

A Job is reconciled if ``spec.managedBy`` is one of the settings' values. Event handlers update the
pod tracker of the Job and enqueue its key: at once for changes of its spec, and for those of its
pods and status after a delay in which they are collected. A worker then runs one :mod:`.sync`.

The pod informer has all pods: a selector by label would miss those of Jobs with a manual selector,
and pods cannot be selected by who manages their Job. So that few Jobs need little memory on a
large cluster, pods of other kinds of controllers and of the Jobs of other controllers are reduced
to their identity (0.6 instead of 1.9 kB a pod), and only Jobs that are reconciled and have not
finished have a pod tracker.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from ..kube.client.client import Client
from ..kube.informer.informer import EventHandler, Informer, KindSource
from ..machinery.claim import Claimer
from ..machinery.clock import Clock, SystemClock
from ..machinery.controller import ShardedQueue, WorkerSettings, run_workers
from ..machinery.event_recorder import Recorder, object_reference
from ..machinery.lifecycle import Source, run_controller
from ..machinery.pod_control import NameGenerator, ObjectControl, Owner, pod_control
from ..machinery.rate_limiters import (
    ExponentialFailureRateLimiter,
    RateLimiter,
    default_controller_rate_limiter,
)
from ..machinery.status_writer import ApiStatusWriter, StatusWriter
from ..model.names import BATCH_JOBS, PODS
from ..model.pod import FINISHED
from .batch_pod import JobTraits, parse_pod
from .conditions import is_finished
from .core_types import (
    CONTROLLER_UID_LABELS,
    TRACKING_FINALIZER,
    CompletionMode,
    Job,
    Pod,
    owning_job,
)
from .known_jobs import RecentUids
from .metrics import BatchJobMetrics
from .orphans import OrphanPods
from .pod_lookups import orphan_keys, orphan_scope
from .pod_writes import PodWrites
from .settings import BatchJobSettings
from .state import BatchJobState
from .sync import Sync, SyncDeps
from .ttl import ExpiredJobs
from .unreported import check_uncounted

log = logging.getLogger(__name__)

_MIN_BACKOFF, _MAX_BACKOFF = 1.0, 60.0
"""Seconds between retries of a Job or pod."""

_COMPLETION_MODES = frozenset(mode.value for mode in CompletionMode)

_ADOPTION_RECHECK = 1.0
"""Seconds until the sync after an adoption, unless the informer reports the pods before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWriters:
    """How a :class:`BatchJobController` writes, for tests and dry runs."""

    pods: ObjectControl[Pod] | None = None
    """Writes pods; by default to the API server."""

    status: StatusWriter[Job] | None = None
    """Writes the status of Jobs, likewise."""

    names: NameGenerator | None = None
    """Generates the names of pods; at random by default."""


class BatchJobController:
    """Reconciles Jobs; see :meth:`run`."""

    def __init__(
        self,
        client: Client,
        *,
        settings: BatchJobSettings | None = None,
        clock: Clock | None = None,
        recorder: Recorder | None = None,
        writers: JobWriters | None = None,
    ) -> None:
        self._client = client
        self._settings = settings = settings or BatchJobSettings()
        self._clock = clock if clock is not None else SystemClock()
        self._recorder = recorder
        self._metrics = BatchJobMetrics(settings.registry)
        self._infos: dict[str, BatchJobState] = {}
        self._deleted_jobs = RecentUids()
        """Deleted Jobs that this controller reconciled."""
        self._create_informers()
        writers = writers or JobWriters()
        self._control = writers.pods or pod_control(client, Pod, recorder=recorder)
        self._create_queues()
        self._sync_deps = SyncDeps(
            clock=self._clock,
            pods=self._pods,
            pod_writes=PodWrites(
                self._control,
                self._pods,
                clock=self._clock,
                max_in_flight=settings.max_writes_in_flight,
                unconfirmed_timeout=settings.unconfirmed_timeout,
                names=writers.names,
            ),
            status_writer=writers.status or ApiStatusWriter(client, BATCH_JOBS, Job),
            metrics=self._metrics,
            recorder=recorder,
        )
        self._orphans = OrphanPods(
            client,
            self._control,
            jobs=self._jobs,
            pods=self._pods,
            is_ours=self._is_ours,
            adopters=self._candidates,
            deleted_jobs=self._deleted_jobs,
            manages_default=settings.manages_default,
        )
        self._expired = ExpiredJobs(
            client,
            jobs=self._jobs,
            clock=self._clock,
            metrics=self._metrics,
            waits_for_history=self._settings.ttl_waits_for_history,
        )

    def _create_informers(self) -> None:
        client, namespace = self._client, self._settings.namespace
        self._jobs = Informer(
            client,
            BATCH_JOBS,
            Job,
            namespace=namespace,
            indexes={"uid": _job_uid, "manual": _manual_selector},
        )
        self._pods = Informer(
            client,
            PODS,
            Pod,
            namespace=namespace,
            indexes={"job": _job_identity, "orphans": orphan_keys},
            transform=self._reduce,
        )

    def _create_queues(self) -> None:
        def queue(name: str, shards: int, limiter: RateLimiter, field: str) -> ShardedQueue:
            return ShardedQueue(
                name=name,
                shards=shards,
                limiter=limiter,
                clock=self._clock,
                metrics=self._settings.work_metrics,
                log_fields=lambda key: {field: key},
            )

        def backoff() -> RateLimiter:
            return ExponentialFailureRateLimiter(_MIN_BACKOFF, _MAX_BACKOFF)

        workers, clock = self._settings.workers, self._clock
        # The queue of Volcano's jobs is called job.
        self._queue = queue("batch_job", workers, backoff(), "job")
        self._orphan_queue = queue("job_orphan_pod", 1, backoff(), "pod")
        self._ttl_queue = queue(
            "ttl_jobs_to_delete", workers, default_controller_rate_limiter(clock), "job"
        )

    async def run(
        self, *, ready: asyncio.Event | None = None, elected: asyncio.Event | None = None
    ) -> None:
        """Sync the informers, set *ready*, and reconcile after *elected* until cancelled.

        When cancelled, it finishes the keys that are processed or queued, then writes nothing.
        """
        sources: list[Source] = [
            KindSource(self._jobs, self._on_job),
            _PodSource(self._pods, self._on_pod, jobs=self._jobs),
        ]
        await run_controller(sources, self._run_workers, ready=ready, elected=elected)

    async def _run_workers(self) -> None:
        settings = WorkerSettings(timeout=self._settings.reconcile_timeout)
        async with asyncio.TaskGroup() as group:
            for queue, reconcile in (
                (self._queue, self._reconcile),
                (self._orphan_queue, self._orphans.reconcile),
                (self._ttl_queue, self._expired.reconcile),
            ):
                group.create_task(run_workers(queue, reconcile, settings=settings))

    # Event handlers.

    def _on_job(self, old: Job | None, new: Job | None) -> None:
        job = new or old
        if job is None:
            return
        if not self._is_ours(job):
            if old is None and job.spec.managed_by:
                self._metrics.external_job_added(job.spec.managed_by)
            if new is not None and is_finished(new.status.conditions):
                self._enqueue_expired(new)
            return
        if new is None:
            self._deleted_jobs.add(job.metadata.uid)
            self._release_pods(job)
            self._queue.add(job.metadata.key)
            return
        if is_finished(new.status.conditions):
            self._on_finished(new)
        else:
            self._enqueue_changed(old, new)

    def _on_finished(self, job: Job) -> None:
        """Drop what is kept of a finished Job; no sync follows."""
        info = self._infos.get(job.metadata.key)
        if info is not None and info.uid == job.metadata.uid:
            del self._infos[job.metadata.key]
        self._release_pods(job)
        self._enqueue_expired(job)

    def _enqueue_changed(self, old: Job | None, new: Job) -> None:
        key = new.metadata.key
        info = self._infos.get(key)
        if new.is_being_deleted:
            self._release_orphans(new)
        if old is None or old.metadata.generation != new.metadata.generation:
            self._queue.add(key)
        elif info is None or not info.is_own_write(new):
            self._queue.add_after(key, self._settings.batch_delay)

    def _release_pods(self, job: Job) -> None:
        """Enqueue the pods that a finished or deleted Job does not count any more."""
        for pod in self._pods.by_index("job", job.metadata.identity):
            self._enqueue_orphan(pod)
        self._release_orphans(job)

    def _release_orphans(self, job: Job) -> None:
        """Enqueue the pods that the Job would have adopted."""
        for pod in self._pods.by_index("orphans", orphan_scope(job)):
            self._enqueue_orphan(pod)

    def _enqueue_orphan(self, pod: Pod) -> None:
        if TRACKING_FINALIZER in pod.metadata.finalizers:
            self._orphan_queue.add(pod.metadata.key)

    def _enqueue_expired(self, job: Job) -> None:
        """Enqueue a finished Job, of any controller, to be deleted after its time to live."""
        if not self._settings.delete_finished or job.is_being_deleted:
            return
        if job.spec.ttl_seconds_after_finished is not None:
            self._ttl_queue.add(job.metadata.key)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        self._metrics.pod_changed(old, new)
        before = owning_job(old.metadata) if old is not None else None
        owner = owning_job(new.metadata) if new is not None else None
        if old is not None and before is not None and before != owner:
            self._on_pod_lost(old, *before)
        if new is None:
            return
        if owner is not None:
            self._on_owned_pod(new, *owner)
        elif new.metadata.controller is None:
            self._on_orphan(old, new)

    def _reduce(self, pod: Pod) -> Pod:
        """Return what to keep of *pod*: of one that another controller's Job owns, its identity."""
        owner = owning_job(pod.metadata)
        job = None if owner is None else self._jobs.get(f"{pod.metadata.namespace}/{owner[0]}")
        if owner is None or job is None or job.metadata.uid != owner[1] or self._is_ours(job):
            return pod
        return pod.reduced()

    def _on_pod_lost(self, pod: Pod, name: str, uid: str) -> None:
        """Remove a deleted or released pod from the tracker of its Job."""
        key = f"{pod.metadata.namespace}/{name}"
        info = self._infos.get(key)
        if info is not None and info.uid == uid:
            info.pods.remove(pod.metadata.uid)
        self._enqueue_job(key, uid)

    def _on_owned_pod(self, pod: Pod, name: str, uid: str) -> None:
        key = f"{pod.metadata.namespace}/{name}"
        info = self._infos.get(key)
        if info is not None and info.uid == uid:
            info.unconfirmed.pop(pod.metadata.name, None)
            info.pods.observe(parse_pod(pod, info.traits))
        job = self._enqueue_job(key, uid)
        terminating = pod.metadata.deletion_timestamp is not None
        if (job is None and terminating) or (job and is_finished(job.status.conditions)):
            self._enqueue_orphan(pod)

    def _enqueue_job(self, key: str, uid: str) -> Job | None:
        """Enqueue the Job whose pods have changed, unless it has finished; return it."""
        job = self._jobs.get(key)
        if job is None or job.metadata.uid != uid:
            return None
        if self._is_ours(job) and not is_finished(job.status.conditions):
            self._queue.add_after(key, self._settings.batch_delay)
        return job

    def _on_orphan(self, old: Pod | None, new: Pod) -> None:
        """Enqueue the Jobs that may adopt a pod without controller."""
        self._enqueue_orphan(new)
        if old is not None and (old.metadata.labels, old.metadata.controller) == (
            new.metadata.labels,
            None,
        ):
            return
        for job in self._candidates(new):
            self._queue.add_after(job.metadata.key, self._settings.batch_delay)

    def _candidates(self, pod: Pod) -> list[Job]:
        """Return the Jobs of this controller that adopt *pod*, which has no controller."""
        found = list(self._jobs.by_index("manual", pod.metadata.namespace))
        for label in CONTROLLER_UID_LABELS:
            if uid := pod.metadata.labels.get(label):
                found += self._jobs.by_index("uid", uid)
        if pod.metadata.deletion_timestamp is not None:
            return []
        return [
            job
            for job in {each.metadata.uid: each for each in found}.values()
            if self._is_ours(job)
            and job.metadata.namespace == pod.metadata.namespace
            and not job.is_being_deleted
            and not is_finished(job.status.conditions)
            and JobTraits.of(job).selector.matches(pod.metadata.labels)
        ]

    # Reconcile.

    def _is_ours(self, job: Job) -> bool:
        return (job.spec.managed_by or "") in self._settings.managed_by

    async def _reconcile(self, key: str) -> float | None:
        """Sync the Job; return the seconds until the next sync."""
        observed = self._jobs.get(key)
        if observed is None or not self._is_ours(observed):
            self._infos.pop(key, None)
            return None
        info = self._infos.get(key)
        if info is not None and info.uid != observed.metadata.uid:
            del self._infos[key]
            info = None
        job = observed if info is None else info.latest(observed)
        if is_finished(job.status.conditions):
            return None
        if job.spec.completion_mode not in _COMPLETION_MODES:
            self._record_unknown_mode(job)
            return None
        if info is None:
            await check_uncounted(self._client, job, self._pods)
            if self._jobs.get(key) is not observed:
                return 0.0
            pods = self._pods.by_index("job", job.metadata.identity)
            info = self._infos[key] = BatchJobState(job, pods)
        return await self._sync(job, info)

    async def _sync(self, job: Job, info: BatchJobState) -> float | None:
        sync = Sync(self._sync_deps, job, info)
        started, failed = self._clock.monotonic(), True
        try:
            if await self._claim(job, info):
                failed = False
                return _ADOPTION_RECHECK
            requeue_after = await sync.run()
            failed = False
            return requeue_after
        finally:
            seconds = self._clock.monotonic() - started
            self._metrics.synced(job, sync.action, seconds=seconds, failed=failed)

    async def _claim(self, job: Job, info: BatchJobState) -> bool:
        """Adopt and release pods; return whether there were any, which the informer will report."""
        namespace = job.metadata.namespace
        mismatched = [
            pod
            for one in info.pods.mismatched
            if (pod := self._pods.get(f"{namespace}/{one.name}")) is not None
        ]
        orphans = self._pods.by_index("orphans", orphan_scope(job))
        if not orphans and not mismatched:
            return False
        # A pod that this Job created is counted already if it ended and has no finalizer any more.
        counted, others = list[Pod](), list[Pod]()
        for pod in orphans:
            (counted if job.selects_own_uid and _is_released(pod) else others).append(pod)
        adopted = await self._claim_pods(job, info, [*others, *mismatched], TRACKING_FINALIZER)
        adopted += await self._claim_pods(job, info, counted, "")
        return bool(adopted or (mismatched and not job.is_being_deleted))

    async def _claim_pods(
        self, job: Job, info: BatchJobState, pods: Sequence[Pod], finalizer: str
    ) -> int:
        """Claim *pods*; return the number of adopted ones, which get *finalizer*."""
        if not pods:
            return 0
        namespace = job.metadata.namespace

        async def read_owner() -> Job:
            return await self._client.get(
                BATCH_JOBS, job.metadata.name, namespace=namespace, view=Job
            )

        claimer = Claimer(
            control=self._control,
            owner=Owner(resource=BATCH_JOBS, metadata=job.metadata),
            selector=info.traits.selector,
            read_owner=read_owner,
            finalizer=finalizer,
        )
        claim = await claimer.claim(pods)
        claim.raise_for_errors()
        return len(claim.adopted)

    def _record_unknown_mode(self, job: Job) -> None:
        log.warning("unknown completion mode", extra={"job": job.metadata.key})
        if self._recorder is not None:
            self._recorder.record(
                object_reference(BATCH_JOBS, job.metadata),
                type="Warning",
                reason="UnknownCompletionMode",
                message="Skipped Job sync because completion mode is unknown",
            )

    def statistics(self) -> dict[str, int]:
        """Return the number of Jobs with a pod tracker, and of queued keys."""
        return {"jobs": len(self._infos), "queued": self._queue.depth()}


class _PodSource(KindSource[Pod]):
    """The pods, listed after the Jobs: by then it is known which of them are not needed."""

    def __init__(
        self, pods: Informer[Pod], handler: EventHandler[Pod], *, jobs: Informer[Job]
    ) -> None:
        super().__init__(pods, handler)
        self._jobs = jobs

    async def run(self) -> None:
        """Run the informer once the Jobs are synced, until cancelled."""
        await self._jobs.wait_synced()
        await super().run()


def _is_released(pod: Pod) -> bool:
    """Whether *pod* has ended without the tracking finalizer."""
    return pod.status.phase in FINISHED and TRACKING_FINALIZER not in pod.metadata.finalizers


def _job_uid(job: Job) -> tuple[str, ...]:
    return (job.metadata.uid,)


def _manual_selector(job: Job) -> tuple[str, ...]:
    """Return the namespace of a Job whose selector may match pods of any labels."""
    return () if job.selects_own_uid else (job.metadata.namespace,)


def _job_identity(pod: Pod) -> tuple[str, ...]:
    owner = pod.metadata.controller
    if owner is None or owning_job(pod.metadata) is None:
        return ()
    return (pod.metadata.owner_identity(owner),)
