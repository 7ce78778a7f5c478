"""The latest resourceVersions of pods, including the scheduler's own writes.

Bindings and conditions have the resourceVersion of their pod as a precondition. The informer still
has the version before a write right after it, and during a write the next version is unknown:
a binding that did not wait for the write would conflict with it.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..state.core_types import Pod


def is_newer(version: str, other: str) -> bool:
    """Return whether resourceVersion *version* is newer than *other*."""
    return int(version or 0) > int(other or 0)


def empty_lister(key: str) -> Pod | None:
    """Return ``None``: a lister without pods."""
    return None


class PodVersions:
    """resourceVersions of unbound pods. For use on one event loop."""

    def __init__(self, lister: Callable[[str], Pod | None] = empty_lister) -> None:
        """Start without writes; *lister* returns the pod of a key from the informer."""
        self.lister = lister
        self._writes_in_progress: dict[str, asyncio.Event] = {}
        self._written_versions: dict[str, str] = {}

    def version(self, key: str, uid: str) -> str:
        """Return the latest known resourceVersion of the pod; empty if there is none."""
        pod, written = self.lister(key), self._written_versions.get(uid, "")
        if pod is None or pod.metadata.uid != uid:
            return ""
        return max(pod.metadata.resource_version, written, key=lambda version: int(version or 0))

    @contextmanager
    def write_in_progress(self, uid: str) -> Iterator[None]:
        """Mark the pod as being written for the length of the block."""
        done = self._writes_in_progress[uid] = asyncio.Event()
        try:
            yield
        finally:
            del self._writes_in_progress[uid]
            done.set()

    async def wait_idle(self, uid: str) -> None:
        """Wait until no write of the pod is in progress."""
        while (done := self._writes_in_progress.get(uid)) is not None:
            await done.wait()

    def record_write(self, uid: str, version: str) -> None:
        """Record that a write has changed the pod to *version*."""
        self._written_versions[uid] = version

    def forget(self, uid: str) -> None:
        """Forget a pod that is bound or deleted."""
        self._written_versions.pop(uid, None)
