"""Who is asking: bearer tokens."""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ANONYMOUS_PATHS = ("/healthz", "/livez", "/readyz", "/version")
"""What anybody may read: whether the server is well, and what it is."""

_CACHE_SIZE = 100
"""Headers to remember; one token can be written with any number of blanks."""

AUTHENTICATED_GROUP = "system:authenticated"

COMPONENTS_GROUP = "batholith:components"
"""Group of the embedded cluster's components."""


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Somebody known."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def to_user_info(self) -> dict[str, Any]:
        """As reviews report it."""
        groups = [
            *self.groups,
            *(() if AUTHENTICATED_GROUP in self.groups else (AUTHENTICATED_GROUP,)),
        ]
        info: dict[str, Any] = {"username": self.name, "uid": self.uid, "groups": groups}
        info["extra"] = {key: list(values) for key, values in self.extra.items()}
        return {key: value for key, value in info.items() if value}


ANONYMOUS = User(name="system:anonymous", groups=("system:unauthenticated",))
APISERVER_USER = User(name="system:apiserver", groups=("system:masters",))
"""Our own controllers."""


class Authenticator:
    """Knows the bearer tokens."""

    def __init__(self, tokens: Mapping[str, User]) -> None:
        self._header_cache: dict[str, User] = {}
        """Headers that proved right: all further requests of a client bring the same."""
        # Looking up digests and comparing them in full tells a guesser nothing by its timing.
        self._users = {_digest(token): (token, user) for token, user in tokens.items()}

    def authenticate_token(self, token: str) -> User | None:
        """Whose token it is, if anybody's."""
        known = self._users.get(_digest(token))
        if known is None:
            return None
        return known[1] if hmac.compare_digest(known[0].encode(), token.encode()) else None

    def authenticate_header(self, authorization: str) -> User | None:
        """The user of an ``Authorization`` header."""
        user = self._header_cache.get(authorization)
        if user is not None:
            return user
        scheme, _, token = authorization.partition(" ")
        user = self.authenticate_token(token.strip()) if scheme.lower() == "bearer" else None
        if user is not None and len(self._header_cache) < _CACHE_SIZE:
            self._header_cache[authorization] = user
        return user


def impersonation_header(headers: Mapping[str, str]) -> str:
    """The first header by which the client asks to be taken for another user; empty if none.

    *headers* are by lower-case name.
    """
    for name in headers:  # asked for each request: a generator costs as much again
        if name.startswith("impersonate-"):
            return name
    return ""


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


def allows_anonymous(path: str) -> bool:
    """Whether *path* may be read without a token."""
    return path in ANONYMOUS_PATHS or path.startswith(("/healthz/", "/livez/", "/readyz/"))
