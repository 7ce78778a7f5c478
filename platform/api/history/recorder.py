"""The recorder of the history: writes jobs, their phases and their usage to the store.

One replica records, the holder of a Lease. Correctness does not depend on it: transactions of an
earlier leader fail once a later one has begun (:mod:`...store.recording`). A lost Lease therefore
does not end the process, which continues to serve requests and runs for election again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import msgspec

from ...kube.client.client import Client
from ...kube.errors import ApiError, ConflictError, ConnectionLostError, NotFoundError
from ...kube.supervision import supervise
from ...kube.timing import Timing
from ...machinery.clock import Clock
from ...machinery.leader_election import LeaderElector, LeadershipLostError
from ...model.names import PODS
from ...model.notifications import subscription_of
from ...model.recorded import RECORDED
from ...store.database import Database, StoreUnavailableError
from ...store.recording import FencedError, Mark, Recording
from ...store.records import JobRecord, PodRecord, to_micros
from ...wire.jobs import JobKindName
from ..jobs.kinds import KINDS, JobKind
from ..jobs.views import CachedObject
from .metrics import RecorderMetrics
from .notifications import NotificationSender
from .objects import RecordedPod, job_record, pod_record
from .stream import RecordedResource, RecordedStream

log = logging.getLogger(__name__)

MARKS_INTERVAL = 1.0
"""Seconds between two looks for annotations that are due."""
CONCURRENT_MARKS = 8
MARKS_LIMIT = 200
UNKNOWN_JOBS_INTERVAL = 60.0
UNKNOWN_JOBS_AFTER = timedelta(minutes=10)
"""How long after the end of its pods a job that was not observed is still expected."""
RETRY_DELAY = 5.0
"""Seconds between the loss of the Lease and the next candidacy."""


QueueAnnotations = Callable[[str], Mapping[str, str]]
"""Returns the annotations of a queue; none if it does not exist."""


def _convert_job(
    kind: JobKind,
    decoder: "msgspec.json.Decoder[CachedObject]",
    queues: QueueAnnotations | None,
    raw: msgspec.Raw,
    deleted: bool,
) -> JobRecord:
    job = decoder.decode(raw)
    record = job_record(kind, job, raw, deleted=deleted)
    if queues is None:
        return record
    notify = subscription_of(job.metadata.annotations, queues(record.queue))
    return record if notify is None else msgspec.structs.replace(record, notify=notify)


def _convert_pod(
    decoder: "msgspec.json.Decoder[RecordedPod]", raw: msgspec.Raw, deleted: bool
) -> PodRecord | None:
    return pod_record(decoder.decode(raw), deleted=deleted)


def recorded_resources(queues: QueueAnnotations | None = None) -> Sequence[RecordedResource]:
    """Return what is recorded: jobs of all kinds, and pods; with *queues*, jobs with what they are
    to notify of."""
    jobs = [
        RecordedResource(
            resource=kind.resource,
            kind=kind.name,
            convert=partial(_convert_job, kind, msgspec.json.Decoder(kind.view), queues),
        )
        for kind in KINDS.values()
    ]
    pods = partial(_convert_pod, msgspec.json.Decoder(RecordedPod))
    return (*jobs, RecordedResource(resource=PODS, kind="", convert=pods))


@dataclass(frozen=True, slots=True, kw_only=True)
class Notifications:
    """What the recorder needs for the notifications of jobs."""

    queues: QueueAnnotations
    wait_queues: Callable[[], Awaitable[None]]
    """Waits until the queues are listed."""
    sender: NotificationSender


class HistoryRecorder:
    """Records the history while this replica leads."""

    def __init__(
        self,
        client: Client,
        database: Database,
        *,
        clock: Clock,
        metrics: RecorderMetrics,
        new_elector: Callable[[], LeaderElector] | None,
        notifications: Notifications | None = None,
    ) -> None:
        """*new_elector* creates the candidate of one term; ``None`` if this is the only replica.

        Without *notifications*, none are written and sent.
        """
        self._client = client
        self._database = database
        self._clock = clock
        self._metrics = metrics
        self._new_elector = new_elector
        self._notifications = notifications
        self._timing = Timing(monotonic=clock.monotonic, sleep=clock.sleep, now=clock.now)

    async def run(self) -> None:
        """Run for election and record, until cancelled."""
        while True:
            try:
                await self._term()
            except* LeadershipLostError:
                log.warning("lost the lease of the history, running for election again")
            except* FencedError:
                log.warning("another recorder of the history has begun")
            await self._clock.sleep(RETRY_DELAY)

    async def _term(self) -> None:
        """Record for one term of leadership."""
        async with asyncio.TaskGroup() as tasks:
            if self._new_elector is not None:
                elector = self._new_elector()
                # Cancelled after the recording has ended: it releases the Lease.
                tasks.create_task(elector.run())
                await elector.elected.wait()
            await self._supervise("history recorder", self.record)

    async def record(self) -> None:
        """Record until cancelled.

        Raises:
            FencedError: another recorder has begun.
        """
        recording = Recording(self._database)
        await self._begin(recording)
        notifications = self._notifications
        if notifications is not None:
            await notifications.wait_queues()
        queues = None if notifications is None else notifications.queues
        try:
            async with asyncio.TaskGroup() as tasks:
                for each in recorded_resources(queues):
                    stream = RecordedStream(
                        self._client, each, recording, clock=self._clock, metrics=self._metrics
                    )
                    tasks.create_task(self._supervise(f"history {each.name}", stream.run))
                marks = partial(self._write_marks, recording)
                tasks.create_task(self._supervise("history marks", marks))
                unknown = partial(self._add_unknown_jobs, recording)
                tasks.create_task(self._supervise("history jobs", unknown))
                if notifications is not None:
                    send = notifications.sender.run
                    tasks.create_task(self._supervise("notifications", send))
        except BaseExceptionGroup as group:
            fenced = group.subgroup(FencedError)
            if fenced is None:
                raise
            raise FencedError("another recorder of the history has begun") from None

    async def _supervise(self, name: str, function: Callable[[], Awaitable[None]]) -> None:
        await supervise(name, function, timing=self._timing, fatal=(FencedError,))

    async def _begin(self, recording: Recording) -> None:
        last_error = ""
        while True:
            try:
                await recording.begin()
                return
            except StoreUnavailableError as error:
                if str(error) != last_error:
                    log.warning("cannot begin recording, will retry", extra={"error": str(error)})
                last_error = str(error)
            await self._clock.sleep(RETRY_DELAY)

    async def _write_marks(self, recording: Recording) -> None:
        """Annotate the finished jobs whose end is stored, until none is left."""
        slots = asyncio.Semaphore(CONCURRENT_MARKS)
        while True:
            try:
                due = await recording.marks(limit=MARKS_LIMIT)
                results = await asyncio.gather(*(self._write_mark(mark, slots) for mark in due))
                done = [mark for mark, is_done in zip(due, results, strict=True) if is_done]
                if done:
                    await recording.remove_marks(done)
            except StoreUnavailableError as error:
                log.debug("cannot read annotations to write", extra={"error": str(error)})
            await self._clock.sleep(MARKS_INTERVAL)

    async def _write_mark(self, mark: Mark, slots: asyncio.Semaphore) -> bool:
        """Write one annotation; return whether nothing remains to be done."""
        body = {"metadata": {"uid": mark.job_uid, "annotations": {RECORDED: mark.value}}}
        resource = KINDS[JobKindName(mark.kind)].resource
        async with slots:
            try:
                await self._client.patch(resource, mark.name, body, namespace=mark.namespace)
            except (NotFoundError, ConflictError):
                return True  # deleted, and maybe created again
            except (ApiError, ConnectionLostError) as error:
                extra = {"job": f"{mark.namespace}/{mark.name}", "error": str(error)}
                log.warning("cannot annotate job as recorded, will retry", extra=extra)
                return False
        self._metrics.marks.inc()
        return True

    async def _add_unknown_jobs(self, recording: Recording) -> None:
        """Record the jobs of which only pods were observed."""
        while True:
            before = to_micros(self._clock.now() - UNKNOWN_JOBS_AFTER)
            try:
                await recording.add_unknown_jobs(before=before, limit=MARKS_LIMIT)
            except StoreUnavailableError as error:
                log.debug("cannot record unknown jobs", extra={"error": str(error)})
            await self._clock.sleep(UNKNOWN_JOBS_INTERVAL)
