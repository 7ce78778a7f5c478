"""Authentication by TokenReview and authorization by SubjectAccessReview.

Requests to the API server are sent with the caller's identity, so that it authorizes them. What is
answered from a cache or from the store is authorized here.
"""

import base64
import binascii
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from ...kube.client.client import Client
from ...kube.errors import UNAVAILABLE_ERRORS, ApiError, DecodeError
from ...machinery.clock import Clock
from ...model.base import ApiStruct
from ...model.names import TOKENREVIEWS, Resource
from ..problems import RETRY_AFTER, ProblemError
from .review_cache import ExpiringCache, SingleFlight

log = logging.getLogger(__name__)

_Review = TypeVar("_Review")

SUBJECTACCESSREVIEWS = Resource(
    "authorization.k8s.io",
    "v1",
    "subjectaccessreviews",
    "SubjectAccessReview",
    namespaced=False,
)
TOKEN_CACHE_SIZE = 1024
"""Maximum number of cached tokens; as many rejected ones besides."""
TOKEN_CACHE_TTL = 10.0
"""Seconds for which a TokenReview is cached, and thus a revoked token still accepted."""
REJECTED_TOKEN_TTL = 5.0
"""Seconds for which the rejection of a token is cached."""
ACCESS_CACHE_SIZE = 4096
"""Maximum number of cached permissions; as many denials besides."""
ALLOWED_TTL = 5.0
"""Seconds for which a permission is cached, and thus effective after it was revoked."""
DENIED_TTL = 1.0
"""Seconds for which a denial is cached."""


