"""Record one resource: list and watch it, and write every change once.

Unlike an informer this keeps no objects, and it does not use the reflector, which resumes from the
latest version while it lists, and does not wait until a change is stored. It resumes from the
position in the store, also after a restart or under another leader, so that changes in between are
not missed as long as the server has them. If it does not (410), a list ends the gap: objects that
are missing end at the time they were last observed, and are marked. While the store is unavailable
the watch is not read, so that nothing accumulates here.
"""

import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from ...kube.client.client import Client
from ...kube.client.codec import ListScope
from ...kube.client.watch_decoder import Bookmark, WatchDecoder, WatchEvent
from ...kube.errors import (
    ApiError,
    BadRequestError,
    ConnectionLostError,
    DecodeError,
    GoneError,
    InvalidError,
    NotFoundError,
    ServerError,
)
from ...kube.informer.failure_log import FailureLog
from ...kube.timing import Backoff, Timing
from ...machinery.clock import Clock
from ...model.names import Resource
from ...store.database import PERMANENT_ERRORS, StoreUnavailableError
from ...store.recording import Batch, OutOfStepError, Position, Recording
from ...store.records import SECOND, Record, to_micros, version_number
from .metrics import RecorderMetrics

log = logging.getLogger(__name__)

MAX_BATCH = 500
"""Changes per transaction; fewer after one that took too long."""
BATCH_INTERVAL = 0.2
"""Seconds after a transaction during which changes are collected for the next one."""
BUSY_BATCH, BUSY_INTERVAL = 20, 1.0
"""Number of changes in one transaction from which on changes are collected for longer: many changes
of a burst are of the same job, which is then written once."""
BUFFER_SIZE = 4 * 2**20
"""Bytes that are collected at most; then the server has to wait."""
POSITION_INTERVAL = 10.0
"""Seconds after which the position is stored although nothing was recorded."""
PAGE_SIZE = 500
NOT_SERVED_INTERVAL = 30.0
"""Seconds until a resource that the server does not have is requested again."""
WATCH_SECONDS = 480
"""Timeout of a watch, which is then resumed."""

LATE_AFTER = 2.0
"""Seconds between a change and its reception from which on the change is late. Its reception is
then not recorded as the time of the change."""

_FAILURES = (ApiError, ConnectionLostError, DecodeError, StoreUnavailableError, OutOfStepError)
_TOO_LARGE = "Too large resource version"
"""Text of the error of a server that was restored from a backup and has not reached the position
yet."""


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    uid: str = ""
    resource_version: str = ""


