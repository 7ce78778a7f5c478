"""The states of a queue, each a class whose edges are data.

An *edge* is where an action leads; :meth:`StateRules.refresh` is where a state leads by itself,
given the number of PodGroups that lie in the queue, in whatever phase.
"""

from collections.abc import Mapping
from typing import ClassVar

from ..model.job import Action
from ..model.queue import QueueState


class StateRules:
    """What one state allows, and how it changes by itself."""

    state: ClassVar[QueueState]
    transitions: ClassVar[Mapping[str, QueueState]] = {}

    def next_state(self, podgroups: int) -> QueueState:
        """The state that follows, if nobody asks for anything."""
        return self.state


class Open(StateRules):
    """Takes jobs. Closing it waits for the PodGroups that it holds."""

    state = QueueState.OPEN
    transitions = {Action.OPEN_QUEUE: QueueState.OPEN, Action.CLOSE_QUEUE: QueueState.CLOSING}


class Closing(StateRules):
    """Takes no jobs, and still holds PodGroups."""

    state = QueueState.CLOSING
    transitions = {Action.OPEN_QUEUE: QueueState.OPEN, Action.CLOSE_QUEUE: QueueState.CLOSING}

    def next_state(self, podgroups: int) -> QueueState:
        """Closed, once the last PodGroup is gone."""
        return QueueState.CLOSING if podgroups else QueueState.CLOSED


class Closed(StateRules):
    """Takes no jobs. Stays so even if somebody puts a PodGroup into it."""

    state = QueueState.CLOSED
    transitions = {Action.OPEN_QUEUE: QueueState.OPEN, Action.CLOSE_QUEUE: QueueState.CLOSED}


class Unknown(StateRules):
    """Never set by us; leaves by command alone."""

    state = QueueState.UNKNOWN
    transitions = {Action.OPEN_QUEUE: QueueState.OPEN, Action.CLOSE_QUEUE: QueueState.CLOSING}


RULES: Mapping[str, StateRules] = {
    rules.state.value: rules for rules in (Open(), Closing(), Closed(), Unknown())
}
CLOSED_STATES = (QueueState.CLOSED, QueueState.CLOSING)
"""States in which a queue takes no jobs."""
