"""Status manager of one pod: writes its latest status, one write at a time."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from ....kube.client.client import Client, PatchType
from ....kube.errors import (
    ApiError,
    ConnectionLostError,
    DecodeError,
    ForbiddenError,
    NotFoundError,
)
from ....machinery.clock import Clock, Timer
from ....model.log_fields import object_fields
from ....model.names import PODS
from ..retry import retry_delay
from ..state.core_types import Pod
from ..status_writes import handle_write_error, status_patch

log = logging.getLogger(__name__)

WRITE_DELAY = 0.1
"""Seconds that changes are batched for one write."""

_SETUP_DELAY = 1.0
"""Seconds after which a status is written that shows only how far the set-up of a pod is."""

INITIAL_BACKOFF, _MAX_BACKOFF = 0.5, 15.0
_DELETE_BACKOFF = 1.0


async def confirm_deletion(client: Client, pod: Pod, *, clock: Clock) -> None:
    """Delete the object of a terminated pod, retrying until the API server has responded."""
    meta = pod.metadata
    failures = 0
    while True:
        try:
            await client.delete(
                PODS, meta.name, namespace=meta.namespace, uid=meta.uid, grace_period=0
            )
            return
        except NotFoundError:
            return
        except (ApiError, ConnectionLostError) as error:
            retry, _ = await handle_write_error(error, client, pod)
            if not retry:
                log.info("cannot delete pod", extra={"pod": meta.key, "error": str(error)})
                return
        failures += 1
        await clock.sleep(retry_delay(failures, initial=_DELETE_BACKOFF, maximum=_MAX_BACKOFF))


class PodStatusManager:
    """Writes the status that *render* returns."""

    def __init__(
        self,
        client: Client,
        *,
        clock: Clock,
        render: Callable[[], tuple[Pod, dict[str, Any]]],
        on_written: Callable[[Pod], None],
        on_forbidden: Callable[[], None] = lambda: None,
    ) -> None:
        """Call *on_written* with each written pod, *on_forbidden* when a write is forbidden."""
        self._client = client
        self._clock = clock
        self._render = render
        self._on_written = on_written
        self._on_forbidden = on_forbidden
        self.is_forbidden = False
        """Whether the API server forbids the write, which is retried."""

        self._dirty = asyncio.Event()
        self._flush = asyncio.Event()
        self._written = asyncio.Event()
        self._written.set()
        self._setup_timer: Timer | None = None
        self._last_status: dict[str, Any] = {}
        self._last_phase: str | None = None

    def mark_dirty(self, *, promptly: bool = False) -> None:
        """Write the status soon; *promptly*: without waiting for more changes."""
        self._dirty.set()
        self._written.clear()
        if promptly:
            self._flush.set()

    def mark_set_up(self) -> None:
        """Write the status within a second, or with the next change: most pods run before that."""
        if self._setup_timer is None:
            self._setup_timer = self._clock.call_later(_SETUP_DELAY, self.mark_dirty)

    async def wait_written(self) -> None:
        """Wait until the status of the last `mark_dirty` is written, or permanently rejected."""
        await self._written.wait()

    async def run(self) -> None:
        """Write changed statuses, until cancelled."""
        try:
            await self._write_changes()
        finally:
            if self._setup_timer is not None:
                self._setup_timer.cancel()

    async def _write_changes(self) -> None:
        failures = 0
        while True:
            await self._dirty.wait()
            await self._wait_for_batch()
            self._dirty.clear()
            try:
                await self._write()
                failures, self.is_forbidden = 0, False
            except (ApiError, ConnectionLostError, DecodeError) as error:
                pod, _ = self._render()
                retry, reread = await handle_write_error(error, self._client, pod)
                if retry:
                    if reread is not None:
                        self._on_written(reread)
                    failures += 1
                    self._dirty.set()
                    if isinstance(error, ForbiddenError):
                        self._mark_forbidden(pod, error)
                    delay = retry_delay(failures, initial=INITIAL_BACKOFF, maximum=_MAX_BACKOFF)
                    await self._clock.sleep(delay)
                    continue
                fields = {"pod": pod.metadata.key, "error": str(error)}
                log.info("cannot write pod status", extra=fields)
            if not self._dirty.is_set():
                self._written.set()

    def _mark_forbidden(self, pod: Pod, error: Exception) -> None:
        level = logging.DEBUG if self.is_forbidden else logging.WARNING
        fields = {"pod": pod.metadata.key, "error": str(error)}
        log.log(level, "pod status write forbidden, retrying", extra=fields)
        self.is_forbidden = True
        self._on_forbidden()

    async def _wait_for_batch(self) -> None:
        """Wait a short time for more changes."""
        timer = self._clock.call_later(WRITE_DELAY, self._flush.set)
        await self._flush.wait()
        self._flush.clear()
        timer.cancel()

    async def _write(self) -> None:
        pod, status = self._render()
        if status == self._last_status:
            return
        written = await self._client.patch(
            PODS,
            pod.metadata.name,
            status_patch(pod.metadata.uid, status),
            namespace=pod.metadata.namespace,
            subresource="status",
            kind=PatchType.STRATEGIC,
            view=Pod,
        )
        self._on_written(written)
        phase = status.get("phase")
        if phase != self._last_phase:
            self._last_phase = phase
            log.info("pod phase", extra={**object_fields("pod", pod.metadata), "phase": phase})
        # Rendered again: conditions keep the transition times of the response.
        self._last_status = self._render()[1] if not self._dirty.is_set() else {}
