"""CronJob controllers: event handlers of CronJobs of one kind and of their Jobs; the wall clock.

:mod:`.decide` computes the effects, :mod:`.executor` executes them.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import tzinfo
from typing import Generic

from ...kube.client.client import Client
from ...kube.informer.informer import Informer, KindSource
from ...kube.supervision import supervise
from ...kube.timing import Timing
from ..clock import Clock
from ..cron import local_time_zone
from ..event_recorder import Recorder
from ..reconcile.cache import WriteThroughCache
from ..reconcile.controller import Controller, ControllerSettings, Sync
from ..reconcile.events import Events, Notices
from ..reconcile.state import KeyStates
from .decide import CronJobView, Effect, decide
from .executor import CronJobExecutor, CronJobState
from .kind import CronJobKind, J
from .objects import CronJob

log = logging.getLogger(__name__)

_BY_CRONJOB = "cronjob"
"""Index of Jobs by the identity of the CronJob that controls them."""

_CLOCK_CHECK_INTERVAL = 5.0
"""Seconds between two checks of whether the wall clock was changed."""

_MAX_CLOCK_DRIFT = 1.0
"""Seconds by which the wall clock may differ from the elapsed time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CronJobSettings(ControllerSettings):
    """Options of a CronJob controller."""

    time_zone: tzinfo | None = None
    """Time zone of CronJobs without ``timeZone``; None for that of this process."""


class _JobSource(KindSource[J]):
    """The Jobs, watched from the first CronJob on: most clusters have none, and many Jobs."""

    def __init__(
        self, client: Client, informer: Informer[J], handler: Callable[[J | None, J | None], None]
    ) -> None:
        super().__init__(informer, handler)
        self._wanted = asyncio.Event()
        # Until it runs, readiness does not depend on it.
        client.metrics.unregister_informer(informer)

    def want(self, old: CronJob | None, new: CronJob | None) -> None:
        """Watch the Jobs, since there is a CronJob."""
        self._wanted.set()

    async def run(self) -> None:
        """Run the informer, once it is wanted, until cancelled."""
        await self._wanted.wait()
        await super().run()

    async def wait_synced(self) -> None:
        """Wait until the Jobs are in the store, if they are wanted."""
        if self._wanted.is_set():
            await super().wait_synced()


