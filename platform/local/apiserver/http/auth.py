"""Authentication by bearer token."""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

IMPERSONATION_PREFIX = "impersonate-"
"""Of the names of headers that name another user."""

REPEATED_HEADER = "\n"
"""Separates the values of a repeated header of these, which cannot contain it."""

_CACHE_SIZE = 100
"""Headers to cache; one token can be written with any number of spaces."""

AUTHENTICATED_GROUP = "system:authenticated"
MASTERS_GROUP = "system:masters"
"""Members may do everything, independently of the roles."""

COMPONENTS_GROUP = "batholith:components"
"""Group of the embedded cluster's components."""


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


class Authenticator:
    """Maps bearer tokens to users, who are in the group of authenticated users."""

    def __init__(self, tokens: Mapping[str, User]) -> None:
        self._header_cache: dict[str, User] = {}
        """Valid headers: all further requests of a client have the same."""
        # Looking up digests and comparing them in full gives nothing away by timing.
        self._users = {
            _digest(token): (token, replace(user, groups=(*user.groups, AUTHENTICATED_GROUP)))
            for token, user in tokens.items()
        }

    def authenticate_token(self, token: str) -> User | None:
        """Return the user of *token*, if it is known."""
        known = self._users.get(_digest(token))
        if known is None:
            return None
        return known[1] if hmac.compare_digest(known[0].encode(), token.encode()) else None

    def authenticate_header(self, authorization: str) -> User | None:
        """Return the user of an ``Authorization`` header."""
        user = self._header_cache.get(authorization)
        if user is not None:
            return user
        scheme, _, token = authorization.partition(" ")
        user = self.authenticate_token(token.strip()) if scheme.lower() == "bearer" else None
        if user is not None and len(self._header_cache) < _CACHE_SIZE:
            self._header_cache[authorization] = user
        return user


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()
