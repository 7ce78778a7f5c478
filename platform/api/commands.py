"""Create Commands and record their outcomes.

The write order keeps a crash at any point harmless: insert the row, create the Command object
under a name that the row holds, mark the row as issued. A sweep resolves the rows without an
outcome from cluster state: at start-up, periodically, and once an unavailable database is back.
"""

import asyncio
import logging
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TypeVar

import msgspec

from ..kube.client.client import Client
from ..kube.errors import AlreadyExistsError, ApiError, ConnectionLostError, NotFoundError
from ..kube.informer.informer import Informer
from ..kube.supervision import supervise
from ..machinery.clock import Clock, SystemClock
from ..model.command import Command
from ..model.job import FINAL_PHASES, Action, Job
from ..model.names import COMMANDS, JOBS
from ..store.commands import CommandRecord, CommandState, CommandStore, timestamp
from ..store.database import StoreUnavailableError
from .caches import CachedJob
from .observed_jobs import ObservedJobs, add_bounded
from .problems import ProblemError

log = logging.getLogger(__name__)
T = TypeVar("T")

ISSUE_TIMEOUT = timedelta(minutes=1)
"""Time to create a Command after which its absence means that it was never created."""

NOT_FOUND = "Command not found; whether it was executed is unknown"
SUPERSEDED = (
    "Command deleted; the watch of the job has a gap, so whether it was executed is unknown"
)
DELETED_UNOBSERVED = "the job was deleted; whether the Command was executed before is unknown"

MAX_NAME = 253
"""Maximum length of an object's name."""
SWEEP_INTERVAL = 30.0
"""Seconds between sweeps."""
SWEEP_RETRY_DELAY = 1.0
"""Seconds until a sweep is retried while the database is unavailable."""
WATCH_TIMEOUT = 10.0
"""Seconds to wait for a watch that lags behind."""
CLOCK_SKEW = timedelta(seconds=5)
"""Maximum difference between the clocks of two replicas."""


def rejection_reason(job: Job, action: Action) -> str | None:
    """Return why *job* can never execute *action*, or ``None``.

    Checks only what cannot change concurrently: a resume right after a suspend finds the job still
    running, and both are valid.
    """
    if job.status.state.phase in FINAL_PHASES:
        return f"job {job.metadata.name!r} is {job.status.state.phase} and accepts no commands"
    if action is Action.RESUME_JOB and job.spec.suspend:
        return f"job {job.metadata.name!r} has spec.suspend: true; clear it to resume the job"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """Outcome of a command."""

    state: CommandState
    detail: str
    at: datetime


