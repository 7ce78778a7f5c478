"""CronJob controller: event handlers of the CronJobs of one kind and their Jobs; what is known.

:mod:`.decide` computes the effects, :mod:`.executor` executes them.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import tzinfo

from ..kube.client.client import Client
from ..kube.informer.informer import Informer, KindSource
from ..kube.supervision import cancel_and_wait, supervise
from ..kube.timing import Timing
from ..machinery.clock import Clock
from ..machinery.cron import local_time_zone
from ..machinery.event_recorder import Recorder
from ..machinery.reconcile.cache import WriteThroughCache
from ..machinery.reconcile.controller import Controller, ControllerSettings, Sync
from ..machinery.reconcile.events import Events, Notices
from ..machinery.reconcile.state import KeyStates
from ..model.cronjob import CronJob
from .decide import CronJobView, Effect, decide
from .executor import CronJobExecutor, CronJobState
from .job_source import JobSource
from .kind import CronJobKind, J
from .wall_clock import watch_wall_clock

_BY_CRONJOB = "cronjob"
"""Index of Jobs by the identity of the CronJob that controls them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CronJobSettings(ControllerSettings):
    """Options of a CronJob controller."""

    time_zone: tzinfo | None = None
    """Time zone of CronJobs without ``timeZone``; None for that of this process."""


class CronJobController(Controller[CronJobView[J], Effect[J]]):
    """Controller of the CronJobs of one kind; see :meth:`run`."""

    def __init__(
        self,
        client: Client,
        kind: CronJobKind[J],
        *,
        settings: CronJobSettings | None = None,
        clock: Clock | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        settings = settings or CronJobSettings()
        super().__init__(kind.queue_name, settings, clock=clock)
        self._kind = kind
        self._local_zone = settings.time_zone or local_time_zone()
        cronjobs = Informer(client, kind.cronjobs, CronJob)
        jobs = Informer(client, kind.jobs, kind.job_type, indexes={_BY_CRONJOB: self._identities})
        self.cronjobs = WriteThroughCache(
            client, kind.cronjobs, CronJob, cronjobs, clock=self.clock
        )
        """All CronJobs of the kind."""
        self._jobs = WriteThroughCache(client, kind.jobs, kind.job_type, jobs, clock=self.clock)
        self._job_source = JobSource(client, jobs, self._on_job)
        cronjobs.add_event_handler(self._job_source.want)
        self.sources = [KindSource(cronjobs, self._on_cronjob), self._job_source]
        self._states = KeyStates(CronJobState)
        events = Events(recorder, kind.cronjobs)
        notices = Notices(events)
        self._executor = CronJobExecutor(
            kind=kind,
            cronjobs=self.cronjobs,
            jobs=self._jobs,
            states=self._states,
            events=events,
            notices=notices,
        )
        self.keep(self.cronjobs, self._states, notices)

    async def work(self) -> None:
        """Run the workers until cancelled, and reconcile all CronJobs when the time is changed."""
        clock = self.clock
        timing = Timing(monotonic=clock.monotonic, sleep=clock.sleep, now=clock.now)

        async def watch() -> None:
            await watch_wall_clock(clock, self._add_all)

        name = f"{self._kind.queue_name} clock check"
        watching = asyncio.create_task(supervise(name, watch, timing=timing))
        try:
            await super().work()
        finally:
            await cancel_and_wait(watching)

    # Event handlers.

    def _add_all(self) -> None:
        for cronjob in self.cronjobs.informer:
            self.queue.add(cronjob.metadata.key)

    def _on_cronjob(self, old: CronJob | None, new: CronJob | None) -> None:
        if old is not None and new is not None and _schedule(old) != _schedule(new):
            self._states.of(new.metadata).changed_at = self.clock.now()
        either = new or old
        if either is not None and (new is None or not self.cronjobs.is_own_write(new)):
            self.queue.add(either.metadata.key)

    def _on_job(self, old: J | None, new: J | None) -> None:
        relevant = self._relevant_fields
        if old is not None and new is not None and relevant(old) == relevant(new):
            return
        for job in (old, new):
            owner = self._kind.owner(job) if job is not None else None
            if job is not None and owner is not None:
                self.queue.add(f"{job.metadata.namespace}/{owner.name}")

    def _relevant_fields(self, job: J) -> tuple[object, ...]:
        """Return the fields that the controller depends on."""
        meta, completed = job.metadata, (job.outcome, job.succeeded_at)
        owner = self._kind.owner(job)
        return meta.uid, owner, meta.annotations, meta.deletion_timestamp, completed

    def _identities(self, job: J) -> tuple[str, ...]:
        owner = self._kind.owner(job)
        return () if owner is None else (job.metadata.owner_identity(owner),)

    # Reconcile.

    async def observe(self, sync: Sync) -> CronJobView[J] | None:
        """Return the CronJob with its Jobs, including those that the informer does not have yet."""
        await self._job_source.wait_synced()
        cronjob = self.cronjobs.get(sync.key)
        if cronjob is None:
            return None
        jobs = await self._existing_jobs(cronjob)
        return CronJobView(
            cronjob=cronjob,
            jobs=jobs,
            now=self.clock.now(),
            local_zone=self._local_zone,
            changed_at=self._states.of(cronjob.metadata).changed_at,
        )

    async def _existing_jobs(self, cronjob: CronJob) -> list[J]:
        """Return the Jobs; those that the informer lacks are read from the server.

        Their own write is not enough: one that has ended since is neither replaced nor active.
        """
        found = self._jobs.by_index(_BY_CRONJOB, cronjob.metadata.identity)
        jobs = [job for job in found if not self._jobs.is_behind(job.metadata.key)]
        uids, names = {job.metadata.uid for job in jobs}, {job.metadata.name for job in jobs}
        active = {each.name for each in cronjob.status.active or () if each.uid not in uids}
        unconfirmed = self._states.of(cronjob.metadata).unconfirmed
        unconfirmed -= names
        for name in sorted(active | unconfirmed):
            job = await self._jobs.read(f"{cronjob.metadata.namespace}/{name}")
            if job is None or not self._kind.is_controlled_by(job, cronjob):
                unconfirmed.discard(name)
            elif job.metadata.uid not in uids:
                jobs.append(job)
        return jobs

    def decide(self, view: CronJobView[J]) -> Iterable[Effect[J]]:
        """Return what the CronJob needs; see :func:`.decide.decide`."""
        return decide(self._kind, view)

    async def execute(self, sync: Sync, view: CronJobView[J], effect: Effect[J]) -> None:
        """Execute one effect; see :class:`.executor.CronJobExecutor`."""
        await self._executor.execute(sync, view, effect)


def _schedule(cronjob: CronJob) -> tuple[str, str | None]:
    return cronjob.spec.schedule, cronjob.spec.time_zone
