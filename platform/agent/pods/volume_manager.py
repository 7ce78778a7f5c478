"""A pod's volumes and sources: made before its containers start, kept current while they run."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...kube.errors import ApiError, ConnectionLostError, UnreadableAnswerError
from ...machinery.clock import Timer
from ..state.core_types import Pod
from ..state.environment import Facts, Sources
from ..volumes.volumes import Made, VolumeError, materialise, needs_of
from .node_context import HOST_IP, Machine

PROBLEMS = (VolumeError, ApiError, ConnectionLostError, UnreadableAnswerError, OSError)
"""What may keep volumes from being made; all of it may pass."""

_RETRY_FIRST, _RETRY_CAP = 0.5, 120.0


def retry_delay(failures: int) -> float:
    """Seconds to wait after so many failures in a row."""
    return float(min(_RETRY_FIRST * 2.0 ** min(max(failures - 1, 0), 10), _RETRY_CAP))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What was made ready for a pod before its containers start."""

    sources: Sources
    volumes: Mapping[str, Made]
    folder: Path
    """The pod's own folder, with its hosts file and hostname."""

    ip: str


class Preparer:
    """Makes one pod's volumes, and makes them anew when their sources change.

    *pod* gives the pod as it is now; *changed* is called when it may be worth to try again what
    failed for want of a source.
    """

    def __init__(
        self, machine: Machine, folder: Path, *, pod: Callable[[], Pod], changed: Callable[[], None]
    ) -> None:
        self._machine = machine
        self._folder = folder
        self._pod = pod
        self._changed = changed
        self._turn = asyncio.Lock()
        self._stale = asyncio.Event()
        self._prepared: Prepared | None = None
        self._writing: asyncio.Future[Mapping[str, Made]] | None = None
        self._renewal: Timer | None = None

    @property
    def prepared(self) -> Prepared | None:
        """What is there, as it was made last."""
        return self._prepared

    async def make(self, ip: str) -> Prepared:
        """What containers need, made if it isn't there yet.

        Raises:
            PROBLEMS: it cannot be made (yet).
        """
        if self._prepared is not None:
            return self._prepared
        self._machine.sources.follow(self._pod(), self._touched)
        return await self._renew(ip, anew=True)

    async def keep(self, ip: str) -> None:
        """Keep everything current, until cancelled; what an earlier agent made, too."""
        self._machine.sources.follow(self._pod(), self._touched)
        if not needs_of(self._pod()).change:
            return
        if self._prepared is None:
            self._stale.set()
        failures = 0
        while True:
            await self._stale.wait()
            self._stale.clear()
            try:
                await self._renew(ip, anew=False)
            except PROBLEMS as error:
                failures += 1
                self._machine.tell(self._pod(), "FailedMount", str(error), warning=True)
                self._wake_in(retry_delay(failures))
            else:
                failures = 0
                self._changed()

    def pod_changed(self, old: Pod) -> None:
        """The pod's object changed; some of its files may show it."""
        before, now = old.metadata, self._pod().metadata
        if (before.labels, before.annotations) != (now.labels, now.annotations):
            self._stale.set()

    def _touched(self) -> None:
        self._stale.set()
        if self._prepared is None:
            self._changed()

    async def _renew(self, ip: str, *, anew: bool) -> Prepared:
        async with self._turn:
            pod, machine = self._pod(), self._machine
            sources = await machine.sources.fetch(pod, anew=anew)
            facts = Facts(pod_ip=ip, host_ip=HOST_IP, allocatable=machine.allocatable)
            places = machine.places(pod, self._folder)
            work = asyncio.to_thread(materialise, pod, places=places, sources=sources, facts=facts)
            self._writing = asyncio.ensure_future(work)
            volumes = await asyncio.shield(self._writing)
            made = Prepared(sources=sources, volumes=volumes, folder=self._folder, ip=ip)
            self._prepared = made
            due = machine.sources.renewal(pod.metadata.uid)
            if due is not None:
                self._wake_in(due - machine.clock.monotonic())
            return made

    def _wake_in(self, seconds: float) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
        self._renewal = self._machine.clock.call_later(max(seconds, 0.0), self._stale.set)

    async def close(self) -> None:
        """Nothing is needed any more; returns when nothing is being written any more."""
        if self._renewal is not None:
            self._renewal.cancel()
        self._machine.sources.leave(self._pod().metadata.uid)
        if self._writing is not None:
            with suppress(*PROBLEMS):
                await self._writing