class CommandService:
    """Creates Commands for REST requests and records their outcomes."""

    def __init__(
        self,
        client: Client,
        store: CommandStore,
        jobs: Informer[CachedJob],
        *,
        clock: Clock | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._store = store
        self._clock = clock or SystemClock()
        self._now = now
        self._sweep_due = asyncio.Event()
        self._deleted_commands: asyncio.Queue[Command] = asyncio.Queue()
        self._jobs = ObservedJobs(jobs)
        self._listed_at: str | None = None
        """Time at or after which the last list of Jobs was complete."""
        self._lists = 0
        """Number of lists of Jobs until then."""
        self.synced = False
        """Whether the informers are synced, so that outcomes are observed."""
        self._issued_lists: OrderedDict[str, int] = OrderedDict()
        """Number of lists of Jobs before each command of this replica, by row id."""
        self._command_uids: OrderedDict[str, str] = OrderedDict()
        """Uids of Commands by namespace and name, for rows that could not be marked as issued."""
        self._pending_outcomes: OrderedDict[str, _Outcome] = OrderedDict()
        """Outcomes not yet written to the database, by row id."""

    async def issue(self, job: Job, action: Action, *, who: str, client: Client) -> CommandRecord:
        """Insert the row and create the Command object by *client*, that of the caller.

        Raises:
            ProblemError: 409 if the job can never execute it.
            StoreUnavailableError: the row cannot be inserted; no Command is created.
            ApiError: the API server rejects the Command; the row records it.
        """
        reason = rejection_reason(job, action)
        if reason is not None:
            raise ProblemError(409, reason)
        id_ = str(uuid.uuid4())
        record = CommandRecord(
            id=id_,
            namespace=job.metadata.namespace,
            job=job.metadata.name,
            job_uid=job.metadata.uid,
            action=action,
            who=who,
            command=_command_name(job.metadata.name, f"-{action.lower()}-{id_[:8]}"),
            received_at=timestamp(self._now()),
        )
        await self._store.add(record)
        if self.synced:
            add_bounded(self._issued_lists, id_, self._jobs.lists)
        log.info("command accepted", extra=_log_fields(record))
        try:
            created = await self._create_command(record, client)
        except ApiError as error:
            await self._finish(record, CommandState.FAILED, f"not issued: {error.message}")
            raise
        uid = created.metadata.uid
        add_bounded(self._command_uids, f"{record.namespace}/{record.command}", uid)
        try:
            await self._store.mark_issued(id_, command_uid=uid)
            return await self._store.get(record.namespace, record.job, id_) or record
        except StoreUnavailableError as error:
            # The Command exists: on an error the caller would issue it again.
            log.warning(
                "cannot mark command as issued",
                extra={**_log_fields(record), "error": str(error)},
            )
            self._sweep_due.set()
        return msgspec.structs.replace(record, state=CommandState.ISSUED, command_uid=uid)

    async def run(self, *, ready: asyncio.Event | None = None) -> None:
        """Watch Commands and record outcomes until cancelled; somebody else runs the Jobs."""
        informer = Informer(self._client, COMMANDS, Command)
        informer.add_event_handler(self._on_command)
        async with asyncio.TaskGroup() as tasks:
            await self._jobs.wait_synced()
            tasks.create_task(informer.run())
            await informer.wait_synced()
            tasks.create_task(supervise("command sweep", partial(self._sweep, informer)))
            self._note_lists()
            self.synced = True
            if ready is not None:
                ready.set()
            await supervise("command outcomes", self._resolve_deleted)

    def _on_command(self, old: Command | None, new: Command | None) -> None:
        if old is not None and new is None:
            add_bounded(self._command_uids, old.metadata.key, old.metadata.uid)
            self._deleted_commands.put_nowait(old)

    async def _resolve_deleted(self) -> None:
        """Resolve deleted Commands, each in its own task, since some have to wait."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(self._resolve_by_command(await self._deleted_commands.get()))

    async def _resolve_by_command(self, command: Command) -> None:
        meta = command.metadata
        try:
            record = await self._store.get_open_by_command(meta.namespace, meta.name)
            if record is not None:
                await self._try_resolve(record, meta.uid)
        except StoreUnavailableError:
            self._sweep_due.set()
        except Exception:
            # An error must not cancel the tasks of other Commands.
            log.exception("cannot resolve command", extra={"command": meta.key})
            self._sweep_due.set()

    async def _sweep(self, informer: Informer[Command]) -> None:
        """Resolve commands that no deletion event resolved.

        Their Commands were deleted while no replica was watching, or while the API server or the
        database was unavailable.
        """
        last_error = ""
        while True:
            self._sweep_due.clear()
            try:
                await self._resolve_open(informer)
            except StoreUnavailableError as error:
                if str(error) != last_error:
                    log.warning("cannot resolve open commands", extra={"error": str(error)})
                last_error = str(error)
                await self._clock.sleep(SWEEP_RETRY_DELAY)
                continue
            last_error = ""
            timer = self._clock.call_later(SWEEP_INTERVAL, self._sweep_due.set)
            await self._sweep_due.wait()
            timer.cancel()

    async def _resolve_open(self, informer: Informer[Command]) -> None:
        for id_, outcome in list(self._pending_outcomes.items()):
            await self._store.finish(id_, outcome.state, detail=outcome.detail, at=outcome.at)
            self._pending_outcomes.pop(id_, None)
        for record in await self._store.list_open():
            try:
                await self._resolve_record(record, informer)
            except StoreUnavailableError:
                raise
            except Exception:
                log.exception("cannot resolve command", extra=_log_fields(record))

    async def _resolve_record(self, record: CommandRecord, informer: Informer[Command]) -> None:
        command = informer.get(f"{record.namespace}/{record.command}")
        if command is None:
            await self._resolve_if_deleted(record)
        elif record.state == CommandState.ACCEPTED:
            await self._store.mark_issued(record.id, command_uid=command.metadata.uid)

    async def _try_resolve(self, record: CommandRecord, command_uid: str) -> None:
        try:
            await self._resolve(record, command_uid)
        except (ApiError, ConnectionLostError):
            # The row stays open; a later sweep or read resolves it.
            log.warning("cannot resolve command, will retry", extra=_log_fields(record))

    async def _resolve(self, record: CommandRecord, command_uid: str) -> None:
        """Record the outcome of a deleted Command.

        Whether it was executed is determined first: the Job may have been deleted since, by a TTL
        of 0 for instance. Only a complete sequence of versions shows that it was not.
        """
        if not command_uid:
            await self._finish(record, CommandState.UNKNOWN, NOT_FOUND)
            return
        if self._jobs.executed_phase(command_uid) is None:
            job = await self._live_job(record)
            if job is not None:
                self._jobs.add_status(job.status)
        if self._jobs.executed_phase(command_uid) is None:
            shown = await self._is_shown(record, job)
        phase = self._jobs.executed_phase(command_uid)
        if phase is not None:
            await self._finish(record, CommandState.EXECUTED, f"the job entered {phase}")
        elif not shown:
            detail = SUPERSEDED if job is not None else DELETED_UNOBSERVED
            await self._finish(record, CommandState.UNKNOWN, detail)
        elif job is None:
            await self._finish(record, CommandState.FAILED, "the job was deleted")
        else:
            phase = job.status.state.phase
            detail = f"the job is {phase}; the Command had no effect"
            await self._finish(record, CommandState.IGNORED, detail)

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
        lists = self._issued_lists.get(record.id)
        if lists is not None:
            return lists == self._jobs.lists
        # Received by another replica, or before a restart.
        return self._listed_at is not None and record.received_at >= self._listed_at

    def _note_lists(self) -> None:
        """Remember when Jobs were listed, as of now; the list may have been earlier."""
        if self._jobs.lists != self._lists:
            self._lists = self._jobs.lists
            self._listed_at = timestamp(self._now() + CLOCK_SKEW)

    async def refresh(self, record: CommandRecord) -> CommandRecord:
        """Return the record, resolved if its Command was deleted unobserved."""
        if record.state not in (CommandState.ACCEPTED, CommandState.ISSUED):
            return record
        await self._resolve_if_deleted(record)
        return await self._store.get(record.namespace, record.job, record.id) or record

    async def _resolve_if_deleted(self, record: CommandRecord) -> None:
        """Resolve *record* if its Command is deleted; without a uid it may not be created yet."""
        try:
            await self._client.get(
                COMMANDS, record.command, namespace=record.namespace, view=Command
            )
        except NotFoundError:
            pass
        except (ApiError, ConnectionLostError):
            log.warning("cannot get Command", extra=_log_fields(record))
            return
        else:
            return
        uid = record.command_uid or self._command_uids.get(
            f"{record.namespace}/{record.command}", ""
        )
        is_overdue = record.received_at < timestamp(self._now() - ISSUE_TIMEOUT)
        if uid or is_overdue:
            await self._try_resolve(record, uid)

    async def _create_command(self, record: CommandRecord, client: Client) -> Command:
        target = {
            "apiVersion": JOBS.api_version,
            "kind": JOBS.kind,
            "name": record.job,
            "uid": record.job_uid,
            "controller": True,
        }
        body = {
            "apiVersion": COMMANDS.api_version,
            "kind": COMMANDS.kind,
            "metadata": {
                "name": record.command,
                "namespace": record.namespace,
                "ownerReferences": [target],
            },
            "target": target,
            "action": record.action,
        }
        try:
            return await client.create(COMMANDS, body, namespace=record.namespace, view=Command)
        except AlreadyExistsError:
            # A response was lost and the request retried: the name is unique to this record.
            return await self._client.get(
                COMMANDS, record.command, namespace=record.namespace, view=Command
            )

    async def _finish(self, record: CommandRecord, state: CommandState, detail: str) -> None:
        at = self._now()
        try:
            await self._store.finish(record.id, state, detail=detail, at=at)
        except StoreUnavailableError:
            add_bounded(
                self._pending_outcomes, record.id, _Outcome(state=state, detail=detail, at=at)
            )
            self._sweep_due.set()
        log_fields = {**_log_fields(record), "state": state, "detail": detail}
        log.info("command finished", extra=log_fields)


def _command_name(job: str, suffix: str) -> str:
    """Return the name of a Command object: the job's, truncated to fit *suffix*."""
    return job[: MAX_NAME - len(suffix)].rstrip("-.") + suffix


def _log_fields(record: CommandRecord) -> dict[str, str]:
    """Return the log fields of a command."""
    job = f"{record.namespace}/{record.job}"
    return {"job": job, "action": record.action, "command": record.id, "who": record.who}
