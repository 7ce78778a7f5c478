"""Idempotency-Key: a POST that is repeated with its key gets the response of the first one.

The middleware claims the key before the request is routed, keeps the claim while the request is
executed, and stores the response before it is sent. What a request creates is named after the id
of its operation, which the claim holds, so an interrupted request can be executed again by any
replica. Responses that do not concern the request itself (5xx, 401, 429) are not stored.
"""

import asyncio
import hashlib
import json
import logging
import re
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...kube.supervision import supervise
from ...machinery.clock import Clock, SystemClock
from ...store.database import StoreUnavailableError
from ...store.idempotency import SWEEP_SIZE, Claim, ClaimResult, IdempotencyStore, StoredResponse
from ..identity.authentication import CALLER, PROTECTED_PREFIX
from ..identity.reviewer import UserInfo
from ..problems import RETRY_AFTER, ProblemError, to_response

log = logging.getLogger(__name__)

HEADER = "Idempotency-Key"
PATTERN = "^[!-~]+$"
MAX_KEY = 255
"""Maximum length of a key."""

ATTEMPT = "idempotency"
"""Key of the attempt in the request's state."""

LEASE = timedelta(seconds=6)
"""Time after which the request of a crashed replica may be executed by another one."""
RENEW_INTERVAL = 2.0
"""Seconds between renewals of the leases of long requests."""
SWEEP_INTERVAL = 300.0
"""Seconds between deletions of expired rows."""
BUSY_RETRY_AFTER = 1.0
"""``Retry-After`` in seconds while the first request is being executed."""

_HEADER = HEADER.lower().encode()
_VALID = re.compile(rb"[!-~]{1,255}")
_NOT_STORED = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.TOO_MANY_REQUESTS})

