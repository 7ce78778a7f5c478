"""Set-up of a pod before its containers start: record, address, hosts file, volumes.

A failed set-up is retried with backoff, or as soon as one of its sources changes.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import msgspec

from ....kube.errors import UNAVAILABLE_ERRORS, ApiError
from ....model import times
from ...network.resolvers import read_resolver_config, resolver_file
from ..devices.claims import ClaimError, claimed_devices
from ..devices.manager import DeviceUnavailableError
from ..runtime.ids import chown
from ..runtime.runs import IsolationLevel
from ..runtime.shim import boot_id
from ..state.core_types import Pod
from ..state.hosts import Peer
from ..state.resizes import allocation_of
from ..state.resolv_conf import resolv_conf
from ..state.status import Accepted
from ..state.sysctls import Namespace, sysctls_of
from .node_context import NodeContext
from .records import PodDir, PodRecord
from .volume_manager import VOLUME_ERRORS, PodVolumeManager, PodVolumes, mount_retry_delay

_NO_SANDBOX_MESSAGE = (
    "No sandbox is available on this machine: volumes are below $BATHOLITH_ROOT, "
    "the hosts file is $BATHOLITH_HOSTS"
)


_IGNORED_SYSCTLS = (
    "The sysctls {} have no effect: those of the network need `up --pod-network=namespaces`, and "
    "those of IPC an agent that runs as root with user namespaces"
)


class _NetworkError(Exception):
    """The network of a pod cannot be set up."""


class PodSetup:
    """Sets up one pod, with backoff after failures.

    *pod* returns the current pod; *on_change* is called when a retry may succeed, *on_rejected*
    with the reason why the node cannot run the pod.
    """

    def __init__(
        self,
        node: NodeContext,
        pod_dir: PodDir,
        *,
        pod: Callable[[], Pod],
        on_change: Callable[[], None],
        on_rejected: Callable[[str], None],
    ) -> None:
        self._node = node
        self._on_rejected = on_rejected
        self._pod_dir = pod_dir
        self._pod = pod
        self._on_change = on_change
        self._volume_manager = PodVolumeManager(
            node, pod_dir.path, pod=pod, on_change=self._reset_backoff
        )
        self._writing: asyncio.Future[None] | None = None
        self._is_set_up = False
        """Whether this agent has set up all, not only the volumes of a pod of an earlier agent."""

        self._failures = 0
        self._not_before: dict[str, float] = {}
        """Monotonic time of the next attempt by container, "" for the volumes."""

    def can_start(self, container: str = "") -> bool:
        """Return whether neither the container nor the set-up itself is in backoff."""
        now = self._node.clock.monotonic()
        return all(self._not_before.get(name, 0.0) <= now for name in ("", container))

    def back_off(self, container: str, seconds: float) -> None:
        """Retry the container after *seconds*, or sooner if a source changes."""
        self._not_before[container] = self._node.clock.monotonic() + seconds

    def retry(self, container: str) -> None:
        """Retry the container now."""
        self._not_before.pop(container, None)
        self._on_change()

    @property
    def pending_backoffs(self) -> list[float]:
        """Seconds until each pending retry."""
        now = self._node.clock.monotonic()
        return [at - now for at in self._not_before.values() if at > now]

    def _reset_backoff(self) -> None:
        """A source changed: retry now."""
        self._failures = 0
        self._not_before.clear()
        self._on_change()

    async def ensure(self, *, accepted: Accepted, ready: bool) -> PodVolumes | None:
        """Set up what is missing; on failure record an event, back off and return ``None``.

        *accepted* is when the agent accepted the pod, *ready* its readiness for its peers.
        """
        if self._is_set_up and self._volume_manager.mounted is not None:
            return self._volume_manager.mounted
        pod, node = self._pod(), self._node
        ip = node.ip_of(pod)
        try:
            has_claims = pod.spec.resource_claims or pod.status.extended_resource_claim_status
            if has_claims and self._pod_dir.read_record() is None:
                await self._prepare_claims(pod)
            await self._write_files(ip, accepted=accepted, ready=ready)
            if node.namespace_of(pod):
                await self._set_up_network(ip)
            volumes = await self._volume_manager.ensure_mounted(ip)
            self._is_set_up = True
            return volumes
        except DeviceUnavailableError as error:
            self._on_rejected(str(error))
            return None
        except (ClaimError, ApiError, *UNAVAILABLE_ERRORS) as error:
            reason, text = "FailedPrepareDynamicResources", str(error)
        except _NetworkError as error:
            reason, text = "FailedCreatePodSandBox", str(error)
        except VOLUME_ERRORS as error:
            reason, text = "FailedMount", str(error)
        node.record_event(self._pod(), reason, text, warning=True)
        self._failures += 1
        self.back_off("", mount_retry_delay(self._failures))
        return None

    async def _prepare_claims(self, pod: Pod) -> None:
        """Assign the devices of the pod's claims.

        Raises:
            ClaimError, ApiError, ConnectionLostError: that is not possible now.
        """
        meta, node = pod.metadata, self._node
        found = await claimed_devices(
            node.client, meta.namespace, meta.name, meta.uid, node=node.settings.node_name
        )
        node.devices.claim(meta.uid, found)

    async def _set_up_network(self, ip: str) -> None:
        pod, packet_filter = self._pod(), self._node.packet_filter
        sysctls = sysctls_of(pod, Namespace.NET)
        try:
            if packet_filter is not None:
                packet_filter.mark_changed()
                await packet_filter.apply()
            await asyncio.to_thread(self._node.network.set_up, pod.metadata.uid, ip, sysctls)
        except OSError as error:
            raise _NetworkError(str(error)) from error

    async def _write_files(self, ip: str, *, accepted: Accepted, ready: bool) -> None:
        """Write the pod's record, and the files that its containers have in /etc."""
        pod, node = self._pod(), self._node
        ids = node.allocate_ids(pod)
        known = self._pod_dir.read_record()
        if known is None:
            record = self._new_record(pod, ip, accepted)
            if ignored := node.ignored_sysctls(pod):
                text = _IGNORED_SYSCTLS.format(", ".join(ignored))
                node.record_event(pod, "SysctlsIgnored", text, warning=True)
            if node.isolation is IsolationLevel.PLAIN:
                node.record_event(pod, "NoSandbox", _NO_SANDBOX_MESSAGE)
        else:
            record = msgspec.structs.replace(known, ids=ids.base or 0, ip=ip)
        resolver = self._resolver(pod, is_new=known is None)
        hosts_file = self._pod_dir.path / "hosts"

        def write() -> None:
            if record != known:
                self._pod_dir.write_record(record)
            (self._pod_dir.path / "hostname").write_text(f"{pod.hostname}\n")
            if resolver is not None:
                (self._pod_dir.path / "resolv.conf").write_text(resolver)
            hosts_file.touch()
            chown(hosts_file, ids.owner())

        # Not cancelled with this task: the next worker would write the same files.
        self._writing = asyncio.ensure_future(asyncio.to_thread(write))
        await asyncio.shield(self._writing)
        node.hosts_files.set(Peer(pod, ip, ready=ready), hosts_file)
        node.hosts_files.mark_dirty(pod.metadata.namespace)

    def _new_record(self, pod: Pod, ip: str, accepted: Accepted) -> PodRecord:
        meta, node = pod.metadata, self._node
        ago = node.steady_time.now() - (accepted.steady_at or accepted.at)
        return PodRecord(
            uid=meta.uid,
            namespace=meta.namespace,
            name=meta.name,
            ip=ip,
            accepted_at=times.format_micros(accepted.at),
            boot=boot_id(),
            monotonic=node.clock.monotonic() - ago.total_seconds(),
            ids=node.allocate_ids(pod).base or 0,
            resources=allocation_of(pod),
            devices=dict(node.devices.assign(pod)),
            claimed=node.devices.claimed(meta.uid),
        )

    def _resolver(self, pod: Pod, *, is_new: bool) -> str | None:
        """Return the content of the pod's own file; None if its resolver is that of the machine."""
        node = self._node
        machine = read_resolver_config(resolver_file(own_network=bool(node.namespace_of(pod))))
        own = resolv_conf(pod, machine, node.settings.cluster_dns)
        if own is None:
            return None
        for text in own.warnings if is_new else ():
            node.record_event(pod, "DNSConfigForming", text, warning=True)
        return own.text

    async def sync_volumes(self, ip: str) -> None:
        """Keep the volumes up to date, until cancelled."""
        await self._volume_manager.run(ip)

    def pod_changed(self, old: Pod) -> None:
        """Handle an update of the pod, which some volumes may show."""
        self._volume_manager.pod_changed(old)

    async def close(self) -> None:
        """Release the sources, and wait for writes in progress."""
        if self._writing is not None:
            with suppress(OSError):  # the task that waited for it has reported it
                await self._writing
        await self._volume_manager.close()
