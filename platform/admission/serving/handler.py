"""Where reviews are answered: finds the rule for a path, asks it, and words the answer.

A watch cache is a little behind. So a refusal, and an answer for which an object was missing, is
not given before the server itself has been asked for what the rule had looked at: a job may follow
its queue at once.
"""

import asyncio
import logging
import time
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Histogram

from ...kube.errors import ApiError, ConnectionLostError, DecodeError
from ...model.admission import DeniedError, Json, Lookup, Review, Webhook
from . import reviews
from .object_reader import Reading, Shelves
from .patches import Operation, difference

log = logging.getLogger(__name__)

PATIENCE = 5.0
"""Seconds for a second look; API servers wait ten for a webhook."""

_NO_ANSWER = (ApiError, ConnectionLostError, DecodeError, TimeoutError)


class UnknownPathError(Exception):
    """No webhook is served at that path; the text is the path."""


class Desk:
    """Answers the reviews of *webhooks*; to kopf it is a ``WebhookFn``."""

    def __init__(
        self,
        webhooks: Iterable[Webhook],
        shelves: Shelves,
        *,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self._webhooks: dict[str, Webhook] = {}
        self._shelves = shelves
        self._seconds = Histogram(
            "batholith_admission_review_seconds",
            "Time to answer a review.",
            ("path", "allowed"),
            buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10),
            registry=registry,
        )
        self.replace(webhooks)

    def replace(self, webhooks: Iterable[Webhook]) -> None:
        """Go by other rules from the next review on."""
        self._webhooks = {webhook.path: webhook for webhook in webhooks}

    async def __call__(
        self,
        request: object,
        *,
        webhook: str | None = None,
        headers: object = None,
        sslpeer: object = None,
    ) -> Json:
        """The AdmissionReview that answers *request* at the path *webhook*.

        Raises:
            UnknownPathError: nothing is served there.
            MalformedReviewError: *request* is no review.
        """
        path = f"/{webhook}"
        rule = self._webhooks.get(path)
        if rule is None:
            raise UnknownPathError(path)
        started = time.perf_counter()
        asked = reviews.read(request)
        try:
            _check_subject(rule, asked)
            patch = await self._ask(rule, asked.review())
        except DeniedError as refusal:
            answer = reviews.denied(asked, str(refusal))
            log.info(
                "refused",
                extra={
                    "path": path,
                    rule.resource.kind.lower(): f"{asked.namespace}/{asked.name}".lstrip("/"),
                    "user": asked.user_info.username,
                    "why": str(refusal),
                },
            )
        else:
            answer = reviews.allowed(asked, patch)
        allowed = str(answer["response"]["allowed"]).lower()
        self._seconds.labels(path, allowed).observe(time.perf_counter() - started)
        return answer

    async def _ask(self, webhook: Webhook, review: Review) -> list[Operation]:
        reading = self._shelves.read()
        refusal, patch = _judge(webhook, review, reading)
        if (refusal or reading.missed) and (reading.asked or reading.listed):
            try:
                async with asyncio.timeout(PATIENCE):
                    fresh = await self._shelves.look_again(reading)
            except _NO_ANSWER as error:
                log.warning("cannot look again", extra={"path": webhook.path, "error": str(error)})
            else:
                refusal, patch = _judge(webhook, review, fresh)
        if refusal is not None:
            raise refusal
        return patch


def _judge(
    webhook: Webhook, review: Review, lookup: Reading
) -> tuple[DeniedError | None, list[Operation]]:
    try:
        return None, _apply(webhook, review, lookup)
    except DeniedError as refusal:
        return refusal, []


def _apply(webhook: Webhook, review: Review, lookup: Lookup) -> list[Operation]:
    if webhook.validate is not None:
        webhook.validate(review, lookup)
    if webhook.mutate is None or review.object is None:
        return []
    return difference(review.object, webhook.mutate(review, lookup))


def _check_subject(webhook: Webhook, request: reviews.Request) -> None:
    """A configuration may send what a rule knows nothing of; passing it would be a lie."""
    if not request.concerns(webhook.resource):
        asked = request.resource
        named = "/".join(filter(None, (asked.resource, request.sub_resource)))
        wanted = webhook.resource
        raise DeniedError(
            f"expect resource to be {wanted.plural} of {wanted.api_version}, not {named} of"
            f" {asked.group or 'core'}/{asked.version}"
        )
    if request.operation not in webhook.operations:
        raise DeniedError(f"unexpected operation {request.operation} at {webhook.path}")