class _Object(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()


_decode_object = msgspec.json.Decoder(_Object).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedResource:
    """A resource that is recorded."""

    resource: Resource
    kind: str
    """Kind of the jobs, as in paths; empty for pods."""
    convert: Callable[[msgspec.Raw, bool], Record | None]
    """Return the record of an object, which was deleted or not; ``None`` if it has none.

    Raises:
        msgspec.MsgspecError: the object does not have the expected structure.
    """

    @property
    def name(self) -> str:
        """Name of the stream in the store."""
        group = self.resource.group
        return f"{self.resource.plural}.{group}" if group else self.resource.plural


@dataclass(frozen=True, slots=True)
class _Change:
    version: str
    record: Record | None


class RecordedStream:
    """Records one resource, with one :class:`Recording`."""

    def __init__(
        self,
        client: Client,
        recorded: RecordedResource,
        recording: Recording,
        *,
        clock: Clock,
        metrics: RecorderMetrics,
    ) -> None:
        self._client = client
        self._recorded = recorded
        self._recording = recording
        self._clock = clock
        self._metrics = metrics
        self._scope = ListScope(resource=recorded.resource)
        self._decoder = WatchDecoder(msgspec.Raw)
        self._timing = Timing(monotonic=clock.monotonic, sleep=clock.sleep, now=clock.now)
        self._failures = FailureLog(self._timing)
        self.position: Position | None = None
        """What was recorded last; ``None`` until `resume`."""
        self._written_at = -POSITION_INTERVAL
        self._live_at = 0
        """Time in microseconds until which all changes are known to be received."""
        self._backlog_through = 0
        """Version of the resource when the watch was resumed: changes up to it had happened."""
        self._backlog_is_late = False
        self._was_busy = False
        """Whether changes may have waited here before they were taken."""
        self._max_batch = MAX_BATCH

    async def run(self) -> None:
        """Record until cancelled; failures are logged and retried with backoff.

        Raises:
            FencedError: another recorder has begun.
        """
        backoff = Backoff(timing=self._timing, cap=15.0)
        while True:
            try:
                await self.resume()
                await self._watch()
            except _FAILURES as error:
                delay = await self._handle(error)
                if delay != 0:
                    await self._clock.sleep(delay or backoff.next_delay())

    async def _handle(self, error: Exception) -> float | None:
        """Return the delay before the next attempt; ``None`` for the backoff's."""
        if isinstance(error, NotFoundError):
            extra = {"resource": self._recorded.name, "error": str(error)}
            log.debug("resource not found", extra=extra)
            return NOT_SERVED_INTERVAL
        self._log_failure("recording interrupted, will resume", error)
        if isinstance(error, StoreUnavailableError):
            self._max_batch = max(1, self._max_batch // 2)
        restored = isinstance(error, ServerError) and _TOO_LARGE in error.message
        if isinstance(error, GoneError | BadRequestError | InvalidError) or restored:
            return await self._list_after_gap()
        return None

    async def resume(self) -> None:
        """Read the position, list first if there is none, and note what is delivered from then."""
        self.position = await self._recording.position(self._recorded.name)
        if self.position is None:
            await self.list()
        assert self.position is not None  # noqa: S101
        await self._note_backlog(self.position)

    async def _list_after_gap(self) -> float | None:
        """List; return 0, or ``None`` to retry after a delay."""
        try:
            await self.list()
        except _FAILURES as error:
            self._log_failure("cannot list, will retry", error)
            return None
        return 0

    async def _watch(self) -> None:
        """Watch from the position until the watch ends."""
        assert self.position is not None  # noqa: S101
        path = self._scope.path(
            watch=True,
            allowWatchBookmarks=True,
            timeoutSeconds=WATCH_SECONDS,
            resourceVersion=self.position.version,
        )
        async with self._client.watch_lines(path, buffer_limit=BUFFER_SIZE) as batches:
            if self._failures.is_failing:
                seconds = round(self._failures.recovered(), 1)
                log.info(
                    "recording resumed",
                    extra={"resource": self._recorded.name, "seconds": seconds},
                )
            async for lines in batches:
                taken, taken_at = self._clock.monotonic(), to_micros(self._clock.now())
                if recorded := await self.write(lines):
                    busy = recorded >= BUSY_BATCH
                    await self._clock.sleep(BUSY_INTERVAL if busy else BATCH_INTERVAL)
                self._note_live(taken_at)
                self._was_busy = self._clock.monotonic() - taken > LATE_AFTER
            self._note_live(to_micros(self._clock.now()))

    async def _note_backlog(self, position: Position) -> None:
        """Find out which changes have happened before they can be received."""
        self._was_busy = False
        seen_at = max(position.observed_at, self._live_at)
        self._backlog_is_late = (to_micros(self._clock.now()) - seen_at) / SECOND > LATE_AFTER
        page = await anext(self._client.list_pages(self._scope, size=1))
        self._backlog_through = version_number(page.resource_version)

    def _is_backlog(self, version: str) -> bool:
        return version_number(version) <= self._backlog_through

    def _is_late(self, change: _Change) -> bool:
        return self._was_busy or (self._backlog_is_late and self._is_backlog(change.version))

    def _note_live(self, now: int) -> None:
        """Note that all changes until *now* were received, unless there may be others before."""
        assert self.position is not None  # noqa: S101
        is_behind = version_number(self.position.version) < self._backlog_through
        if not (self._was_busy or is_behind):
            self._live_at = now

    async def write(self, lines: Sequence[bytes]) -> int:
        """Write the changes of *lines*; return how many of them are recorded.

        Raises:
            ApiError: the server has ended the watch; the changes before that are written.
            OutOfStepError, FencedError, StoreUnavailableError: they may be written or not.
        """
        changes: list[_Change] = []
        end: Exception | None = None
        for line in lines:
            try:
                change = self._decode(line)
            except (ApiError, DecodeError) as error:
                end = error
                break
            if change is not None:
                changes.append(change)
        recorded = sum(change.record is not None for change in changes)
        is_due = self._clock.monotonic() - self._written_at >= POSITION_INTERVAL
        # Changes of objects that are not recorded may be read again after a restart.
        if changes and (recorded or is_due):
            await self._write_changes(changes)
        if end is not None:
            raise end
        return recorded

    async def _write_changes(self, changes: Sequence[_Change]) -> None:
        observed_at = to_micros(self._clock.now())
        for is_late, group in itertools.groupby(changes, self._is_late):
            left = list(group)
            while left:
                some, left = left[: self._max_batch], left[self._max_batch :]
                await self._write_batch(some, observed_at, is_late=is_late)
                if len(some) == self._max_batch:
                    self._max_batch = min(MAX_BATCH, self._max_batch * 2)
        self._written_at = self._clock.monotonic()

    async def _write_batch(
        self, changes: Sequence[_Change], observed_at: int, *, is_late: bool
    ) -> None:
        """Write *changes* in one transaction; a change that cannot be stored is skipped."""
        assert self.position is not None  # noqa: S101
        records = [change.record for change in changes if change.record is not None]
        is_live = not (self._was_busy or self._is_backlog(changes[-1].version))
        batch = Batch(
            resource=self._recorded.name,
            previous=self.position.version,
            position=changes[-1].version,
            observed_at=observed_at,
            seen_at=observed_at if is_live else self.position.observed_at,
            records=records,
            is_late=is_late,
        )
        try:
            await self._recording.write(batch)
        except PERMANENT_ERRORS as error:
            if len(changes) > 1:
                for change in changes:
                    await self._write_batch([change], observed_at, is_late=is_late)
                return
            if not records:
                raise
            self._log_skipped(error)
            await self._recording.write(replace(batch, records=()))
        self.position = Position(batch.position, batch.seen_at)
        self._metrics.recorded(self._recorded.name, len(records), batch.seen_at / SECOND)

    def _decode(self, line: bytes) -> _Change | None:
        event = self._decoder.decode(line)
        if isinstance(event, Bookmark):
            return _Change(event.resource_version, None) if event.resource_version else None
        return self._change(event)

    def _change(self, event: WatchEvent[msgspec.Raw]) -> _Change:
        version = _decode_object(event.object).metadata.resource_version
        return _Change(version, self._convert(event.object, event.type == "DELETED"))

    def _convert(self, raw: msgspec.Raw, deleted: bool) -> Record | None:
        try:
            return self._recorded.convert(raw, deleted)
        except msgspec.MsgspecError as error:
            self._log_skipped(error)
            return None

    async def list(self) -> None:
        """List all objects after a gap: write them, end those that are missing, record the gap.

        Raises:
            ApiError, ConnectionLostError: the list failed; it can be repeated.
            FencedError, StoreUnavailableError: likewise.
        """
        name, kind = self._recorded.name, self._recorded.kind
        last = self.position or Position("", 0)
        known = await self._recording.recorded(name, kind)
        started_at = to_micros(self._clock.now())
        ended_at = 0  # of the gap: when the server had taken the version of the list
        listed: set[str] = set()
        version = ""
        async for page in self._client.list_pages(self._scope, size=PAGE_SIZE):
            version = version or page.resource_version
            ended_at = ended_at or to_micros(self._clock.now())
            records = []
            for raw in page.items:
                listed.add(_decode_object(raw).metadata.uid)
                record = self._convert(raw, False)
                if record is not None:
                    records.append(record)
            await self._write_listed(records, observed_at=started_at)
        missing = sorted(set(known) - listed)
        await self._recording.write_missing(
            name, missing, last_seen_at=last.observed_at, observed_at=started_at
        )
        position = Position(version, started_at)
        await self._recording.complete_list(name, position, last=last, ended_at=ended_at)
        self.position = position
        self._metrics.gaps.labels(name).inc()
        log.info(
            "listed", extra={"resource": name, "objects": len(listed), "missing": len(missing)}
        )

    async def _write_listed(self, records: Sequence[Record], *, observed_at: int) -> None:
        for start in range(0, len(records), self._max_batch):
            some = records[start : start + self._max_batch]
            try:
                await self._recording.write_listed(some, observed_at=observed_at)
            except PERMANENT_ERRORS as error:
                if len(records) > 1:
                    for record in some:
                        await self._write_listed([record], observed_at=observed_at)
                else:
                    self._log_skipped(error)

    def _log_failure(self, message: str, error: Exception) -> None:
        level = self._failures.level(str(error))
        log.log(level, message, extra={"resource": self._recorded.name, "error": str(error)})

    def _log_skipped(self, error: Exception) -> None:
        extra = {"resource": self._recorded.name, "error": str(error)}
        log.error("cannot record object, skipped", extra=extra)
        self._metrics.skipped.labels(self._recorded.name).inc()
