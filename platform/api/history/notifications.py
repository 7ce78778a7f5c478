"""Send notifications of jobs: at least once, signed, and with a backoff that restarts do not reset.

The signature is that of Standard Webhooks: HMAC-SHA256 of ``ID.TIMESTAMP.BODY``. The leader of the
history sends. The notifications of one host are sent one after another, so that a host that does
not respond delays only its own.
"""

import asyncio
import base64
import hashlib
import hmac
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

from ...machinery.clock import Clock
from ...machinery.event_recorder import Recorder, object_reference
from ...model.meta import ObjectMeta
from ...model.notification_destinations import Address, Destinations
from ...store.database import Database, StoreUnavailableError
from ...store.notifications import MAX_AGE, Notification, NotificationStore
from ...store.records import from_micros
from ...wire.jobs import JobKindName
from ..jobs.kinds import KINDS
from .destinations import DestinationError, resolve
from .metrics import NotificationMetrics, NotificationOutcome

log = logging.getLogger(__name__)

INTERVAL = 1.0
"""Seconds between two looks for notifications that are due."""
COUNT_INTERVAL = 15.0
"""Seconds between two counts of the notifications that are not delivered."""
MAX_HOSTS = 16
"""Hosts that are sent to at a time."""
PER_HOST = 20
"""Notifications that are sent to a host before those to others."""
BATCH = 200
INITIAL_BACKOFF, MAX_BACKOFF = 5.0, 1800.0
"""Seconds before the second attempt, and between the last ones."""
TIMEOUT = 10.0
"""Seconds for one attempt."""
MIN_KEY = 16
"""Minimum number of bytes of the key."""

Post = Callable[[str, Sequence[Address], bytes, dict[str, str]], Awaitable[int]]
"""Sends a body with headers to a URL at one of its addresses; returns the status.

Raises OSError if there is no response.
"""


