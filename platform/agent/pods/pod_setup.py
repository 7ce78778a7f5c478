"""What a pod needs before its containers start: record, address, names, volumes.

What cannot be had is asked for again, later each time, or as soon as something changed.
"""

from collections.abc import Callable

import msgspec

from ...model import times
from ..runtime.ids import chown
from ..runtime.runs import IsolationLevel
from ..runtime.shim import boot_id
from ..state.core_types import Pod
from ..state.hosts import Peer
from ..state.status import Accepted
from .node_context import HOST_IP, NodeContext
from .records import PodDir, PodRecord
from .volume_manager import VOLUME_ERRORS, PodVolumeManager, PodVolumes, retry_delay

_NO_SANDBOX_MESSAGE = (
    "There is no sandbox on this machine: volumes lie under $BATHOLITH_ROOT, "
    "the hosts file at $BATHOLITH_HOSTS"
)


class PodSetup:
    """Lays one pod's ground, and remembers what must not be tried again yet.

    *pod* gives the pod as it is now; *changed* is called when trying again may be worth it.
    """

    def __init__(
        self,
        node: NodeContext,
        pod_dir: PodDir,
        *,
        pod: Callable[[], Pod],
        on_change: Callable[[], None],
    ) -> None:
        self._node = node
        self._pod_dir = pod_dir
        self._pod = pod
        self._on_change = on_change
        self._volume_manager = PodVolumeManager(
            node, pod_dir.path, pod=pod, on_change=self._reset_backoff
        )
        self._failures = 0
        self._not_before: dict[str, float] = {}
        """Monotonic time before which a container (or "" for the volumes) isn't tried again."""

    def can_start(self, container: str = "") -> bool:
        """Whether it is time for the container, or for all that comes before it."""
        now = self._node.clock.monotonic()
        return all(self._not_before.get(what, 0.0) <= now for what in ("", container))

    def back_off(self, container: str, seconds: float) -> None:
        """Don't try the container again for so long, unless something changed."""
        self._not_before[container] = self._node.clock.monotonic() + seconds

    @property
    def pending_backoffs(self) -> list[float]:
        """In how many seconds what was put off is due."""
        now = self._node.clock.monotonic()
        return [at - now for at in self._not_before.values() if at > now]

    def _reset_backoff(self) -> None:
        """What failed for want of something may succeed now."""
        self._failures = 0
        self._not_before.clear()
        self._on_change()

    async def ensure(self, *, accepted: Accepted, ready: bool) -> PodVolumes | None:
        """Make what isn't there yet; on failure say why, put it off and give ``None``.

        *accepted* is when the pod was taken on, *ready* what its peers are to think of it.
        """
        if self._volume_manager.mounted is not None:
            return self._volume_manager.mounted
        pod, machine = self._pod(), self._node
        ip = HOST_IP if pod.spec.host_network else machine.allocate_ip(pod.metadata.uid)
        try:
            self._write_record(ip, accepted=accepted, ready=ready)
            return await self._volume_manager.ensure_mounted(ip)
        except VOLUME_ERRORS as error:
            machine.record_event(self._pod(), "FailedMount", str(error), warning=True)
            self._failures += 1
            self.back_off("", retry_delay(self._failures))
            return None

    def _write_record(self, ip: str, *, accepted: Accepted, ready: bool) -> None:
        pod, folder = self._pod(), self._pod_dir
        meta = pod.metadata
        ids = self._node.allocate_ids(pod)
        record = folder.read_record()
        if record is not None and record.ids != (ids.base or 0):
            folder.write_record(msgspec.structs.replace(record, ids=ids.base or 0))
        if record is None:
            ago = self._node.steady_time.now() - (accepted.steady_at or accepted.at)
            record = PodRecord(
                uid=meta.uid,
                namespace=meta.namespace,
                name=meta.name,
                ip=ip,
                accepted_at=times.format_micros(accepted.at),
                boot=boot_id(),
                monotonic=self._node.clock.monotonic() - ago.total_seconds(),
                ids=ids.base or 0,
            )
            folder.write_record(record)
            if self._node.isolation is IsolationLevel.PLAIN:
                self._node.record_event(pod, "NoSandbox", _NO_SANDBOX_MESSAGE)
        (folder.path / "hostname").write_text(f"{pod.hostname}\n")
        hosts_file = folder.path / "hosts"
        hosts_file.touch()
        chown(hosts_file, ids.owner())
        self._node.hosts_files.set(Peer(pod, ip, ready=ready), hosts_file)
        self._node.hosts_files.mark_dirty(meta.namespace)

    async def sync_volumes(self, ip: str) -> None:
        """Keep everything current, until cancelled."""
        await self._volume_manager.run(ip)

    def pod_changed(self, old: Pod) -> None:
        """The pod's object changed; some of its files may show it."""
        self._volume_manager.pod_changed(old)

    async def close(self) -> None:
        """Nothing is needed any more; returns when nothing is being written any more."""
        await self._volume_manager.close()
