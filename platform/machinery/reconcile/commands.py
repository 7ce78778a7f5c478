"""Commands for the objects of one kind: pending items of their target's key, executed in order.

A Command is executed, then deleted, then popped: after a crash it is found and executed again,
which must have no further effect.
"""

import logging

from ...kube.client.client import Client
from ...kube.errors import NotFoundError
from ...kube.informer.informer import Informer
from ...model.command import Command, target_kind_error, target_name_error
from ...model.meta import MetadataOnly
from ...model.names import COMMANDS, QUEUES, Resource
from ..controller import RequeueError, ShardedQueue, requeue_on_conflict
from ..event_recorder import Recorder
from .events import Events

log = logging.getLogger(__name__)

INVALID_TARGET = "InvalidTarget"
"""Reason of the event on a Command that can never be executed."""


class Commands:
    """The Commands whose target is of *kind*; their keys are those of the target."""

    def __init__(
        self,
        client: Client,
        informer: Informer[Command],
        queue: ShardedQueue,
        *,
        kind: Resource,
        recorder: Recorder | None,
        reports_unknown_kinds: bool = False,
    ) -> None:
        """*informer* must deliver Commands in the order of their creation (``ordered``).

        With *reports_unknown_kinds* an event is recorded on Commands for kinds without controller.
        """
        self.informer = informer
        self._client = client
        self._queue = queue
        self._kind = kind
        self._reports_unknown_kinds = reports_unknown_kinds
        self._events = Events(recorder, COMMANDS)
        # The initial list, which is not in the order of creation; None once it is complete.
        self._initial: list[Command] | None = []
        # Uids of Commands that have failed and only need to be deleted.
        self._failed: set[str] = set()

    def on_command(self, old: Command | None, new: Command | None) -> None:
        """Event handler of the informer."""
        if old is not None or new is None:
            return
        if not new.targets_kind(self._kind):
            if self._reports_unknown_kinds and (problem := target_kind_error(new)):
                self._invalid(new, problem)
        elif self._initial is not None:
            self._initial.append(new)
        else:
            self._queue.add_item(target_key(new), new)

    def on_synced(self) -> None:
        """Add the Commands of the initial list, ordered by creation."""
        initial, self._initial = self._initial or [], None
        for command in sorted(initial, key=lambda command: command.sort_key):
            self.on_command(None, command)

    @property
    def synced(self) -> bool:
        """Whether the initial list is complete."""
        return self._initial is None

    def pending(self, key: str) -> Command | None:
        """Return the oldest Command for *key*, whether it still exists or not."""
        item = self._queue.peek_item(key)
        return item if isinstance(item, Command) else None

    async def next(self, key: str) -> Command | None:
        """Return the oldest Command for *key* that still exists and has not failed.

        Raises:
            RequeueError, ApiError, ConnectionLostError: one that has failed cannot be deleted.
        """
        while (command := self.pending(key)) is not None:
            observed, uid = self.informer.get(command.metadata.key), command.metadata.uid
            if observed is None or observed.metadata.uid != uid:
                self._pop(key, command)
            elif uid in self._failed:
                await self.delete(key, command)
            else:
                return command
        return None

    async def delete(self, key: str, command: Command) -> None:
        """Delete a Command that was executed or is obsolete.

        Raises:
            RequeueError: it was modified concurrently and may still exist.
            ApiError, ConnectionLostError: it may still exist.
        """
        meta = command.metadata
        try:
            with requeue_on_conflict("Command"):
                await self._client.delete(
                    COMMANDS, meta.name, namespace=meta.namespace, uid=meta.uid
                )
        except NotFoundError:
            log.debug("command already deleted", extra={"command": meta.key})
        else:
            fields = {self._queue.name: key, "action": command.action}
            log.info("command done", extra=fields)
        self._pop(key, command)

    async def reject(self, key: str, command: Command, problem: str) -> None:
        """Record an event on a Command that can never be executed, and delete it."""
        self._invalid(command, problem)
        await self.delete(key, command)

    def fail(self, key: str) -> bool:
        """Have the oldest Command for *key* deleted without another attempt.

        Return False if there is none, or if it was marked as failed before.
        """
        command = self.pending(key)
        if command is None or command.metadata.uid in self._failed:
            return False
        self._failed.add(command.metadata.uid)
        self._queue.add(key)
        return True

    async def target_not_found(self, key: str, command: Command) -> None:
        """Delete a Command whose target is not in the informer, unless that is behind.

        Raises:
            RequeueError: the target exists; the informer is behind.
            ApiError, ConnectionLostError: a request failed.
        """
        namespace, _, name = key.partition("/") if self._kind.namespaced else ("", "", key)
        if problem := target_name_error(name):
            await self.reject(key, command, problem)
            return
        try:
            await self._client.get(self._kind, name, namespace=namespace, view=MetadataOnly)
        except NotFoundError:
            await self.delete(key, command)
        else:
            raise RequeueError(f"{self._kind.kind} is not in the informer yet")

    def _pop(self, key: str, command: Command) -> None:
        self._queue.pop_item(key)
        self._failed.discard(command.metadata.uid)

    def _invalid(self, command: Command, problem: str) -> None:
        fields = {"command": command.metadata.key, "action": command.action, "reason": problem}
        log.warning("cannot execute command", extra=fields)
        self._events.warning(command.metadata, INVALID_TARGET, problem)


def target_key(command: Command) -> str:
    """Return the key of a Command's target: Queues have no namespace, Jobs the Command's."""
    name = command.target.name if command.target is not None else ""
    return name if command.targets_kind(QUEUES) else f"{command.metadata.namespace}/{name}"
