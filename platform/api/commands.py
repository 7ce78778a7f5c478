"""Issue Commands and learn what came of them.

The order of things makes a crash at any point harmless: the row is written, then the Command
object is made under a name that the row holds, then the row is marked. A sweep starts from the rows
without an outcome and asks the cluster what has become of each: at the start, now and then, and as
soon as a database that was out of reach answers again.
"""

import asyncio
import logging
import re
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
from ..model.base import ApiStruct
from ..model.command import Command
from ..model.job import Action, Job, JobPhase, JobStatus
from ..model.meta import ObjectMeta
from ..model.names import COMMANDS, JOBS
from ..store.commands import CommandRecord, CommandState, CommandStore, timestamp
from ..store.database import StoreUnavailableError
from .problems import ProblemError

log = logging.getLogger(__name__)
T = TypeVar("T")

FINISHED = frozenset({JobPhase.COMPLETED, JobPhase.FAILED, JobPhase.TERMINATED})
"""Phases that no command leaves."""


ISSUE_TIMEOUT = timedelta(minutes=1)
"""How long a Command may be on its way before its absence means that it never arrived."""

NOT_FOUND = "its Command was not found; whether it was carried out is not known"
SUPERSEDED = "its Command is gone, and the job's status tells of a later one"

OUTCOME_CACHE_SIZE = 10_000
"""Carried out Commands that are remembered at most."""
MAX_NAME = 253
"""Characters of an object's name."""
SWEEP_INTERVAL = 30.0
"""Seconds between two sweeps."""
SWEEP_RETRY_DELAY = 1.0
"""Seconds until a sweep that the database cut short begins again."""
CACHE_SYNC_TIMEOUT = 10.0
"""Seconds that the watch of jobs gets to show what a read has shown already."""

_UID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class WatchedJob(ApiStruct, frozen=True):
    """What is followed of a job."""

    metadata: ObjectMeta = ObjectMeta()
    status: JobStatus = JobStatus()


def rejection_reason(job: Job, action: Action) -> str | None:
    """Why *job* will never take *action*, or ``None``.

    Only what cannot change meanwhile: a resume right behind a suspend finds the job still
    running, and both are right.
    """
    if job.status.state.phase in FINISHED:
        return f"job {job.metadata.name!r} is {job.status.state.phase}; it takes no commands"
    if action is Action.RESUME_JOB and job.spec.suspend:
        return f"job {job.metadata.name!r} has spec.suspend: true; clear it to resume the job"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """What came of a command."""

    state: CommandState
    detail: str
    at: datetime


