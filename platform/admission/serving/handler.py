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
from ...model.admission import AdmissionRequest, DeniedError, Json, ObjectReader, Webhook
from . import reviews
from .object_reader import InformerReader, RecordingReader
from .patches import Operation, create_patch

log = logging.getLogger(__name__)

RECHECK_TIMEOUT = 5.0
"""Seconds for a second look; API servers wait ten for a webhook."""

_RECHECK_ERRORS = (ApiError, ConnectionLostError, DecodeError, TimeoutError)


class UnknownPathError(Exception):
    """No webhook is served at that path; the text is the path."""


class AdmissionHandler:
    """Answers the reviews of *webhooks*; to kopf it is a ``WebhookFn``."""

    def __init__(
        self,
        webhooks: Iterable[Webhook],
        reader: InformerReader,
        *,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self._webhooks: dict[str, Webhook] = {}
        self._reader = reader
        self._duration = Histogram(
            "batholith_admission_review_seconds",
            "Time to answer a review.",
            ("path", "allowed"),
            buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10),
            registry=registry,
        )
        self.set_webhooks(webhooks)

    def set_webhooks(self, webhooks: Iterable[Webhook]) -> None:
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
        asked = reviews.decode(request)
        try:
            _check_target(rule, asked)
            patch = await self._review(rule, asked.to_request())
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
        self._duration.labels(path, allowed).observe(time.perf_counter() - started)
        return answer

    async def _review(self, webhook: Webhook, request: AdmissionRequest) -> list[Operation]:
        reading = self._reader.recording()
        refusal, patch = _evaluate(webhook, request, reading)
        if (refusal or reading.had_miss) and (reading.requested or reading.listed):
            try:
                async with asyncio.timeout(RECHECK_TIMEOUT):
                    fresh = await self._reader.refetch(reading)
            except _RECHECK_ERRORS as error:
                log.warning("cannot look again", extra={"path": webhook.path, "error": str(error)})
            else:
                refusal, patch = _evaluate(webhook, request, fresh)
        if refusal is not None:
            raise refusal
        return patch


def _evaluate(
    webhook: Webhook, request: AdmissionRequest, reader: RecordingReader
) -> tuple[DeniedError | None, list[Operation]]:
    try:
        return None, _apply(webhook, request, reader)
    except DeniedError as refusal:
        return refusal, []


def _apply(webhook: Webhook, request: AdmissionRequest, reader: ObjectReader) -> list[Operation]:
    if webhook.validate is not None:
        webhook.validate(request, reader)
    if webhook.mutate is None or request.object is None:
        return []
    return create_patch(request.object, webhook.mutate(request, reader))


def _check_target(webhook: Webhook, request: reviews.WireAdmissionRequest) -> None:
    """A configuration may send what a rule knows nothing of; passing it would be a lie."""
    if not request.matches_resource(webhook.resource):
        asked = request.resource
        named = "/".join(filter(None, (asked.resource, request.sub_resource)))
        wanted = webhook.resource
        raise DeniedError(
            f"expect resource to be {wanted.plural} of {wanted.api_version}, not {named} of"
            f" {asked.group or 'core'}/{asked.version}"
        )
    if request.operation not in webhook.operations:
        raise DeniedError(f"unexpected operation {request.operation} at {webhook.path}")
