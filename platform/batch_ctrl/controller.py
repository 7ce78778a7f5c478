"""Controller of batch/v1 Jobs: event handlers of Jobs and pods; what is known of a Job.

A Job is reconciled if ``spec.managedBy`` is one of the settings' values. Event handlers update the
pod tracker of the Job and enqueue its key: at once for changes of its spec, and for those of its
pods and status after a delay in which they are collected. :mod:`.decide` computes the effects,
:mod:`.executor` executes them.

The pod informer has all pods: a selector by label would miss those of Jobs with a manual selector,
and pods cannot be selected by who manages their Job. So that few Jobs need little memory on a
large cluster, pods of other kinds of controllers and of the Jobs of other controllers are reduced
to their identity (0.6 instead of 1.9 kB a pod), and only Jobs that are reconciled and have not
finished have a pod tracker.
"""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from ..kube.client.client import Client
from ..kube.informer.informer import EventHandler, Informer, KindSource
from ..machinery.clock import Clock
from ..machinery.event_recorder import Recorder
from ..machinery.pod_control import NameGenerator, pod_control
from ..machinery.rate_limiters import job_rate_limiter
from ..machinery.reconcile.cache import WriteThroughCache
from ..machinery.reconcile.controller import Controller, Sync
from ..machinery.reconcile.events import Events
from ..machinery.reconcile.state import KeyStates
from ..machinery.result import Result
from ..model.names import BATCH_JOBS, PODS
from .batch_pod import JobTraits, parse_pod
from .conditions import is_finished
from .core_types import CONTROLLER_UID_LABELS, CompletionMode, Job, Pod, owning_job
from .decide import decide
from .effects import Effect
from .executor import BatchJobExecutor
from .metrics import BatchJobMetrics
from .orphans import OrphanController, OrphanDeps, RecentUids
from .pod_lookups import (
    adoptable_with_finalizer,
    find,
    order_for_deletion,
    orphan_keys,
    orphan_scope,
    owner_keys,
)
from .pod_tracker import BatchPodTracker
from .pod_writes import PodWrites
from .settings import BatchJobSettings
from .state import BatchJobState
from .ttl import ExpiredJobController
from .unreported import check_uncounted
from .view import BatchJobView

log = logging.getLogger(__name__)

_COMPLETION_MODES = frozenset(mode.value for mode in CompletionMode)


