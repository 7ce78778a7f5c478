"""Find out what became of commands, and record it.

The result of a Command is in the status of its job, or follows from what the watches have shown
(:mod:`.observed_jobs`). The deletion of a Command triggers its resolution by the replica that
created it. A sweep resolves what no deletion has resolved: at start-up, periodically, and once an
unavailable database is back.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

import msgspec

from ...kube.client.client import Client
from ...kube.errors import ApiError, ConnectionLostError, NotFoundError
from ...kube.informer.informer import Informer
from ...kube.informer.reflector import InformerOptions
from ...kube.supervision import supervise
from ...machinery.batches import run_concurrently
from ...machinery.clock import Clock, SystemClock
from ...model.command import Command
from ...model.job import Action, Job
from ...model.names import COMMANDS, JOBS, QUEUE_COMMAND_NAMESPACE, QUEUES, Resource
from ...model.queue import Queue, QueueState
from ...store.commands import (
    CommandRecord,
    CommandStore,
    Outcome,
    Position,
    timestamp,
)
from ...store.database import StoreUnavailableError
from ...wire.commands import QUEUES_KIND, CommandState
from ...wire.jobs import JobKindName
from ..caches import Caches
from ..jobs.kinds import KINDS
from ..jobs.views import CachedBatchJob, CachedJob, CachedObject, CachedTrainingJob
from .observed_jobs import ObservedJobs, add_bounded
from .orders import PatchAction
from .wakeups import Wakeups

log = logging.getLogger(__name__)
T = TypeVar("T")

ISSUE_TIMEOUT = timedelta(minutes=1)
"""Time to create a Command after which its absence means that it was never created."""

NOT_FOUND = "Command not found; whether it was executed is unknown"
SUPERSEDED = (
    "Command deleted; the watch of the job has a gap, so whether it was executed is unknown"
)
DELETED_UNOBSERVED = "the job was deleted; whether the Command was executed before is unknown"

SWEEP_INTERVAL = 30.0
"""Seconds between sweeps."""
SWEEP_RETRY_DELAY = 1.0
"""Seconds until a sweep is retried while the database is unavailable."""
SWEEP_PAGE = 500
"""Open commands that a sweep reads at once."""
SWEEP_CONCURRENCY = 16
"""Commands that a sweep resolves concurrently."""
PEER_DELAY = 5.0
"""Seconds after which a command of another replica is resolved by this one."""
IN_FLIGHT = timedelta(seconds=5)
"""Age of commands that a sweep leaves to the replica that created them."""
RESULT_TIMEOUT = 0.5
"""Seconds to wait for the watch of Jobs to show the result of a deleted Command."""
WATCH_TIMEOUT = 10.0
"""Seconds to wait for a watch that lags behind."""
MARK_INTERVAL = 0.5
"""Seconds for which the creation of a Command is not recorded: most have an outcome by then."""
CLOCK_SKEW = timedelta(seconds=5)
"""Maximum difference between the clocks of two replicas."""

_WANTED_STATES = {
    Action.OPEN_QUEUE: (QueueState.OPEN,),
    Action.CLOSE_QUEUE: (QueueState.CLOSED, QueueState.CLOSING),
}


@dataclass(slots=True, eq=False)
class TrackedCommand:
    """What this replica knows about a command."""

    id: str
    awaited: CommandRecord | None = None
    """Its row, while the deletion of its Command is to be resolved at once: this replica has issued
    it, and it has no outcome. The sweep resolves the others."""
    job_lists: int | None = None
    """Number of lists of Jobs before it was issued; unknown if another replica did."""
    queue_events: int | None = None
    """Number of events of queues before it was issued."""
    uid: str = ""
    """Uid of the Command, whose row need not have it yet; empty if unknown."""
    outcome: Outcome | None = None
    """Its outcome, which need not be written yet."""


class Outcomes:
    """Resolves commands."""

    def __init__(
        self,
        client: Client,
        store: CommandStore,
        caches: Caches,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._client = client
        self._store = store
        self._clock = clock or SystemClock()
        self._caches = caches
        self._jobs = ObservedJobs(caches.jobs)
        caches.queues.add_event_handler(self._on_queue)
        self._commands = Informer(
            client,
            COMMANDS,
            Command,
            options=InformerOptions(ordered=True),
            namespace=caches.scope.namespace,
        )
        self._commands.add_event_handler(self._on_command)
        self._sweep_due = asyncio.Event()
        self._sweep_is_planned = False
        self._deleted: asyncio.Queue[Command] = asyncio.Queue()
        self._listed_at: str | None = None
        """A time, with a margin for clocks, at which the last list of Jobs was complete."""
        self._lists = 0
        """Number of lists of Jobs at that time."""
        self.synced = False
        """Whether the informers are synced, so that outcomes are observed."""
        self._tracked: OrderedDict[str, TrackedCommand] = OrderedDict()
        """The last commands of this replica, and others that it has resolved, by id."""
        self._unmarked: set[TrackedCommand] = set()
        """Commands whose creation is not recorded yet."""
        self._mark_due = asyncio.Event()
        self._unwritten: deque[Outcome] = deque()
        """Outcomes that are not written to the database yet."""
        self._queue_states: dict[str, dict[str, int]] = {}
        """For each queue, by state the number of the last event that showed it."""
        self._queue_events = 0
        self.wakeups = Wakeups()
        """Woken with the id of a command when it has an outcome."""

    # What the creator of commands reports.

    def expect(self, record: CommandRecord) -> None:
        """Note a command that this replica is about to issue, maybe again."""
        tracked = self._track(record.id)
        if tracked.awaited is None:
            tracked.awaited = record
        if tracked.queue_events is None:
            tracked.queue_events = self._queue_events
        if tracked.job_lists is None and self.synced:
            tracked.job_lists = self._jobs.lists

    def note_issued(self, record: CommandRecord, uid: str) -> None:
        """Note that the Command object exists."""
        tracked = self._track(record.id)
        tracked.uid = tracked.uid or uid
        if tracked.outcome is None:
            self._unmarked.add(tracked)
            self._mark_due.set()

    async def finish(
        self, record: CommandRecord, state: CommandState, detail: str, *, uid: str = ""
    ) -> None:
        """Record an outcome."""
        tracked = self._track(record.id)
        outcome = Outcome(
            id=record.id,
            state=state,
            detail=detail,
            at=datetime.now(UTC),
            command_uid=uid or tracked.uid,
        )
        tracked.outcome = tracked.outcome or outcome
        tracked.awaited = None
        self._unmarked.discard(tracked)
        self.wakeups.wake(record.id)
        try:
            await self._store.finish(outcome)
        except StoreUnavailableError:
            self._unwritten.append(outcome)
            self._sweep_due.set()
        log.info("command finished", extra={**log_fields(record), "state": state, "detail": detail})

    def latest(self, record: CommandRecord) -> CommandRecord:
        """Return *record* with what this replica knows and may not have written yet."""
        if not record.is_open:
            return record
        tracked = self._tracked.get(record.id)
        if tracked is None:
            return record
        outcome, uid = tracked.outcome, tracked.uid
        if outcome is not None:
            return msgspec.structs.replace(
                record,
                state=outcome.state,
                detail=outcome.detail,
                finished_at=timestamp(outcome.at),
                command_uid=outcome.command_uid or record.command_uid,
            )
        if uid and record.state == CommandState.ACCEPTED:
            return msgspec.structs.replace(record, state=CommandState.ISSUED, command_uid=uid)
        return record

    async def refresh(self, record: CommandRecord) -> CommandRecord:
        """Return the record, resolved if its Command was deleted unobserved."""
        record = self.latest(record)
        if not record.is_open or self._is_awaited(record.id):
            return record
        await self.resolve(record)
        return self.latest(await self._store.get(record.id) or record)

    def _track(self, id_: str) -> TrackedCommand:
        return add_bounded(self._tracked, id_, TrackedCommand(id_))

    def _is_awaited(self, id_: str) -> bool:
        tracked = self._tracked.get(id_)
        return tracked is not None and tracked.awaited is not None

    # Tasks.

    async def run(self, *, ready: asyncio.Event | None = None) -> None:
        """Watch Commands and record outcomes until cancelled; the server runs the caches."""
        async with asyncio.TaskGroup() as tasks:
            await self._jobs.wait_synced()
            tasks.create_task(self._commands.run())
            await self._caches.scope.wait_synced(self._commands)
            tasks.create_task(supervise("command sweep", self._sweep))
            tasks.create_task(supervise("command marks", self._mark_issued))
            self._note_lists()
            self.synced = True
            if ready is not None:
                ready.set()
            await supervise("command outcomes", self._resolve_deleted)

    def _on_command(self, old: Command | None, new: Command | None) -> None:
        if old is None or new is not None:
            return
        if old.operation:
            tracked = self._track(old.operation)
            tracked.uid = tracked.uid or old.metadata.uid
            if tracked.awaited is None:
                if tracked.outcome is None:
                    self._plan_sweep()  # a command of another replica, which may have crashed
                return
        self._deleted.put_nowait(old)

    def _on_queue(self, old: Queue | None, new: Queue | None) -> None:
        if new is None:
            return
        self._queue_events += 1
        state = new.status.state or QueueState.OPEN
        self._queue_states.setdefault(new.metadata.uid, {})[state] = self._queue_events

    def _plan_sweep(self) -> None:
        if not self._sweep_is_planned:
            self._sweep_is_planned = True
            self._clock.call_later(PEER_DELAY, self._sweep_due.set)

    async def _resolve_deleted(self) -> None:
        """Resolve deleted Commands, each in its own task, since some have to wait."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(self._resolve_by_command(await self._deleted.get()))

    async def _resolve_by_command(self, command: Command) -> None:
        meta = command.metadata
        try:
            tracked = self._tracked.get(command.operation)
            record = tracked.awaited if tracked is not None else None
            if record is None:
                record = await self._store.get_open_by_command(meta.namespace, meta.name)
            if record is not None:
                await self._try_resolve(record, meta.uid)
        except StoreUnavailableError:
            self.leave_to_sweep(command.operation)
        except Exception:
            # An error must not cancel the tasks of other Commands.
            log.exception("cannot resolve command", extra={"command": meta.key})
            self.leave_to_sweep(command.operation)

    def leave_to_sweep(self, id_: str) -> None:
        """Let the sweep find out what became of a command, or the next request that reads it."""
        if tracked := self._tracked.get(id_):
            tracked.awaited = None
        self._sweep_due.set()

    async def _mark_issued(self) -> None:
        """Record the creation of Commands that have no outcome soon."""
        try:
            while True:
                await self._mark_due.wait()
                await self._clock.sleep(MARK_INTERVAL)
                self._mark_due.clear()
                await self._write_marks()
        finally:
            await self._write_marks()

    async def _write_marks(self) -> None:
        unmarked, self._unmarked = self._unmarked, set()
        marks = (self._store.mark_issued(each.id, command_uid=each.uid) for each in unmarked)
        try:
            await asyncio.gather(*marks)
        except StoreUnavailableError as error:
            log.warning("cannot mark commands as issued", extra={"error": str(error)})
            self._unmarked |= unmarked
            self._mark_due.set()
            self._sweep_due.set()

    async def _sweep(self) -> None:
        """Resolve commands that no deletion event resolved.

        Their Commands were deleted while no replica was watching, or while the API server or the
        database was unavailable.
        """
        await self._store.wait_migrated()
        last_error = ""
        while True:
            self._sweep_due.clear()
            self._sweep_is_planned = False
            try:
                await self._resolve_all()
            except StoreUnavailableError as error:
                if str(error) != last_error:
                    log.warning("cannot resolve open commands", extra={"error": str(error)})
                last_error = str(error)
                await self._clock.sleep(SWEEP_RETRY_DELAY)
                self._sweep_due.set()
            else:
                last_error = ""
            timer = self._clock.call_later(SWEEP_INTERVAL, self._sweep_due.set)
            await self._sweep_due.wait()
            timer.cancel()

    async def _resolve_all(self) -> None:
        while self._unwritten:
            await self._store.finish(self._unwritten[0])
            self._unwritten.popleft()
        after: Position | None = None
        while True:
            page = await self._store.list_open(limit=SWEEP_PAGE, after=after)
            slots = asyncio.Semaphore(SWEEP_CONCURRENCY)
            found = await run_concurrently(page, partial(self._resolve_record, slots))
            if isinstance(found.first_error, StoreUnavailableError):
                raise found.first_error
            if len(page) < SWEEP_PAGE:
                return
            after = Position(page[-1].received_at, page[-1].id)

    async def _resolve_record(self, slots: asyncio.Semaphore, record: CommandRecord) -> None:
        async with slots:
            await self._resolve_listed(record)

    async def _resolve_listed(self, record: CommandRecord) -> None:
        try:
            command = self._commands.get(f"{command_namespace(record)}/{record.command}")
            if command is not None:
                if record.state == CommandState.ACCEPTED:
                    await self._store.mark_issued(record.id, command_uid=command.metadata.uid)
            elif not (self._is_awaited(record.id) and self._is_in_flight(record)):
                await self.resolve(record)
        except StoreUnavailableError:
            raise
        except Exception:
            log.exception("cannot resolve command", extra=log_fields(record))

    def _is_in_flight(self, record: CommandRecord) -> bool:
        return record.received_at >= timestamp(datetime.now(UTC) - IN_FLIGHT)

    # Resolution.

    async def resolve(self, record: CommandRecord) -> None:
        """Record the outcome of *record* if its Command is deleted, or is overdue."""
        is_overdue = record.received_at < timestamp(datetime.now(UTC) - ISSUE_TIMEOUT)
        if not record.command:
            await self._try_resolve(record, "", is_overdue=is_overdue)
            return
        tracked = self._tracked.get(record.id)
        uid = record.command_uid or (tracked.uid if tracked is not None else "")
        if self._jobs.result(record.id) is None:
            try:
                namespace = command_namespace(record)
                await self._client.get(COMMANDS, record.command, namespace=namespace, view=Command)
            except NotFoundError:
                pass
            except (ApiError, ConnectionLostError):
                log.warning("cannot get Command", extra=log_fields(record))
                return
            else:
                return
        await self._try_resolve(record, uid, is_overdue=is_overdue)

    async def _try_resolve(
        self, record: CommandRecord, uid: str, *, is_overdue: bool = False
    ) -> None:
        try:
            if not record.command:
                await self._resolve_patch(record, is_overdue=is_overdue)
            elif record.kind == QUEUES_KIND:
                await self._resolve_queue(record, uid, is_overdue=is_overdue)
            else:
                await self._resolve_job(record, uid, is_overdue=is_overdue)
        except (ApiError, ConnectionLostError):
            # The row stays open; a later sweep or read resolves it.
            log.warning("cannot resolve command, will retry", extra=log_fields(record))
            if tracked := self._tracked.get(record.id):
                tracked.awaited = None

    async def _resolve_job(self, record: CommandRecord, uid: str, *, is_overdue: bool) -> None:
        """Record the outcome of a deleted Command.

        Whether it was executed is determined first: the Job may have been deleted since, by a TTL
        of 0 for instance. Only a complete sequence of versions shows that it was not.
        """
        if uid:
            await self._jobs.wait_result(record.id, uid, timeout=RESULT_TIMEOUT)
        if await self._finish_by_result(record, uid):
            return
        job = await self._live_job(record)
        if job is not None:
            self._jobs.add_status(job.status)
            if self._jobs.result(record.id) is not None:
                await self._is_shown(record, job)  # who waits for the outcome reads the cache
        if await self._finish_by_result(record, uid):
            return
        if uid:
            await self._finish_by_absence(record, job, uid)
        elif is_overdue:
            await self.finish(record, CommandState.UNKNOWN, NOT_FOUND)

    async def _finish_by_absence(self, record: CommandRecord, job: Job | None, uid: str) -> None:
        """Record the outcome of a Command that no status of its Job names so far."""
        shown = await self._is_shown(record, job)
        if await self._finish_by_result(record, uid):
            return
        if not shown:
            detail = SUPERSEDED if job is not None else DELETED_UNOBSERVED
            await self.finish(record, CommandState.UNKNOWN, detail, uid=uid)
        elif job is None:
            await self.finish(record, CommandState.FAILED, "the job was deleted", uid=uid)
        else:
            detail = f"the job is {job.status.state.phase}; the Command had no effect"
            await self.finish(record, CommandState.IGNORED, detail, uid=uid)

    async def _finish_by_result(self, record: CommandRecord, uid: str) -> bool:
        """Record what the status of the Job shows; return whether it shows the Command."""
        result = self._jobs.result(record.id)
        phase = self._jobs.executed_phase(uid) if uid else None
        if result is not None:
            state = CommandState.EXECUTED if result.executed else CommandState.IGNORED
            detail = f"the job entered {result.text}" if result.executed else result.text
            await self.finish(record, state, detail, uid=uid)
        elif phase is not None:
            await self.finish(record, CommandState.EXECUTED, f"the job entered {phase}", uid=uid)
        return result is not None or phase is not None

    async def _live_job(self, record: CommandRecord) -> Job | None:
        """Return the Job of *record* as it is now, or ``None`` if it is deleted."""
        try:
            job = await self._client.get(JOBS, record.job, namespace=record.namespace, view=Job)
        except NotFoundError:
            return None
        return job if job.metadata.uid == record.job_uid else None

    async def _is_shown(self, record: CommandRecord, job: Job | None) -> bool:
        """Return whether the watch shows all versions of the Job from the Command to *job*.

        Waits for a watch that lags.
        """
        if not self._is_watched_since(record):
            return False
        try:
            async with asyncio.timeout(WATCH_TIMEOUT):
                await self._jobs.wait_until_observed(
                    f"{record.namespace}/{record.job}", record.job_uid, job
                )
        except TimeoutError:
            return False
        return self._is_watched_since(record)

    def _is_watched_since(self, record: CommandRecord) -> bool:
        """Return whether the watch of Jobs has skipped no version since *record*."""
        self._note_lists()
        tracked = self._tracked.get(record.id)
        if tracked is not None and tracked.job_lists is not None:
            return tracked.job_lists == self._jobs.lists
        # Received by another replica, or before a restart.
        return self._listed_at is not None and record.received_at >= self._listed_at

    def _note_lists(self) -> None:
        """Remember that Jobs were listed again, at the latest now."""
        if self._jobs.lists != self._lists:
            self._lists = self._jobs.lists
            self._listed_at = timestamp(datetime.now(UTC) + CLOCK_SKEW)

    async def _find(
        self, resource: Resource, name: str, *, namespace: str = "", view: type[T]
    ) -> T | None:
        """Return an object as it is now. It is listed by its name, since the account of the API may
        list these objects and not get them."""
        selector = f"metadata.name={name}"
        found = await self._client.list(
            resource, namespace=namespace, view=view, field_selector=selector
        )
        return found.items[0] if found.items else None

    async def _resolve_queue(self, record: CommandRecord, uid: str, *, is_overdue: bool) -> None:
        """Record the outcome of a deleted Command to a queue: whether it was in the wanted state
        since the command was received."""
        wanted = _WANTED_STATES[Action(record.action)]
        queue = await self._find(QUEUES, record.job, view=Queue)
        if queue is None or queue.metadata.uid != record.job_uid:
            if uid or is_overdue:
                await self.finish(record, CommandState.FAILED, "the queue was deleted", uid=uid)
            return
        state = queue.status.state or QueueState.OPEN
        tracked = self._tracked.get(record.id)
        before = tracked.queue_events if tracked is not None else None
        before = self._queue_events if before is None else before
        shown = self._queue_states.get(record.job_uid, {})
        reached = [each for each in wanted if shown.get(each, 0) > before]
        if state in wanted:
            reached = [QueueState(state)]
        if not uid and not is_overdue:
            return
        if reached:
            await self.finish(record, CommandState.EXECUTED, f"the queue is {reached[0]}", uid=uid)
        elif uid:
            detail = f"the queue is {state}; the Command had no effect"
            await self.finish(record, CommandState.IGNORED, detail, uid=uid)
        else:
            await self.finish(record, CommandState.UNKNOWN, NOT_FOUND)

    async def _resolve_patch(self, record: CommandRecord, *, is_overdue: bool) -> None:
        """Record the outcome of a patch whose response was lost."""
        kind = KINDS[JobKindName(record.kind)]
        job: CachedObject | None = await self._find(
            kind.resource, record.job, namespace=record.namespace, view=kind.view
        )
        if job is None or job.metadata.uid != record.job_uid:
            await self.finish(record, CommandState.FAILED, "the job was deleted")
            return
        suspend = suspends(job)
        if suspend == (record.action == PatchAction.SUSPEND):
            await self.finish(record, CommandState.EXECUTED, describe_suspend(suspend))
        elif is_overdue:
            detail = f"{describe_suspend(suspend)}; whether it was changed before is unknown"
            await self.finish(record, CommandState.UNKNOWN, detail)


def suspends(job: object) -> bool:
    """Return ``spec.suspend`` of a job of any kind."""
    if isinstance(job, CachedTrainingJob):
        return job.spec.run_policy.suspend
    return isinstance(job, CachedJob | CachedBatchJob) and job.spec.suspend


def describe_suspend(suspend: bool) -> str:
    """Return the detail of a command that a patch has executed."""
    return f"spec.suspend is {'true' if suspend else 'false'}"


def command_namespace(record: CommandRecord) -> str:
    """Return the namespace of the Command object."""
    return record.namespace or QUEUE_COMMAND_NAMESPACE


def log_fields(record: CommandRecord) -> dict[str, str]:
    """Return the log fields of a command."""
    key = f"{record.namespace}/{record.job}" if record.namespace else record.job
    field = "queue" if record.kind == QUEUES_KIND else "job"
    return {field: key, "action": record.action, "command": record.id, "who": record.who}