class UserInfo(ApiStruct, frozen=True):
    """The authenticated caller (``UserInfo`` of a TokenReview)."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = {}
    """Further attributes, e.g. the pod of a ServiceAccount token."""


class _TokenStatus(ApiStruct, frozen=True):
    authenticated: bool = False
    user: UserInfo = UserInfo()
    audiences: tuple[str, ...] = ()


class _TokenReview(ApiStruct, frozen=True):
    status: _TokenStatus = _TokenStatus()


class _AccessStatus(ApiStruct, frozen=True):
    allowed: bool = False
    reason: str = ""


class _AccessReview(ApiStruct, frozen=True):
    status: _AccessStatus = _AccessStatus()


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessAttributes:
    """Verb and object of a request."""

    verb: str
    resource: Resource
    namespace: str
    """Empty for all namespaces, and for kinds without."""
    name: str = ""
    """Empty for a collection."""
    subresource: str = ""

    def describe(self) -> str:
        """Return the verb and what it is about, for messages."""
        resource = self.resource
        qualified = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
        if self.subresource:
            qualified += f"/{self.subresource}"
        where = f"in namespace {self.namespace!r}" if self.namespace else "at the cluster scope"
        return f"{self.verb} {qualified} {where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthenticatedToken:
    """The user of a valid token."""

    user: UserInfo

    expires_at: datetime | None
    """Expiration by the wall clock; None if it is not in the token."""


_Question = tuple[bytes, AccessAttributes]


class AccessReviewer:
    """Authenticates and authorizes callers, or raises ProblemError 401 or 403.

    It raises 503 while the API server is unavailable; such failures are not cached.
    """

    def __init__(self, client: Client, *, clock: Clock, audiences: Sequence[str] = ()) -> None:
        """Accept tokens for one of *audiences*, by default for the API server itself."""
        self._client = client
        self._clock = clock
        self._audiences = tuple(audiences)
        self._tokens: ExpiringCache[bytes, AuthenticatedToken] = ExpiringCache(
            TOKEN_CACHE_SIZE, clock
        )
        self._rejected: ExpiringCache[bytes, str] = ExpiringCache(TOKEN_CACHE_SIZE, clock)
        self._token_reviews: SingleFlight[bytes, AuthenticatedToken] = SingleFlight()
        self._allowed: ExpiringCache[_Question, bool] = ExpiringCache(ACCESS_CACHE_SIZE, clock)
        self._denied: ExpiringCache[_Question, bool] = ExpiringCache(ACCESS_CACHE_SIZE, clock)
        self._access_reviews: SingleFlight[_Question, bool] = SingleFlight()

    def cached(self, token: str) -> AuthenticatedToken | None:
        """Return the user of *token* if a recent review accepted it.

        Raises:
            ProblemError: 401 if a recent review rejected it.
        """
        digest = _digest(token)
        found = self._tokens.get(digest)
        if found is None:
            self._raise_if_rejected(digest)
        return found

    def was_accepted(self, token: str) -> bool:
        """Return whether a review accepted *token* before, not necessarily recently."""
        return _digest(token) in self._tokens

    async def authenticate(self, token: str) -> AuthenticatedToken:
        """Return the user of the bearer token.

        Raises:
            ProblemError: 401 if the cluster rejects it; 503 if it cannot be reviewed now.
        """
        found = self.cached(token)
        if found is not None:
            return found
        digest = _digest(token)
        return await self._token_reviews.run(digest, lambda: self._review_token(token, digest))

    async def authorize(self, user: UserInfo, attributes: AccessAttributes) -> None:
        """Check that *user* may do what *attributes* describe.

        Raises:
            ProblemError: 403 if not; 503 if it cannot be reviewed now.
        """
        question = (msgspec.json.encode(user, order="sorted"), attributes)
        allowed = self._allowed.get(question)
        if allowed is None and self._denied.get(question) is None:
            allowed = await self._access_reviews.run(
                question, lambda: self._review_access(user, question)
            )
        if not allowed:
            raise ProblemError(403, f"user {user.username!r} cannot {attributes.describe()}")

    async def _review_access(self, user: UserInfo, question: _Question) -> bool:
        attributes = question[1]
        body = {
            "apiVersion": SUBJECTACCESSREVIEWS.api_version,
            "kind": SUBJECTACCESSREVIEWS.kind,
            "spec": {
                "user": user.username,
                "uid": user.uid,
                "groups": list(user.groups),
                "extra": {key: list(values) for key, values in user.extra.items()},
                "resourceAttributes": attributes_of(attributes),
            },
        }
        review = await self._send_review(SUBJECTACCESSREVIEWS, body, _AccessReview)
        if review.status.allowed:
            self._denied.discard(question)
            self._allowed.put(question, True, seconds=ALLOWED_TTL)
        else:
            self._denied.put(question, True, seconds=DENIED_TTL)
        return review.status.allowed

    async def _review_token(self, token: str, digest: bytes) -> AuthenticatedToken:
        spec: dict[str, object] = {"token": token}
        if self._audiences:
            spec["audiences"] = list(self._audiences)
        body = {
            "apiVersion": TOKENREVIEWS.api_version,
            "kind": TOKENREVIEWS.kind,
            "spec": spec,
        }
        review = await self._send_review(TOKENREVIEWS, body, _TokenReview)
        problem = self._reason_to_reject(review.status)
        if problem:
            self._tokens.discard(digest)
            self._rejected.put(digest, problem, seconds=REJECTED_TOKEN_TTL)
            raise ProblemError(401, problem)
        found = AuthenticatedToken(user=review.status.user, expires_at=jwt_expiration(token))
        seconds = TOKEN_CACHE_TTL
        if found.expires_at is not None:
            left = (found.expires_at - self._clock.now()).total_seconds()
            seconds = min(seconds, max(left, 0.0))
        self._tokens.put(digest, found, seconds=seconds)
        return found

    def _reason_to_reject(self, status: _TokenStatus) -> str:
        if not status.authenticated:
            return "the cluster rejects this token"
        if self._audiences and not set(status.audiences) & set(self._audiences):
            # An authenticator that ignores audiences accepts tokens for any.
            return "this token is not for the audience of this API"
        if "\0" in status.user.username:
            # PostgreSQL cannot store it, and a log may end there.
            return "the user name of this token contains a NUL character"
        return ""

    def _raise_if_rejected(self, digest: bytes) -> None:
        problem = self._rejected.get(digest)
        if problem is not None:
            raise ProblemError(401, problem)

    async def _send_review(self, resource: Resource, body: object, view: type[_Review]) -> _Review:
        """Create a review with our own account; its errors are not the caller's."""
        try:
            return await self._client.create(resource, body, view=view)
        except UNAVAILABLE_ERRORS as error:
            text = f"cannot create a {resource.kind}: the Kubernetes API is unavailable"
            raise ProblemError(503, text, retry_after=RETRY_AFTER) from error
        except ApiError as error:
            log.warning("cannot create review", extra={"kind": resource.kind, "error": str(error)})
            text = f"cannot create a {resource.kind}; see the server's log"
            raise ProblemError(502, text) from error
        except DecodeError:
            # Its text may contain the token, which a review repeats.
            raise ProblemError(502, f"cannot decode the {resource.kind}") from None


def attributes_of(attributes: AccessAttributes) -> dict[str, str]:
    """Return the ``resourceAttributes`` of a review."""
    named = {"name": attributes.name, "subresource": attributes.subresource}
    return {
        "verb": attributes.verb,
        "group": attributes.resource.group,
        "version": attributes.resource.version,
        "resource": attributes.resource.plural,
        "namespace": attributes.namespace,
        **{key: value for key, value in named.items() if value},
    }


def _digest(token: str) -> bytes:
    """Return the key of a token: no comparison of secret text, and no token kept in memory."""
    return hashlib.sha256(token.encode()).digest()


class _Claims(msgspec.Struct, frozen=True):
    exp: float | None = None


def jwt_expiration(token: str) -> datetime | None:
    """Return ``exp`` of *token* if it is a JWT that has one.

    The signature is not verified: the time may only shorten what the cluster allows.
    """
    segments = token.split(".")
    if len(segments) != 3:
        return None
    try:
        payload = base64.urlsafe_b64decode(segments[1] + "=" * (-len(segments[1]) % 4))
        expiration = msgspec.json.decode(payload, type=_Claims).exp
        return None if expiration is None else datetime.fromtimestamp(expiration, UTC)
    except (ValueError, OverflowError, OSError, RecursionError, binascii.Error):
        return None
