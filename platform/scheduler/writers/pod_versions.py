"""In which version pods stand, our own writes counted in.

Bindings and conditions name the version of the pod that they are meant for. Right after a write of
ours the watch still shows the version before, and in its midst nobody knows which one it will be:
a binding that did not wait for it would be refused on our own account.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..state.core_types import Pod


def empty_lister(key: str) -> Pod | None:
    """What is seen by whoever sees nothing."""
    return None


class PodVersions:
    """Versions of pods that are to be placed. For one event loop."""

    def __init__(self, lister: Callable[[str], Pod | None] = empty_lister) -> None:
        """*seen* gives the pod of a key as it was seen last."""
        self.lister = lister
        self._writes_in_progress: dict[str, asyncio.Event] = {}
        self._written_versions: dict[str, str] = {}

    def version(self, key: str, uid: str) -> str:
        """In which version we know the pod; empty if we don't."""
        pod, written = self.lister(key), self._written_versions.get(uid, "")
        if pod is None or pod.metadata.uid != uid:
            return ""
        return max(pod.metadata.resource_version, written, key=lambda version: int(version or 0))

    @contextmanager
    def write_in_progress(self, uid: str) -> Iterator[None]:
        """The block writes the pod; nobody else does meanwhile."""
        done = self._writes_in_progress[uid] = asyncio.Event()
        try:
            yield
        finally:
            del self._writes_in_progress[uid]
            done.set()

    async def wait_idle(self, uid: str) -> None:
        """Wait until no write of the pod is under way."""
        while (done := self._writes_in_progress.get(uid)) is not None:
            await done.wait()

    def record_write(self, uid: str, version: str) -> None:
        """Our write has brought the pod to *version*."""
        self._written_versions[uid] = version

    def forget(self, uid: str) -> None:
        """The pod is bound or gone."""
        self._written_versions.pop(uid, None)
