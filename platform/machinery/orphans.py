"""Removes the tracking finalizer of pods that no controller processes any more.

A pod keeps its finalizer until its owner has counted it. If the owner is deleted or finished, or
the pod has lost its controller, this queue removes the finalizer; otherwise the pod would never be
deleted.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic

from ..kube.errors import NotFoundError
from ..model.meta import ObjectMeta
from .controller import ShardedQueue, run_workers
from .pod_control import Child, ObjectControl, finalizer_removal

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class OrphanSettings(Generic[Child]):
    """What an :class:`OrphanQueue` does with which pods."""

    finalizer: str
    """The tracking finalizer."""

    get: Callable[[str], Child | None]
    """Returns a pod by its key, from the informer."""

    is_orphan: Callable[[Child], Awaitable[bool]]
    """Whether a pod's owner is deleted or finished, or it has none; evaluated before each write.

    An owner that is not in the informer may be new: read it from the API server, too."""


class OrphanQueue(Generic[Child]):
    """Work queue of orphans; see :meth:`add` and :meth:`run`."""

    def __init__(
        self, control: ObjectControl[Child], queue: ShardedQueue, settings: OrphanSettings[Child]
    ) -> None:
        """*queue* has the name, rate limiter and metrics; this object is its only user."""
        self._control = control
        self._queue = queue
        self._settings = settings

    def add(self, pod: ObjectMeta) -> None:
        """Add a pod if it has the finalizer."""
        if self._settings.finalizer in pod.finalizers:
            self._queue.add(pod.key)

    async def run(self) -> None:
        """Remove finalizers until cancelled, as ``run_workers`` does."""
        await run_workers(self._queue, self._reconcile)

    async def _reconcile(self, key: str) -> None:
        finalizer, pod = self._settings.finalizer, self._settings.get(key)
        if pod is None or finalizer not in pod.metadata.finalizers:
            return
        if not await self._settings.is_orphan(pod):
            return  # adopted since
        try:
            await self._control.patch(pod.metadata, finalizer_removal(finalizer))
        except NotFoundError:
            return
        log.info("finalizer removed from orphan", extra={"pod": key, "finalizer": finalizer})
