"""Volumes of one pod: set up before its containers start, and kept up to date."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ....kube.errors import ApiError, ConnectionLostError, DecodeError
from ....machinery.clock import Timer
from ..retry import retry_delay
from ..runtime.memory_volumes import is_in_memory
from ..state.core_types import Pod
from ..state.environment import PodRuntimeInfo, ResolvedSources
from ..volumes.volumes import (
    MountedVolume,
    VolumeError,
    is_memory_backed,
    references_of,
    set_up_volumes,
)
from .node_context import NodeContext

VOLUME_ERRORS = (VolumeError, ApiError, ConnectionLostError, DecodeError, OSError)
"""Errors of volume set-up, all of which may be temporary."""

_INITIAL_BACKOFF, _MAX_BACKOFF = 0.5, 120.0


def mount_retry_delay(failures: int) -> float:
    """Return the seconds to wait after *failures* failures in a row."""
    return retry_delay(failures, initial=_INITIAL_BACKOFF, maximum=_MAX_BACKOFF)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodVolumes:
    """The volumes and sources of a pod that is set up."""

    sources: ResolvedSources
    volumes: Mapping[str, MountedVolume]
    pod_dir: Path
    """The pod's directory, with its hosts file and hostname."""

    ip: str


class PodVolumeManager:
    """Sets up one pod's volumes, and updates them when their sources change.

    *pod* returns the current pod; *on_change* is called when a failed start may succeed.
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
        """The volumes as last set up, if any."""
        return self._mounted

    async def ensure_mounted(self, ip: str) -> PodVolumes:
        """Return the volumes, set up on the first call.

        Raises:
            VOLUME_ERRORS: the set-up failed.
        """
        if self._mounted is not None:
            return self._mounted
        self._node.sources.register_pod(self._pod(), self._on_source_change)
        return await self._set_up(ip, force=True)

    async def run(self, ip: str) -> None:
        """Keep the volumes up to date, also those of an earlier agent, until cancelled."""
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
                self._refresh_after(mount_retry_delay(failures))
            else:
                failures = 0
                self._on_change()

    def pod_changed(self, old: Pod) -> None:
        """Handle an update of the pod, which some volumes may show."""
        before, now = old.metadata, self._pod().metadata
        if (before.labels, before.annotations) != (now.labels, now.annotations):
            self._stale.set()

    def _on_source_change(self) -> None:
        self._stale.set()
        if self._mounted is None:
            self._on_change()

    async def _set_up(self, ip: str, *, force: bool) -> PodVolumes:
        async with self._lock:
            pod, node = self._pod(), self._node
            sources = await node.sources.get(pod, force=force)
            info = PodRuntimeInfo(pod_ip=ip, host_ip=node.host_ip, allocatable=node.allocatable)
            paths = node.volume_paths(pod, self._pod_dir)
            work = asyncio.to_thread(set_up_volumes, pod, paths=paths, sources=sources, info=info)
            self._writing = asyncio.ensure_future(work)
            volumes = await asyncio.shield(self._writing)
            if self._mounted is None:
                self._report_disk_volumes(pod, volumes)
            mounted = PodVolumes(sources=sources, volumes=volumes, pod_dir=self._pod_dir, ip=ip)
            self._mounted = mounted
            refresh_at = node.sources.next_token_refresh(pod.metadata.uid)
            if refresh_at is not None:
                self._refresh_after(refresh_at - node.clock.monotonic())
            return mounted

    def _report_disk_volumes(self, pod: Pod, volumes: Mapping[str, MountedVolume]) -> None:
        """Record an event about volumes that were to be in memory, and are not."""
        for each in filter(is_memory_backed, pod.spec.volumes):
            if not is_in_memory(volumes[each.name].path):
                message = (
                    f"Volume {each.name} is on the disk: only root's agent mounts it in memory"
                )
                self._node.record_event(pod, "NotInMemory", message, warning=True)

    def _refresh_after(self, seconds: float) -> None:
        if self._refresh_timer is not None:
            self._refresh_timer.cancel()
        self._refresh_timer = self._node.clock.call_later(max(seconds, 0.0), self._stale.set)

    async def close(self) -> None:
        """Release the sources, and wait for writes in progress."""
        if self._refresh_timer is not None:
            self._refresh_timer.cancel()
        self._node.sources.unregister_pod(self._pod().metadata.uid)
        if self._writing is not None:
            with suppress(*VOLUME_ERRORS):
                await self._writing
