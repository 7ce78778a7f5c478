"""A real node: its pods are processes of this machine."""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..kube.client.client import Client
from ..kube.client.events import EventType
from ..kube.errors import ApiError, ConnectionLostError
from ..kube.informer.informer import Cache
from ..kube.supervision import supervise
from ..kube.timing import Timing
from ..machinery.clock import Clock
from ..machinery.event_recorder import Recorder, reference
from ..model.meta import ObjectMeta
from ..model.names import NODES, PODS, SERVICES
from .node_status import NodeFacts, NodeKeeper, machine_memory
from .pods.node_context import Machine, NameBook
from .pods.orphans import end_orphan, end_pods
from .pods.pod_worker import PodWorker
from .pods.records import PodFolder, make_folders
from .pods.status_manager import may_pass
from .runtime import logs
from .runtime.runs import Probe, RunFolder, probe, weakness
from .server import LogRefusedError, LogServer
from .settings import AgentSettings, Stop
from .state.core_types import Marked, Pod, Service
from .volumes.pvc_dirs import ClaimFolders
from .volumes.source_manager import SourceBook

log = logging.getLogger(__name__)

_RETRY = 1.0
_TRIM_EVERY = 10.0
_LOOK_EVERY = 1.0
_AT_MOST = 20
"""One part in so many of the time goes into looking at memory."""

