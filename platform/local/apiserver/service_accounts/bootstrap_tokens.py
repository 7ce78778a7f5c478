"""Bootstrap tokens: Secrets that are looked up at each request, so that a deleted one ends."""

import hmac
from collections.abc import Callable, Collection
from datetime import datetime

from ....model import bootstrap_tokens, names
from ..http.auth import AUDIENCE, AUTHENTICATED_GROUP, User
from .tokens import Lookup


class BootstrapTokens:
    """Authenticates machines that have a bootstrap token."""

    def __init__(self, lookup: Lookup, now: Callable[[], datetime]) -> None:
        self._lookup = lookup
        self._now = now

    def authenticate(self, token: str, audiences: Collection[str]) -> tuple[User, list[str]] | None:
        """Return the user of *token* and those of *audiences* that it is for, if it is valid."""
        identity = bootstrap_tokens.id_of(token)
        if not identity or AUDIENCE not in audiences:
            return None
        name = f"{bootstrap_tokens.NAME_PREFIX}{identity}"
        secret = self._lookup(names.SECRETS, bootstrap_tokens.NAMESPACE, name)
        if secret is None or secret.deleting:
            return None
        found = bootstrap_tokens.from_secret(secret.shared())
        if (
            found is None
            or not found.authenticates
            or not hmac.compare_digest(str(found), token)
            or found.is_expired(self._now())
        ):
            return None
        groups = (*found.groups, AUTHENTICATED_GROUP)
        return User(name=f"{bootstrap_tokens.USER_PREFIX}{identity}", groups=groups), [AUDIENCE]
