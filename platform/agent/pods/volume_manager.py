"""A pod's volumes and sources: made before its containers start, kept current while they run."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...kube.errors import ApiError, ConnectionLostError, DecodeError
from ...machinery.clock import Timer
from ..state.core_types import Pod
from ..state.environment import PodRuntimeInfo, ResolvedSources
from ..volumes.volumes import MountedVolume, VolumeError, references_of, set_up_volumes
from .node_context import HOST_IP, NodeContext

VOLUME_ERRORS = (VolumeError, ApiError, ConnectionLostError, DecodeError, OSError)
"""What may keep volumes from being made; all of it may pass."""

_INITIAL_BACKOFF, _MAX_BACKOFF = 0.5, 120.0


def retry_delay(failures: int) -> float:
    """Seconds to wait after so many failures in a row."""
    return float(min(_INITIAL_BACKOFF * 2.0 ** min(max(failures - 1, 0), 10), _MAX_BACKOFF))


@dataclass(frozen=True, slots=True, kw_only=True)
class PodVolumes:
    """What was made ready for a pod before its containers start."""

    sources: ResolvedSources
    volumes: Mapping[str, MountedVolume]
    pod_dir: Path
    """The pod's own folder, with its hosts file and hostname."""

    ip: str


class PodVolumeManager:
    """Makes one pod's volumes, and makes them anew when their sources change.

    *pod* gives the pod as it is now; *changed* is called when it may be worth to try again what
    failed for want of a source.
    """

    def __init__(
        self,
        node: NodeContext,
        pod_dir: Path,
        *,
        pod: Callable[[], Pod],
        on_change: Callable[[], None],
    ) -> None:
        self._node = node
        self._pod_dir = pod_dir
        self._pod = pod
        self._on_change = on_change
        self._lock = asyncio.Lock()
        self._stale = asyncio.Event()
        self._mounted: PodVolumes | None = None
        self._writing: asyncio.Future[Mapping[str, MountedVolume]] | None = None
        self._refresh_timer: Timer | None = None

    @property
    def mounted(self) -> PodVolumes | None:
        """What is there, as it was made last."""
        return self._mounted

    async def ensure_mounted(self, ip: str) -> PodVolumes:
        """What containers need, made if it isn't there yet.

        Raises:
            PROBLEMS: it cannot be made (yet).
        """
        if self._mounted is not None:
            return self._mounted
        self._node.sources.register_pod(self._pod(), self._on_source_change)
        return await self._set_up(ip, force=True)

    async def run(self, ip: str) -> None:
        """Keep everything current, until cancelled; what an earlier agent made, too."""
        self._node.sources.register_pod(self._pod(), self._on_source_change)
        if not references_of(self._pod()).can_change:
            return
        if self._mounted is None:
            self._stale.set()
        failures = 0
        while True:
            await self._stale.wait()
            self._stale.clear()
            try:
                await self._set_up(ip, force=False)
            except VOLUME_ERRORS as error:
                failures += 1
                self._node.record_event(self._pod(), "FailedMount", str(error), warning=True)
                self._refresh_after(retry_delay(failures))
            else:
                failures = 0
                self._on_change()

    def pod_changed(self, old: Pod) -> None:
        """The pod's object changed; some of its files may show it."""
        before, now = old.metadata, self._pod().metadata
        if (before.labels, before.annotations) != (now.labels, now.annotations):
            self._stale.set()

    def _on_source_change(self) -> None:
        self._stale.set()
        if self._mounted is None:
            self._on_change()

    async def _set_up(self, ip: str, *, force: bool) -> PodVolumes:
        async with self._lock:
            pod, machine = self._pod(), self._node
            sources = await machine.sources.get(pod, force=force)
            facts = PodRuntimeInfo(pod_ip=ip, host_ip=HOST_IP, allocatable=machine.allocatable)
            places = machine.volume_paths(pod, self._pod_dir)
            work = asyncio.to_thread(set_up_volumes, pod, paths=places, sources=sources, info=facts)
            self._writing = asyncio.ensure_future(work)
            volumes = await asyncio.shield(self._writing)
            made = PodVolumes(sources=sources, volumes=volumes, pod_dir=self._pod_dir, ip=ip)
            self._mounted = made
            due = machine.sources.next_token_refresh(pod.metadata.uid)
            if due is not None:
                self._refresh_after(due - machine.clock.monotonic())
            return made

    def _refresh_after(self, seconds: float) -> None:
        if self._refresh_timer is not None:
            self._refresh_timer.cancel()
        self._refresh_timer = self._node.clock.call_later(max(seconds, 0.0), self._stale.set)

    async def close(self) -> None:
        """Nothing is needed any more; returns when nothing is being written any more."""
        if self._refresh_timer is not None:
            self._refresh_timer.cancel()
        self._node.sources.unregister_pod(self._pod().metadata.uid)
        if self._writing is not None:
            with suppress(*VOLUME_ERRORS):
                await self._writing
