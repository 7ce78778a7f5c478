"""Telling users what happened to their objects, by ``v1`` Events, without ever being in the way.

Recording only appends to a bounded queue; one task correlates (see :mod:`.correlation`) and writes,
behind all other requests of the client. What does not fit, or cannot be written, is dropped and
counted.
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
    """Settings of a recorder that have good defaults."""

    queue_size: int = 5000
    """Events that may wait to be written: what a burst of a thousand jobs leaves, some 5 MB."""
    max_attempts: int = 12
    """How often an Event may be sent over a connection that breaks."""
    retry_interval: float = 10.0
    """Seconds between tries; the first pause is a random share of it."""
    correlator_options: CorrelatorOptions = field(default_factory=CorrelatorOptions)
    timing: Timing | None = None
    """By default that of the client."""


@dataclass(slots=True)
class EventRecorderStats:
    """What became of the events recorded so far."""

    created: int = 0
    patched: int = 0
    dropped_full: int = 0
    """The queue had no room."""
    dropped_spam: int = 0
    """One too many about the same object."""
    dropped_invalid: int = 0
    """The type was neither Normal nor Warning."""
    refused: int = 0
    """The server did not take it, or we may not write any more."""
    unreachable: int = 0
    """No try reached the server."""


class EventRecorder:
    """Records events in the name of *component*; :meth:`run_in_thread` writes them."""

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
        type: EventType,  # noqa: A002 - the word of the API
        reason: str,
        message: str,
    ) -> None:
        """Note that something happened to *about*. To be called on the loop's own thread.

        Never waits and never raises: without room, or with a *type* that is neither Normal nor
        Warning, the event is dropped and counted.
        """
        extra = {"key": regarding.name, "kind": regarding.kind, "reason": reason}
        if type not in {"Normal", "Warning"}:
            log.error("event of unknown type", extra={**extra, "event_type": type})
            self._count("dropped_invalid")
        elif len(self._queue) >= self._options.queue_size:
            log.warning("event dropped, the queue is full", extra=extra)
            self._count("dropped_full")
        else:
            log.debug("event", extra={**extra, "text": message})
            at = self._timing.now()
            self._queue.append(
                RecordedEvent(
                    regarding=regarding, type=type, reason=reason, message=message, timestamp=at
                )
            )
            self._wake.set()
            self._idle.clear()

    async def run(self) -> None:
        """Write events until cancelled; what still waits then is not written."""
        await supervise("event recorder", self._process_queue, timing=self._timing)

    async def _process_queue(self) -> None:
        while True:
            while self._queue:
                fact = self._queue.popleft()
                event = self._correlator.correlate(fact, self._timing.monotonic())
                if event is None:
                    self._count("dropped_spam")
                else:
                    await self._write(event)
            self._idle.set()
            await self._wake.wait()
            self._wake.clear()

    async def flush(self, seconds: float) -> None:
        """Wait until what was recorded is written, for *seconds* at most; run() must go on."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()

    @property
    def pending_count(self) -> int:
        """Events that are not written yet."""
        return len(self._queue)

    async def _write(self, event: Event) -> None:
        """Write one Event, trying again while the server cannot be reached."""
        for attempt in range(1, self._options.max_attempts + 1):
            try:
                await self._send(event)
            except (ApiError, NotLeaderError, DecodeError) as error:
                log.warning("event refused", extra={"error": str(error), "reason": event.reason})
                self._count("refused")
                return
            except ConnectionLostError as error:
                log.info("event not sent", extra={"error": str(error), "attempt": attempt})
                if attempt < self._options.max_attempts:
                    share = self._timing.random() if attempt == 1 else 1.0
                    await self._timing.sleep(self._options.retry_interval * share)
            else:
                return
        self._count("unreachable")

    async def _send(self, event: Event) -> None:
        space = event.metadata.namespace
        if event.count > 1:
            changes = {
                "count": event.count,
                "lastTimestamp": event.last_timestamp,
                "message": event.message,
            }
            try:
                await self._client.patch(EVENTS, event.metadata.name, changes, namespace=space)
            except NotFoundError:
                pass  # it expired, or its creation failed: make it (again) below
            else:
                self._count("patched")
                return
        await self._client.create(EVENTS, event, namespace=space)
        self._count("created")

    def _count(self, result: str) -> None:
        setattr(self.stats, result, getattr(self.stats, result) + 1)
        self._client.metrics.events.labels(result).inc()
