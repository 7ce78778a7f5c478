"""A real node: runs its pods as processes of this machine."""

import asyncio
import functools
import logging
import os
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from typing import Any

from ...kube.client.client import Client
from ...kube.client.events import EventType
from ...kube.informer.informer import Informer
from ...kube.supervision import cancel_and_wait, supervise
from ...kube.timing import Timing
from ...machinery.clock import Clock
from ...machinery.event_recorder import Recorder, object_reference
from ...model.meta import ObjectMeta
from ...model.names import ENDPOINTSLICES, NODES, PODS, SERVICES
from ...model.service_network import HOST_RANGES, NAMESPACE_RANGES, PodNetwork, is_in
from ..network.node_namespace import is_entered
from .certificates import NodeCertificates
from .devices.claims import SlicePublisher, slice_device
from .devices.manager import DeviceManager
from .images.errors import ImageError
from .images.manager import RUN_MODE_LABEL, ImageManager, RunMode
from .images.puller import Puller
from .images.support import ImageSupport
from .network.host_ports import HostPorts
from .network.namespaces import HostNetwork, NamespaceNetwork
from .network.packet_filter import PacketFilter
from .network.uplink import watch_uplink
from .node_status import NodeConfig, NodeStatusManager, machine_memory
from .pod_access import PodAccess
from .pods import storage_limits
from .pods.admission import PodAdmission
from .pods.client_commands import ClientCommands
from .pods.image_use import image_uses
from .pods.node_context import HostsFileManager, NodeContext
from .pods.orphans import kill_orphan, stop_all_pods
from .pods.pod_worker import PodWorker
from .pods.records import PodDir, PodRecord, create_dirs
from .pods.undecodable import UndecodablePods
from .pods.usage_meter import NODE, UsageMeter
from .retry import retry_until_done
from .runtime import cgroups, logs, usage
from .runtime.fork_server import ForkServer
from .runtime.isolation_warnings import groups_warning, isolation_warning
from .runtime.runs import IsolationLevel, IsolationReport, detect_isolation
from .server import AgentServer
from .settings import AgentSettings, ShutdownRequest
from .state import hosts
from .state.core_types import MetadataOnly, Pod, Service
from .state.endpoint_types import EndpointSlice
from .state.resizes import resize_order
from .volumes.pvc_dirs import PvcDirs
from .volumes.source_manager import SourceManager

log = logging.getLogger(__name__)

_LOG_TRUNCATE_INTERVAL = 10.0
_MEMORY_CHECK_INTERVAL = 1.0
_DUTY_CYCLE = 20
"""Checking memory, and reading usage, takes at most one in this many seconds."""

_UNENFORCED_LIMITS = (
    "The kernel does not enforce all limits of containers: CPU limits have no effect without its "
    "controller, and without the others memory is checked once a second, and the number of "
    "processes is limited for each user: {}"
)
_NODE_IPS = (HOST_RANGES.node_ip, NAMESPACE_RANGES.node_ip)
_NAMESPACE_INDEX = "namespace"

Work = Callable[[], Coroutine[Any, Any, None]]


def _never() -> bool:
    return False


