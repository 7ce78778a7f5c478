"""What a pod needs before its containers start: record, address, names, volumes.

What cannot be had is asked for again, later each time, or as soon as something changed.
"""

from collections.abc import Callable

import msgspec

from ...model import times
from ..runtime.ids import hand_over
from ..runtime.runs import Level
from ..runtime.shim import boot_id
from ..state.core_types import Pod
from ..state.hosts import Peer
from ..state.status import Accepted
from .node_context import HOST_IP, Machine
from .records import PodFolder, PodRecord
from .volume_manager import PROBLEMS, Prepared, Preparer, retry_delay

_PLAIN_NOTE = (
    "There is no sandbox on this machine: volumes lie under $BATHOLITH_ROOT, "
    "the hosts file at $BATHOLITH_HOSTS"
)


class Groundwork:
    """Lays one pod's ground, and remembers what must not be tried again yet.

    *pod* gives the pod as it is now; *changed* is called when trying again may be worth it.
    """

    def __init__(
        self,
        machine: Machine,
        folder: PodFolder,
        *,
        pod: Callable[[], Pod],
        changed: Callable[[], None],
    ) -> None:
        self._machine = machine
        self._folder = folder
        self._pod = pod
        self._changed = changed
        self._files = Preparer(machine, folder.path, pod=pod, changed=self._try_again)
        self._failures = 0
        self._not_before: dict[str, float] = {}
        """Monotonic time before which a container (or "" for the volumes) isn't tried again."""

    def may_try(self, container: str = "") -> bool:
        """Whether it is time for the container, or for all that comes before it."""
        now = self._machine.clock.monotonic()
        return all(self._not_before.get(what, 0.0) <= now for what in ("", container))

    def put_off(self, container: str, seconds: float) -> None:
        """Don't try the container again for so long, unless something changed."""
        self._not_before[container] = self._machine.clock.monotonic() + seconds

    @property
    def waits(self) -> list[float]:
        """In how many seconds what was put off is due."""
        now = self._machine.clock.monotonic()
        return [at - now for at in self._not_before.values() if at > now]

    def _try_again(self) -> None:
        """What failed for want of something may succeed now."""
        self._failures = 0
        self._not_before.clear()
        self._changed()

    async def lay(self, *, accepted: Accepted, ready: bool) -> Prepared | None:
        """Make what isn't there yet; on failure say why, put it off and give ``None``.

        *accepted* is when the pod was taken on, *ready* what its peers are to think of it.
        """
        if self._files.prepared is not None:
            return self._files.prepared
        pod, machine = self._pod(), self._machine
        ip = HOST_IP if pod.spec.host_network else machine.take_address(pod.metadata.uid)
        try:
            self._accept(ip, accepted=accepted, ready=ready)
            return await self._files.make(ip)
        except PROBLEMS as error:
            machine.tell(self._pod(), "FailedMount", str(error), warning=True)
            self._failures += 1
            self.put_off("", retry_delay(self._failures))
            return None

    def _accept(self, ip: str, *, accepted: Accepted, ready: bool) -> None:
        pod, folder = self._pod(), self._folder
        meta = pod.metadata
        ids = self._machine.take_ids(pod)
        record = folder.record()
        if record is not None and record.ids != (ids.base or 0):
            folder.accept(msgspec.structs.replace(record, ids=ids.base or 0))
        if record is None:
            ago = self._machine.time.now() - (accepted.seen or accepted.at)
            record = PodRecord(
                uid=meta.uid,
                namespace=meta.namespace,
                name=meta.name,
                ip=ip,
                accepted_at=times.format_micros(accepted.at),
                boot=boot_id(),
                monotonic=self._machine.clock.monotonic() - ago.total_seconds(),
                ids=ids.base or 0,
            )
            folder.accept(record)
            if self._machine.level is Level.PLAIN:
                self._machine.tell(pod, "NoSandbox", _PLAIN_NOTE)
        (folder.path / "hostname").write_text(f"{pod.host_name}\n")
        hosts_file = folder.path / "hosts"
        hosts_file.touch()
        hand_over(hosts_file, ids.owner())
        self._machine.names.set(Peer(pod, ip, ready=ready), hosts_file)
        self._machine.names.touch(meta.namespace)

    async def keep(self, ip: str) -> None:
        """Keep everything current, until cancelled."""
        await self._files.keep(ip)

    def pod_changed(self, old: Pod) -> None:
        """The pod's object changed; some of its files may show it."""
        self._files.pod_changed(old)

    async def close(self) -> None:
        """Nothing is needed any more; returns when nothing is being written any more."""
        await self._files.close()
