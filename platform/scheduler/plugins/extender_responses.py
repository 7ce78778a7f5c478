"""Responses of an extender over HTTP, which are asked for in threads and kept for some time.

Without a response, what was asked about is left to a later cycle, which runs when there are
responses to all requests. What depends on the present decision cannot be asked before it: for that
a cycle waits, in its thread, for the time of one response in total.
"""

import http.client
import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from threading import Condition, Lock, Thread
from typing import Any
from urllib.parse import SplitResult, urlsplit

log = logging.getLogger(__name__)

Json = dict[str, Any]

_THREADS = 8
"""Requests at a time."""

_MAX_PENDING = 20_000
"""Questions that are waiting at most; others are asked when the plugin asks again."""

_MAX_AWAITED = 64
"""Questions in a cycle that it may wait for."""

_MAX_BYTES = 4 * 2**20
"""Size of a response."""

_CHUNK = 64 * 1024
_UNUSED_PERIODS = 10
"""After how many periods a response is dropped that was not looked up."""


class ExtenderError(Exception):
    """The extender has not responded, or not as it should."""


@dataclass(frozen=True, slots=True)
class Response:
    """What the extender has responded, or why it has not."""

    body: Json
    error: str = ""


@dataclass(slots=True)
class _Known:
    response: Response | None = None
    """``None`` until the first response."""

    expires: float = 0.0
    used: float = 0.0
    is_pending: bool = False
    is_awaited: bool = False
    """Whether a cycle waits for the response, so that it need not be woken by that."""


class Extender:
    """Sends requests to one extender."""

    def __init__(self, prefix: SplitResult, *, timeout: float) -> None:
        """Post to paths below *prefix*; a response is complete within *timeout* seconds."""
        self._prefix = prefix
        self.timeout = timeout

    def post(self, verb: str, body: Json) -> Json:
        """Return the response to *body*.

        Raises:
            ExtenderError: there is none in time, or it is no JSON object.
        """
        is_secure = self._prefix.scheme == "https"
        kind = http.client.HTTPSConnection if is_secure else http.client.HTTPConnection
        deadline = time.monotonic() + self.timeout
        connection = kind(self._prefix.hostname or "", self._prefix.port, timeout=self.timeout)
        try:
            path = f"{self._prefix.path.rstrip('/')}/{verb}"
            headers = {"Content-Type": "application/json"}
            connection.request("POST", path, json.dumps(body), headers)
            with connection.getresponse() as response:  # it has the socket, too
                content = self._read(response, deadline)
        # ValueError: the host or the path has characters that cannot be sent.
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ExtenderError(f"{type(error).__name__}: {error}") from error
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise ExtenderError(f"status {response.status}")
        try:
            decoded = json.loads(content) if content.strip() else {}
        except (ValueError, RecursionError) as error:
            raise ExtenderError(f"no JSON: {error}") from error
        if not isinstance(decoded, dict):
            raise ExtenderError("no JSON object")
        return decoded

    def _read(self, response: http.client.HTTPResponse, deadline: float) -> bytes:
        content = b""
        while chunk := response.read1(_CHUNK):
            content += chunk
            if len(content) > _MAX_BYTES:
                raise ExtenderError(f"more than {_MAX_BYTES} bytes")
            if time.monotonic() > deadline:
                raise ExtenderError("the response is not complete in time")
        return content