class RealNode:
    """Registers one node and runs its pods."""

    def __init__(
        self,
        client: Client,
        *,
        settings: AgentSettings,
        clock: Clock,
        recorder: Recorder | None,
        extensions: Client | None = None,
    ) -> None:
        self._client = client
        self._settings = settings
        self._clock = clock
        self._recorder = recorder
        self._workers: dict[str, PodWorker] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._context: NodeContext | None = None
        self._stopping = False
        selector = f"spec.nodeName={settings.node_name}"
        warn = self._record_pod_warning
        self._undecodable = UndecodablePods(client, self._workers, warn, clock=clock)
        self._pods = Informer(
            client, PODS, Pod, field_selector=selector, on_undecodable=self._undecodable.add
        )
        self._services = Informer(
            client, SERVICES, Service, indexes={_NAMESPACE_INDEX: lambda s: (s.metadata.namespace,)}
        )
        self._slices = Informer(
            client,
            ENDPOINTSLICES,
            EndpointSlice,
            indexes={_NAMESPACE_INDEX: lambda found: (found.metadata.namespace,)},
        )
        self._hosts_files = HostsFileManager(
            self._services_of, clock=clock, remote=self._remote_endpoints
        )
        extensions = extensions or client
        self._sources = SourceManager(
            client, clock=clock, volumes=extensions, has_claims=not settings.joined
        )
        self._pvc_dirs = PvcDirs(extensions, self._sources, settings.data_dir / "volumes")
        self._commands = ClientCommands()
        self._shims = ForkServer(settings.data_dir)
        self._usage = UsageMeter(clock)
        self._devices = DeviceManager(settings.devices, settings.data_dir / "devices.json")
        self._device_slice = SlicePublisher(client, settings.node_name)
        self._admission = PodAdmission(settings, self._pods, self._workers.get)
        self._host_ports = HostPorts(clock, warn)
        self._packet_filter: PacketFilter | None = None
        self._network: HostNetwork | NamespaceNetwork = HostNetwork()
        if settings.network is PodNetwork.NAMESPACES:
            own = self._network = NamespaceNetwork(settings.data_dir, dns_ip=settings.cluster_dns)
            self._packet_filter = PacketFilter(extensions, own, lambda: self._context, clock=clock)

    @property
    def _address(self) -> str:
        """The address of the node."""
        return self._settings.node_address or self._settings.network.ranges.node_ip

    def _services_of(self, namespace: str) -> Iterable[Service]:
        return self._services.by_index(_NAMESPACE_INDEX, namespace)

    def _remote_endpoints(self, namespace: str) -> Iterable[hosts.RemoteEndpoint]:
        """Yield the pods of other nodes behind the Services of a namespace."""
        for found in self._slices.by_index(_NAMESPACE_INDEX, namespace):
            yield from hosts.remote_endpoints(found, self._settings.node_name)

    # --- start and shutdown -----------------------------------------------------------------

    async def run(self, ready: asyncio.Event, stop: ShutdownRequest) -> None:
        """Run until *stop* is requested; pods keep running unless it includes them."""
        async with AsyncExitStack() as stack:
            stack.callback(self._shims.close)
            stack.callback(self._hosts_files.close)
            stack.push_async_callback(self._sources.close)
            stack.push_async_callback(self._host_ports.close_all)
            stack.push_async_callback(self._cancel_tasks)
            config = await self._set_up(stack)
            node_status = NodeStatusManager(self._client, [config], clock=self._clock)
            await retry_until_done(node_status.register, clock=self._clock)
            for informer in self._caches():
                self._supervise(f"cache of {informer.name}", informer.run)
                await informer.wait_synced()
            if not self._settings.joined:
                self._sources.claims.add_event_handler(self._on_pvc_event)
                self._supervise("caches of sources", self._sources.run)
            await self._kill_orphans()
            self._services.add_event_handler(self._on_service_event)
            self._slices.add_event_handler(self._on_slice_event)
            self._pods.add_event_handler(self._on_pod_event)
            if self._packet_filter is not None:
                self._supervise("packet filter", self._packet_filter.run)
            if is_entered():
                watch = functools.partial(watch_uplink, self._record_event, clock=self._clock)
                self._supervise("uplink", watch)
            self._supervise("undecodable pods", self._undecodable.run)
            self._supervise("node heartbeat", node_status.run)
            self._supervise("log trimming", self._truncate_logs)
            self._supervise("memory guard", self._enforce_memory_limits)
            self._supervise("usage meter", self._measure_usage)
            self._supervise("storage guard", self._enforce_storage_limits)
            self._supervise("device check", functools.partial(self._check_devices, node_status))
            self._devices.on_assigned = functools.partial(self._on_devices, node_status)
            self._supervise("device slice", self._publish_devices)
            ready.set()
            await stop.requested.wait()
            if stop.stop_pods:
                await self._stop_pods()

    def _caches(self) -> "list[Informer[Any]]":
        """Return the informers to run; EndpointSlices are needed only if there are other nodes."""
        slices = [self._slices] if self._settings.node_address else []
        policies = self._packet_filter.caches if self._packet_filter else []
        return [self._services, *slices, *policies, self._pods]

    async def _set_up(self, stack: AsyncExitStack) -> NodeConfig:
        settings = self._settings
        create_dirs(settings.data_dir)
        report = await asyncio.to_thread(detect_isolation, settings.sandbox)
        self._record_isolation_events(report)
        groups = await asyncio.to_thread(cgroups.detect, settings.data_dir)
        if groups.reason:
            message = _UNENFORCED_LIMITS.format(groups.reason)
            self._record_event(type="Normal", reason="LimitsNotEnforced", message=message)
        images = await self._images(report, stack)
        await asyncio.to_thread(self._devices.discover)
        await self._start_network(report.isolation)
        if settings.joined:
            certificates = NodeCertificates.of(self._client, settings, clock=self._clock)
            self._supervise("renewal of certificates", certificates.run)
        port = await self._serve(stack)
        config = NodeConfig(
            name=settings.node_name,
            cpus=settings.cpus,
            memory=settings.memory or machine_memory(),
            pods=settings.pods,
            runtime=str(report.isolation),
            labels={RUN_MODE_LABEL: images.label, **settings.labels},
            address=self._address,
            log_port=port,
            images=images.node_images,
            devices=lambda: (self._devices.capacity(), self._devices.allocatable()),
        )
        records = list(PodDir.all(settings.data_dir))
        for _, record in records:
            self._devices.restore(record.uid, record.devices, record.claimed)
        self._context = NodeContext(
            client=self._client,
            settings=settings,
            clock=self._clock,
            isolation=report.isolation,
            id_mode=report.id_mode,
            safe_paths=report.safe_paths,
            shims=self._shims,
            images=images,
            cgroups=groups,
            devices=self._devices,
            allocatable=config.capacity,
            hosts_files=self._hosts_files,
            services=self._services_of,
            sources=self._sources,
            recorder=self._recorder,
            client_commands=self._commands,
            network=self._network,
            packet_filter=self._packet_filter,
            pods=lambda: [each.pod for each in self._workers.values() if not each.is_finished],
            on_resized=self._review_deferred_resizes,
            addresses={},
            id_ranges={record.uid: record.ids for _, record in records if record.ids},
        )
        await self._keep_addresses(self._context, records)
        return config

    async def _keep_addresses(
        self, context: NodeContext, records: Iterable[tuple[PodDir, PodRecord]]
    ) -> None:
        """Keep the addresses of pods; end the containers of those that have another network's.

        They start again, as their restart policy is, in the network of this agent.
        """
        own_namespaces = isinstance(context.network, NamespaceNetwork)
        for pod_dir, record in records:
            if is_in(NAMESPACE_RANGES.pod_ips, record.ip) == own_namespaces:
                context.addresses[record.uid] = record.ip
            elif record.ip not in _NODE_IPS and pod_dir.is_busy:
                await asyncio.to_thread(kill_orphan, pod_dir, record.uid)
                fields = {"pod": f"{record.namespace}/{record.name}"}
                log.warning("ended containers: the network of pods has changed", extra=fields)

    async def _start_network(self, isolation: IsolationLevel) -> None:
        """Prepare the network of pods.

        Raises:
            OSError: that is not possible.
        """
        if self._packet_filter is not None and isolation is IsolationLevel.PLAIN:
            raise OSError("network namespaces of pods need a sandbox")
        await asyncio.to_thread(self._network.start)

    async def _images(self, report: IsolationReport, stack: AsyncExitStack) -> ImageManager:
        """Return the images of containers; remove what earlier agents left incomplete."""
        settings = self._settings
        support = ImageSupport(report, settings.data_dir)
        retry = settings.image_retry
        puller = Puller(settings.data_dir, settings.registries, clock=self._clock, retry=retry)
        stack.push_async_callback(puller.close)
        images = ImageManager(
            settings.data_dir, settings.run_mode, support, puller=puller, retry=retry
        )
        try:
            uses = functools.partial(image_uses, settings.data_dir)
            await asyncio.to_thread(images.store.collect, uses)
        except (ImageError, OSError) as error:
            log.warning("cannot remove unused images", extra={"error": str(error)})
        if settings.run_mode is RunMode.IMAGES and support.known_error:
            message = f"containers cannot run images: {support.known_error}"
            self._record_event(type="Warning", reason="ImagesUnsupported", message=message)
        return images

    def _record_isolation_events(self, report: IsolationReport) -> None:
        """Record events about the isolation that this machine lacks."""
        for reason in report.reasons:
            log.info("sandbox unavailable", extra={"reason": reason})
            self._record_event(type="Normal", reason="SandboxUnavailable", message=reason)
        warnings = (isolation_warning(report, root=os.geteuid() == 0), groups_warning(report))
        for warning in filter(None, warnings):
            log.warning("pod isolation is weak", extra={"reason": warning})
            self._record_event(type="Warning", reason="WeakIsolation", message=warning)

    def _record_event(self, type: EventType, reason: str, message: str) -> None:  # noqa: A002
        """Record an event about the node; like a kubelet, use its name as uid."""
        if self._recorder is not None:
            name = self._settings.node_name
            node = object_reference(NODES, ObjectMeta(name=name, uid=name))
            self._recorder.record(node, type=type, reason=reason, message=message)

    def _record_pod_warning(self, pod: Pod, reason: str, message: str) -> None:
        if self._context is not None:
            self._context.record_event(pod, reason, message, warning=True)

    async def _serve(self, stack: AsyncExitStack) -> int:
        settings = self._settings
        if (files := settings.serving) is None:
            return 0
        access = PodAccess(
            self._pods,
            self._commands,
            settings.data_dir,
            clock=self._clock,
            context=lambda: self._context,
        )
        server = AgentServer(access, self._clock, access, self)
        listening = server.running(
            files,
            host=self._address,
            limits=settings.limits,
            metrics=settings.listener_metrics,
        )
        return await stack.enter_async_context(listening)

    async def _cancel_tasks(self) -> None:
        await cancel_and_wait(*self._tasks)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _supervise(self, name: str, work: Work, *, can_end: Callable[[], bool] = _never) -> None:
        """Start a task that repeats *work* until cancelled, or until it returns and *can_end*."""
        timing = Timing(monotonic=self._clock.monotonic, sleep=self._clock.sleep)
        self._spawn(supervise(name, work, timing=timing, may_end=can_end))

    def _run_until_success(self, name: str, work: Work) -> None:
        """Start a task that retries *work* until it succeeds."""
        done = False

        async def once() -> None:
            nonlocal done
            await work()
            done = True

        self._supervise(name, once, can_end=lambda: done)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("agent task failed", exc_info=error)

    async def _stop_pods(self) -> None:
        """Stop every container gracefully; the next agent applies restart policies."""
        self._stopping = True
        workers = list(self._workers.values())
        for worker in workers:
            worker.suspend()
        stops = (worker.containers.stop_all() for worker in workers)
        for error in await asyncio.gather(*stops, return_exceptions=True):
            if error is not None:
                log.error("cannot stop pod gracefully", exc_info=error)
        await self._cancel_tasks()
        # Kills containers whose worker has failed, and removes the network of all pods.
        await asyncio.to_thread(stop_all_pods, self._settings.data_dir)

    # --- pods -------------------------------------------------------------------------------

    def _on_service_event(self, old: Service | None, new: Service | None) -> None:
        service = new or old
        if service is not None:
            self._hosts_files.mark_dirty(service.metadata.namespace)

    def _on_slice_event(self, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        found = new or old
        if found is not None:
            self._hosts_files.mark_dirty(found.metadata.namespace)

    def _on_pvc_event(self, old: MetadataOnly | None, new: MetadataOnly | None) -> None:
        if new is None:
            self._pvc_dirs.on_event(old, new)
            self._run_until_success("tidying of claims", self._pvc_dirs.clean_up)

    def _on_pod_event(self, old: Pod | None, new: Pod | None) -> None:
        if old is not None and (new is None or old.metadata.labels != new.metadata.labels):
            self._review_rules()
        if new is None:
            if old is not None:
                self._on_pod_deleted(old)
            return
        worker = self._workers.get(new.metadata.uid)
        if worker is not None:
            worker.update(new)
        elif new.needs_work and not self._stopping:
            # Synchronously: the next event of the pod is for the same worker.
            self._run_worker(self._create_worker(new))

    def _create_worker(self, pod: Pod) -> PodWorker:
        assert self._context is not None  # noqa: S101 - set before the first pod is seen
        rejection = self._admission.review(pod)
        worker = PodWorker(pod, self._context, rejection=rejection)
        self._workers[pod.metadata.uid] = worker
        if rejection is None and self._context.namespace_of(pod):
            self._host_ports.open(pod, self._context.ip_of(pod))
        return worker

    def _on_pod_deleted(self, pod: Pod) -> None:
        worker = self._workers.get(pod.metadata.uid)
        if worker is not None:
            worker.pod_deleted()
        else:
            pod_dir = PodDir.of(self._settings.data_dir, pod)
            self._run_until_success("removal of a pod", lambda: self._remove_pod_dir(pod_dir))

    def _run_worker(self, worker: PodWorker) -> None:
        """Run the pod until it is terminated; a worker that fails is replaced."""
        meta = worker.pod.metadata

        async def run_pod() -> None:
            while (worker := self._workers.get(meta.uid)) is not None:
                if not worker.has_run:
                    await worker.run()
                await self._replace_worker(worker)

        self._supervise("pod worker", run_pod, can_end=lambda: meta.uid not in self._workers)

    async def _replace_worker(self, worker: PodWorker) -> None:
        """Clean up after a worker, and create another one if the pod still needs it."""
        meta = worker.pod.metadata
        if worker.is_finished:
            await asyncio.to_thread(worker.pod_dir.clear)
            await self._remove_network(meta.uid)
        await self._pvc_dirs.clean_up()
        # No await between the look-up and the change of the workers: no event may be lost.
        pod = self._pods.get(meta.key)
        if pod is None or pod.metadata.uid != meta.uid:
            await self._remove_pod_dir(worker.pod_dir)
            del self._workers[meta.uid]
        elif self._stopping or (worker.is_finished and not worker.missed_deletion(pod)):
            del self._workers[meta.uid]
        else:
            self._create_worker(pod)
        self._review_deferred_resizes()

    def _review_deferred_resizes(self) -> None:
        """Allocate what has become free to pods that wait for it, as a kubelet in this order."""
        waiting = [each for each in self._workers.values() if each.is_resize_deferred]
        for worker in sorted(waiting, key=lambda each: resize_order(each.pod)):
            worker.review_resize()

    def _review_rules(self) -> None:
        if self._packet_filter is not None:
            self._packet_filter.mark_changed()

    async def _remove_network(self, uid: str) -> None:
        self._review_rules()
        await self._host_ports.close(uid)
        if self._context is not None and self._context.network.path(uid):
            await asyncio.to_thread(self._context.network.tear_down, uid)

    async def _remove_pod_dir(self, pod_dir: PodDir) -> None:
        """Delete the files, the address and the user ids of a deleted pod."""
        uid = pod_dir.path.name
        self._devices.release(uid)
        if self._context is not None:
            self._context.addresses.pop(uid, None)
            self._context.id_ranges.pop(uid, None)
        if pod_dir.is_busy:  # its worker had failed
            await asyncio.to_thread(kill_orphan, pod_dir, uid)
        await self._remove_network(uid)
        if self._context is not None and (root := self._context.cgroups.root) is not None:
            await asyncio.to_thread(cgroups.remove_group, root / uid)
        await asyncio.to_thread(pod_dir.remove)

    async def _kill_orphans(self) -> None:
        """Kill the containers of pods that are deleted or terminated in the API, and clean up."""
        pods = {pod.metadata.uid: pod for pod in self._pods}
        for pod_dir, record in list(PodDir.all(self._settings.data_dir)):
            pod = pods.get(record.uid)
            if pod is not None and pod.needs_work:
                continue
            self._devices.release(record.uid)
            if pod is None or pod_dir.is_busy:
                await asyncio.to_thread(kill_orphan, pod_dir, record.uid)
                log.info("killed orphaned pod", extra={"pod": f"{record.namespace}/{record.name}"})
            if pod is None:
                await self._remove_pod_dir(pod_dir)
            else:
                await asyncio.to_thread(pod_dir.clear)
        if self._context is not None:
            known = {record.uid for _, record in PodDir.all(self._settings.data_dir)}
            await asyncio.to_thread(cgroups.remove_stale, self._context.cgroups, known)
            await asyncio.to_thread(self._context.network.remove_others, known)
        for pod_dir in PodDir.unrecorded(self._settings.data_dir):
            if pod_dir.path.name not in pods:
                await self._remove_pod_dir(pod_dir)

    async def _truncate_logs(self) -> None:
        """Limit the size of the logs of running containers, until cancelled."""
        while True:
            await self._clock.sleep(_LOG_TRUNCATE_INTERVAL)
            rotation, workers = self._settings.log_rotation, self._workers.values()
            for path in [path for each in workers for path in each.containers.open_logs]:
                if await asyncio.to_thread(logs.punch_log_head, path, rotation):
                    log.info("truncated log", extra={"file": str(path)})

    async def _check_devices(self, node_status: NodeStatusManager) -> None:
        """Look for devices that do not work any more, and for new ones, until cancelled."""
        while True:
            await self._clock.sleep(self._settings.device_interval)
            if await asyncio.to_thread(self._devices.discover):
                self._on_devices(node_status)

    def _on_devices(self, node_status: NodeStatusManager) -> None:
        """Let the node and its slice show which devices pods may have now."""
        node_status.write_soon(self._settings.node_name)
        self._device_slice.changed.set()

    async def _publish_devices(self) -> None:
        """Keep the ResourceSlice of the node up to date, until cancelled."""
        publisher = self._device_slice
        while True:
            publisher.changed.clear()
            devices = [slice_device(each) for each in self._devices.offered()]
            publish = functools.partial(publisher.publish, devices)
            await retry_until_done(publish, clock=self._clock)
            await publisher.changed.wait()

    async def _enforce_memory_limits(self) -> None:
        """Kill containers above their memory limits, until cancelled."""
        while True:
            start = self._clock.monotonic()
            for worker in list(self._workers.values()):
                await worker.containers.check_memory()
            duration = self._clock.monotonic() - start
            delay = max(_MEMORY_CHECK_INTERVAL, _DUTY_CYCLE * duration)
            await self._clock.sleep(delay)

    async def _enforce_storage_limits(self) -> None:
        """Evict pods that take more disk space than their limits, until cancelled."""
        while True:
            await self._clock.sleep(self._settings.storage_interval)
            for worker in list(self._workers.values()):
                if not storage_limits.has_limits(worker.pod):
                    continue
                message = await asyncio.to_thread(
                    storage_limits.find_violation, worker.pod, worker.pod_dir
                )
                if message:
                    worker.evict(message)

    # --- usage ------------------------------------------------------------------------------

    async def _measure_usage(self) -> None:
        """Read what the node and its containers use, until cancelled."""
        while True:
            start = self._clock.monotonic()
            keys = [NODE]
            self._usage.record(NODE, usage.read_machine())
            for uid, worker in list(self._workers.items()):
                for name, container in worker.containers.running.items():
                    key = (uid, f"{name}/{container.run.path.name}")
                    self._usage.record(key, await container.read_usage())
                    keys.append(key)
            self._usage.keep_only(keys)
            duration = self._clock.monotonic() - start
            delay = max(self._settings.usage_interval, _DUTY_CYCLE * duration)
            await self._clock.sleep(delay)

    def usage_summary(self) -> dict[str, Any]:
        """Return what the node and its running containers use; see `UsageSource`."""
        node, pods = self._usage.get(NODE), []
        for uid, worker in self._workers.items():
            running = worker.containers.running.items()
            runs = ((name, container.run.path.name) for name, container in running)
            containers, meta = self._usage.summaries(runs, uid=uid), worker.pod.metadata
            reference = {"name": meta.name, "namespace": meta.namespace, "uid": uid}
            pods.append({"podRef": reference, "containers": containers})
        name = {"nodeName": self._settings.node_name}
        return {"node": name | ({} if node is None else node.summary()), "pods": pods}
