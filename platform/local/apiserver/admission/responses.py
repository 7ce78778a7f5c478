"""How a write waits for webhooks although it is planned without an await.

A plan is computed on the event loop in one step, against the latest state. If it needs the response
of a webhook that it does not have, it is abandoned with :class:`WebhookNeededError`; its caller
asks the webhook, other writes proceed, and then the plan is computed again, with the response. A
response belongs to the exact content of its review, so if the object was changed in the meantime,
the webhook reviews what would be stored now. What is written is always what was reviewed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from ..errors.status import too_busy
from ..http.requests import Json

if TYPE_CHECKING:
    from .webhooks import Hook

MAX_CALLS = 8
"""Maximum times that one write calls the same webhook, because what it reviews has changed."""


MAX_CONVERSIONS = 64
"""Maximum conversions for one write, which needs several for each version of a field manager."""


class WebhookCall(msgspec.Struct, frozen=True):
    """A review to send to a webhook."""

    hook: "Hook"
    request: Json
    """The request of the review, without its uid."""

    key: bytes


class ReviewResponse(msgspec.Struct, frozen=True):
    """The response to a review, or why there is none."""

    response: Json | None = None
    error: str = ""
    """Why the webhook could not be called; then there is no response."""


class WebhookNeededError(Exception):
    """A plan needs the responses to *calls*, which are independent of each other."""

    def __init__(self, calls: Sequence[WebhookCall], created: Json | None) -> None:
        super().__init__("a webhook must be called")
        self.calls = calls
        self.created = created
        """Metadata of the new object under review, if one is created."""


Caller = Callable[[WebhookCall], Awaitable[ReviewResponse]]


class WebhookResponses:
    """What one write has learned from webhooks."""

    def __init__(self) -> None:
        self._by_call: dict[tuple[str, bytes], ReviewResponse] = {}
        self._counts: dict[str, int] = {}
        self.created: Json = {}
        """Name, uid and creation time of the new object that webhooks have seen: it keeps them."""
        self._conversions = 0

    def find(self, hook: "Hook", key: bytes) -> ReviewResponse | None:
        """Return the response to the review of *hook* with *key*."""
        return self._by_call.get((hook.uid, key))

    def count_conversion(self, metadata: Json) -> None:
        """Count a conversion of the object with this metadata, which keeps its identity.

        Raises:
            StatusError: 429, the object changes faster than it can be converted.
        """
        if "resourceVersion" not in metadata:
            self.created |= _decided(metadata)
        self._conversions += 1
        if self._conversions > MAX_CONVERSIONS:
            raise too_busy()

    async def ask(self, needed: WebhookNeededError, call: Caller) -> None:
        """Ask the webhooks that a plan needs.

        Raises:
            StatusError: 429, the object changes faster than it can be reviewed.
        """
        if needed.created:
            self.created = _decided(needed.created)
        for each in needed.calls:
            self._counts[each.hook.uid] = self._counts.get(each.hook.uid, 0) + 1
            if self._counts[each.hook.uid] > MAX_CALLS:
                raise too_busy()
        responses = await asyncio.gather(*map(call, needed.calls))
        for each, response in zip(needed.calls, responses, strict=True):
            self._by_call[each.hook.uid, each.key] = response


def _decided(metadata: Json) -> Json:
    return {key: metadata[key] for key in ("uid", "creationTimestamp", "name") if key in metadata}
