"""Authentication by client certificate or bearer token."""

import hashlib
import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol

from ....machinery.x509 import Subject

IMPERSONATION_PREFIX = "impersonate-"
"""Of the names of headers that name another user."""

REPEATED_HEADER = "\n"
"""Separates the values of a repeated header of these, which cannot contain it."""

_CACHE_SIZE = 100
"""Headers to cache; one token can be written with any number of spaces."""

AUDIENCE = "https://kubernetes.default.svc"
"""Audience of the tokens that authenticate requests: the server itself."""

AUTHENTICATED_GROUP = "system:authenticated"
MASTERS_GROUP = "system:masters"
"""Members may do everything, independently of the roles."""

COMPONENTS_GROUP = "batholith:components"
"""Group of the embedded cluster's components; it has no rights, each component has its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """An authenticated user."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def to_user_info(self) -> dict[str, Any]:
        """Return the UserInfo of reviews."""
        info: dict[str, Any] = {"username": self.name, "uid": self.uid, "groups": [*self.groups]}
        info["extra"] = {key: list(values) for key, values in self.extra.items()}
        return {key: value for key, value in info.items() if value}


ANONYMOUS = User(name="system:anonymous", groups=("system:unauthenticated",))
APISERVER_USER = User(name="system:apiserver", groups=("system:masters",))
"""The server's own controllers."""


class TokenAuthenticator(Protocol):
    """Authenticates tokens that are not known in advance."""

    def authenticate(self, token: str, audiences: Collection[str]) -> tuple[User, list[str]] | None:
        """Return the user of *token* and those of *audiences* that it is for, if it is valid."""
        ...


class Authenticator:
    """Maps bearer tokens to users, who are in the group of authenticated users."""

    def __init__(self, tokens: Mapping[str, User], *issued: TokenAuthenticator) -> None:
        """Know *tokens* with their users, and accept what one of *issued* authenticates."""
        self._issued = issued
        self._header_cache: dict[str, User] = {}
        """Valid headers with known tokens: all further requests of a client have the same."""
        # Looking up digests and comparing them in full gives nothing away by timing.
        self._users = {
            _digest(token): (token, replace(user, groups=(*user.groups, AUTHENTICATED_GROUP)))
            for token, user in tokens.items()
        }
        self._lengths = {len(token) for token in tokens}

    def review_token(
        self, token: str, audiences: Collection[str] = (AUDIENCE,)
    ) -> tuple[User, list[str]] | None:
        """Return the user of *token* and those of *audiences* that it is for, if it is valid."""
        user = self._known_user(token)
        if user is None:
            return self._authenticate_issued(token, audiences)
        return (user, [AUDIENCE]) if AUDIENCE in audiences else None

    def authenticate_header(self, authorization: str) -> User | None:
        """Return the user of an ``Authorization`` header."""
        user = self._header_cache.get(authorization)
        if user is not None:
            return user
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            return None
        token = token.strip()
        user = self._known_user(token)
        if user is not None:
            if len(self._header_cache) < _CACHE_SIZE:
                self._header_cache[authorization] = user
            return user
        found = self._authenticate_issued(token, (AUDIENCE,))
        return found[0] if found else None

    def _authenticate_issued(
        self, token: str, audiences: Collection[str]
    ) -> tuple[User, list[str]] | None:
        found = (each.authenticate(token, audiences) for each in self._issued)
        return next(filter(None, found), None)

    def _known_user(self, token: str) -> User | None:
        if len(token) not in self._lengths:
            return None  # most tokens of service accounts
        known = self._users.get(_digest(token))
        if known is None:
            return None
        return known[1] if hmac.compare_digest(known[0].encode(), token.encode()) else None


def certificate_user(subject: Subject, now: datetime) -> User | None:
    """Return the user of a verified certificate: common name, and organizations as groups.

    ``None`` without a common name, or if it has expired since the handshake.
    """
    if not subject.name or now > subject.expires_at:
        return None
    groups = dict.fromkeys((*subject.organizations, AUTHENTICATED_GROUP))
    return User(name=subject.name, groups=tuple(groups))


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()
