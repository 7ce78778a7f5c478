"""Events of one controller on the objects of one resource, and those that are recorded once."""

from collections.abc import Iterable
from dataclasses import dataclass

from ...model.meta import ObjectMeta
from ...model.names import Resource
from ..event_recorder import Recorder, object_reference


@dataclass(frozen=True, slots=True, order=True)
class Event:
    """An event to record, of type Normal unless it is a warning."""

    reason: str
    message: str
    warning: bool = False
    about: str = ""
    """What distinguishes it from another event with the same message; it is not recorded."""


class Events:
    """Records events on objects of *resource*; without a *recorder*, none."""

    def __init__(self, recorder: Recorder | None, resource: Resource) -> None:
        self._recorder = recorder
        self._resource = resource

    def record(self, meta: ObjectMeta, event: Event) -> None:
        """Record *event* on the object of *meta*."""
        if self._recorder is not None:
            self._recorder.record(
                object_reference(self._resource, meta),
                type="Warning" if event.warning else "Normal",
                reason=event.reason,
                message=event.message,
            )

    def normal(self, meta: ObjectMeta, reason: str, message: str) -> None:
        """Record an event of type Normal."""
        self.record(meta, Event(reason, message))

    def warning(self, meta: ObjectMeta, reason: str, message: str) -> None:
        """Record an event of type Warning."""
        self.record(meta, Event(reason, message, warning=True))


class Notices:
    """Events on conditions that last until a user changes something: recorded when they begin."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._current: dict[str, tuple[str, frozenset[Event]]] = {}

    def update(self, meta: ObjectMeta, notices: Iterable[Event]) -> None:
        """Record those of *notices* that the last call for this object did not have."""
        ordered = list(dict.fromkeys(notices))
        uid, known = self._current.get(meta.key, ("", frozenset[Event]()))
        for event in ordered:
            if uid != meta.uid or event not in known:
                self._events.record(meta, event)
        if ordered:
            self._current[meta.key] = meta.uid, frozenset(ordered)
        else:
            self.forget(meta.key)

    def add(self, meta: ObjectMeta, event: Event) -> None:
        """Record *event* unless it was added before, since the last :meth:`forget`."""
        uid, known = self._current.get(meta.key, ("", frozenset[Event]()))
        self.update(meta, [*(known if uid == meta.uid else ()), event])

    def replace(self, meta: ObjectMeta, event: Event) -> None:
        """Record *event* unless it is the last one with its reason, as far as this was called."""
        uid, known = self._current.get(meta.key, ("", frozenset[Event]()))
        others = (each for each in known if uid == meta.uid and each.reason != event.reason)
        self.update(meta, [*others, event])

    def forget(self, key: str) -> None:
        """Drop the notices of *key*."""
        self._current.pop(key, None)
