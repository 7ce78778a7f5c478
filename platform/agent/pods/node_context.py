"""What all pods of a real node share: addresses, names, sources, and how to tell people."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from ...kube.client.client import Client
from ...kube.client.events import EventType
from ...machinery.clock import Clock, SteadyTime, Timer
from ...machinery.event_recorder import Recorder, reference
from ...model import times
from ...model.meta import ResourceList
from ...model.names import PODS
from ..runtime.ids import Identity, Ids, range_of
from ..runtime.runs import Level
from ..runtime.shim import boot_id
from ..settings import AgentSettings
from ..state import hosts
from ..state.core_types import Pod, Service
from ..volumes.source_manager import SourceBook
from ..volumes.volumes import Places
from .records import PodRecord

HOST_IP = "127.0.0.1"
_SETTLE = 0.05
"""Seconds that changes of names are gathered before hosts files are written."""


class NameBook:
    """Keeps the hosts file of every pod current."""

    def __init__(self, services: Callable[[str], Iterable[Service]], *, clock: Clock) -> None:
        self._services = services
        self._clock = clock
        self._peers: dict[str, tuple[hosts.Peer, Path]] = {}
        self._shared: dict[str, str] = {}
        """What all hosts files of a namespace have in common, as written last."""

        self._dirty: set[str] = set()
        self._timer: Timer | None = None

    def set(self, peer: hosts.Peer, file: Path) -> None:
        """Make a pod known, or known to be ready; its own *file* is written at once if missing."""
        meta = peer.pod.metadata
        known = self._peers.get(meta.uid)
        self._peers[meta.uid] = (peer, file)
        if known is None:
            _write(peer, file, self._shared.get(meta.namespace, ""))
        if known is None or _shown(known[0]) != _shown(peer):
            self.touch(meta.namespace)

    def drop(self, uid: str) -> None:
        """Forget a pod."""
        known = self._peers.pop(uid, None)
        if known:
            self.touch(known[0].pod.metadata.namespace)

    def touch(self, namespace: str) -> None:
        """Pods or services of *namespace* changed."""
        self._dirty.add(namespace)
        if self._timer is None:
            self._timer = self._clock.call_later(_SETTLE, self._write_dirty)

    def close(self) -> None:
        """Write nothing more."""
        if self._timer:
            self._timer.cancel()

    def _write_dirty(self) -> None:
        self._timer, dirty, self._dirty = None, self._dirty, set()
        for namespace in dirty:
            before, text = self._shared.get(namespace, ""), self._shared_part(namespace)
            if text != before:
                self._shared[namespace] = text
                for peer, file in self._in(namespace):
                    _write(peer, file, text)

    def _in(self, namespace: str) -> list[tuple[hosts.Peer, Path]]:
        return [
            pair for pair in self._peers.values() if pair[0].pod.metadata.namespace == namespace
        ]

    def _shared_part(self, namespace: str) -> str:
        peers = (peer for peer, _ in self._in(namespace))
        return hosts.shared_part(peers, self._services(namespace))


def _write(peer: hosts.Peer, file: Path, shared: str) -> None:
    # In place: a running container has this very file mounted.
    with suppress(FileNotFoundError):
        file.write_text(hosts.own_part(peer.pod, peer.ip) + shared)


def _shown(peer: hosts.Peer) -> tuple[object, ...]:
    """What of a peer others' hosts files depend on."""
    return peer.ip, peer.ready, peer.pod.metadata.labels


@dataclass(slots=True, kw_only=True)
class Machine:
    """One real node, as its pods' workers see it."""

    client: Client
    settings: AgentSettings
    clock: Clock
    level: Level
    identity: Identity
    safe_paths: bool
    """Paths in volumes can be mounted, though a pod may change them (`runner.Probe`)."""

    allocatable: ResourceList
    names: NameBook
    services: Callable[[str], Iterable[Service]]
    sources: SourceBook
    recorder: Recorder | None
    addresses: dict[str, str]
    """Loopback address by pod uid."""

    ranges: dict[str, int]
    """First of the user ids by pod uid."""

    time: SteadyTime = field(init=False)
    """By which everything is due; times in objects and files are the clock's."""

    def __post_init__(self) -> None:
        """Begin to measure time."""
        self.time = SteadyTime(self.clock)

    def seen(self, record: PodRecord) -> datetime:
        """When an earlier agent took a pod on, in steady time."""
        if record.boot == boot_id():
            ago = max(self.clock.monotonic() - record.monotonic, 0.0)
            return self.time.now() - timedelta(seconds=ago)
        return self.time.of(times.parse(record.accepted_at))

    def take_address(self, uid: str) -> str:
        """The pod's address, a free one the first time."""
        if uid not in self.addresses:
            self.addresses[uid] = hosts.address_of(uid, set(self.addresses.values()))
        return self.addresses[uid]

    def take_ids(self, pod: Pod) -> Ids:
        """The pod's user ids, a free range the first time."""
        if self.identity is Identity.OWN or self.level is Level.PLAIN:
            return Ids()
        uid = pod.metadata.uid
        if uid not in self.ranges:
            self.ranges[uid] = range_of(pod, set(self.ranges.values()))
        return Ids(self.ranges[uid], self.identity is Identity.RANGE)

    def places(self, pod: Pod, folder: Path) -> Places:
        """Where a pod's volumes lie."""
        return Places(
            pod=folder,
            claims=self.settings.data_dir / "volumes",
            host_paths=self.settings.host_paths,
            ids=self.take_ids(pod),
        )

    def tell(self, pod: Pod, reason: str, message: str, *, warning: bool = False) -> None:
        """Record an event about *pod*."""
        if self.recorder is None:
            return
        kind: EventType = "Warning" if warning else "Normal"
        about = reference(PODS, pod.metadata)
        self.recorder.record(about, type=kind, reason=reason, message=message)