_NAMESPACE = "namespace"

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
    ) -> None:
        self._client = client
        self._settings = settings
        self._clock = clock
        self._recorder = recorder
        self._workers: dict[str, PodWorker] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._machine: Machine | None = None
        self._ending = False
        selector = f"spec.nodeName={settings.node_name}"
        self._pods = Cache(client, PODS, Pod, field_selector=selector)
        self._services = Cache(
            client, SERVICES, Service, indexes={_NAMESPACE: lambda s: (s.metadata.namespace,)}
        )
        self._names = NameBook(self._services_of, clock=clock)
        self._sources = SourceBook(client, clock=clock)
        self._claims = ClaimFolders(client, self._sources, settings.data_dir / "volumes")

    def _services_of(self, namespace: str) -> Iterable[Service]:
        return self._services.by_index(_NAMESPACE, namespace)

    # --- life -------------------------------------------------------------------------------

    async def run(self, ready: asyncio.Event, stop: Stop) -> None:
        """Serve until *stop* is asked for; pods run on unless it says otherwise."""
        async with AsyncExitStack() as stack:
            stack.callback(self._names.close)
            stack.push_async_callback(self._cancel_tasks)
            facts = await self._set_up(stack)
            keeper = NodeKeeper(self._client, [facts], clock=self._clock)
            await until_done(keeper.register, clock=self._clock)
            for cache in (self._services, self._pods):
                self._keep(f"cache of {cache.name}", cache.run)
                await cache.wait_synced()
            self._sources.claims.add_handler(self._claim_changed)
            self._keep("caches of sources", self._sources.run)
            await self._end_orphans()
            self._services.add_handler(self._service_changed)
            self._pods.add_handler(self._pod_changed)
            self._keep("node heartbeat", keeper.keep_alive)
            self._keep("log trimming", self._trim_logs)
            self._keep("memory guard", self._guard_memory)
            ready.set()
            await stop.asked.wait()
            if stop.end_pods:
                await self._end_pods()

    async def _set_up(self, stack: AsyncExitStack) -> NodeFacts:
        settings = self._settings
        make_folders(settings.data_dir)
        found = await asyncio.to_thread(probe, settings.sandbox)
        self._tell_of_isolation(found)
        port = await self._serve(stack)
        facts = NodeFacts(
            name=settings.node_name,
            cpus=settings.cpus,
            memory=settings.memory or machine_memory(),
            pods=settings.pods,
            runtime=str(found.level),
            labels=settings.labels,
            log_port=port,
        )
        known = [record for _, record in PodFolder.all(settings.data_dir)]
        self._machine = Machine(
            client=self._client,
            settings=settings,
            clock=self._clock,
            level=found.level,
            identity=found.identity,
            safe_paths=found.safe_paths,
            allocatable=facts.capacity,
            names=self._names,
            services=self._services_of,
            sources=self._sources,
            recorder=self._recorder,
            addresses={record.uid: record.ip for record in known},
            ranges={record.uid: record.ids for record in known if record.ids},
        )
        return facts

    def _tell_of_isolation(self, found: Probe) -> None:
        """Say in events on the Node what this machine lacks."""
        for reason in found.reasons:
            log.info("a sandbox does not work here", extra={"reason": reason})
            self._tell(type="Normal", reason="SandboxUnavailable", message=reason)
        problem = weakness(found, root=os.geteuid() == 0)
        if problem:
            log.warning("pods are not kept apart as they should be", extra={"problem": problem})
            self._tell(type="Warning", reason="WeakIsolation", message=problem)

    def _tell(self, *, type: EventType, reason: str, message: str) -> None:  # noqa: A002
        """Record an event about the node; as kubelets do, its name stands for its uid."""
        if self._recorder is not None:
            name = self._settings.node_name
            node = reference(NODES, ObjectMeta(name=name, uid=name))
            self._recorder.record(node, type=type, reason=reason, message=message)

    async def _serve(self, stack: AsyncExitStack) -> int:
        files = self._settings.serving
        if files is None:
            return 0
        server = LogServer(self, self._clock)
        settings = self._settings
        listening = server.running(
            files, port=settings.listen_port, limits=settings.limits, figures=settings.listeners
        )
        return await stack.enter_async_context(listening)

    async def _cancel_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _keep(self, name: str, work: Work, *, may_end: Callable[[], bool] = _never) -> None:
        """Have *work* done again and again until cancelled, or until it *may_end* and does."""
        timing = Timing(monotonic=self._clock.monotonic, sleep=self._clock.sleep)
        self._spawn(supervise(name, work, timing=timing, may_end=may_end))

    def _see_to(self, name: str, work: Work) -> None:
        """Have *work* done once, as often as it takes."""
        done = False

        async def once() -> None:
            nonlocal done
            await work()
            done = True

        self._keep(name, once, may_end=lambda: done)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("a task of the agent failed", exc_info=error)

    async def _end_pods(self) -> None:
        """End every container with its pod's grace; the next agent applies restart policies."""
        self._ending = True
        workers = list(self._workers.values())
        for worker in workers:
            worker.pause()
        ends = (worker.containers.end_all() for worker in workers)
        for error in await asyncio.gather(*ends, return_exceptions=True):
            if error is not None:
                log.error("a pod was not ended in order", exc_info=error)
        await self._cancel_tasks()
        # Nobody may have been there for them: their worker had failed.
        await asyncio.to_thread(end_pods, self._settings.data_dir)

    # --- pods -------------------------------------------------------------------------------

    def _service_changed(self, old: Service | None, new: Service | None) -> None:
        service = new or old
        if service is not None:
            self._names.touch(service.metadata.namespace)

    def _claim_changed(self, old: Marked | None, new: Marked | None) -> None:
        if new is None:
            self._claims.note(old, new)
            self._see_to("tidying of claims", self._claims.tidy)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is None:
            if old is not None:
                self._pod_gone(old)
            return
        worker = self._workers.get(new.metadata.uid)
        if worker is not None:
            worker.update(new)
        elif _needs_work(new) and not self._ending:
            # At once: the next piece of news may be here already, and is for the same worker.
            self._attend(self._make_worker(new))

    def _make_worker(self, pod: Pod) -> PodWorker:
        assert self._machine is not None  # noqa: S101 - set before the first pod is seen
        worker = self._workers[pod.metadata.uid] = PodWorker(pod, self._machine)
        return worker

    def _pod_gone(self, pod: Pod) -> None:
        worker = self._workers.get(pod.metadata.uid)
        if worker is not None:
            worker.vanish()
        else:
            folder = PodFolder.of(self._settings.data_dir, pod)
            self._see_to("removal of a pod", lambda: self._forget(folder))

    def _attend(self, worker: PodWorker) -> None:
        """Have workers bring the pod to its end; one that fails is followed by another."""
        meta = worker.pod.metadata

        async def attend() -> None:
            while (worker := self._workers.get(meta.uid)) is not None:
                if not worker.has_run:
                    await worker.run()
                await self._follow(worker)

        self._keep("pod worker", attend, may_end=lambda: meta.uid not in self._workers)

    async def _follow(self, worker: PodWorker) -> None:
        """Tidy up after a worker that has run, and make another if it was not the last."""
        meta = worker.pod.metadata
        if worker.is_finished:
            await asyncio.to_thread(worker.folder.clear)
        await self._claims.tidy()
        # From here on without a pause: the pod may go at any moment, and is told to somebody.
        now = self._pods.get(meta.key)
        if now is None or now.metadata.uid != meta.uid:
            await self._forget(worker.folder)
            del self._workers[meta.uid]
        elif self._ending or (worker.is_finished and not worker.missed(now)):
            del self._workers[meta.uid]
        else:
            self._make_worker(now)

    async def _forget(self, folder: PodFolder) -> None:
        """The pod is gone for good, and so is all that it left."""
        uid = folder.path.name
        if self._machine is not None:
            self._machine.addresses.pop(uid, None)
            self._machine.ranges.pop(uid, None)
        if folder.is_busy:  # its worker had failed
            await asyncio.to_thread(end_orphan, folder, uid)
        await asyncio.to_thread(folder.remove)

    async def _end_orphans(self) -> None:
        """End what runs for pods that are gone from the API, or are over there; tidy up."""
        present = {pod.metadata.uid: pod for pod in self._pods}
        for folder, record in list(PodFolder.all(self._settings.data_dir)):
            pod = present.get(record.uid)
            if pod is not None and _needs_work(pod):
                continue
            if pod is None or folder.is_busy:
                log.info("an orphan is ended", extra={"pod": f"{record.namespace}/{record.name}"})
                await asyncio.to_thread(end_orphan, folder, record.uid)
            if pod is None:
                await self._forget(folder)
            else:
                await asyncio.to_thread(folder.clear)
        for folder in PodFolder.unrecorded(self._settings.data_dir):
            if folder.path.name not in present:
                await self._forget(folder)

    async def _trim_logs(self) -> None:
        """Keep the logs of what runs from filling the disk, until cancelled."""
        while True:
            await self._clock.sleep(_TRIM_EVERY)
            growing = [
                path for worker in self._workers.values() for path in worker.containers.open_logs
            ]
            for path in growing:
                if await asyncio.to_thread(logs.trim, path):
                    log.info("the head of a log was dropped", extra={"file": str(path)})

    async def _guard_memory(self) -> None:
        """Hold containers to their memory limits, until cancelled."""
        while True:
            begun = self._clock.monotonic()
            for worker in list(self._workers.values()):
                await worker.containers.check_memory()
            spent = self._clock.monotonic() - begun
            await self._clock.sleep(max(_LOOK_EVERY, _AT_MOST * spent))

    # --- logs -------------------------------------------------------------------------------

    def find_log(self, pod: str, container: str, *, previous: bool) -> "_Log":
        """The log of a container; see `LogSource`."""
        found = self._pods.get(pod)
        if found is None:
            raise LogRefusedError(404, f'pods "{pod.partition("/")[2]}" not found')
        if container not in found.containers:
            raise LogRefusedError(400, f"container {container} is not valid for pod {pod}")
        folder = PodFolder.of(self._settings.data_dir, found)
        name = found.metadata.name
        runs = [run for run in folder.runs(container) if run.counts]
        if previous:
            if len(runs) < 2:
                words = f'previous terminated container "{container}" in pod "{name}" not found'
                raise LogRefusedError(400, words)
            return _Log(folder.log_of(runs[-2]), runs[-2])
        if not runs:
            words = f'container "{container}" in pod "{name}" is waiting to start: '
            raise LogRefusedError(400, words + "ContainerCreating")
        return _Log(folder.log_of(runs[-1]), runs[-1])


@dataclass(frozen=True, slots=True)
class _Log:
    """The log of one run."""

    path: Path
    run: RunFolder

    def is_over(self) -> bool:
        """Whether the run is."""
        return self.run.is_over


def _needs_work(pod: Pod) -> bool:
    return not pod.is_over or pod.metadata.deletion_timestamp is not None


async def until_done(work: Callable[[], Coroutine[Any, Any, None]], *, clock: Clock) -> None:
    """Do *work* until the server lets it pass.

    Raises:
        ApiError: it refused for good.
    """
    while True:
        try:
            await work()
        except (ApiError, ConnectionLostError) as error:
            if not may_pass(error):
                raise
            log.info("the API server is not there yet", extra={"error": str(error)})
        else:
            return
        await clock.sleep(_RETRY)
