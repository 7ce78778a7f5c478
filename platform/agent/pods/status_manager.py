"""Writes one pod's status: the last one wins, never two at once, not more often than needed."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from ...kube.client.client import Client, PatchType
from ...kube.errors import (
    ApiError,
    ConnectionLostError,
    DecodeError,
    ForbiddenError,
    NotFoundError,
)
from ...machinery.clock import Clock
from ...model.log_fields import object_fields
from ...model.names import PODS
from ..state.core_types import Pod
from ..status_writes import handle_write_error, status_patch

log = logging.getLogger(__name__)

WRITE_DELAY = 0.1
"""Seconds that changes are gathered for one write."""

_INITIAL_BACKOFF, _MAX_BACKOFF = 0.5, 15.0
_DELETE_BACKOFF = 1.0


async def confirm_deletion(client: Client, pod: Pod, *, clock: Clock) -> None:
    """Have the object of a pod go that is at its end; tries until the server has answered."""
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
            again, _ = await handle_write_error(error, client, pod)
            if not again:
                log.info("not deleted", extra={"pod": meta.key, "error": str(error)})
                return
        await clock.sleep(min(_DELETE_BACKOFF * 2.0 ** min(failures, 10), _MAX_BACKOFF))
        failures += 1


class PodStatusManager:
    """Keeps a pod's status as *render* says it is."""

    def __init__(
        self,
        client: Client,
        *,
        clock: Clock,
        render: Callable[[], tuple[Pod, dict[str, Any]]],
        on_written: Callable[[Pod], None],
        on_forbidden: Callable[[], None] = lambda: None,
    ) -> None:
        """*told* gets each answer; *refused* is called when a status may not be written yet."""
        self._client = client
        self._clock = clock
        self._render = render
        self._on_written = on_written
        self._on_forbidden = on_forbidden
        self.is_forbidden = False
        """The server forbids the status; it is tried again all the same."""

        self._dirty = asyncio.Event()
        self._flush = asyncio.Event()
        self._written = asyncio.Event()
        self._written.set()
        self._last_status: dict[str, Any] = {}
        self._last_phase: str | None = None

    def mark_dirty(self, *, promptly: bool = False) -> None:
        """The status may have changed; *promptly*: don't wait for more."""
        self._dirty.set()
        self._written.clear()
        if promptly:
            self._flush.set()

    async def wait_written(self) -> None:
        """Wait until what was true at the last touch is written, or was refused for good."""
        await self._written.wait()

    async def run(self) -> None:
        """Write whenever there is something to write, until cancelled."""
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
                again, reread = await handle_write_error(error, self._client, pod)
                if again:
                    if reread is not None:
                        self._on_written(reread)
                    failures += 1
                    self._dirty.set()
                    if isinstance(error, ForbiddenError):
                        self._mark_forbidden(pod, error)
                    wait = _INITIAL_BACKOFF * 2.0 ** min(failures - 1, 10)
                    await self._clock.sleep(min(wait, _MAX_BACKOFF))
                    continue
                note = {"pod": pod.metadata.key, "error": str(error)}
                log.info("a status was refused", extra=note)
            if not self._dirty.is_set():
                self._written.set()

    def _mark_forbidden(self, pod: Pod, error: Exception) -> None:
        level = logging.DEBUG if self.is_forbidden else logging.WARNING
        note = {"pod": pod.metadata.key, "error": str(error)}
        log.log(level, "a status is forbidden, trying again", extra=note)
        self.is_forbidden = True
        self._on_forbidden()

    async def _wait_for_batch(self) -> None:
        """Let more changes come, for a short time."""
        timer = self._clock.call_later(WRITE_DELAY, self._flush.set)
        await self._flush.wait()
        self._flush.clear()
        timer.cancel()

    async def _write(self) -> None:
        pod, status = self._render()
        if status == self._last_status:
            return
        answer = await self._client.patch(
            PODS,
            pod.metadata.name,
            status_patch(pod.metadata.uid, status),
            namespace=pod.metadata.namespace,
            subresource="status",
            kind=PatchType.STRATEGIC,
            view=Pod,
        )
        self._on_written(answer)
        phase = status.get("phase")
        if phase != self._last_phase:
            self._last_phase = phase
            log.info("pod phase", extra={**object_fields("pod", pod.metadata), "phase": phase})
        # Rendered anew: conditions keep the times that stand in the answer.
        self._last_status = self._render()[1] if not self._dirty.is_set() else {}