class BatchJobController(Controller[BatchJobView, Effect]):
    """Reconciles Jobs; see :meth:`run`."""

    def __init__(
        self,
        client: Client,
        *,
        settings: BatchJobSettings | None = None,
        clock: Clock | None = None,
        recorder: Recorder | None = None,
        names: NameGenerator | None = None,
    ) -> None:
        """*names* generates the names of pods, by default at random."""
        self._settings = settings = settings or BatchJobSettings()
        # The queue of Volcano's jobs is called job.
        super().__init__(
            "batch_job",
            settings,
            clock=clock,
            limiter=job_rate_limiter(),
            log_fields=lambda key: {"job": key},
        )
        self._client = client
        self._events = Events(recorder, BATCH_JOBS)
        self._metrics = metrics = BatchJobMetrics(settings.registry)
        self._states = KeyStates[BatchJobState]()
        self._deleted_jobs = RecentUids()
        """Deleted Jobs that this controller reconciled."""
        self._syncing: dict[str, BatchJobState] = {}
        """Jobs in a sync by key."""
        self._create_informers()
        self.keep(self._states, self._jobs)
        control = pod_control(client, Pod, recorder=recorder)
        self._executor = BatchJobExecutor(
            client=client,
            jobs=self._jobs,
            control=control,
            pod_writes=PodWrites(
                control,
                self.pods,
                clock=self.clock,
                max_in_flight=settings.max_writes_in_flight,
                unconfirmed_timeout=settings.unconfirmed_timeout,
                names=names,
            ),
            events=self._events,
            metrics=metrics,
        )
        deps = OrphanDeps(
            client=client,
            control=control,
            jobs=self._jobs.informer,
            pods=self.pods,
            is_ours=self._is_ours,
            adopters=self._adopters,
            deleted_jobs=self._deleted_jobs,
            manages_default=settings.manages_default,
        )
        self._orphans = OrphanController(deps, replace(settings, workers=1), clock=self.clock)
        self._expired = ExpiredJobController(
            client, self._jobs, settings, clock=self.clock, metrics=metrics
        )

    def _create_informers(self) -> None:
        client, namespace = self._client, self._settings.namespace
        indexes = {"uid": _job_uid, "manual": _manual_selector}
        jobs = Informer(client, BATCH_JOBS, Job, namespace=namespace, indexes=indexes)
        self._jobs = WriteThroughCache(client, BATCH_JOBS, Job, jobs, clock=self.clock)
        self.pods = Informer(
            client,
            PODS,
            Pod,
            namespace=namespace,
            indexes={"job": owner_keys, "orphans": orphan_keys},
            transform=self._reduce,
        )
        """All pods; of those that this controller does not manage, the identity."""
        self.sources = [
            KindSource(jobs, self._on_job),
            _PodSource(self.pods, self._on_pod, jobs=jobs),
        ]

    async def work(self) -> None:
        """Run the workers of all queues until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(super().work())
            group.create_task(self._orphans.work())
            group.create_task(self._expired.work())

    # Event handlers.

    def _on_job(self, old: Job | None, new: Job | None) -> None:
        job = new or old
        if job is None:
            return
        if not self._is_ours(job):
            if old is None and job.spec.managed_by:
                self._metrics.external_job_added(job.spec.managed_by)
            if new is not None and is_finished(new.status.conditions):
                self._expired.add(new)
            return
        if new is None:
            self._deleted_jobs.add(job.metadata.uid)
            self._release_pods(job)
            self.queue.add(job.metadata.key)
            return
        if is_finished(new.status.conditions):
            self._on_finished(new)
        else:
            self._enqueue_changed(old, new)

    def _on_finished(self, job: Job) -> None:
        """Drop what is kept of a finished Job; no sync follows."""
        if self._states.get(job.metadata.key, job.metadata.uid) is not None:
            self._states.forget(job.metadata.key)
        self._release_pods(job)
        self._expired.add(job)

    def _enqueue_changed(self, old: Job | None, new: Job) -> None:
        key = new.metadata.key
        if new.is_being_deleted:
            self._release_orphans(new)
        if old is None or old.metadata.generation != new.metadata.generation:
            self.queue.add(key)
        elif not (self._jobs.is_own_write(new) or self._jobs.is_behind(key)):
            self.queue.add_after(key, self._settings.batch_delay)

    def _release_pods(self, job: Job) -> None:
        """Enqueue the pods that a finished or deleted Job does not count any more."""
        for pod in self.pods.by_index("job", job.metadata.identity):
            self._orphans.add(pod)
        self._release_orphans(job)

    def _release_orphans(self, job: Job) -> None:
        """Enqueue the pods that the Job would have adopted."""
        for pod in self.pods.by_index("orphans", orphan_scope(job)):
            self._orphans.add(pod)

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
        if owner is None:
            return pod
        job = self._jobs.informer.get(f"{pod.metadata.namespace}/{owner[0]}")
        if job is None or job.metadata.uid != owner[1] or self._is_ours(job):
            return pod
        return pod.reduced()

    def _on_pod_lost(self, pod: Pod, name: str, uid: str) -> None:
        """Remove a deleted or released pod from the tracker of its Job."""
        key = f"{pod.metadata.namespace}/{name}"
        state = self._states.get(key, uid)
        if state is not None:
            state.pods.remove(pod.metadata.uid)
        self._enqueue_job(key, uid)

    def _on_owned_pod(self, pod: Pod, name: str, uid: str) -> None:
        key = f"{pod.metadata.namespace}/{name}"
        state = self._states.get(key, uid)
        if state is not None:
            state.unconfirmed.pop(pod.metadata.name, None)
            state.pods.observe(parse_pod(pod, state.traits))
        job = self._enqueue_job(key, uid)
        terminating = pod.metadata.deletion_timestamp is not None
        if (job is None and terminating) or (job and is_finished(job.status.conditions)):
            self._orphans.add(pod)

    def _enqueue_job(self, key: str, uid: str) -> Job | None:
        """Enqueue the Job whose pods have changed, unless it has finished; return it."""
        job = self._jobs.informer.get(key)
        if job is None or job.metadata.uid != uid:
            return None
        if self._is_ours(job) and not is_finished(job.status.conditions):
            self.queue.add_after(key, self._settings.batch_delay)
        return job

    def _on_orphan(self, old: Pod | None, new: Pod) -> None:
        """Enqueue the Jobs that may adopt a pod without controller."""
        self._orphans.add(new)
        if old is not None and (old.metadata.labels, old.metadata.controller) == (
            new.metadata.labels,
            None,
        ):
            return
        for job in self._adopters(new):
            self.queue.add_after(job.metadata.key, self._settings.batch_delay)

    def _adopters(self, pod: Pod) -> list[Job]:
        """Return the Jobs of this controller that adopt *pod*, which has no controller."""
        found = list(self._jobs.informer.by_index("manual", pod.metadata.namespace))
        for label in CONTROLLER_UID_LABELS:
            if uid := pod.metadata.labels.get(label):
                found += self._jobs.informer.by_index("uid", uid)
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

    async def observe(self, sync: Sync) -> BatchJobView | Result | None:
        """Return a Job that has not finished, with its pods."""
        key = sync.key
        await self._jobs.confirm(key)
        job = self._jobs.get(key)
        if job is None or not self._is_ours(job):
            return None
        if is_finished(job.status.conditions):
            return Result.DONE
        if job.spec.completion_mode not in _COMPLETION_MODES:
            log.warning("unknown completion mode", extra={"job": key})
            text = "Skipped Job sync because completion mode is unknown"
            self._events.warning(job.metadata, "UnknownCompletionMode", text)
            return Result.DONE
        state = self._states.get(key, job.metadata.uid)
        if state is None:
            await check_uncounted(self._client, job, self.pods)
            if self._jobs.get(key) is not job:
                return Result.REQUEUE
            state = BatchJobState(job, self.pods.by_index("job", job.metadata.identity))
            self._states.put(job.metadata, state)
        version = int(self.pods.resource_version or 0)
        state.refresh(job, now=self.clock.monotonic(), synced_version=version)
        self._syncing[key] = state
        return self._view(state)

    def _view(self, state: BatchJobState) -> BatchJobView:
        job, namespace = state.job, state.job.metadata.namespace

        def is_orphan(uid: str) -> bool:
            if state.pods.get(uid) is not None:
                return False
            found = adoptable_with_finalizer(self.pods, job, state.traits.selector)
            return any(pod.metadata.uid == uid for pod in found)

        return BatchJobView(
            job=job,
            state=state,
            now=self.clock.now(),
            monotonic=self.clock.monotonic(),
            orphans=tuple(self.pods.by_index("orphans", orphan_scope(job))),
            mismatched=tuple(find(self.pods, namespace, state.pods.mismatched)),
            is_orphan=is_orphan,
            deletion_order=partial(order_for_deletion, self.pods, namespace),
        )

    def decide(self, view: BatchJobView) -> Iterator[Effect]:
        """Return what the Job and its pods need; see :func:`.decide.decide`."""
        return decide(view)

    async def execute(self, sync: Sync, view: BatchJobView, effect: Effect) -> None:
        """Execute one effect; see :class:`.executor.BatchJobExecutor`."""
        await self._executor.execute(sync, view.state, effect)

    async def reconcile(self, key: str) -> Result:
        """Reconcile the Job and measure the sync."""
        started, failed = self.clock.monotonic(), True
        try:
            result = await super().reconcile(key)
            failed = False
            return result
        finally:
            state = self._syncing.pop(key, None)
            if state is not None:
                seconds = self.clock.monotonic() - started
                self._metrics.synced(state.job, state.action, seconds=seconds, failed=failed)

    # For tests and benchmarks.

    def statistics(self) -> dict[str, int]:
        """Return the number of Jobs with a pod tracker, and of queued keys."""
        return {"jobs": len(self._states), "queued": self.queue.depth()}

    def tracked_pods(self) -> Iterator[BatchPodTracker]:
        """Yield the pods of each Job that has not finished, as they are kept between syncs."""
        return (state.pods for _, state in self._states)


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


def _job_uid(job: Job) -> tuple[str, ...]:
    return (job.metadata.uid,)


def _manual_selector(job: Job) -> tuple[str, ...]:
    """Return the namespace of a Job whose selector may match pods of any labels."""
    return () if job.selects_own_uid else (job.metadata.namespace,)