class CommandService:
    """Orders to jobs, from the REST call to the outcome."""

    def __init__(
        self,
        client: Client,
        store: CommandStore,
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
        self._jobs = Informer(client, JOBS, WatchedJob)
        self._jobs.add_event_handler(self._on_job)
        self._job_observed = asyncio.Event()
        self._synced_at: str | None = None
        self.synced = False
        """Whether outcomes are noted as they come."""
        self._executed_phases: OrderedDict[str, str] = OrderedDict()
        """Phase that each Command led to, by its uid; the next Command takes its place in the
        job's status, so it is noted as it goes by."""
        self._command_uids: OrderedDict[str, str] = OrderedDict()
        """Uids of Commands by namespace and name, for rows that could not be marked."""
        self._pending_outcomes: OrderedDict[str, _Outcome] = OrderedDict()
        """Outcomes that the database did not take yet, by the row's id."""

    async def issue(self, job: Job, action: Action, *, who: str) -> CommandRecord:
        """Write the order down and make its Command object.

        Raises:
            ProblemError: 409 when the job can never take it.
            StoreUnavailableError: the row cannot be written; no Command is made.
            ApiError: the cluster refuses; the row says so.
        """
        why_not = rejection_reason(job, action)
        if why_not is not None:
            raise ProblemError(409, why_not)
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
        log.info("command asked for", extra=_log_fields(record))
        try:
            made = await self._create_command(record)
        except ApiError as error:
            await self._finish(record, CommandState.FAILED, f"not issued: {error.message}")
            raise
        uid = made.metadata.uid
        _add_bounded(self._command_uids, f"{record.namespace}/{record.command}", uid)
        try:
            await self._store.mark_issued(id_, command_uid=uid)
            return await self._store.get(record.namespace, record.job, id_) or record
        except StoreUnavailableError as error:
            # The order is given: an error would make the caller give it twice.
            log.warning(
                "command not marked yet", extra={**_log_fields(record), "error": str(error)}
            )
            self._sweep_due.set()
        return msgspec.structs.replace(record, state=CommandState.ISSUED, command_uid=uid)

    async def run(self, *, ready: asyncio.Event | None = None) -> None:
        """Follow Commands and write outcomes, until cancelled."""
        cache = Informer(self._client, COMMANDS, Command)
        cache.add_event_handler(self._on_command)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._jobs.run())
            await self._jobs.wait_synced()
            tasks.create_task(cache.run())
            await cache.wait_synced()
            tasks.create_task(supervise("command sweep", partial(self._sweep, cache)))
            self._synced_at = timestamp(self._now())
            self.synced = True
            if ready is not None:
                ready.set()
            await supervise("command outcomes", self._resolve_deleted)

    def _on_job(self, old: WatchedJob | None, new: WatchedJob | None) -> None:
        if new is None:
            return
        for uid in _UID.findall(new.status.state.message):
            _add_bounded(self._executed_phases, uid, new.status.state.phase)
        self._job_observed.set()

    async def _wait_until_fresh(self, job: Job) -> None:
        """Wait until every status that *job* had up to now has gone by."""
        async with asyncio.timeout(CACHE_SYNC_TIMEOUT):
            while True:
                self._job_observed.clear()
                seen = self._jobs.get(job.metadata.key)
                if seen is None or _resource_version(seen.metadata) >= _resource_version(
                    job.metadata
                ):
                    return
                await self._job_observed.wait()

    def _on_command(self, old: Command | None, new: Command | None) -> None:
        if old is not None and new is None:
            _add_bounded(self._command_uids, old.metadata.key, old.metadata.uid)
            self._deleted_commands.put_nowait(old)

    async def _resolve_deleted(self) -> None:
        """Settle Commands as they go; each in a task of its own, for some have to wait."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(self._resolve_by_command(await self._deleted_commands.get()))

    async def _resolve_by_command(self, command: Command) -> None:
        where = command.metadata
        try:
            record = await self._store.get_open_by_command(where.namespace, where.name)
            if record is not None:
                await self._try_resolve(record, where.uid, observed=True)
        except StoreUnavailableError:
            self._sweep_due.set()
        except Exception:
            # It must not take the Commands with it that are settled beside it.
            log.exception("cannot settle a command", extra={"command": where.key})
            self._sweep_due.set()

    async def _sweep(self, informer: Informer[Command]) -> None:
        """Settle what no change of a Command settles: what was under way when this process, or the
        one before, did not look, and what the cluster or the database could not tell or take."""
        complaint = ""
        while True:
            self._sweep_due.clear()
            try:
                await self._resolve_open(informer)
            except StoreUnavailableError as error:
                if str(error) != complaint:
                    log.warning("commands stay open for now", extra={"error": str(error)})
                complaint = str(error)
                await self._clock.sleep(SWEEP_RETRY_DELAY)
                continue
            complaint = ""
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
                log.exception("cannot settle a command", extra=_log_fields(record))

    async def _resolve_record(self, record: CommandRecord, informer: Informer[Command]) -> None:
        command = informer.get(f"{record.namespace}/{record.command}")
        if command is None:
            await self._resolve_if_deleted(record)
        elif record.state == CommandState.ACCEPTED:
            await self._store.mark_issued(record.id, command_uid=command.metadata.uid)

    async def _try_resolve(
        self, record: CommandRecord, command_uid: str, *, observed: bool
    ) -> None:
        try:
            await self._resolve(record, command_uid, observed=observed)
        except (ApiError, ConnectionLostError, TimeoutError):
            # The row stays open; the next start, or the next look at it, settles it.
            log.warning("cannot learn a command's outcome", extra=_log_fields(record))

    async def _resolve(self, record: CommandRecord, command_uid: str, *, observed: bool) -> None:
        """The Command is gone: say what came of it.

        *seen*: this process has followed the job all the while.
        """
        if not command_uid:
            await self._finish(record, CommandState.FAILED, NOT_FOUND)
            return
        try:
            job = await self._client.get(JOBS, record.job, namespace=record.namespace, view=Job)
        except NotFoundError:
            await self._finish(record, CommandState.FAILED, "the job is gone")
            return
        if job.metadata.uid != record.job_uid:
            await self._finish(record, CommandState.FAILED, "the job is gone")
            return
        await self._wait_until_fresh(job)
        state = job.status.state
        phase = self._executed_phases.get(command_uid)
        if phase is not None:
            await self._finish(record, CommandState.EXECUTED, f"the job went to {phase}")
        elif observed:
            await self._finish(
                record, CommandState.IGNORED, f"the job is {state.phase} and had no use for it"
            )
        else:
            await self._finish(record, CommandState.UNKNOWN, SUPERSEDED)

    async def refresh(self, record: CommandRecord) -> CommandRecord:
        """The record, settled when its Command has gone unseen."""
        if record.state not in (CommandState.ACCEPTED, CommandState.ISSUED):
            return record
        await self._resolve_if_deleted(record)
        return await self._store.get(record.namespace, record.job, record.id) or record

    async def _resolve_if_deleted(self, record: CommandRecord) -> None:
        """Settle *record* if its Command is gone; one without a uid may still be on its way."""
        try:
            await self._client.get(
                COMMANDS, record.command, namespace=record.namespace, view=Command
            )
        except NotFoundError:
            pass
        except (ApiError, ConnectionLostError):
            log.warning("cannot look for a command", extra=_log_fields(record))
            return
        else:
            return
        uid = record.command_uid or self._command_uids.get(
            f"{record.namespace}/{record.command}", ""
        )
        sent_long_ago = record.received_at < timestamp(self._now() - ISSUE_TIMEOUT)
        if uid or sent_long_ago:
            followed = self._synced_at is not None and record.received_at >= self._synced_at
            await self._try_resolve(record, uid, observed=followed)

    async def _create_command(self, record: CommandRecord) -> Command:
        target = {
            "apiVersion": JOBS.api_version,
            "kind": JOBS.kind,
            "name": record.job,
            "uid": record.job_uid,
            "controller": True,
            "blockOwnerDeletion": True,
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
            return await self._client.create(
                COMMANDS, body, namespace=record.namespace, view=Command
            )
        except AlreadyExistsError:
            # An answer was lost and the request sent again: the name is ours alone.
            return await self._client.get(
                COMMANDS, record.command, namespace=record.namespace, view=Command
            )

    async def _finish(self, record: CommandRecord, state: CommandState, detail: str) -> None:
        at = self._now()
        try:
            await self._store.finish(record.id, state, detail=detail, at=at)
        except StoreUnavailableError:
            _add_bounded(
                self._pending_outcomes, record.id, _Outcome(state=state, detail=detail, at=at)
            )
            self._sweep_due.set()
        log.info("command settled", extra={**_log_fields(record), "state": state, "detail": detail})


def _add_bounded(cache: OrderedDict[str, T], key: str, value: T) -> None:
    """Note *value* unless there is one; the oldest of too many are forgotten."""
    cache.setdefault(key, value)
    while len(cache) > OUTCOME_CACHE_SIZE:
        cache.popitem(last=False)


def _command_name(job: str, suffix: str) -> str:
    """Name of a Command object: that of the job, cut where it leaves no room for *end*."""
    return job[: MAX_NAME - len(suffix)].rstrip("-.") + suffix


def _log_fields(record: CommandRecord) -> dict[str, str]:
    """How the log names a command."""
    job = f"{record.namespace}/{record.job}"
    return {"job": job, "action": record.action, "command": record.id, "who": record.who}


def _resource_version(meta: ObjectMeta) -> int:
    """Versions of one resource grow with every write."""
    return int(meta.resource_version or 0)
