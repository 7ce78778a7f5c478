"""The authenticated caller of a request."""

from dataclasses import dataclass
from datetime import datetime

from ...kube.client.client import Client
from .reviewer import UserInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthenticatedCaller:
    """The user who sends a request, and a client that acts for this user."""

    user: UserInfo

    client: Client
    """Sends requests with the caller's identity, for every write and for reads that are not
    answered from a cache: the API server then authorizes them."""

    expires_at: datetime | None = None
    """When the caller's token or certificate expires, by the wall clock in UTC; streams end then.
    None if that is unknown."""
