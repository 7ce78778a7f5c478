"""Calls of the REST API: credentials, retries with backoff, deadlines, decoding.

Every request of the SDK may be sent again: reads and idempotent writes because they change nothing
the second time, POSTs because all attempts of a call have the same ``Idempotency-Key``. So if a
response is lost, the next attempt finds out what became of the request.
"""

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import msgspec

from . import errors
from .credentials import CredentialSource
from .effects import (
    Operation,
    Reply,
    Secret,
    StreamHead,
    TransportError,
    WireRequest,
    call_blocking,
    close_stream,
    open_stream,
    read_chunk,
    send,
    sleep,
)
from .errors import (
    ApiError,
    ClientError,
    DeadlineError,
    UnexpectedResponseError,
    UnreachableError,
)
from .requests import ApiRequest
from .timing import Deadline, Retries, Timing

T = TypeVar("T")

log = logging.getLogger("batholith.client")

USER_AGENT = "batholith-python"
_RETRIED = frozenset({429, 502, 503, 504})
_WARNING = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")
_ERROR_BODY_LIMIT = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The REST API at one address, and the settings of calls."""

    url: str
    """Without a slash at the end."""
    credentials: CredentialSource
    namespace: str = "default"
    """The namespace of operations that do not name one."""
    timeout: float = 30.0
    """Seconds for one call with all its attempts."""
    retries: Retries = field(default_factory=Retries)
    timing: Timing = field(default_factory=Timing)

    def wire(self, request: ApiRequest, authorization: Secret, *, accept: str) -> WireRequest:
        """Return *request* with address and headers."""
        headers = {"accept": accept, "user-agent": USER_AGENT, **dict(request.headers)}
        if request.body is not None:
            headers["content-type"] = request.content_type
        if request.idempotency_key:
            headers["idempotency-key"] = request.idempotency_key
        return WireRequest(
            method=request.method,
            url=self.url + request.path,
            headers=headers,
            authorization=authorization,
            body=request.body,
        )


@dataclass(frozen=True, slots=True)
class Result:
    """The response of a call."""

    reply: Reply
    lost: bool
    """Whether an earlier attempt without a response may have been executed."""
    is_done: bool = False
    """Whether such an attempt has executed the request; *reply* is empty then."""


@dataclass(slots=True)
class Attempts:
    """State of the attempts of one call."""

    session: Session
    deadline: Deadline
    count: int = 0
    lost: bool = False
    reauthorized: bool = False

    def next_delay(self, failure: ClientError, *, retry_after: float | None = None) -> float:
        """Return the delay before the next attempt.

        Raises:
            ClientError: *failure*, if there is no further attempt, or no time for it.
        """
        if self.count >= self.session.retries.attempts:
            raise failure
        delay = self.session.retries.delay(self.count, self.session.timing, retry_after=retry_after)
        if delay >= self.deadline.remaining:
            if isinstance(failure, ApiError):
                raise failure
            raise DeadlineError(f"the timeout passed: {failure}") from None
        if self.session.retries.on_retry is not None:
            self.session.retries.on_retry(failure, delay)
        return delay

    def reauthorize(self, rejected: Secret) -> bool:
        """Discard credentials that the server rejected; return whether others can be tried."""
        if self.reauthorized:
            return False
        self.reauthorized = True
        return self.session.credentials.invalidate(rejected)


def authorize(session: Session) -> Operation[Secret]:
    """Return the ``Authorization`` header.

    Raises:
        ConfigError: there are no credentials.
    """
    current = session.credentials.current()
    if current is not None:
        return current
    return (yield from call_blocking(session.credentials.fetch))


def send_call(
    session: Session,
    request: ApiRequest,
    *,
    is_done: Callable[[], Operation[bool]] | None = None,
) -> Operation[Result]:
    """Send *request* until it has a response that is not worth a retry.

    *is_done* is called before a retry if an earlier attempt may have been executed: True if so.

    Raises:
        UnreachableError: no attempt had a response.
        DeadlineError: the timeout passed.
        ApiError: the attempts were rejected as too many, or the server was unavailable.
    """
    attempts = Attempts(session, Deadline(session.timing, session.timeout + request.hold))
    while True:
        authorization = yield from authorize(session)
        attempts.count += 1
        wire = session.wire(request, authorization, accept="application/json")
        try:
            reply = yield from send(wire, timeout=max(attempts.deadline.remaining, 0.001))
        except TransportError as error:
            attempts.lost |= error.sent
            delay = attempts.next_delay(_unreachable(session, error))
        else:
            if reply.status == 401 and attempts.reauthorize(authorization):
                continue
            if not _is_retried(reply):
                _log_warnings(reply)
                return Result(reply, attempts.lost)
            # The server may have executed it before it, or a proxy, failed.
            attempts.lost |= reply.status >= 500
            retry_after = errors.retry_after_of(reply)
            delay = attempts.next_delay(errors.from_reply(reply), retry_after=retry_after)
        yield from sleep(delay)
        if is_done is not None and attempts.lost and (yield from is_done()):
            return Result(Reply(404, {}), lost=True, is_done=True)


def call(session: Session, request: ApiRequest, type_: type[T]) -> Operation[T]:
    """Send *request* and decode its response.

    Raises:
        ApiError: the server rejected it.
        UnreachableError, DeadlineError, UnexpectedResponseError: as :func:`send_call`.
    """
    result = yield from send_call(session, request)
    return decode_reply(result.reply, type_)


def decode_reply(reply: Reply, type_: type[T]) -> T:
    """Decode the body of a response.

    Raises:
        ApiError: the response is an error.
        UnexpectedResponseError: the body is not of that type.
    """
    if reply.status >= 300:
        raise errors.from_reply(reply)
    return decode(reply.body, type_)


def decode(body: bytes | str, type_: type[T]) -> T:
    """Decode JSON of the REST API.

    Raises:
        UnexpectedResponseError: it is not of that type.
    """
    try:
        return msgspec.json.decode(body, type=type_)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnexpectedResponseError(f"cannot decode the response: {error}") from error


def open_call(
    session: Session, request: ApiRequest, *, accept: str, idle_timeout: float | None
) -> Operation[StreamHead]:
    """Open a streamed response, repeating attempts that failed before its first byte.

    Raises:
        ApiError: the server rejected it.
        UnreachableError, DeadlineError: as :func:`send_call`.
    """
    attempts = Attempts(session, Deadline(session.timing, session.timeout))
    while True:
        authorization = yield from authorize(session)
        attempts.count += 1
        wire = session.wire(request, authorization, accept=accept)
        timeout = max(attempts.deadline.remaining, 0.001)
        try:
            head = yield from open_stream(wire, timeout=timeout, idle_timeout=idle_timeout)
            if head.reply.status == 200:
                return head
            reply = yield from _read_error(head)
        except TransportError as error:
            delay = attempts.next_delay(_unreachable(session, error))
        else:
            if reply.status == 401 and attempts.reauthorize(authorization):
                continue
            failure = errors.from_reply(reply)
            if not _is_retried(reply):
                raise failure
            retry_after = errors.retry_after_of(reply)
            delay = attempts.next_delay(failure, retry_after=retry_after)
        yield from sleep(delay)


def _read_error(head: StreamHead) -> Operation[Reply]:
    """Return the response with its body, of which an error needs little."""
    body = b""
    while len(body) < _ERROR_BODY_LIMIT and (chunk := (yield from read_chunk(head.stream))):
        body += chunk
    yield from close_stream(head.stream)
    return replace(head.reply, body=body)


def _log_warnings(reply: Reply) -> None:
    """Log the warnings of the Kubernetes API about an object, as kubectl prints them."""
    for text in _WARNING.findall(reply.headers.get("warning", "")):
        log.warning("warning of the server: %s", _ESCAPE.sub(r"\1", text))


def _is_retried(reply: Reply) -> bool:
    # 409 with Retry-After: another attempt with the same key is still executed.
    running = reply.status == 409 and errors.retry_after_of(reply) is not None
    return reply.status in _RETRIED or running


def _unreachable(session: Session, error: TransportError) -> UnreachableError:
    return UnreachableError(f"cannot reach {session.url}: {error}")
