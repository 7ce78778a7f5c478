"""Decisions of the queue controller: a pure function from a queue's view to a list of effects.

Queues form a tree. A queue whose parent is closed is closed too, and annotated, so that it opens
again with the parent; one that was closed by a Command stays closed. All of this follows from the
states of the queue and its parent, so that an interrupted sync is completed by the next one.
"""

from dataclasses import dataclass

from ..machinery.reconcile.events import Event
from ..model.command import Command
from ..model.job import Action
from ..model.names import ROOT_QUEUE
from ..model.queue import Queue, QueueSpec, QueueState
from .counts import PodGroupCounts
from .states import CLOSED_STATES, RULES, StateRules

CLOSED_BY_PARENT = "volcano.sh/closed-by-parent"
"""Annotation of a queue: ``"true"`` if it opens together with its parent."""

_ACTIONS = (Action.OPEN_QUEUE, Action.CLOSE_QUEUE, Action.SYNC_QUEUE)

CLOSE_SUCCEEDED = "Close queue succeed"
"""Message of the event on closing, as in Volcano."""


class InvalidStateError(Exception):
    """``status.state`` is unknown."""

    def __init__(self, queue: str, state: str) -> None:
        super().__init__(f"queue {queue!r} has the invalid state {state!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """A queue with the state that decisions depend on."""

    queue: Queue
    parent: Queue | None
    """The parent queue (``root`` by default), if it exists."""
    counts: PodGroupCounts
    command: Command | None = None
    """The Command to execute, if any."""

    @property
    def name(self) -> str:
        """Name of the queue."""
        return self.queue.metadata.name


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingQueue:
    """A queue that does not exist, but is required, or the target of a Command."""

    name: str
    required: QueueSpec | None = None
    command: Command | None = None


@dataclass(frozen=True, slots=True)
class CreateQueue:
    """Create the missing queue."""

    spec: QueueSpec


@dataclass(frozen=True, slots=True)
class SetParent:
    """Write ``spec.parent``."""

    parent: str


@dataclass(frozen=True, slots=True)
class SetClosedByParent:
    """Write the annotation :data:`CLOSED_BY_PARENT`."""

    closed_by_parent: bool


@dataclass(frozen=True, slots=True)
class SetStatus:
    """Write state and counts."""

    state: QueueState
    counts: PodGroupCounts


@dataclass(frozen=True, slots=True)
class ConfirmVersion:
    """Requeue unless the queue still has the version that was observed.

    A Command that changes nothing is not taken for executed because the informer is late.
    """


@dataclass(frozen=True, slots=True)
class Requeue:
    """Requeue with backoff after the other effects: a precondition is not met."""

    message: str


@dataclass(frozen=True, slots=True)
class DeleteCommand:
    """Delete the Command, which is executed."""

    command: Command


@dataclass(frozen=True, slots=True)
class TargetNotFound:
    """Delete the Command, unless its target is merely not in the informer yet."""

    command: Command


Effect = (
    CreateQueue
    | SetParent
    | SetClosedByParent
    | SetStatus
    | ConfirmVersion
    | Event
    | DeleteCommand
    | TargetNotFound
    | Requeue
)


def decide(view: QueueView | MissingQueue) -> list[Effect]:
    """Return what a queue needs, in order.

    An action of a Command other than opening and closing is a sync.

    Raises:
        InvalidStateError: the queue's state is unknown.
    """
    command = view.command
    if isinstance(view, MissingQueue):
        if view.required is not None:
            return [CreateQueue(view.required)]
        return [TargetNotFound(command)] if command is not None else []
    effects = _decide_action(view, command.action if command is not None else None)
    return [*effects, DeleteCommand(command)] if command is not None else effects


def _decide_action(view: QueueView, action: str | None) -> list[Effect]:
    queue = view.queue
    rules = _rules(queue)
    effects: list[Effect] = []
    if not _is_root(queue) and not queue.spec.parent:
        effects.append(SetParent(ROOT_QUEUE))
    if action == Action.CLOSE_QUEUE and not _is_root(queue):
        return effects + _close(view, rules, by_parent=False)
    if action == Action.CLOSE_QUEUE:
        effects.append(Event(Action.CLOSE_QUEUE, "the root queue cannot be closed", warning=True))
    if action == Action.OPEN_QUEUE and rules.state != QueueState.OPEN:
        return effects + _open_if_parent_open(view, rules)
    if action is not None and action not in _ACTIONS:
        effects.append(_unknown_action(action))
    effects += _sync_with_parent(view, rules)
    if action == Action.OPEN_QUEUE and not any(isinstance(each, Requeue) for each in effects):
        effects.append(ConfirmVersion())
    return effects


def _unknown_action(action: str) -> Event:
    known = " and ".join((Action.OPEN_QUEUE, Action.CLOSE_QUEUE))
    message = f"unknown action {action!r}; supported are {known}"
    return Event("UnknownAction", message, warning=True)


def _sync_with_parent(view: QueueView, rules: StateRules) -> list[Effect]:
    """Without an open or close action: follow the parent, or sync the state."""
    queue = view.queue
    synced = _status(view, rules.next_state(view.counts.total))
    if view.parent is None and not _is_root(queue):
        parent = queue.spec.parent or ROOT_QUEUE
        return [*synced, Requeue(f"the parent queue {parent!r} does not exist")]
    parent_state = _parent_state(view)
    if parent_state in CLOSED_STATES and rules.state not in CLOSED_STATES:
        return _close(view, rules, by_parent=True)
    if parent_state == QueueState.OPEN and _closed_by_parent(queue) == "true":
        if rules.state in CLOSED_STATES:
            return _open(view)
        # An interrupted opening: without this a later close by Command would not last.
        return [*synced, SetClosedByParent(False)]
    return synced


def _open_if_parent_open(view: QueueView, rules: StateRules) -> list[Effect]:
    """Open the queue if its parent is open."""
    parent_state = _parent_state(view)
    if parent_state in CLOSED_STATES:
        parent = view.queue.spec.parent
        requeue = Requeue(f"the parent queue {parent!r} is {parent_state} and must be opened first")
        return [*_sync_with_parent(view, rules), requeue]
    if not parent_state:
        return _sync_with_parent(view, rules)
    return _open(view)


def _open(view: QueueView) -> list[Effect]:
    effects = _status(view, _rules(view.queue).transitions[Action.OPEN_QUEUE])
    if _closed_by_parent(view.queue) != "false":
        effects.append(SetClosedByParent(False))
    return effects


def _close(view: QueueView, rules: StateRules, *, by_parent: bool) -> list[Effect]:
    """Close; a queue closed by a Command, even if already closed, does not open with its parent."""
    effects: list[Effect] = []
    was_closed_by_parent = _closed_by_parent(view.queue) == "true"
    if by_parent != was_closed_by_parent:
        effects.append(SetClosedByParent(by_parent))
    state = RULES[rules.transitions[Action.CLOSE_QUEUE]].next_state(view.counts.total)
    effects += _status(view, state)
    if rules.state not in CLOSED_STATES:
        effects.append(Event(Action.CLOSE_QUEUE, CLOSE_SUCCEEDED))
    elif by_parent == was_closed_by_parent:
        effects.append(ConfirmVersion())
    return effects


def _status(view: QueueView, state: QueueState) -> list[Effect]:
    """Return the status write, if anything differs."""
    status = view.queue.status
    unchanged = (
        status.state == state and PodGroupCounts.from_status(status) == view.counts.status_counts
    )
    return [] if unchanged else [SetStatus(state, view.counts)]


def _rules(queue: Queue) -> StateRules:
    state = queue.status.state or QueueState.OPEN
    if state not in RULES:
        raise InvalidStateError(queue.metadata.name, state)
    return RULES[state]


def _parent_state(view: QueueView) -> str:
    """Return the parent's state, open for the root; empty if there is no parent."""
    if _is_root(view.queue):
        return QueueState.OPEN
    if view.parent is None:
        return ""
    return view.parent.status.state or QueueState.OPEN


def _closed_by_parent(queue: Queue) -> str:
    return queue.metadata.annotations.get(CLOSED_BY_PARENT, "")


def _is_root(queue: Queue) -> bool:
    return queue.metadata.name == ROOT_QUEUE
