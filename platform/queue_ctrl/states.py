"""States of a queue; each is a class with its transitions as data.

A transition is the result of an action; :meth:`StateRules.next_state` is the result of a sync,
given the number of PodGroups in the queue, in any phase.
"""

from collections.abc import Mapping
from typing import ClassVar

from ..model.job import Action
from ..model.queue import QueueState


class StateRules:
    """Transitions of one state."""

    state: ClassVar[QueueState]
    transitions: ClassVar[Mapping[str, QueueState]] = {}

    def next_state(self, podgroups: int) -> QueueState:
        """Return the state after a sync without an action."""
        return self.state


class Open(StateRules):
    """Accepts jobs. Closing waits for its PodGroups."""

    state = QueueState.OPEN
    transitions = {Action.OPEN_QUEUE: QueueState.OPEN, Action.CLOSE_QUEUE: QueueState.CLOSING}


class Closing(StateRules):
    """Rejects jobs, and still has PodGroups."""

    state = QueueState.CLOSING
    transitions = {Action.OPEN_QUEUE: QueueState.OPEN, Action.CLOSE_QUEUE: QueueState.CLOSING}

    def next_state(self, podgroups: int) -> QueueState:
        """Return Closed once the last PodGroup is deleted."""
        return QueueState.CLOSING if podgroups else QueueState.CLOSED


class Closed(StateRules):
    """Rejects jobs. Stays closed even if a PodGroup is added."""

    state = QueueState.CLOSED
    transitions = {Action.OPEN_QUEUE: QueueState.OPEN, Action.CLOSE_QUEUE: QueueState.CLOSED}


class Unknown(StateRules):
    """Not set by this controller; left by a Command only."""

    state = QueueState.UNKNOWN
    transitions = {Action.OPEN_QUEUE: QueueState.OPEN, Action.CLOSE_QUEUE: QueueState.CLOSING}


RULES: Mapping[str, StateRules] = {
    rules.state.value: rules for rules in (Open(), Closing(), Closed(), Unknown())
}
CLOSED_STATES = (QueueState.CLOSED, QueueState.CLOSING)
"""States in which a queue rejects jobs."""