class CronJobController(Controller[CronJobView[J], Effect[J]], Generic[J]):
    """Controller of the CronJobs of *kind*; see :meth:`run`."""

    def __init__(
        self,
        client: Client,
        *,
        kind: CronJobKind[J],
        name: str,
        settings: CronJobSettings | None = None,
        clock: Clock | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        settings = settings or CronJobSettings()
        super().__init__(name, settings, clock=clock)
        self._kind = kind
        self._local_zone = settings.time_zone or local_time_zone()
        cronjobs = Informer(client, kind.cronjobs, CronJob)
        jobs = Informer(
            client, kind.jobs, kind.job_type, indexes={_BY_CRONJOB: self._cronjob_identity}
        )
        self._job_source = _JobSource(client, jobs, self._on_job)
        cronjobs.add_event_handler(self._job_source.want)
        self.sources = [KindSource(cronjobs, self._on_cronjob), self._job_source]
        self._cronjobs = WriteThroughCache(
            client, kind.cronjobs, CronJob, cronjobs, clock=self.clock
        )
        self._jobs = WriteThroughCache(client, kind.jobs, kind.job_type, jobs, clock=self.clock)
        self._states = KeyStates(CronJobState)
        events = Events(recorder, kind.cronjobs)
        notices = Notices(events)
        self._executor = CronJobExecutor(
            kind=kind,
            cronjobs=self._cronjobs,
            jobs=self._jobs,
            states=self._states,
            events=events,
            notices=notices,
        )
        self.keep(self._cronjobs, self._states, notices)

    async def work(self) -> None:
        """Run the workers and the check of the wall clock until cancelled."""
        clock = self.clock
        timing = Timing(monotonic=clock.monotonic, sleep=clock.sleep, now=clock.now)
        clock_check = asyncio.create_task(
            supervise(f"{self.queue.name} clock check", self._check_clock, timing=timing)
        )
        try:
            await super().work()
        finally:
            clock_check.cancel()
            await asyncio.gather(clock_check, return_exceptions=True)

    async def _check_clock(self) -> None:
        """Reconcile all CronJobs when the wall clock was changed or the machine was suspended.

        The delays of the work queue are elapsed time.
        """
        offset = self._clock_offset()
        while True:
            await self.clock.sleep(_CLOCK_CHECK_INTERVAL)
            change = self._clock_offset() - offset
            if abs(change) > _MAX_CLOCK_DRIFT:
                offset += change
                log.warning("wall clock changed", extra={"seconds": round(change, 3)})
                for cronjob in self._cronjobs.informer:
                    self.queue.add(cronjob.metadata.key)

    def _clock_offset(self) -> float:
        return self.clock.now().timestamp() - self.clock.monotonic()

    # Event handlers.

    def _on_cronjob(self, old: CronJob | None, new: CronJob | None) -> None:
        cronjob = new or old
        if cronjob is None:
            return
        if old is not None and new is not None and _schedule(old) != _schedule(new):
            self._states.of(new.metadata).changed_at = self.clock.now()
        if new is None or not self._cronjobs.is_own_write(new):
            self.queue.add(cronjob.metadata.key)

    def _cronjob_identity(self, job: J) -> tuple[str, ...]:
        owner = self._kind.owner(job)
        return () if owner is None else (job.metadata.owner_identity(owner),)

    def _relevant_fields(self, job: J) -> tuple[object, ...]:
        """Return the fields that the controller depends on."""
        meta = job.metadata
        completed = job.outcome, job.succeeded_at
        return (
            meta.uid,
            self._kind.owner(job),
            meta.annotations,
            meta.deletion_timestamp,
            completed,
        )

    def _on_job(self, old: J | None, new: J | None) -> None:
        relevant_fields = self._relevant_fields
        if old is not None and new is not None and relevant_fields(old) == relevant_fields(new):
            return
        for job in (old, new):
            owner = self._kind.owner(job) if job is not None else None
            if job is not None and owner is not None:
                self.queue.add(f"{job.metadata.namespace}/{owner.name}")

    # Reconcile.

    async def observe(self, sync: Sync) -> CronJobView[J] | None:
        """Return the CronJob and its Jobs, including those that the informer does not have yet."""
        await self._job_source.wait_synced()
        cronjob = self._cronjobs.get(sync.key)
        if cronjob is None:
            return None
        meta, state = cronjob.metadata, self._states.of(cronjob.metadata)
        jobs = {job.metadata.uid: job for job in self._jobs.by_index(_BY_CRONJOB, meta.identity)}
        state.started -= {job.metadata.name for job in jobs.values()}
        active = {each.name for each in cronjob.status.active or () if each.uid not in jobs}
        for name in sorted(active | state.started):
            job = await self._jobs.read(f"{meta.namespace}/{name}")
            if job is not None and self._kind.is_controlled_by(job, cronjob):
                jobs[job.metadata.uid] = job
            else:
                state.started.discard(name)
        return CronJobView(
            cronjob=cronjob,
            jobs=tuple(jobs.values()),
            now=self.clock.now(),
            local_zone=self._local_zone,
            changed_at=state.changed_at,
        )

    def decide(self, view: CronJobView[J]) -> list[Effect[J]]:
        """Return what the CronJob needs; see :func:`.decide.decide`."""
        return decide(self._kind, view)

    async def execute(self, sync: Sync, view: CronJobView[J], effect: Effect[J]) -> None:
        """Execute one effect; see :class:`.executor.CronJobExecutor`."""
        await self._executor.execute(sync, view, effect)


def _schedule(cronjob: CronJob) -> tuple[str, str | None]:
    return cronjob.spec.schedule, cronjob.spec.time_zone
