"""Who is asking: bearer tokens."""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OPEN_PATHS = ("/healthz", "/livez", "/readyz", "/version")
"""What anybody may read: whether the server is well, and what it is."""

_SEEN = 100
"""Headers to remember; one token can be written with any number of blanks."""

EVERYBODY = "system:authenticated"


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Somebody known."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def info(self) -> dict[str, Any]:
        """As reviews report it."""
        groups = [*self.groups, *(() if EVERYBODY in self.groups else (EVERYBODY,))]
        info: dict[str, Any] = {"username": self.name, "uid": self.uid, "groups": groups}
        info["extra"] = {key: list(values) for key, values in self.extra.items()}
        return {key: value for key, value in info.items() if value}


ANONYMOUS = User(name="system:anonymous", groups=("system:unauthenticated",))
SYSTEM = User(name="system:apiserver", groups=("system:masters",))
"""Our own controllers."""


class Authenticator:
    """Knows the bearer tokens."""

    def __init__(self, tokens: Mapping[str, User]) -> None:
        self._seen: dict[str, User] = {}
        """Headers that proved right: all further requests of a client bring the same."""
        # Looking up digests and comparing them in full tells a guesser nothing by its timing.
        self._users = {_digest(token): (token, user) for token, user in tokens.items()}

    def user(self, token: str) -> User | None:
        """Whose token it is, if anybody's."""
        known = self._users.get(_digest(token))
        if known is None:
            return None
        return known[1] if hmac.compare_digest(known[0].encode(), token.encode()) else None

    def from_header(self, authorization: str) -> User | None:
        """The user of an ``Authorization`` header."""
        user = self._seen.get(authorization)
        if user is not None:
            return user
        scheme, _, token = authorization.partition(" ")
        user = self.user(token.strip()) if scheme.lower() == "bearer" else None
        if user is not None and len(self._seen) < _SEEN:
            self._seen[authorization] = user
        return user


def impersonated(headers: Mapping[str, str]) -> str:
    """The first header by which the client asks to be taken for another user; empty if none.

    *headers* are by lower-case name.
    """
    for name in headers:  # asked for each request: a generator costs as much again
        if name.startswith("impersonate-"):
            return name
    return ""


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


def is_open(path: str) -> bool:
    """Whether *path* may be read without a token."""
    return path in OPEN_PATHS or path.startswith(("/healthz/", "/livez/", "/readyz/"))
