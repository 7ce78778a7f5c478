"""Who sends a request, and with which identity it is passed on to the API server.

A bearer token that is valid at the API server is passed on. A token for another audience, or a
client certificate, is not: such callers are impersonated, which our account must be allowed to.
Our own account never acts for a caller.
"""

from dataclasses import dataclass
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from ...kube.client.client import Client
from ...kube.client.identity import Identity, IdentityError
from ...machinery.clock import Clock
from ..problems import ProblemError, to_response
from .audit import AuditRecord, record_of
from .caller import AuthenticatedCaller
from .client_certificates import CERTIFICATE, ClientCertificate
from .rate_limit import RateLimiter, source_key
from .reviewer import AccessReviewer, AuthenticatedToken, UserInfo

PROTECTED_PREFIX = "/v1/"
"""Paths that need a caller; others show nothing of the cluster."""

CALLER = "caller"
"""Key of the request's state."""

REJECTION = "rejection"
"""Key in the state of a request that was rejected before its body was read: the problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """Who may call the REST API, from where, how often, and with which identity."""

    audiences: tuple[str, ...] = ()
    """Audiences of accepted tokens; none: those of the API server."""

    impersonate: bool = False
    """Whether callers whose credentials the API server would not accept are impersonated."""

    client_ca_file: Path | None = None
    """Authorities of client certificates; requires a serving certificate."""

    caller_rate: float = 0.0
    """Requests per second and caller, and twice as many at once; 0 for any number."""

    cors_allowed_origins: tuple[str, ...] = ()
    """Regular expressions of the origins whose scripts may call the API."""


class Callers:
    """Authenticates callers, limits their rate, and gives each a client with its identity."""

    def __init__(
        self, client: Client, reviewer: AccessReviewer, settings: SecuritySettings, *, clock: Clock
    ) -> None:
        """Pass on requests through *client*, which is that of our own account.

        Raises:
            ConfigError: callers are to be impersonated, and *client* impersonates a user already.
        """
        if settings.impersonate:
            client.acting_as(Identity.impersonation("any"))
        self._client = client
        self._reviewer = reviewer
        self._settings = settings
        self._clock = clock
        self._callers = RateLimiter(settings.caller_rate, clock=clock)
        self._sources = RateLimiter(settings.caller_rate, clock=clock)

    async def authenticate(
        self,
        authorization: str | None,
        *,
        certificate: ClientCertificate | None,
        source: str,
        record: AuditRecord | None = None,
    ) -> AuthenticatedCaller:
        """Return the caller with the ``Authorization`` header or, without one, the certificate.

        The user is noted in *record*, even of a request that is rejected then.

        Raises:
            ProblemError: 401 without valid credentials; 403 if the caller would have to be
                impersonated and is not; 429 beyond the rate; 503 if a token cannot be reviewed.
        """
        found, token = await self._identify(authorization, certificate, source)
        if record is not None:
            record.user, record.uid = found.user.username, found.user.uid
        self._limit(self._callers, found.user.username, f"user {found.user.username!r}")
        client = self._client.acting_as(self._identity_of(found.user, token))
        return AuthenticatedCaller(user=found.user, client=client, expires_at=found.expires_at)

    async def find_rejection(
        self, authorization: str | None, certificate: ClientCertificate | None, source: str
    ) -> ProblemError | None:
        """Return why a request is rejected without regard to its body, or ``None``."""
        try:
            await self._identify(authorization, certificate, source)
        except ProblemError as problem:
            return problem
        return None

    async def _identify(
        self, authorization: str | None, certificate: ClientCertificate | None, source: str
    ) -> tuple[AuthenticatedToken | ClientCertificate, str]:
        """Return the user with the token, which is empty with a certificate."""
        if authorization is not None:
            token = _bearer_token(authorization)
            return await self._authenticate_token(token, source_key(source)), token
        if certificate is not None:
            return self._check_certificate(certificate), ""
        raise ProblemError(401, "send a bearer token in the Authorization header")

    def _check_certificate(self, certificate: ClientCertificate) -> ClientCertificate:
        """Check what may have changed since the TLS handshake."""
        if certificate.expires_at <= self._clock.now():
            raise ProblemError(401, "the client certificate has expired")
        if not certificate.user.username:
            raise ProblemError(401, "the client certificate has no common name")
        return certificate

    async def _authenticate_token(self, token: str, source: str) -> AuthenticatedToken:
        """Return the user of *token*; each rejected review counts against the rate of *source*."""
        found = self._reviewer.cached(token)
        if found is not None:
            return found
        if self._reviewer.was_accepted(token):
            # Others at the same address cannot keep a known token from being reviewed again.
            return await self._reviewer.authenticate(token)
        self._limit(self._sources, source, f"address {source}")
        found = await self._reviewer.authenticate(token)
        self._sources.refund(source)
        return found

    def _identity_of(self, user: UserInfo, token: str) -> Identity:
        """Return the identity of requests for *user*, whose *token* is empty with a certificate."""
        if token and not self._settings.audiences:
            return Identity.bearer(token)
        if not self._settings.impersonate:
            credentials = "a token for another audience" if token else "a client certificate"
            raise ProblemError(
                403,
                f"cannot act for a caller with {credentials}, which is not valid at the Kubernetes "
                "API: impersonation is off (--impersonate-callers)",
            )
        try:
            return Identity.impersonation(
                user.username, uid=user.uid, groups=user.groups, extra=user.extra
            )
        except IdentityError as error:
            raise ProblemError(403, str(error)) from error

    @staticmethod
    def _limit(limiter: RateLimiter, key: str, who: str) -> None:
        wait = limiter.take(key)
        if wait > 0:
            raise ProblemError(429, f"too many requests of {who}", retry_after=wait)


def _bearer_token(authorization: str) -> str:
    scheme, _, token = authorization.partition(" ")
    token = token.strip(" ")
    if scheme.lower() != "bearer" or not token:
        raise ProblemError(401, "send a bearer token in the Authorization header")
    try:
        Identity.bearer(token)
    except IdentityError as error:
        raise ProblemError(401, str(error)) from None
    return token


class AuthenticationMiddleware:
    """ASGI middleware: authenticates before the body of a request is read.

    Where the listener has rejected a request without its body, it responds with that problem.
    """

    def __init__(self, app: ASGIApp, *, callers: Callers) -> None:
        self._app = app
        self._callers = callers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Add the caller to the request's state, or respond with a problem."""
        state = scope.setdefault("state", {})
        if (rejection := state.get(REJECTION)) is not None:
            response = to_response(rejection)
            response.headers["connection"] = "close"
            await response(scope, receive, send)
            return
        if scope["type"] == "http" and f"{scope['path']}/".startswith(PROTECTED_PREFIX):
            client = scope.get("client")
            try:
                caller = await self._callers.authenticate(
                    _header(scope, b"authorization"),
                    certificate=state.get(CERTIFICATE),
                    source=client[0] if client else "",
                    record=record_of(scope),
                )
                state[CALLER] = caller
                _reject_impersonation(scope)
            except ProblemError as problem:
                await to_response(problem)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _reject_impersonation(scope: Scope) -> None:
    """Reject headers that are not passed on: the caller expects fewer or other rights."""
    for key, _ in scope["headers"]:
        if key.startswith(b"impersonate-"):
            text = f"cannot impersonate over REST (header {key.decode('latin-1').title()})"
            raise ProblemError(403, text)


def _header(scope: Scope, name: bytes) -> str | None:
    for key, value in scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1")
            return text
    return None
