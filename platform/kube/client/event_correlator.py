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

from ...model.base import ApiStruct
from ...model.meta import ObjectMeta, ObjectReference

V = TypeVar("V")

COMBINED_PREFIX = "(combined from similar events): "

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


class EventSource(ApiStruct, frozen=True):
    """Who reports."""

    component: str = ""
    host: str = ""


class Event(ApiStruct, frozen=True):
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
class RecordedEvent:
    """Something that somebody recorded."""

    regarding: ObjectReference
    type: str
    reason: str
    message: str
    timestamp: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelatorOptions:
    """How much is kept apart and how much is let through."""

    max_events: int = 10
    """From so many distinct messages on a group's events are combined."""
    max_interval: float = 600.0
    """Seconds without an event after which a group starts anew."""
    burst_size: int = 25
    """Writes about one object that may go out at once."""
    refill_interval: float = 300.0
    """Seconds until one more may."""
    lru_size: int = 4096
    """Size of each table."""


class _LruTable(Generic[V]):
    """A dictionary of bounded size that forgets what was not used for longest."""

    def __init__(self, size: int, factory: Callable[[], V]) -> None:
        self._size = size
        self._factory = factory
        self._entries: OrderedDict[Hashable, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get_or_create(self, key: Hashable) -> V:
        """The row of *key*, made if need be."""
        found = self._entries.get(key)
        if found is None:
            found = self._entries[key] = self._factory()
            if len(self._entries) > self._size:
                self._entries.popitem(last=False)
        else:
            self._entries.move_to_end(key)
        return found


_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(slots=True)
class _AggregateRecord:
    messages: dict[str, None] = field(default_factory=dict)
    last_timestamp: float = float("-inf")


@dataclass(slots=True)
class _EventLog:
    name: str = ""
    count: int = 0
    first_timestamp: datetime = _NEVER


@dataclass(slots=True)
class _TokenBucket:
    tokens: float
    refilled_at: float = float("-inf")


class EventCorrelator:
    """Turns facts into Events to write."""

    def __init__(self, source: EventSource, options: CorrelatorOptions | None = None) -> None:
        self._source = source
        self._options = options = options or CorrelatorOptions()
        self._aggregates = _LruTable(options.lru_size, _AggregateRecord)
        self._event_logs = _LruTable(options.lru_size, _EventLog)
        self._buckets = _LruTable(options.lru_size, lambda: _TokenBucket(float(options.burst_size)))

    def correlate(self, recorded: RecordedEvent, now: float) -> Event | None:
        """The Event to write for *fact*; None if it is one too many.

        An Event with a count above 1 has been written before and is to be patched.

        Args:
            fact: what was recorded.
            now: monotonic seconds.
        """
        about = recorded.regarding
        who = (about.kind, about.namespace, about.name, about.uid, about.api_version)
        group = (*who, recorded.type, recorded.reason)
        combined = self._should_aggregate(group, recorded.message, now)
        key = group if combined else (*group, about.field_path, recorded.message)
        event = self._observe(
            key, recorded, COMBINED_PREFIX + recorded.message if combined else recorded.message
        )
        return event if self._passes_spam_filter((*who, recorded.type), now) else None

    def table_sizes(self) -> tuple[int, int, int]:
        """Sizes of the tables: groups, counts, buckets."""
        return len(self._aggregates), len(self._event_logs), len(self._buckets)

    def _should_aggregate(self, key: Hashable, message: str, now: float) -> bool:
        group = self._aggregates.get_or_create(key)
        if now - group.last_timestamp > self._options.max_interval:
            group.messages.clear()
        group.last_timestamp = now
        group.messages[message] = None
        if len(group.messages) < self._options.max_events:
            return False
        del group.messages[next(iter(group.messages))]
        return True

    def _observe(self, key: Hashable, recorded: RecordedEvent, message: str) -> Event:
        entry = self._event_logs.get_or_create(key)
        if not entry.count:
            entry.name, entry.first_timestamp = (
                event_name(recorded.regarding.name, recorded.timestamp),
                recorded.timestamp,
            )
        entry.count += 1
        return Event(
            metadata=ObjectMeta(
                name=entry.name, namespace=recorded.regarding.namespace or "default"
            ),
            involved_object=recorded.regarding,
            type=recorded.type,
            reason=recorded.reason,
            message=message,
            source=self._source,
            first_timestamp=_format_time(entry.first_timestamp),
            last_timestamp=_format_time(recorded.timestamp),
            count=entry.count,
            reporting_component=self._source.component,
            reporting_instance=self._source.host,
        )

    def _passes_spam_filter(self, key: Hashable, now: float) -> bool:
        bucket, limits = self._buckets.get_or_create(key), self._options
        gained = max(0.0, now - bucket.refilled_at) / limits.refill_interval
        bucket.tokens = min(float(limits.burst_size), bucket.tokens + gained)
        bucket.refilled_at = now
        if bucket.tokens < 1.0:
            return False
        bucket.tokens -= 1.0
        return True


def event_name(object_name: str, timestamp: datetime) -> str:
    """``<object>.<nanoseconds in hex>``, or a UUID where that would be no valid name."""
    since = timestamp - datetime(1970, 1, 1, tzinfo=UTC)
    nanoseconds = ((since.days * 86400 + since.seconds) * 10**6 + since.microseconds) * 1000
    name = f"{object_name}.{nanoseconds:x}"
    return name if len(name) <= 253 and _NAME.fullmatch(name) else str(uuid.uuid4())


def _format_time(timestamp: datetime) -> str:
    return timestamp.strftime("%Y-%m-%dT%H:%M:%SZ")
