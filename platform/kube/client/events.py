"""Recorder of ``v1`` Events that never blocks its caller.

Recording only appends to a bounded queue; one task correlates (see :mod:`.event_correlator`) and
writes with the client's background priority. Events that exceed the queue or cannot be written are
dropped and counted.
"""

import asyncio
import contextlib
import logging
import socket
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

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
from .event_correlator import CorrelatorOptions, Event, EventCorrelator, EventSource, RecordedEvent

log = logging.getLogger(__name__)

EventType = Literal["Normal", "Warning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecorderOptions:
    """Options of a recorder."""

    queue_size: int = 5000
    """Maximum queued events: a burst of a thousand jobs, some 5 MB."""
    max_attempts: int = 12
    """Attempts to send an Event while the connection fails."""
    retry_interval: float = 10.0
    """Seconds between attempts; the first delay is a random fraction of it."""
    correlator_options: CorrelatorOptions = field(default_factory=CorrelatorOptions)
    timing: Timing | None = None
    """Defaults to that of the client."""


@dataclass(slots=True)
class EventRecorderStats:
    """Counts of recorded events by result."""

    created: int = 0
    patched: int = 0
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
        self._correlator = EventCorrelator(source, self._options.correlator_options)
        self._queue: deque[RecordedEvent] = deque()
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
        elif len(self._queue) >= self._options.queue_size:
            log.warning("event queue full, dropping event", extra=extra)
            self._count("dropped_full")
        else:
            log.debug("event", extra={**extra, "text": message})
            at = self._timing.now()
            self._queue.append(
                RecordedEvent(
                    regarding=regarding,
                    type=type,
                    reason=reason,
                    message=message,
                    timestamp=at,
                    component=component,
                )
            )
            self._wake.set()
            self._idle.clear()

    def with_component(self, component: str) -> "ComponentRecorder":
        """Return a recorder whose events name *component* as their source."""
        return ComponentRecorder(self, component)

    async def run(self) -> None:
        """Write events until cancelled; queued events are lost then."""
        await supervise("event recorder", self._process_queue, timing=self._timing)

    async def _process_queue(self) -> None:
        while True:
            while self._queue:
                recorded = self._queue.popleft()
                event = self._correlator.correlate(recorded, self._timing.monotonic())
                if event is None:
                    self._count("dropped_spam")
                else:
                    await self._write(event)
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

    async def _write(self, event: Event) -> None:
        """Write one Event, retrying while the server is unreachable."""
        for attempt in range(1, self._options.max_attempts + 1):
            try:
                await self._send(event)
            except (ApiError, NotLeaderError, DecodeError) as error:
                log.warning(
                    "event rejected by server", extra={"error": str(error), "reason": event.reason}
                )
                self._count("refused")
                return
            except ConnectionLostError as error:
                log.info("cannot send event", extra={"error": str(error), "attempt": attempt})
                if attempt < self._options.max_attempts:
                    fraction = self._timing.random() if attempt == 1 else 1.0
                    await self._timing.sleep(self._options.retry_interval * fraction)
            else:
                return
        self._count("unreachable")

    async def _send(self, event: Event) -> None:
        namespace = event.metadata.namespace
        if event.count > 1:
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
