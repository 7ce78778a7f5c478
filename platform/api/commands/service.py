"""Issue commands: create Command objects, or patch ``spec.suspend``, with the caller's identity.

The write order keeps a crash at any point harmless: insert the row, create the Command object
under a name that the row holds. The id of the operation is that of the row and an annotation of the
Command, and the job controller notes it in the job's status: so the same operation may be issued
again, and is executed once. :mod:`.outcomes` finds out what became of it.
"""

import logging
import uuid
from datetime import UTC, datetime

from ...kube.client.client import Client
from ...kube.errors import (
    AlreadyExistsError,
    ApiError,
    ConnectionLostError,
    NotFoundError,
    was_rejected,
)
from ...model.command import Command
from ...model.names import COMMANDS, JOBS, OPERATION, QUEUES
from ...store.commands import CommandRecord, CommandStore, timestamp
from ...wire.commands import QUEUES_KIND, CommandState
from ...wire.jobs import JobKindName
from ..identity.caller import AuthenticatedCaller
from ..jobs.kinds import KINDS
from ..problems import ProblemError
from .orders import Order, PatchAction, Scope
from .outcomes import Outcomes, command_namespace, describe_suspend, log_fields

log = logging.getLogger(__name__)

MAX_NAME = 253
"""Maximum length of an object's name."""

NAME_TAKEN = "not issued: another Command has its name"


class CommandService:
    """Issues commands for REST requests."""

    def __init__(self, client: Client, store: CommandStore, outcomes: Outcomes) -> None:
        """*client* only reads."""
        self._client = client
        self._store = store
        self._outcomes = outcomes

    async def issue(
        self, order: Order, *, caller: AuthenticatedCaller, operation: uuid.UUID
    ) -> CommandRecord:
        """Insert the row, then create the Command or patch the job.

        The same *operation* may be issued again, after a crash for instance.

        Raises:
            StoreUnavailableError: the row cannot be inserted; nothing is issued.
            ApiError: the API server rejects the request; the row records it.
            ConnectionLostError: whether it was issued is not known yet; the row stays open.
        """
        record = self._new_record(order, caller.user.username, operation)
        if await self._store.add(record):
            return await self.repeat(operation, caller=caller) or record
        await self._issue(record, caller.client)
        return self._outcomes.latest(record)

    async def repeat(
        self, operation: uuid.UUID, *, caller: AuthenticatedCaller
    ) -> CommandRecord | None:
        """Return the command of an operation that may have been interrupted, issued if it was not;
        ``None`` if its row was not inserted.

        Raises:
            As :meth:`issue`.
        """
        record = await self._store.get(str(operation))
        if record is None:
            return None
        if await self._must_issue(record):
            await self._issue(record, caller.client)
        return self._outcomes.latest(record)

    async def _issue(self, record: CommandRecord, client: Client) -> None:
        self._outcomes.expect(record)
        log.info("command accepted", extra=log_fields(record))
        try:
            if not record.command:
                suspend = record.action == PatchAction.SUSPEND
                await self._patch(record, client, suspend=suspend)
                detail = describe_suspend(suspend)
                await self._outcomes.finish(record, CommandState.EXECUTED, detail)
            elif uid := await self._create_command(record, client):
                self._outcomes.note_issued(record, uid)
        except (ApiError, ConnectionLostError) as error:
            if isinstance(error, ApiError) and was_rejected(error):
                detail = f"not issued: {error.message}"
                await self._outcomes.finish(record, CommandState.FAILED, detail)
            else:
                self._outcomes.leave_to_sweep(record.id)
            raise

    def _new_record(self, order: Order, who: str, operation: uuid.UUID) -> CommandRecord:
        meta = order.metadata
        suffix = f"-{order.action.lower()}-{operation.hex[:8]}"
        return CommandRecord(
            id=str(operation),
            kind=order.kind,
            namespace=meta.namespace,
            job=meta.name,
            job_uid=meta.uid,
            action=order.action,
            task=order.scope.task,
            pod=order.scope.pod,
            partition=order.scope.partition,
            who=who,
            command="" if order.is_patch else _command_name(meta.name, suffix),
            received_at=timestamp(datetime.now(UTC)),
        )

    async def _must_issue(self, record: CommandRecord) -> bool:
        """Return whether a command whose row exists has still to be issued."""
        latest = self._outcomes.latest(record)
        if not latest.is_open or latest.state == CommandState.ISSUED:
            return False
        if record.command:
            await self._outcomes.resolve(record)
        return self._outcomes.latest(record).state == CommandState.ACCEPTED

    async def _patch(self, record: CommandRecord, client: Client, *, suspend: bool) -> None:
        kind = KINDS[JobKindName(record.kind)]
        spec: dict[str, object] = {"suspend": suspend}
        if kind.training is not None:
            spec = {"runPolicy": spec}
        body = {"metadata": {"uid": record.job_uid}, "spec": spec}
        await client.patch(kind.resource, record.job, body, namespace=record.namespace)

    async def _create_command(self, record: CommandRecord, client: Client) -> str:
        """Create the Command by *client*, that of the caller; return its uid."""
        resource = QUEUES if record.kind == QUEUES_KIND else JOBS
        # Without blockOwnerDeletion, which would need another permission of the caller.
        target = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "name": record.job,
            "uid": record.job_uid,
            "controller": True,
        }
        namespace = command_namespace(record)
        scope = Scope(task=record.task, pod=record.pod, partition=record.partition)
        body = {
            "apiVersion": COMMANDS.api_version,
            "kind": COMMANDS.kind,
            "metadata": {
                "name": record.command,
                "namespace": namespace,
                "annotations": {OPERATION: record.id} | scope.annotations,
                "ownerReferences": [target],
            },
            "target": target,
            "action": record.action,
        }
        try:
            created = await client.create(COMMANDS, body, namespace=namespace, view=Command)
        except AlreadyExistsError:
            # A response was lost and the request repeated.
            return await self._existing_command(record, namespace)
        return created.metadata.uid

    async def _existing_command(self, record: CommandRecord, namespace: str) -> str:
        try:
            existing = await self._client.get(
                COMMANDS, record.command, namespace=namespace, view=Command
            )
        except NotFoundError:
            # Executed since: the deletion is on the watch, or will be found by the sweep.
            return ""
        if existing.operation != record.id:
            await self._outcomes.finish(record, CommandState.FAILED, NAME_TAKEN)
            raise ProblemError(409, NAME_TAKEN)
        return existing.metadata.uid


def _command_name(name: str, suffix: str) -> str:
    """Return the name of a Command object: the target's, truncated to fit *suffix*."""
    return name[: MAX_NAME - len(suffix)].rstrip("-.") + suffix
