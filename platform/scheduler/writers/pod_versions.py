"""In which version pods stand, our own writes counted in.

Bindings and conditions name the version of the pod that they are meant for. Right after a write of
ours the watch still shows the version before, and in its midst nobody knows which one it will be:
a binding that did not wait for it would be refused on our own account.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..state.core_types import Pod


def unseen(key: str) -> Pod | None:
    """What is seen by whoever sees nothing."""
    return None


class Standing:
    """Versions of pods that are to be placed. For one event loop."""

    def __init__(self, seen: Callable[[str], Pod | None] = unseen) -> None:
        """*seen* gives the pod of a key as it was seen last."""
        self.seen = seen
        self._writing: dict[str, asyncio.Event] = {}
        self._written: dict[str, str] = {}

    def version(self, key: str, uid: str) -> str:
        """In which version we know the pod; empty if we don't."""
        pod, ours = self.seen(key), self._written.get(uid, "")
        if pod is None or pod.metadata.uid != uid:
            return ""
        return max(pod.metadata.resource_version, ours, key=lambda version: int(version or 0))

    @contextmanager
    def writing(self, uid: str) -> Iterator[None]:
        """The block writes the pod; nobody else does meanwhile."""
        done = self._writing[uid] = asyncio.Event()
        try:
            yield
        finally:
            del self._writing[uid]
            done.set()

    async def settled(self, uid: str) -> None:
        """Wait until no write of the pod is under way."""
        while (done := self._writing.get(uid)) is not None:
            await done.wait()

    def written(self, uid: str, version: str) -> None:
        """Our write has brought the pod to *version*."""
        self._written[uid] = version

    def forget(self, uid: str) -> None:
        """The pod is bound or gone."""
        self._written.pop(uid, None)
