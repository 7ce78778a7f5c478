"""What the watch of Jobs has shown about executed Commands.

The status of a Job holds the results of the last Commands of this API. Those of other versions of
the controller name only the last Command, so whether a Command was executed is known from the
sequence of versions, not from the latest one. It is complete only if the watch has shown every
version since the Command was created: a list in between skips versions.
"""

import asyncio
from collections import OrderedDict
from typing import TypeVar

from ...kube.informer.informer import Informer
from ...model.controlled_resources import OperationResult, executed_command, operation_results
from ...model.job import Job, JobStatus
from ...model.meta import ObjectMeta
from ..jobs.views import CachedJob
from .wakeups import Wakeups

T = TypeVar("T")

CACHE_SIZE = 10_000
"""Maximum number of executed Commands, and of deleted Jobs, that are remembered."""


class ObservedJobs:
    """Executed Commands and deleted Jobs, from the watch of Jobs."""

    def __init__(self, informer: Informer[CachedJob]) -> None:
        """Observe *informer*, which the server runs."""
        self._informer = informer
        self._informer.add_event_handler(self._on_job)
        self._executed_phases: OrderedDict[str, str] = OrderedDict()
        """Phase that each Command led to, by uid."""
        self._results: OrderedDict[str, OperationResult] = OrderedDict()
        """Results by operation."""
        self._deleted: OrderedDict[str, None] = OrderedDict()
        """Uids of deleted Jobs."""
        self._changed = asyncio.Event()
        self._wakeups = Wakeups()

    async def wait_synced(self) -> None:
        """Wait until the Jobs are listed."""
        await self._informer.wait_synced()

    @property
    def lists(self) -> int:
        """Number of lists so far; no version was skipped in between if it is the same."""
        return self._informer.stats().lists

    def executed_phase(self, command_uid: str) -> str | None:
        """Return the phase that the Command led to, if a Job has executed it."""
        return self._executed_phases.get(command_uid)

    def result(self, operation: str) -> OperationResult | None:
        """Return what the controller did with the Command of *operation*, if it is known."""
        return self._results.get(operation)

    async def wait_result(self, operation: str, command_uid: str, *, timeout: float) -> None:
        """Wait until the watch has shown that the Command was executed, at most *timeout*."""
        with self._wakeups.listen(operation, command_uid) as woken:
            if self.result(operation) is None and self.executed_phase(command_uid) is None:
                try:
                    await asyncio.wait_for(woken.wait(), timeout)
                except TimeoutError:
                    return

    def add_status(self, status: JobStatus) -> None:
        """Remember the Commands that *status*, which was read from the server, names."""
        command = executed_command(status)
        if command is not None:
            add_bounded(self._executed_phases, command.uid, command.phase)
            self._wakeups.wake(command.uid)
        for result in operation_results(status):
            add_bounded(self._results, result.operation, result)
            self._wakeups.wake(result.operation)

    async def wait_until_observed(self, key: str, uid: str, live: Job | None) -> None:
        """Wait until the watch has shown *live*, or if that is ``None``, the deletion of the Job.

        Returns at once if the Job is deleted already.
        """
        while not self._has_observed(key, uid, live):
            self._changed.clear()
            await self._changed.wait()

    def _has_observed(self, key: str, uid: str, live: Job | None) -> bool:
        if uid in self._deleted:
            return True
        cached = self._informer.get(key)
        if live is None or cached is None or cached.metadata.uid != uid:
            return False
        return _version(cached.metadata) >= _version(live.metadata)

    def _on_job(self, old: CachedJob | None, new: CachedJob | None) -> None:
        if new is None:
            if old is not None:
                add_bounded(self._deleted, old.metadata.uid, None)
        elif old is None or _marks(old) != _marks(new):
            self.add_status(new.status)
        self._changed.set()


def _marks(job: CachedJob) -> tuple[object, ...]:
    """Return the fields of the status in which executed Commands are noted."""
    status = job.status
    marks = status.controlled_resources
    return marks, status.state.message, status.state.phase


def add_bounded(cache: OrderedDict[str, T], key: str, value: T) -> T:
    """Add *value* unless *key* exists, and evict the oldest entries; return what *key* has."""
    found = cache.setdefault(key, value)
    while len(cache) > CACHE_SIZE:
        cache.popitem(last=False)
    return found


def _version(meta: ObjectMeta) -> int:
    """Return the resourceVersion, which increases with every write."""
    return int(meta.resource_version or 0)