class Responses:
    """The responses of one extender, by the key of the question."""

    def __init__(
        self, extender: Extender, *, keep: float, on_responses: Callable[[], object]
    ) -> None:
        """Keep a response for *keep* seconds; *on_responses* is called, in any thread, when there
        are responses to all requests, and one differs from before."""
        self._extender = extender
        self._keep = keep
        self._on_responses = on_responses
        self._pid = os.getpid()
        self._lock = Lock()
        self._responded = Condition(self._lock)
        self._seconds_left = 0.0
        """For how long the cycle may wait yet."""
        self._questions_left = 0
        self._known: dict[Hashable, _Known] = {}
        self._pending = 0
        self._is_changed = False
        self._work: deque[Callable[[], object]] = deque()
        self._threads = 0
        self.version = 0
        """Grows with responses that differ from before."""

    @property
    def is_copy(self) -> bool:
        """Whether this process is a copy of the scheduler, which simulates: it sends nothing."""
        return os.getpid() != self._pid

    def get(
        self, verb: str, key: Hashable, body: Callable[[], Json], now: float
    ) -> Response | None:
        """Return the response to a question, ``None`` if there is none yet.

        A response that is too old is returned until there is a new one. *now* is the time of the
        cycle.
        """
        return self._look_up(verb, key, body, now).response

    def begin_cycle(self) -> None:
        """Let :meth:`require` wait again."""
        self._seconds_left, self._questions_left = self._extender.timeout, _MAX_AWAITED

    def require(
        self, verb: str, key: Hashable, body: Callable[[], Json], now: float
    ) -> Response | None:
        """Return the response as :meth:`get` does, and wait for it as long as the cycle may.

        No more is asked in a cycle than it may wait for.
        """
        if self.is_copy:
            return self.get(verb, key, body, now)
        with self._lock:
            if (verb, key) not in self._known and self._questions_left <= 0:
                return None
        self._questions_left -= 1
        known = self._look_up(verb, key, body, now, is_urgent=True)
        started = time.monotonic()
        with self._responded:
            known.is_awaited |= known.response is None and known.is_pending
            self._responded.wait_for(lambda: not known.is_awaited, self._seconds_left)
            known.is_awaited = False
        self._seconds_left = max(self._seconds_left - (time.monotonic() - started), 0.0)
        return known.response

    def _look_up(
        self,
        verb: str,
        key: Hashable,
        body: Callable[[], Json],
        now: float,
        *,
        is_urgent: bool = False,
    ) -> _Known:
        if self.is_copy:  # a thread that does not exist here may hold the lock
            return self._known.get((verb, key), _Known())
        with self._lock:
            known = self._known.setdefault((verb, key), _Known())
            known.used = now
            if now < known.expires or known.is_pending or self._pending >= _MAX_PENDING:
                return known
            known.is_pending = True
            known.is_awaited = is_urgent and known.response is None
            self._pending += 1
            content = body()
        self._submit(lambda: self._ask(verb, known, content, now), is_urgent=is_urgent)
        return known

    def send(self, verb: str, body: Json) -> None:
        """Send *body* without a need for a response; nothing is sent if too much waits."""
        if self.is_copy:
            return
        with self._lock:
            is_full = len(self._work) >= _MAX_PENDING
        if is_full:
            log.warning("extender is too slow: nothing is sent", extra={"verb": verb})
        else:
            self._submit(lambda: self._send(verb, body))

    def exchange(self, verb: str, body: Callable[[], Json]) -> None:
        """Send *body*, and wait until the extender has responded.

        Raises:
            ExtenderError: there is no response in time, or it is no JSON object.
        """
        if not self.is_copy:
            self._extender.post(verb, body())

    def drop_unused(self, now: float) -> None:
        """Drop what has not been looked up for long."""
        if self.is_copy:
            return
        oldest = now - _UNUSED_PERIODS * self._keep
        with self._lock:
            for key in [
                key
                for key, known in self._known.items()
                if known.used < oldest and not known.is_pending
            ]:
                del self._known[key]

    # -- private -------------------------------------------------------------------------------

    def _submit(self, function: Callable[[], object], *, is_urgent: bool = False) -> None:
        with self._lock:
            (self._work.appendleft if is_urgent else self._work.append)(function)
            if self._threads >= _THREADS:
                return
            self._threads += 1
        # The end of the process does not wait for the threads, which end when nothing is left.
        Thread(target=self._run, name="extender", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._work:
                    self._threads -= 1
                    return
                function = self._work.popleft()
            function()

    def _send(self, verb: str, body: Json) -> None:
        try:
            self._extender.post(verb, body)
        except ExtenderError as error:
            log.warning("extender failed", extra={"verb": verb, "error": str(error)})

    def _ask(self, verb: str, known: _Known, body: Json, asked_at: float) -> None:
        try:
            response = Response(self._extender.post(verb, body))
        except ExtenderError as error:
            response = Response({}, f"{verb}: {error}")
            log.warning("extender failed", extra={"verb": verb, "error": str(error)})
        with self._lock:
            if known.response != response and not known.is_awaited:
                self.version += 1
                self._is_changed = True
            known.response, known.expires = response, asked_at + self._keep
            known.is_pending = known.is_awaited = False
            self._pending -= 1
            self._responded.notify_all()
            is_complete = self._is_changed and not self._pending
            self._is_changed &= not is_complete
        if is_complete:
            self._on_responses()


def parse_prefix(text: str) -> SplitResult:
    """Return the URL below which the extender is.

    Raises:
        ValueError: it is no URL of HTTP or HTTPS.
    """
    prefix = urlsplit(text)
    if prefix.scheme not in ("http", "https") or not prefix.hostname:
        raise ValueError(f"must be a URL such as http://extender.example:8080, not {text!r}")
    if prefix.query or prefix.fragment or prefix.username:
        raise ValueError("must have no query, fragment or user")
    _ = prefix.port  # raises if it is no port
    return prefix
