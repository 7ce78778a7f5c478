"""Event correlation as in client-go: aggregation, deduplication, spam filter.

Pure: the caller passes the time and gets the Event to write. In order: *aggregation* (ten distinct
messages of a group become one combined event), *counting* (a repeated event increments the count of
the existing Event), *spam filter* (a token bucket per source, object and type). Their state is kept
in LRU tables of bounded size.
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
    """Reporting component and host."""

    component: str = ""
    host: str = ""


class Event(ApiStruct, frozen=True):
    """Core ``v1`` Event as written by the recorder."""

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
    """An event as recorded, before correlation."""

    regarding: ObjectReference
    type: str
    reason: str
    message: str
    timestamp: datetime
    component: str = ""
    """Component that recorded it, if not that of the recorder."""


_MAX_MESSAGES = 10
"""Number of distinct messages from which on a group is aggregated."""

_MAX_INTERVAL = 600.0
"""Seconds without an event after which a group is reset."""

_BURST_SIZE = 25.0
"""Burst of events per object and type."""

_REFILL_INTERVAL = 300.0
"""Seconds per additional event."""

_TABLE_SIZE = 4096
"""Maximum number of entries of each table."""


class _LruTable(Generic[V]):
    """Dictionary of bounded size that evicts the least recently used entry."""

    def __init__(self, size: int, factory: Callable[[], V]) -> None:
        self._size = size
        self._factory = factory
        self._entries: OrderedDict[Hashable, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get_or_create(self, key: Hashable) -> V:
        """Return the entry of *key*, created if missing."""
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
    """Correlates recorded events into Events to write."""

    def __init__(self, source: EventSource) -> None:
        self._source = source
        self._aggregates = _LruTable(_TABLE_SIZE, _AggregateRecord)
        self._event_logs = _LruTable(_TABLE_SIZE, _EventLog)
        self._buckets = _LruTable(_TABLE_SIZE, lambda: _TokenBucket(_BURST_SIZE))

    def correlate(self, recorded: RecordedEvent, now: float) -> Event | None:
        """Return the Event to write; None if the spam filter drops it.

        An Event with a count above 1 exists already and is to be patched.

        Args:
            recorded: the recorded event.
            now: monotonic seconds.
        """
        regarding = recorded.regarding
        source_key = (
            recorded.component,
            regarding.kind,
            regarding.namespace,
            regarding.name,
            regarding.uid,
            regarding.api_version,
        )
        group = (*source_key, recorded.type, recorded.reason)
        combined = self._should_aggregate(group, recorded.message, now)
        key = group if combined else (*group, regarding.field_path, recorded.message)
        event = self._observe(
            key, recorded, COMBINED_PREFIX + recorded.message if combined else recorded.message
        )
        return event if self._passes_spam_filter((*source_key, recorded.type), now) else None

    def table_sizes(self) -> tuple[int, int, int]:
        """Return the sizes of the tables: aggregates, event logs, buckets."""
        return len(self._aggregates), len(self._event_logs), len(self._buckets)

    def _should_aggregate(self, key: Hashable, message: str, now: float) -> bool:
        group = self._aggregates.get_or_create(key)
        if now - group.last_timestamp > _MAX_INTERVAL:
            group.messages.clear()
        group.last_timestamp = now
        group.messages[message] = None
        if len(group.messages) < _MAX_MESSAGES:
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
        source = self._source
        if recorded.component:
            source = EventSource(component=recorded.component, host=source.host)
        return Event(
            metadata=ObjectMeta(
                name=entry.name, namespace=recorded.regarding.namespace or "default"
            ),
            involved_object=recorded.regarding,
            type=recorded.type,
            reason=recorded.reason,
            message=message,
            source=source,
            first_timestamp=_format_time(entry.first_timestamp),
            last_timestamp=_format_time(recorded.timestamp),
            count=entry.count,
            reporting_component=source.component,
            reporting_instance=source.host,
        )

    def _passes_spam_filter(self, key: Hashable, now: float) -> bool:
        bucket = self._buckets.get_or_create(key)
        gained = max(0.0, now - bucket.refilled_at) / _REFILL_INTERVAL
        bucket.tokens = min(_BURST_SIZE, bucket.tokens + gained)
        bucket.refilled_at = now
        if bucket.tokens < 1.0:
            return False
        bucket.tokens -= 1.0
        return True


def event_name(object_name: str, timestamp: datetime) -> str:
    """Return ``<object>.<nanoseconds in hex>``, or a UUID if that is no valid name."""
    since = timestamp - datetime(1970, 1, 1, tzinfo=UTC)
    nanoseconds = ((since.days * 86400 + since.seconds) * 10**6 + since.microseconds) * 1000
    name = f"{object_name}.{nanoseconds:x}"
    return name if len(name) <= 253 and _NAME.fullmatch(name) else str(uuid.uuid4())


def _format_time(timestamp: datetime) -> str:
    return timestamp.strftime("%Y-%m-%dT%H:%M:%SZ")
