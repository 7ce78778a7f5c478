"""Handle admission reviews: call the rule for a path and build the response.

Informers lag behind the API server. So before a denial, or a response for which an object was
missing, the handler re-reads the looked-up objects from the API server: a job may be created right
after its queue.
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
"""Timeout of the live read in seconds; API servers wait ten for a webhook."""

_RECHECK_ERRORS = (ApiError, ConnectionLostError, DecodeError, TimeoutError)


class UnknownPathError(Exception):
    """No webhook is served at the path, which is the text."""


class AdmissionHandler:
    """Handles admission reviews for *webhooks*."""

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
            "Duration of admission reviews in seconds.",
            ("path", "allowed"),
            buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10),
            registry=registry,
        )
        self.set_webhooks(webhooks)

    def set_webhooks(self, webhooks: Iterable[Webhook]) -> None:
        """Replace the webhooks for subsequent reviews."""
        self._webhooks = {webhook.path: webhook for webhook in webhooks}

    async def handle(self, path: str, body: object) -> Json:
        """Return the AdmissionReview response to *body*, decoded JSON, at *path*.

        Raises:
            UnknownPathError: no webhook is served at the path.
            MalformedReviewError: *body* is not an AdmissionReview.
        """
        rule = self._webhooks.get(path)
        if rule is None:
            raise UnknownPathError(path)
        started = time.perf_counter()
        review = reviews.decode(body)
        try:
            _check_target(rule, review)
            admission_request = review.to_request()
            patch = await self._review(rule, admission_request)
        except DeniedError as denial:
            response = reviews.denied(review, str(denial))
            log.info(
                "denied",
                extra={
                    "path": path,
                    rule.resource.kind.lower(): f"{review.namespace}/{review.name}".lstrip("/"),
                    "user": review.user_info.username,
                    "reason": str(denial),
                },
            )
        else:
            warnings = await self._warnings(rule, admission_request)
            response = reviews.allowed(review, patch, warnings=warnings)
        allowed = str(response["response"]["allowed"]).lower()
        self._duration.labels(path, allowed).observe(time.perf_counter() - started)
        return response

    async def _warnings(self, webhook: Webhook, request: AdmissionRequest) -> list[str]:
        if webhook.warn is None:
            return []
        reader = self._reader.recording()
        warnings = webhook.warn(request, reader)
        if not reader.is_unread:
            return warnings
        fresh = await self._refetched(webhook, reader)
        return [] if fresh is None else webhook.warn(request, fresh)

    async def _refetched(self, webhook: Webhook, reader: RecordingReader) -> RecordingReader | None:
        """Return a reader with the objects that *reader* has looked up, read from the API server;
        ``None`` if that fails."""
        try:
            async with asyncio.timeout(RECHECK_TIMEOUT):
                return await self._reader.refetch(reader)
        except _RECHECK_ERRORS as error:
            log_fields = {"path": webhook.path, "error": str(error)}
            log.warning("cannot re-read objects", extra=log_fields)
            return None

    async def _review(self, webhook: Webhook, request: AdmissionRequest) -> list[Operation]:
        reader = self._reader.recording()
        denial, patch = _evaluate(webhook, request, reader)
        if (denial or reader.had_miss) and (reader.requested or reader.listed):
            fresh = await self._refetched(webhook, reader)
            if fresh is not None:
                denial, patch = _evaluate(webhook, request, fresh)
        if denial is not None:
            raise denial
        return patch


def _evaluate(
    webhook: Webhook, request: AdmissionRequest, reader: RecordingReader
) -> tuple[DeniedError | None, list[Operation]]:
    try:
        return None, _apply(webhook, request, reader)
    except DeniedError as denial:
        return denial, []


def _apply(webhook: Webhook, request: AdmissionRequest, reader: ObjectReader) -> list[Operation]:
    if webhook.validate is not None:
        webhook.validate(request, reader)
    if webhook.mutate is None or request.object is None:
        return []
    return create_patch(request.object, webhook.mutate(request, reader))


def _check_target(webhook: Webhook, request: reviews.WireAdmissionRequest) -> None:
    """Deny objects and operations that the rule does not validate, despite the configuration."""
    if not request.matches_resource(webhook.resource):
        actual = request.resource
        name = "/".join(filter(None, (actual.resource, request.sub_resource)))
        expected = webhook.resource
        raise DeniedError(
            f"expect resource to be {expected.plural} of {expected.api_version}, not {name} of"
            f" {actual.group or 'core'}/{actual.version}"
        )
    if request.operation not in webhook.operations:
        raise DeniedError(f"unexpected operation {request.operation} at {webhook.path}")
