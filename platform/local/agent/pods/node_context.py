"""Shared dependencies of all pods of a real node: addresses, hosts files, sources, events."""

import logging
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from ....kube.client.client import Client
from ....kube.client.events import EventType
from ....machinery.clock import Clock, SteadyClock, Timer
from ....machinery.event_recorder import Recorder, object_reference
from ....model import times
from ....model.meta import ResourceList
from ....model.names import PODS
from ....model.quantity import parse
from ..devices.manager import DeviceManager
from ..images.manager import ImageManager
from ..network.namespaces import HostNetwork, NamespaceNetwork
from ..network.packet_filter import PacketFilter
from ..runtime.cgroups import CgroupReport
from ..runtime.fork_server import ForkServer
from ..runtime.ids import IdMode, Ids, allocate_range
from ..runtime.runs import IsolationLevel
from ..runtime.shim import boot_id
from ..settings import AgentSettings
from ..state import hosts
from ..state.core_types import Pod, Service
from ..state.sysctls import Namespace, sysctls_of
from ..volumes.source_manager import SourceManager
from ..volumes.volumes import VolumePaths
from .client_commands import ClientCommands
from .records import PodRecord

log = logging.getLogger(__name__)

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
_WRITE_DELAY = 0.05
"""Seconds that changes are batched before hosts files are written."""


class HostsFileManager:
    """Keeps the hosts file of every pod current."""

    def __init__(
        self,
        services: Callable[[str], Iterable[Service]],
        *,
        clock: Clock,
        remote: Callable[[str], Iterable[hosts.RemoteEndpoint]] = lambda _: (),
    ) -> None:
        """*services* and *remote* return what is known of a namespace."""
        self._services = services
        self._remote = remote
        self._clock = clock
        self._peers: dict[str, tuple[hosts.Peer, Path]] = {}
        self._sections: dict[str, str] = {}
        """The last written common section of the hosts files by namespace."""

        self._outside: dict[str, str] = {}
        """What the hosts files of other namespaces have of each namespace."""

        self._dirty: set[str] = set()
        self._timer: Timer | None = None

    def set(self, peer: hosts.Peer, file: Path) -> None:
        """Add or update a pod; the hosts *file* of a new pod is written immediately."""
        meta = peer.pod.metadata
        known = self._peers.get(meta.uid)
        self._peers[meta.uid] = (peer, file)
        if known is None:
            if meta.namespace not in self._sections:
                self._sections[meta.namespace] = self._section(meta.namespace)
            _write(peer, file, self._sections[meta.namespace])
        if known is None or _published_fields(known[0]) != _published_fields(peer):
            self.mark_dirty(meta.namespace)

    def remove(self, uid: str) -> None:
        """Remove a pod."""
        known = self._peers.pop(uid, None)
        if known:
            self.mark_dirty(known[0].pod.metadata.namespace)

    def mark_dirty(self, namespace: str) -> None:
        """Write the hosts files of *namespace* soon."""
        self._dirty.add(namespace)
        if self._timer is None:
            self._timer = self._clock.call_later(_WRITE_DELAY, self._write_dirty)

    def close(self) -> None:
        """Cancel pending writes."""
        if self._timer:
            self._timer.cancel()

    def _write_dirty(self) -> None:
        self._timer, dirty, self._dirty = None, self._dirty, set()
        if self._update_outside(dirty):
            dirty |= self._sections.keys()
        for namespace in dirty:
            before, text = self._sections.get(namespace, ""), self._section(namespace)
            if text != before:
                self._sections[namespace] = text
                for peer, file in self._namespace_peers(namespace):
                    try:
                        _write(peer, file, text)
                    except OSError as error:  # the pod may have changed its mode
                        log.warning(
                            "cannot write hosts file of pod",
                            extra={
                                "pod": peer.pod.metadata.key,
                                "reason": error.strerror,
                            },
                        )

    def _namespace_peers(self, namespace: str) -> list[tuple[hosts.Peer, Path]]:
        return [
            pair for pair in self._peers.values() if pair[0].pod.metadata.namespace == namespace
        ]

    def _update_outside(self, namespaces: Iterable[str]) -> bool:
        """Compute what others know of *namespaces*; return whether any of it has changed."""
        changed = False
        for namespace in namespaces:
            peers = (peer for peer, _ in self._namespace_peers(namespace))
            text = hosts.outside_section(peers, self._services(namespace), self._remote(namespace))
            changed |= text != self._outside.get(namespace, "")
            if text:
                self._outside[namespace] = text
            else:
                self._outside.pop(namespace, None)
        return changed

    def _section(self, namespace: str) -> str:
        peers = (peer for peer, _ in self._namespace_peers(namespace))
        own = hosts.namespace_section(peers, self._services(namespace), self._remote(namespace))
        others = (text for each, text in sorted(self._outside.items()) if each != namespace)
        return own + "".join(others)


def _write(peer: hosts.Peer, file: Path, shared: str) -> None:
    # In place: running containers have this inode mounted. At no time is the file empty.
    content = (hosts.pod_section(peer.pod, peer.ip) + shared).encode()
    with (
        suppress(FileNotFoundError),
        open(os.open(file, _FLAGS, 0o644), "wb", buffering=0) as opened,
    ):
        opened.write(content)
        opened.truncate()


