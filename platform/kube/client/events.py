"""Recorder of ``v1`` Events that never blocks its caller.

Recording correlates (see :mod:`.event_correlator`) and appends to a bounded queue, or updates the
Event that is queued already; one task writes with the client's background priority. Events that
exceed the queue or cannot be written are dropped and counted.
"""

import asyncio
import contextlib
import logging
import socket
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ...model.meta import ObjectReference
from ...model.names import EVENTS
from ..errors import (
    ApiError,
    ConnectionLostError,
    DecodeError,
    NotFoundError,
    NotLeaderError,
)
from ..supervision import supervise
from ..timing import Timing
from .client import Client
from .event_correlator import (
    COMBINED_PREFIX,
    Event,
    EventCorrelator,
    EventSource,
    RecordedEvent,
)

log = logging.getLogger(__name__)

EventType = Literal["Normal", "Warning"]

DROP_LOG_INTERVAL = 10.0
"""Seconds between two messages about dropped events."""

_RETRY_INTERVAL = 10.0
"""Seconds between attempts to send an Event; the first delay is a random fraction of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecorderOptions:
    """Options of a recorder."""

    queue_size: int = 5000
    """Maximum queued events: a burst of a thousand jobs, some 5 MB."""
    max_attempts: int = 12
    """Attempts to send an Event while the connection fails."""
    timing: Timing | None = None
    """Defaults to that of the client."""


@dataclass(slots=True)
class EventRecorderStats:
    """Counts of recorded events by result."""

    created: int = 0
    patched: int = 0
    aggregated: int = 0
    """Counted by an Event that was still queued."""
    dropped_full: int = 0
    """The queue was full."""
    dropped_spam: int = 0
    """Dropped by the spam filter."""
    dropped_invalid: int = 0
    """The type was neither Normal nor Warning."""
    refused: int = 0
    """The server rejected it, or the fence blocked the write."""
    unreachable: int = 0
    """No attempt reached the server."""


class _QueuedEvent(NamedTuple):
    event: Event
    is_new: bool
    """Whether the server does not have an Event of that name."""


class EventRecorder:
    """Records events as *component*; :meth:`run` writes them."""

    def __init__(
        self,
        client: Client,
        *,
        component: str,
        instance: str = "",
        options: EventRecorderOptions | None = None,
    ) -> None:
        self.stats = EventRecorderStats()
        self._client = client.background()
        self._options = options or EventRecorderOptions()
        self._timing = self._options.timing or client.timing
        source = EventSource(component=component, host=instance or socket.gethostname())
        self._correlator = EventCorrelator(source)
        self._queue: dict[tuple[str, ...], _QueuedEvent] = {}
        """By what repetitions have in common, in the order of writing."""
        self._drops_logged_at = float("-inf")
        self._unlogged_drops = 0
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def record(
        self,
        regarding: ObjectReference,
        *,
        type: EventType,  # noqa: A002 - the API's name
        reason: str,
        message: str,
        component: str = "",
    ) -> None:
        """Record an event about *regarding*. Call it on the event loop's thread.

        Never blocks and never raises: if the queue is full or *type* is neither Normal nor Warning,
        the event is dropped and counted. *component*: if not the recorder's own.
        """
        extra = {"key": regarding.name, "kind": regarding.kind, "reason": reason}
        if type not in {"Normal", "Warning"}:
            log.error("unknown event type, dropping event", extra={**extra, "event_type": type})
            self._count("dropped_invalid")
            return
        log.debug("event", extra={**extra, "text": message})
        recorded = RecordedEvent(
            regarding=regarding,
            type=type,
            reason=reason,
            message=message,
            timestamp=self._timing.now(),
            component=component,
        )
        event = self._correlator.correlate(recorded, self._timing.monotonic())
        if event is None:
            self._count("dropped_spam")
        elif not self._enqueue(event):
            self._count("dropped_full")
            self._log_drop(extra)

    def _enqueue(self, event: Event) -> bool:
        """Queue an Event, or its new count; return whether there was space."""
        message = "" if event.message.startswith(COMBINED_PREFIX) else event.message
        key = (event.metadata.namespace, event.metadata.name, event.type, event.reason, message)
        queued = self._queue.get(key)
        if queued is not None:
            self._queue[key] = _QueuedEvent(event, queued.is_new)
            self._count("aggregated")
            return True
        if len(self._queue) >= self._options.queue_size:
            return False
        self._queue[key] = _QueuedEvent(event, event.count == 1)
        self._wake.set()
        self._idle.clear()
        return True

    def _log_drop(self, extra: dict[str, str]) -> None:
        self._unlogged_drops += 1
        now = self._timing.monotonic()
        if now - self._drops_logged_at < DROP_LOG_INTERVAL:
            return
        log.warning(
            "event queue full, dropping events", extra={**extra, "dropped": self._unlogged_drops}
        )
        self._drops_logged_at, self._unlogged_drops = now, 0

    def with_component(self, component: str) -> "ComponentRecorder":
        """Return a recorder whose events name *component* as their source."""
        return ComponentRecorder(self, component)

    async def run(self) -> None:
        """Write events until cancelled; queued events are lost then."""
        await supervise("event recorder", self._process_queue, timing=self._timing)

    async def _process_queue(self) -> None:
        while True:
            while self._queue:
                await self._write(self._queue.pop(next(iter(self._queue))))
            self._idle.set()
            await self._wake.wait()
            self._wake.clear()

    async def flush(self, seconds: float) -> None:
        """Wait until the queue is written, for *seconds* at most; run() must be running."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()

    @property
    def pending_count(self) -> int:
        """Number of queued events."""
        return len(self._queue)

    async def _write(self, queued: _QueuedEvent) -> None:
        """Write one Event, retrying while the server is unreachable."""
        for attempt in range(1, self._options.max_attempts + 1):
            try:
                await self._send(*queued)
            except (ApiError, NotLeaderError, DecodeError) as error:
                log.warning(
                    "event rejected by server",
                    extra={"error": str(error), "reason": queued.event.reason},
                )
                self._count("refused")
                return
            except ConnectionLostError as error:
                log.info("cannot send event", extra={"error": str(error), "attempt": attempt})
                if attempt < self._options.max_attempts:
                    fraction = self._timing.random() if attempt == 1 else 1.0
                    await self._timing.sleep(_RETRY_INTERVAL * fraction)
            else:
                return
        self._count("unreachable")

    async def _send(self, event: Event, is_new: bool) -> None:
        namespace = event.metadata.namespace
        if not is_new:
            changes = {
                "count": event.count,
                "lastTimestamp": event.last_timestamp,
                "message": event.message,
            }
            try:
                await self._client.patch(EVENTS, event.metadata.name, changes, namespace=namespace)
            except NotFoundError:
                pass  # expired, or its creation failed: create it below
            else:
                self._count("patched")
                return
        await self._client.create(EVENTS, event, namespace=namespace)
        self._count("created")

    def _count(self, result: str) -> None:
        setattr(self.stats, result, getattr(self.stats, result) + 1)
        self._client.metrics.events.labels(result).inc()


@dataclass(frozen=True, slots=True)
class ComponentRecorder:
    """Records the events of one of the components that share an `EventRecorder`."""

    recorder: EventRecorder
    component: str

    def record(
        self,
        regarding: ObjectReference,
        *,
        type: EventType,  # noqa: A002 - the API's name
        reason: str,
        message: str,
    ) -> None:
        """Record an event; see `EventRecorder.record`."""
        self.recorder.record(
            regarding, type=type, reason=reason, message=message, component=self.component
        )
