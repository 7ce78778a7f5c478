"""Decisions of the queue controller: a pure function from a queue's view to a list of changes.

Queues form a tree. A queue whose parent is closed is closed too, and annotated, so that it opens
again with the parent; one that was closed by a Command stays closed. All of this follows from the
states of the queue and its parent, so that an interrupted sync is completed by the next one.
"""

from dataclasses import dataclass

from ..model.job import Action
from ..model.names import ROOT_QUEUE
from ..model.queue import Queue, QueueState
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
class RecordEvent:
    """Record an event, of type Normal unless it is a warning."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Requeue:
    """Requeue with backoff after the other changes: a precondition is not met."""

    message: str


Change = SetParent | SetClosedByParent | SetStatus | RecordEvent | Requeue


def decide(view: QueueView, action: str | None = None) -> list[Change]:
    """Return the changes that a queue needs, in order.

    *action* is that of a Command; any other than opening and closing is a sync.

    Raises:
        InvalidStateError: the queue's state is unknown.
    """
    queue = view.queue
    rules = _rules(queue)
    changes: list[Change] = []
    if not _is_root(queue) and not queue.spec.parent:
        changes.append(SetParent(ROOT_QUEUE))
    if action == Action.CLOSE_QUEUE and not _is_root(queue):
        return changes + _close(view, rules, by_parent=False)
    if action == Action.CLOSE_QUEUE:
        changes.append(
            RecordEvent(Action.CLOSE_QUEUE, "the root queue cannot be closed", warning=True)
        )
    if action == Action.OPEN_QUEUE and rules.state != QueueState.OPEN:
        return changes + _open_if_parent_open(view, rules)
    if action is not None and action not in _ACTIONS:
        changes.append(_unknown_action(action))
    return changes + _sync_with_parent(view, rules)


def _unknown_action(action: str) -> RecordEvent:
    known = " and ".join((Action.OPEN_QUEUE, Action.CLOSE_QUEUE))
    message = f"unknown action {action!r}; supported are {known}"
    return RecordEvent("UnknownAction", message, warning=True)


def _sync_with_parent(view: QueueView, rules: StateRules) -> list[Change]:
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


def _open_if_parent_open(view: QueueView, rules: StateRules) -> list[Change]:
    """Open the queue if its parent is open."""
    parent_state = _parent_state(view)
    if parent_state in CLOSED_STATES:
        parent = view.queue.spec.parent
        requeue = Requeue(f"the parent queue {parent!r} is {parent_state} and must be opened first")
        return [*_sync_with_parent(view, rules), requeue]
    if not parent_state:
        return _sync_with_parent(view, rules)
    return _open(view)


def _open(view: QueueView) -> list[Change]:
    changes = _status(view, _rules(view.queue).transitions[Action.OPEN_QUEUE])
    if _closed_by_parent(view.queue) != "false":
        changes.append(SetClosedByParent(False))
    return changes


def _close(view: QueueView, rules: StateRules, *, by_parent: bool) -> list[Change]:
    """Close; a queue closed by a Command, even if already closed, does not open with its parent."""
    changes: list[Change] = []
    if by_parent != (_closed_by_parent(view.queue) == "true"):
        changes.append(SetClosedByParent(by_parent))
    state = RULES[rules.transitions[Action.CLOSE_QUEUE]].next_state(view.counts.total)
    changes += _status(view, state)
    if rules.state not in CLOSED_STATES:
        changes.append(RecordEvent(Action.CLOSE_QUEUE, CLOSE_SUCCEEDED))
    return changes


def _status(view: QueueView, state: QueueState) -> list[Change]:
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