def _published_fields(peer: hosts.Peer) -> tuple[object, ...]:
    """Return what the hosts files of other pods show of a peer."""
    return peer.ip, peer.ready, peer.pod.metadata.labels


@dataclass(slots=True, kw_only=True)
class NodeContext:
    """Shared dependencies of the pod workers of one real node."""

    client: Client
    settings: AgentSettings
    clock: Clock
    isolation: IsolationLevel
    id_mode: IdMode
    safe_paths: bool
    """Sub-paths can be mounted safely (`IsolationReport.safe_paths`)."""

    shims: ForkServer
    images: ImageManager
    cgroups: CgroupReport
    devices: DeviceManager
    allocatable: ResourceList
    hosts_files: HostsFileManager
    services: Callable[[str], Iterable[Service]]
    sources: SourceManager
    recorder: Recorder | None
    client_commands: ClientCommands
    network: HostNetwork | NamespaceNetwork
    packet_filter: PacketFilter | None
    """Set if pods have network namespaces."""

    addresses: dict[str, str]
    """Address by pod uid."""

    id_ranges: dict[str, int]
    """First user id by pod uid."""

    pods: Callable[[], Iterable[Pod]] = tuple
    """Returns the pods that run, with their allocated resources."""

    on_resized: Callable[[], None] = lambda: None
    """Called when a pod has other resources, which may be less."""

    steady_time: SteadyClock = field(init=False)
    """Clock of all deadlines; times in objects and files are wall clock times."""

    def __post_init__(self) -> None:
        """Start the steady clock."""
        self.steady_time = SteadyClock(self.clock)

    def accepted_steady_at(self, record: PodRecord) -> datetime:
        """Return when an earlier agent accepted a pod, in steady time."""
        if record.boot == boot_id():
            ago = max(self.clock.monotonic() - record.monotonic, 0.0)
            return self.steady_time.now() - timedelta(seconds=ago)
        return self.steady_time.from_wall(times.parse(record.accepted_at))

    @property
    def host_ip(self) -> str:
        """The node's address."""
        return self.settings.node_address or self.network.ranges.node_ip

    def ip_of(self, pod: Pod) -> str:
        """Return the pod's address, allocated on the first call."""
        uid = pod.metadata.uid
        if pod.spec.host_network:
            return self.host_ip
        if self.settings.node_address:
            # A running pod keeps the one that it has from a start without other nodes.
            return self.addresses.setdefault(uid, self.settings.node_address)
        if uid not in self.addresses:
            taken = {self.host_ip, *self.addresses.values()}
            network = self.network.ranges.pod_ips
            self.addresses[uid] = hosts.allocate_address(uid, taken, network)
        return self.addresses[uid]

    def pods_with_address(self) -> list[tuple[Pod, str]]:
        """Return the pods that run and have an address of their own, with it."""
        return [(pod, self.ip_of(pod)) for pod in self.pods() if not pod.spec.host_network]

    def namespace_of(self, pod: Pod) -> str:
        """Return the path of the pod's network namespace, empty if it uses the machine's."""
        return "" if pod.spec.host_network else self.network.path(pod.metadata.uid)

    @property
    def sets_ipc_sysctls(self) -> bool:
        """Whether the IPC namespace of a container belongs to root, as its sysctls do."""
        return self.isolation is IsolationLevel.UNSHARE and self.id_mode is not IdMode.OWN

    def ignored_sysctls(self, pod: Pod) -> list[str]:
        """Return the paths of the sysctls of a pod for which it has no namespace."""
        found = [] if self.namespace_of(pod) else sysctls_of(pod, Namespace.NET)
        found += [] if self.sets_ipc_sysctls else sysctls_of(pod, Namespace.IPC)
        return [path for path, _ in found]

    def allocate_ids(self, pod: Pod) -> Ids:
        """Return the pod's user ids, a range allocated on the first call."""
        if self.id_mode is IdMode.OWN or self.isolation is IsolationLevel.PLAIN:
            return Ids()
        uid = pod.metadata.uid
        if uid not in self.id_ranges:
            self.id_ranges[uid] = allocate_range(pod, set(self.id_ranges.values()))
        return Ids(self.id_ranges[uid], self.id_mode is IdMode.RANGE)

    def other_pods(self, uid: str) -> list[Pod]:
        """Return the pods that run, but for one."""
        return [pod for pod in self.pods() if pod.metadata.uid != uid]

    @property
    def memory(self) -> int:
        """The memory of the node in bytes."""
        return parse(self.allocatable["memory"]).value()

    def volume_paths(self, pod: Pod, pod_dir: Path) -> VolumePaths:
        """Return the directories of a pod's volumes."""
        return VolumePaths(
            pod_dir=pod_dir,
            pvc_root=self.settings.data_dir / "volumes",
            host_dirs=self.settings.host_dirs,
            ids=self.allocate_ids(pod),
            memory=0 if self.isolation is IsolationLevel.PLAIN else self.memory,
        )

    def record_event(self, pod: Pod, reason: str, message: str, *, warning: bool = False) -> None:
        """Record an event about *pod*."""
        if self.recorder is None:
            return
        kind: EventType = "Warning" if warning else "Normal"
        regarding = object_reference(PODS, pod.metadata)
        self.recorder.record(regarding, type=kind, reason=reason, message=message)