BUSY = "a request with this Idempotency-Key is being executed"
OTHER_REQUEST = "the Idempotency-Key was used for another path or body"
NOT_RECORDED = (
    "the response cannot be recorded; repeat the request with the same Idempotency-Key to get it"
)
UNAVAILABLE = "the command database is unavailable; nothing was done"


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One execution of a request that has a key."""

    store: IdempotencyStore
    key: str
    owner: str
    operation: uuid.UUID
    is_repeated: bool
    """An earlier attempt may have executed all or some of the request."""
    plan: bytes | None = None
    is_final: bool = True
    """Whether the response is stored, so that the request is not executed again."""

    async def set_plan(self, plan: bytes) -> None:
        """Record what is about to be done, so that another attempt does the same.

        Raises:
            ProblemError: 409 if another attempt has taken over.
            StoreUnavailableError: it cannot be recorded.
        """
        if not await self.store.set_plan(self.key, self.owner, plan):
            raise ProblemError(409, BUSY, retry_after=BUSY_RETRY_AFTER)
        self.plan = plan


def attempt_of(scope: Scope) -> Attempt | None:
    """Return the attempt that a request belongs to; ``None`` without a key."""
    attempt: Attempt | None = scope.get("state", {}).get(ATTEMPT)
    return attempt


def is_repeated(request: Request) -> bool:
    """Return whether an earlier attempt may have executed all or some of *request*."""
    attempt = attempt_of(request.scope)
    return attempt is not None and attempt.is_repeated


class IdempotencyService:
    """Claims keys, renews the claims of long requests, and deletes expired rows."""

    def __init__(self, store: IdempotencyStore, *, clock: Clock | None = None) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        self._held: dict[str, str] = {}
        """Owners of claims by key."""
        self._releases: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Renew claims and delete expired rows until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(supervise("idempotency leases", self._renew))
            tasks.create_task(supervise("idempotency sweep", self._sweep))

    async def claim(
        self, user: UserInfo, key: bytes, fingerprint: str
    ) -> tuple[Attempt | None, ClaimResult]:
        """Claim *key* of *user*; the attempt is ``None`` if the request must not be executed."""
        text = json.dumps([user.username, user.uid, key.decode("ascii")])
        claim = Claim(
            key=hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
            operation=str(uuid.uuid4()),
            fingerprint=fingerprint,
            owner=str(uuid.uuid4()),
            now=datetime.now(UTC),
            lease=LEASE,
        )
        result = await self._store.claim(claim)
        if not result.is_owner:
            return None, result
        self._held[claim.key] = claim.owner
        attempt = Attempt(
            store=self._store,
            key=claim.key,
            owner=claim.owner,
            operation=uuid.UUID(result.operation),
            is_repeated=result.operation != claim.operation,
            plan=result.plan,
        )
        return attempt, result

    async def complete(self, attempt: Attempt, response: StoredResponse) -> bool:
        """Store the response; return whether the claim still belonged to the attempt."""
        self._drop(attempt)
        return await self._store.complete(attempt.key, attempt.owner, response)

    def release(self, attempt: Attempt) -> None:
        """End the attempt without a response; the key may be claimed again at once."""
        self._drop(attempt)
        task = asyncio.create_task(self._release(attempt))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    def _drop(self, attempt: Attempt) -> None:
        if self._held.get(attempt.key) == attempt.owner:
            del self._held[attempt.key]

    async def _release(self, attempt: Attempt) -> None:
        try:
            await self._store.release(attempt.key, attempt.owner)
        except StoreUnavailableError:
            log.debug("cannot release key; its lease expires")

    async def _renew(self) -> None:
        while True:
            await self._clock.sleep(RENEW_INTERVAL)
            if self._held:
                try:
                    await self._store.renew(
                        list(self._held.items()), until=datetime.now(UTC) + LEASE
                    )
                except StoreUnavailableError as error:
                    log.warning("cannot renew leases", extra={"error": str(error)})

    async def _sweep(self) -> None:
        while True:
            await self._clock.sleep(SWEEP_INTERVAL)
            deleted = SWEEP_SIZE
            while deleted == SWEEP_SIZE:
                try:
                    deleted = await self._store.sweep(datetime.now(UTC))
                except StoreUnavailableError as error:
                    log.warning("cannot delete expired keys", extra={"error": str(error)})
                    break


class IdempotencyMiddleware:
    """ASGI middleware for POSTs with a key; the caller must be known and the body complete."""

    def __init__(self, app: ASGIApp, *, service: IdempotencyService) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Execute the request, or send the stored response."""
        if (
            scope["type"] != "http"
            or scope["method"] != "POST"
            or not scope["path"].startswith(PROTECTED_PREFIX)
        ):
            await self._app(scope, receive, send)
            return
        keys = [value for name, value in scope["headers"] if name == _HEADER]
        if not keys:
            await self._app(scope, receive, send)
            return
        try:
            await self._handle(keys, scope, receive, send)
        except ProblemError as error:
            await to_response(error)(scope, receive, send)
        except StoreUnavailableError as error:
            log.warning("store unavailable", extra={"path": scope["path"], "error": str(error)})
            unavailable = ProblemError(503, UNAVAILABLE, retry_after=RETRY_AFTER)
            await to_response(unavailable)(scope, receive, send)

    async def _handle(self, keys: list[bytes], scope: Scope, receive: Receive, send: Send) -> None:
        if len(keys) != 1 or not _VALID.fullmatch(keys[0]):
            text = f"must be given once, as 1 to {MAX_KEY} visible ASCII characters"
            raise ProblemError(
                422, f"{HEADER}: {text}", errors=({"field": HEADER, "message": text},)
            )
        body = await Request(scope, receive).body()
        user: UserInfo = scope["state"][CALLER].user
        attempt, result = await self._service.claim(user, keys[0], _fingerprint(scope, body))
        if not result.is_same_request:
            error = {"field": HEADER, "message": OTHER_REQUEST}
            raise ProblemError(422, OTHER_REQUEST, errors=(error,))
        if result.response is not None:
            await _to_response(result.response)(scope, receive, send)
            return
        if attempt is None:
            raise ProblemError(409, BUSY, retry_after=BUSY_RETRY_AFTER)
        await self._execute(attempt, body, scope, receive, send)

    async def _execute(
        self, attempt: Attempt, body: bytes, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Execute the request; send its response once it is stored."""
        recorder = _ResponseRecorder()
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        scope["state"][ATTEMPT] = attempt
        is_stored = False
        try:
            await self._app(scope, replay, recorder)
            if recorder.is_final and attempt.is_final:
                try:
                    is_stored = await self._service.complete(attempt, recorder.response)
                except StoreUnavailableError as error:
                    log.warning("cannot store response", extra={"error": str(error)})
                    raise ProblemError(503, NOT_RECORDED, retry_after=RETRY_AFTER) from None
                if not is_stored:  # it took longer than the lease
                    raise ProblemError(409, BUSY, retry_after=BUSY_RETRY_AFTER)
        finally:
            if not is_stored:
                self._service.release(attempt)
        for message in recorder.messages:
            await send(message)


class _ResponseRecorder:
    """Collects the messages of a response."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    async def __call__(self, message: Message) -> None:
        self.messages.append(message)

    @property
    def is_final(self) -> bool:
        """Whether the response concerns the request itself."""
        status: int = self.messages[0]["status"]
        return status < HTTPStatus.INTERNAL_SERVER_ERROR and status not in _NOT_STORED

    @property
    def response(self) -> StoredResponse:
        """The response as it is stored."""
        headers = dict(self.messages[0]["headers"])
        location = headers.get(b"location")
        return StoredResponse(
            status=self.messages[0]["status"],
            body=b"".join(message.get("body", b"") for message in self.messages[1:]),
            media_type=headers.get(b"content-type", b"").decode("latin-1"),
            location=None if location is None else location.decode("latin-1"),
        )


def _to_response(stored: StoredResponse) -> Response:
    headers = {"content-type": stored.media_type} if stored.media_type else {}
    if stored.location is not None:
        headers["location"] = stored.location
    return Response(stored.body, stored.status, headers=headers)


def _fingerprint(scope: Scope, body: bytes) -> str:
    """Return the digest of path, query and body."""
    path = scope.get("raw_path") or scope["path"].encode()
    digest = hashlib.sha256()
    for section in (path, scope.get("query_string", b""), body):
        digest.update(b"%d:" % len(section))
        digest.update(section)
    return digest.hexdigest()
