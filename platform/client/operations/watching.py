"""Watches by server-sent events: reconnected, resumed by ``Last-Event-ID``, relisted after 410."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from ..calls import Session, decode, open_call
from ..effects import (
    Emit,
    Operation,
    Stream,
    StreamHead,
    TransportError,
    close_stream,
    read_chunk,
    sleep,
)
from ..errors import (
    DeadlineError,
    GoneError,
    UnavailableError,
    UnexpectedResponseError,
    UnreachableError,
)
from ..event_stream import EventParser, EventTooLargeError, ServerEvent
from ..requests import get
from ..timing import Deadline
from ..watch_state import Change, Watched, WatchState

ObjectT = TypeVar("ObjectT", bound=Watched)

IDLE_TIMEOUT = 45.0
"""Seconds without an event or a heartbeat, sent every 15, after which a connection is lost."""
_MIN_TIMEOUT = 0.05


@dataclass(slots=True)
class _Watch(Generic[ObjectT]):
    """State of a watch over its connections."""

    session: Session
    target: str
    type_: type[ObjectT]
    deadline: Deadline
    known: ObjectT | None = None
    state: WatchState[ObjectT] = field(default_factory=WatchState)
    last_id: str = ""
    """Position; empty before the first list is complete."""
    idle_timeout: float = IDLE_TIMEOUT
    connected: bool = False
    """Whether any connection was established."""
    failures: int = 0
    """Connections in succession that delivered nothing."""

    def __post_init__(self) -> None:
        if self.known is not None:
            self.state.seed(self.known)

    def open(self) -> Operation[StreamHead]:
        """Connect, and resume from the last position; without one the server lists all objects.

        Raises:
            DeadlineError: the deadline of the watch, or of the call, passed.
            ApiError, UnreachableError: as of any call.
        """
        headers: tuple[tuple[str, str], ...] = ()
        if self.last_id:
            headers = (("last-event-id", self.last_id),)
        else:
            self.state.begin_list()
        self.idle_timeout = min(IDLE_TIMEOUT, max(self.deadline.remaining, _MIN_TIMEOUT))
        timeout = min(self.session.timeout, max(self.deadline.remaining, _MIN_TIMEOUT))
        try:
            head = yield from open_call(
                replace(self.session, timeout=timeout),
                get(self.target, headers=headers),
                accept="text/event-stream",
                idle_timeout=self.idle_timeout,
            )
        except GoneError:
            if not self.last_id:
                raise
            self.last_id = ""
            return (yield from self.open())
        self.connected = True
        return head

    @property
    def must_reopen(self) -> bool:
        """Whether the connection would wait for events much longer than the deadline allows."""
        return self.deadline.remaining < 0.9 * self.idle_timeout

    def changes(self, event: ServerEvent) -> Iterator[Change[ObjectT]]:
        """Yield the changes of one event."""
        match event.type:
            case "synced":
                yield from self.state.end_list()
            case "list" | "added" | "modified":
                if event.type == "list" and not self.state.is_listing:
                    self.state.begin_list()
                yield from self.state.store(decode(event.data, self.type_))
            case "deleted":
                yield from self.state.delete(decode(event.data, self.type_))
        if not self.state.is_listing:
            self.last_id = event.id


def watch(
    session: Session,
    target: str,
    type_: type[ObjectT],
    *,
    deadline: Deadline | None = None,
    known: ObjectT | None = None,
) -> Stream[Change[ObjectT]]:
    """Emit the objects at *target*, then their changes; end at the deadline, if there is one.

    *known* is an object that was read before: it is not emitted unless it differs.

    Raises:
        ApiError: the server rejects it.
        UnreachableError: the server is not reachable for all attempts of a call.
    """
    deadline = deadline or Deadline(session.timing, None)
    watched = _Watch(session, target, type_, deadline, known)
    while watched.deadline.remaining > 0:
        parser = EventParser(last_id=watched.last_id)
        try:
            head = yield from watched.open()
        except (UnreachableError, UnavailableError, DeadlineError) as error:
            if not watched.connected and watched.deadline.remaining > session.retries.maximum:
                raise
            yield from _back_off(watched, parser, progress=False, reason=str(error))
            continue
        reason, progress = "the server ends it", False
        try:
            while chunk := (yield from read_chunk(head.stream)):
                for event in parser.feed(chunk):
                    progress |= event.type != "end"
                    for change in watched.changes(event):
                        yield Emit(change)
                if watched.must_reopen:
                    progress = True
                    break
        except TransportError as error:
            reason = str(error)
        except EventTooLargeError as error:
            raise UnexpectedResponseError(str(error)) from None
        yield from close_stream(head.stream)
        yield from _back_off(watched, parser, progress=progress, reason=reason)


def _back_off(
    watched: _Watch[ObjectT], parser: EventParser, *, progress: bool, reason: str
) -> Operation[None]:
    """Wait before the next connection.

    Raises:
        UnreachableError: too many connections have delivered nothing.
    """
    session, remaining = watched.session, watched.deadline.remaining
    watched.failures = 0 if progress else watched.failures + 1
    if watched.failures >= session.retries.attempts and remaining > IDLE_TIMEOUT:
        raise UnreachableError(f"the watch of {session.url} is broken repeatedly: {reason}")
    if progress and watched.must_reopen:
        return
    delay = session.retries.delay(max(watched.failures, 1), session.timing)
    yield from sleep(min(max(delay, parser.retry or 0.0), max(remaining, 0.0)))
