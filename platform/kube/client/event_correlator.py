"""What becomes of a stream of events: many alike are combined, repetitions counted, floods dropped.

Pure: time comes in, decisions come out. In order: *aggregation* (ten distinct messages of a group
become one combined event), *counting* (a repetition raises the count of the Event that is there),
*spam filter* (a token bucket for each source, object and type). What is remembered for each lies in
bounded tables that forget the least recently used.
"""

import re
import uuid
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Generic, TypeVar

from ...model.base import Part
from ...model.meta import ObjectMeta, ObjectReference

V = TypeVar("V")

COMBINED = "(combined from similar events): "

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class EventSource(Part, frozen=True):
    """Who reports."""

    component: str = ""
    host: str = ""


class Event(Part, frozen=True):
    """Core ``v1`` Event, as we write it."""

    metadata: ObjectMeta
    involved_object: ObjectReference
    type: str
    reason: str
    message: str
    source: EventSource
    first_timestamp: str
    last_timestamp: str
    count: int
    reporting_component: str
    reporting_instance: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Something that somebody recorded."""

    about: ObjectReference
    type: str
    reason: str
    message: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelationLimits:
    """How much is kept apart and how much is let through."""

    distinct: int = 10
    """From so many distinct messages on a group's events are combined."""
    window: float = 600.0
    """Seconds without an event after which a group starts anew."""
    burst: int = 25
    """Writes about one object that may go out at once."""
    refill: float = 300.0
    """Seconds until one more may."""
    remembered: int = 4096
    """Size of each table."""


class _Table(Generic[V]):
    """A dictionary of bounded size that forgets what was not used for longest."""

    def __init__(self, size: int, make: Callable[[], V]) -> None:
        self._size = size
        self._make = make
        self._rows: OrderedDict[Hashable, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, key: Hashable) -> V:
        """The row of *key*, made if need be."""
        found = self._rows.get(key)
        if found is None:
            found = self._rows[key] = self._make()
            if len(self._rows) > self._size:
                self._rows.popitem(last=False)
        else:
            self._rows.move_to_end(key)
        return found


_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(slots=True)
class _Group:
    messages: dict[str, None] = field(default_factory=dict)
    last: float = float("-inf")


@dataclass(slots=True)
class _Count:
    name: str = ""
    count: int = 0
    first: datetime = _NEVER


@dataclass(slots=True)
class _Bucket:
    level: float
    at: float = float("-inf")


class Correlator:
    """Turns facts into Events to write."""

    def __init__(self, source: EventSource, limits: CorrelationLimits | None = None) -> None:
        self._source = source
        self._limits = limits = limits or CorrelationLimits()
        self._groups = _Table(limits.remembered, _Group)
        self._counts = _Table(limits.remembered, _Count)
        self._buckets = _Table(limits.remembered, lambda: _Bucket(float(limits.burst)))

    def correlate(self, fact: Fact, now: float) -> Event | None:
        """The Event to write for *fact*; None if it is one too many.

        An Event with a count above 1 has been written before and is to be patched.

        Args:
            fact: what was recorded.
            now: monotonic seconds.
        """
        about = fact.about
        who = (about.kind, about.namespace, about.name, about.uid, about.api_version)
        group = (*who, fact.type, fact.reason)
        combined = self._combines(group, fact.message, now)
        key = group if combined else (*group, about.field_path, fact.message)
        event = self._counted(key, fact, COMBINED + fact.message if combined else fact.message)
        return event if self._passes((*who, fact.type), now) else None

    def remembered(self) -> tuple[int, int, int]:
        """Sizes of the tables: groups, counts, buckets."""
        return len(self._groups), len(self._counts), len(self._buckets)

    def _combines(self, key: Hashable, message: str, now: float) -> bool:
        group = self._groups.row(key)
        if now - group.last > self._limits.window:
            group.messages.clear()
        group.last = now
        group.messages[message] = None
        if len(group.messages) < self._limits.distinct:
            return False
        del group.messages[next(iter(group.messages))]
        return True

    def _counted(self, key: Hashable, fact: Fact, message: str) -> Event:
        entry = self._counts.row(key)
        if not entry.count:
            entry.name, entry.first = event_name(fact.about.name, fact.at), fact.at
        entry.count += 1
        return Event(
            metadata=ObjectMeta(name=entry.name, namespace=fact.about.namespace or "default"),
            involved_object=fact.about,
            type=fact.type,
            reason=fact.reason,
            message=message,
            source=self._source,
            first_timestamp=_text(entry.first),
            last_timestamp=_text(fact.at),
            count=entry.count,
            reporting_component=self._source.component,
            reporting_instance=self._source.host,
        )

    def _passes(self, key: Hashable, now: float) -> bool:
        bucket, limits = self._buckets.row(key), self._limits
        gained = max(0.0, now - bucket.at) / limits.refill
        bucket.level = min(float(limits.burst), bucket.level + gained)
        bucket.at = now
        if bucket.level < 1.0:
            return False
        bucket.level -= 1.0
        return True


def event_name(about: str, at: datetime) -> str:
    """``<object>.<nanoseconds in hex>``, or a UUID where that would be no valid name."""
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    nanoseconds = ((since.days * 86400 + since.seconds) * 10**6 + since.microseconds) * 1000
    name = f"{about}.{nanoseconds:x}"
    return name if len(name) <= 253 and _NAME.fullmatch(name) else str(uuid.uuid4())


def _text(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
