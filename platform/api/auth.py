"""Authentication by TokenReview and authorization by SubjectAccessReview.

The REST API acts under its own ServiceAccount, so it checks before each request that the caller may
do the same with kubectl.
"""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass

from ..kube.client.client import Client
from ..machinery.clock import Clock
from ..model.base import ApiStruct
from ..model.names import TOKENREVIEWS, Resource
from .problems import ProblemError

SUBJECTACCESSREVIEWS = Resource(
    "authorization.k8s.io",
    "v1",
    "subjectaccessreviews",
    "SubjectAccessReview",
    namespaced=False,
)
TOKEN_CACHE_SIZE = 1024
"""Maximum number of cached tokens."""
TOKEN_CACHE_TTL = 10.0
"""Seconds for which a TokenReview is cached, and thus a revoked token still accepted."""


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
    name: str = ""


class AccessReviewer:
    """Authenticates and authorizes callers, or raises ProblemError 401 or 403."""

    def __init__(self, client: Client, *, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._token_cache: OrderedDict[bytes, tuple[float, UserInfo]] = OrderedDict()

    async def authenticate(self, authorization: str | None) -> UserInfo:
        """Return the user of the bearer token in *authorization*, the header's value.

        Raises:
            ProblemError: 401 if there is no token or the cluster rejects it.
        """
        scheme, _, token = (authorization or "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise ProblemError(401, "send a bearer token in the Authorization header")
        # Keyed by digest: no comparison of secret text, and no token kept in memory.
        digest = hashlib.sha256(token.encode()).digest()
        cached = self._token_cache.get(digest)
        if cached is not None and cached[0] > self._clock.monotonic():
            return cached[1]
        user = await self._review_token(token)
        self._token_cache[digest] = (self._clock.monotonic() + TOKEN_CACHE_TTL, user)
        self._token_cache.move_to_end(digest)
        if len(self._token_cache) > TOKEN_CACHE_SIZE:
            self._token_cache.popitem(last=False)
        return user

    async def authorize(self, user: UserInfo, attributes: AccessAttributes) -> None:
        """Check that *user* may do what *attributes* describe.

        Raises:
            ProblemError: 403 if not.
        """
        body = {
            "apiVersion": SUBJECTACCESSREVIEWS.api_version,
            "kind": SUBJECTACCESSREVIEWS.kind,
            "spec": {
                "user": user.username,
                "uid": user.uid,
                "groups": list(user.groups),
                "extra": {key: list(values) for key, values in user.extra.items()},
                "resourceAttributes": {
                    "verb": attributes.verb,
                    "group": attributes.resource.group,
                    "version": attributes.resource.version,
                    "resource": attributes.resource.plural,
                    "namespace": attributes.namespace,
                    "name": attributes.name,
                },
            },
        }
        review = await self._client.create(SUBJECTACCESSREVIEWS, body, view=_AccessReview)
        if not review.status.allowed:
            resource = f"{attributes.resource.plural}.{attributes.resource.group}"
            raise ProblemError(
                403,
                f"user {user.username!r} cannot {attributes.verb} {resource} "
                f"in namespace {attributes.namespace!r}",
            )

    async def _review_token(self, token: str) -> UserInfo:
        body = {
            "apiVersion": TOKENREVIEWS.api_version,
            "kind": TOKENREVIEWS.kind,
            "spec": {"token": token},
        }
        review = await self._client.create(TOKENREVIEWS, body, view=_TokenReview)
        if not review.status.authenticated:
            raise ProblemError(401, "the cluster rejects this token")
        if "\0" in review.status.user.username:
            # PostgreSQL cannot store it, and a log may end there.
            raise ProblemError(401, "the user name of this token contains a NUL character")
        return review.status.user