class KeyFileError(ValueError):
    """The file of the key cannot be used; the text names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationSettings:
    """Where notifications may be sent to, and what they are signed with."""

    key_file: Path
    """Read for each attempt, so that a new key takes effect."""
    destinations: Destinations = field(default_factory=Destinations)
    metrics: NotificationMetrics = field(default_factory=NotificationMetrics)

    def key(self) -> bytes:
        """Return the key.

        Raises:
            KeyFileError: it cannot be read, or is too short.
        """
        try:
            found = self.key_file.read_bytes().strip()
        except OSError as error:
            raise KeyFileError(f"cannot read {self.key_file}: {error.strerror}") from None
        if len(found) < MIN_KEY:
            raise KeyFileError(f"{self.key_file}: a key needs at least {MIN_KEY} bytes")
        return found


class NotificationSender:
    """Sends what is due, until cancelled."""

    def __init__(
        self,
        database: Database,
        settings: NotificationSettings,
        *,
        clock: Clock,
        recorder: Recorder | None = None,
        post: Post | None = None,
        resolve_host: Callable[[str, int], Awaitable[Sequence[Address]]] = resolve,
    ) -> None:
        """Send by *post*, by default over HTTP. *recorder* gets events of what is not sent."""
        self._store = NotificationStore(database)
        self._settings = settings
        self._metrics = settings.metrics
        self._clock = clock
        self._recorder = recorder
        self._post = post or post_to_address
        self._resolve = resolve_host
        self._busy: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Send until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._count_pending())
            while True:
                try:
                    await self._start_due(tasks)
                except StoreUnavailableError as error:
                    log.debug("cannot read notifications", extra={"error": str(error)})
                await self._clock.sleep(INTERVAL)

    async def _count_pending(self) -> None:
        """Export how many are not delivered, until cancelled: then another replica does."""
        pending = self._metrics.pending
        try:
            while True:
                try:
                    pending.set(await self._store.count_pending(self._clock.now()))
                except StoreUnavailableError as error:
                    log.debug("cannot count notifications", extra={"error": str(error)})
                await self._clock.sleep(COUNT_INTERVAL)
        finally:
            pending.set(0)

    async def send_due(self) -> None:
        """Send what is due now to each host, and wait until it is sent."""
        async with asyncio.TaskGroup() as tasks:
            await self._start_due(tasks)

    async def _start_due(self, tasks: asyncio.TaskGroup) -> None:
        if len(self._busy) >= MAX_HOSTS:
            return
        due = await self._store.due(self._clock.now(), limit=BATCH, except_hosts=[*self._busy])
        by_host: dict[str, list[Notification]] = {}
        for each in due:
            by_host.setdefault(each.host, []).append(each)
        for host, some in list(by_host.items())[: MAX_HOSTS - len(self._busy)]:
            task = tasks.create_task(self._send_to_host(some[:PER_HOST]))
            self._busy[host] = task
            task.add_done_callback(lambda _, host=host: self._busy.pop(host, None))  # type: ignore[misc]

    async def _send_to_host(self, due: Sequence[Notification]) -> None:
        """Send until one fails: then the others have to wait, too."""
        try:
            for each in due:
                if not await self._send(each):
                    return
        except StoreUnavailableError as error:
            log.debug("cannot note what was sent", extra={"error": str(error)})

    async def _send(self, each: Notification) -> bool:
        """Send one notification; return whether the host can be sent others."""
        now = self._clock.now()
        if now - from_micros(each.created_at) > MAX_AGE:
            self._record(each, "NotificationGivenUp", f"not delivered within {MAX_AGE}")
            await self._finish(each, "given up", f"not delivered within {MAX_AGE}")
            return True
        try:
            status = await self._attempt(each)
        except DestinationError as error:
            self._record(each, "NotificationRefused", str(error))
            await self._finish(each, "refused", str(error))
            return True
        except (OSError, KeyFileError, TimeoutError) as error:
            problem = str(error) or type(error).__name__
        else:
            if 200 <= status < 300:
                await self._finish(each, "delivered", str(status))
                return True
            problem = f"status {status}"
        delay = min(INITIAL_BACKOFF * 2 ** min(each.attempts, 20), MAX_BACKOFF)
        self._audit(each, "failed", f"{problem}; again in {delay:g} s")
        due_at = now + timedelta(seconds=delay)
        await self._store.postpone(each.id, attempts=each.attempts + 1, due_at=due_at)
        return False

    async def _attempt(self, each: Notification) -> int:
        """Return the status of the response.

        Raises:
            DestinationError: the URL must not be requested.
            OSError, TimeoutError: there is no response.
            KeyFileError: it cannot be signed.
        """
        destinations = self._settings.destinations
        if text := destinations.error_of(each.url):
            raise DestinationError(text)
        split = urlsplit(each.url)
        port = split.port or (443 if split.scheme == "https" else 80)
        async with asyncio.timeout(TIMEOUT):
            addresses = await self._resolve(str(split.hostname), port)
            if text := destinations.error_of_resolved(each.url, addresses):
                raise DestinationError(text)
            body = each.body.encode()
            at = int(self._clock.now().timestamp())
            headers = signed_headers(self._settings.key(), each.id, at, body)
            return await self._post(each.url, addresses, body, headers)

    async def _finish(self, each: Notification, outcome: NotificationOutcome, detail: str) -> None:
        self._audit(each, outcome, detail)
        await self._store.remove(each.id)

    def _record(self, each: Notification, reason: str, detail: str) -> None:
        """Record an event of the job, for its owner."""
        if self._recorder is None:
            return
        kind, namespace, name = each.job.split("/")
        resource = KINDS[JobKindName(kind)].resource
        meta = ObjectMeta(namespace=namespace, name=name, uid=each.job_uid)
        text = f"{each.host} is not notified of event {each.event}: {detail}"
        self._recorder.record(
            object_reference(resource, meta), type="Warning", reason=reason, message=text
        )

    def _audit(self, each: Notification, outcome: NotificationOutcome, detail: str) -> None:
        """Count and log an attempt. Paths of URLs are left out: they often contain a secret."""
        extra = {
            "audit": "notification",
            "notification": each.id,
            "event": each.event,
            "object": each.job,
            "host": each.host,
            "attempt": each.attempts + 1,
            "outcome": outcome,
            "detail": detail,
        }
        self._metrics.attempted(outcome)
        log.info("notification", extra=extra)


def signed_headers(key: bytes, id_: str, at: int, body: bytes) -> dict[str, str]:
    """Return the headers of Standard Webhooks; *at* is in seconds since the epoch."""
    signed = f"{id_}.{at}.".encode() + body
    signature = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return {
        "content-type": "application/json",
        "user-agent": "batholith",
        "webhook-id": id_,
        "webhook-timestamp": str(at),
        "webhook-signature": f"v1,{signature}",
    }


async def post_to_address(
    url: str, addresses: Sequence[Address], body: bytes, headers: dict[str, str]
) -> int:
    """Send *body* to *url* at one of *addresses*, without redirects and proxies.

    Raises:
        OSError: there is no response.
    """
    import aiohttp  # slow to import, and seldom needed
    from aiohttp.abc import AbstractResolver, ResolveResult

    class Resolved(AbstractResolver):
        async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[ResolveResult]:
            del family
            return [
                ResolveResult(
                    hostname=host,
                    host=str(each),
                    port=port,
                    family=socket.AF_INET if each.version == 4 else socket.AF_INET6,
                    proto=0,
                    flags=0,
                )
                for each in addresses
            ]

        async def close(self) -> None:
            pass

    connector = aiohttp.TCPConnector(resolver=Resolved(), use_dns_cache=False, force_close=True)
    try:
        async with (
            aiohttp.ClientSession(connector=connector, trust_env=False) as session,
            session.post(url, data=body, headers=headers, allow_redirects=False) as response,
        ):
            return response.status
    except aiohttp.ClientError as error:
        raise OSError(str(error) or type(error).__name__) from None
