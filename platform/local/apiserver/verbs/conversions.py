"""Objects of custom kinds in the version of a request, converted by webhooks if necessary."""

import asyncio
import ssl
from collections.abc import Iterator, Sequence
from functools import partial

import msgspec

from ..admission.webhook_client import CallError, WebhookClient
from ..errors.status import StatusError
from ..kinds.conversion import ConversionError, ConversionNeededError, ConversionWebhook
from ..kinds.info import KindInfo
from ..storage.stored_objects import StoredObject, WatchEvent, encode, new_uid

TIMEOUT = 30
"""Seconds for one request of a webhook, as kube-apiserver's."""

BATCH_OBJECTS, BATCH_BYTES = 100, 2 * 1024 * 1024
"""Maximum objects, and bytes of several objects, that are converted by one request."""

_Running = asyncio.Task[None]


class Converter:
    """Asks conversion webhooks; what is converted already costs no request."""

    def __init__(self, client: WebhookClient) -> None:
        self._client = client
        self._running: dict[tuple[KindInfo, StoredObject], _Running] = {}
        """Conversions that other requests for the same objects wait for, too."""

    async def in_version_of(
        self, kind: KindInfo, entries: Sequence[StoredObject]
    ) -> Sequence[StoredObject]:
        """Return *entries* in the version of *kind*, in the same order.

        Raises:
            StatusError: 500, the webhook fails.
        """
        if kind.conversion_webhook is None:
            return entries
        missing = list(dict.fromkeys(entry for entry in entries if entry.view(kind) is None))
        for batch in _batches(missing):
            await self._ensure(kind, kind.conversion_webhook, batch)
        return [entry.view(kind) or entry for entry in entries]

    async def events_in_version_of(
        self, kind: KindInfo, events: Sequence[WatchEvent]
    ) -> list[WatchEvent]:
        """Return *events* with their objects in the version of *kind*, in the same order.

        Raises:
            StatusError: 500, the webhook fails.
        """
        known = [event.entry for event in events]
        known += [event.previous for event in events if event.previous is not None]
        views = dict(zip(known, await self.in_version_of(kind, known), strict=True))
        return [
            WatchEvent(event.type, views[event.entry], event.previous and views[event.previous])
            for event in events
        ]

    async def data_in_version_of(self, kind: KindInfo, data: bytes) -> bytes:
        """Return one object as JSON in the version of *kind*.

        Raises:
            StatusError: 500, the webhook fails.
        """
        webhook, api_version = kind.conversion_webhook, kind.resource.api_version
        if webhook is None or msgspec.json.decode(data)["apiVersion"] == api_version:
            return data
        return (await self._convert(webhook, [data], api_version))[0]

    async def meet(self, needed: ConversionNeededError) -> None:
        """Execute the conversion that a plan needs.

        Raises:
            StatusError: 500, the webhook fails.
        """
        await self._convert(needed.webhook, [needed.data], needed.api_version)

    async def _ensure(
        self, kind: KindInfo, webhook: ConversionWebhook, entries: Sequence[StoredObject]
    ) -> None:
        """Convert *entries*; those that are being converted are waited for."""
        waiting = {self._running[kind, each] for each in entries if (kind, each) in self._running}
        own = [each for each in entries if (kind, each) not in self._running]
        if own:
            task = asyncio.create_task(self._convert_entries(kind, webhook, own))
            self._running |= {(kind, each): task for each in own}
            task.add_done_callback(partial(self._ended, [(kind, each) for each in own]))
            waiting.add(task)
        for each in waiting:
            # A client that disconnects must not end what others wait for.
            await asyncio.shield(each)

    def _ended(self, keys: Sequence[tuple[KindInfo, StoredObject]], task: _Running) -> None:
        for key in keys:
            del self._running[key]
        if not task.cancelled():
            task.exception()  # all who wait for it get it; there may be none left

    async def _convert_entries(
        self, kind: KindInfo, webhook: ConversionWebhook, entries: Sequence[StoredObject]
    ) -> None:
        data = [entry.data for entry in entries]
        converted = await self._convert(webhook, data, kind.resource.api_version)
        for entry, each in zip(entries, converted, strict=True):
            entry.keep_view(kind, each)

    async def _convert(
        self, webhook: ConversionWebhook, objects: Sequence[bytes], api_version: str
    ) -> list[bytes]:
        originals = [msgspec.json.decode(each) for each in objects]
        uid = new_uid()
        try:
            body = webhook.review(uid, originals, api_version)
            response = await self._client.post(webhook.client_config, body, timeout=TIMEOUT)
            converted = webhook.read(response, uid, originals, api_version)
        except (ConversionError, CallError, ssl.SSLError, ValueError) as error:
            why = str(error) if isinstance(error, ConversionError) else f"failed: {error}"
            of = f"{originals[0]['apiVersion']}, Kind={originals[0]['kind']}"
            raise StatusError(500, "", f"conversion webhook for {of} {why}") from error
        encoded = list(map(encode, converted))
        for original, each in zip(objects, encoded, strict=True):
            webhook.keep(original, api_version, each)
        return encoded


def _batches(entries: Sequence[StoredObject]) -> Iterator[list[StoredObject]]:
    batch: list[StoredObject] = []
    size = 0
    for entry in entries:
        size += len(entry.data)
        if batch and (len(batch) == BATCH_OBJECTS or size > BATCH_BYTES):
            yield batch
            batch, size = [], len(entry.data)
        batch.append(entry)
    if batch:
        yield batch
