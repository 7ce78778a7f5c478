"""A kopf operator that watches HyperNodes, nodes and the configuration.

Its handlers only note that something changed: no object gets an annotation or a finalizer from
kopf, whose other handlers and timers store their progress in objects.

It lists the kinds at the same time. If it called a handler when it has listed one of them, the
controller could decide, and an object of another kind could be deleted, before kopf has listed
that kind: the deletion would go unnoticed. Since all kinds have an index, kopf calls no handler
before it has listed all of them.

kopf expects a separate process, and this one has other work: the signal handlers that it sets are
undone, it does not end the process when it is slow to stop, and only its own tasks are
cancelled. It is imported once it has something to watch: with its dependencies, it needs more
memory than all other controllers of a cluster.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextlib import suppress
from importlib import import_module
from threading import Thread
from typing import Any

from ..kube.client.client import Client
from ..kube.informer.informer import Informer
from ..kube.supervision import supervise
from ..machinery.served import run_while
from ..model.meta import MetadataOnly
from ..model.names import CONFIGMAPS, HYPERNODES, NODES
from .configuration import CONFIGMAP

STOP_TIMEOUT = 5.0
"""Seconds after which tasks of kopf that do not stop are left alone."""

RestoreSignals = Callable[[], None]


def remove_signal_handlers() -> None:
    """Remove the handlers that kopf has set."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(ValueError, RuntimeError):
            loop.remove_signal_handler(number)


class Operator:
    """Calls *changed* when HyperNodes, the labels of nodes, or the configuration have changed."""

    def __init__(
        self,
        client: Client,
        changed: Callable[[], None],
        *,
        namespace: str,
        restore_signals: RestoreSignals = remove_signal_handlers,
    ) -> None:
        """*namespace* has the ConfigMap of the configuration.

        *restore_signals* sets the signal handlers of the process again.
        """
        self._client = client
        self._changed = changed
        self._namespace = namespace
        self._restore_signals = restore_signals
        self._labels: dict[str, dict[str, str]] = {}

    async def run(self) -> None:
        """Watch until cancelled; after a failure kopf is started again."""
        needed = asyncio.Event()
        await run_while(self._watch_first(needed), needed.wait())
        await import_kopf()
        await supervise("kopf", self._run_once, timing=self._client.timing)

    async def _watch_first(self, needed: asyncio.Event) -> None:
        """Set *needed* when there is a HyperNode or a configuration.

        Without either one, changes of nodes have no effect.
        """

        def on_change(old: MetadataOnly | None, new: MetadataOnly | None) -> None:
            self._changed()
            needed.set()

        name = f"metadata.name={CONFIGMAP}"
        informers = (
            Informer(self._client, HYPERNODES, MetadataOnly),
            Informer(
                self._client,
                CONFIGMAPS,
                MetadataOnly,
                namespace=self._namespace,
                field_selector=name,
            ),
        )
        async with asyncio.TaskGroup() as tasks:
            for informer in informers:
                informer.add_event_handler(on_change)
                tasks.create_task(informer.run())

    async def _run_once(self) -> None:
        spawning = asyncio.create_task(self._spawn_tasks())
        try:
            # A cancellation of the call itself would leave the tasks that it has created.
            tasks = await asyncio.shield(spawning)
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _stop(await spawning)
        for task in done:
            task.result()  # raises its error

    async def _spawn_tasks(self) -> Collection[asyncio.Task[Any]]:
        import kopf

        settings = kopf.OperatorSettings()
        settings.posting.enabled = False
        settings.scanning.disabled = True  # the kinds are known
        settings.process.ultimate_exiting_timeout = None
        tasks = await kopf.spawn_tasks(
            registry=self._registry(),
            settings=settings,
            namespaces=[self._namespace],
            standalone=True,
        )
        self._restore_signals()
        return tasks

    def _registry(self) -> Any:
        """Return the handlers."""
        import kopf

        registry = kopf.OperatorRegistry()

        @kopf.on.login(registry=registry)
        async def login(**_: Any) -> Any:
            from ..kube.client.aiohttp_session import new_session

            server, session = await new_session(
                self._client.credentials, self._client.timing, user_agent="batholith-hypernode"
            )
            return kopf.AiohttpSession(server=server, aiohttp_session=session)

        @kopf.on.event(HYPERNODES.group, HYPERNODES.version, HYPERNODES.plural, registry=registry)
        async def on_hypernode(**_: Any) -> None:
            self._changed()

        @kopf.on.event(NODES.version, NODES.plural, registry=registry)
        async def on_node(name: str, type: str | None, labels: Any, **_: Any) -> None:  # noqa: A002
            self._observe_node(name, None if type == "DELETED" else dict(labels))

        @kopf.on.event(CONFIGMAPS.version, CONFIGMAPS.plural, registry=registry)
        async def on_configmap(name: str, **_: Any) -> None:
            if name == CONFIGMAP:
                self._changed()

        for resource in (HYPERNODES, NODES, CONFIGMAPS):

            @kopf.index(
                group=resource.group,
                version=resource.version,
                plural=resource.plural,
                registry=registry,
            )
            def index(**_: Any) -> None:
                """Index nothing: see the docstring of the module."""

        return registry

    def _observe_node(self, name: str, labels: dict[str, str] | None) -> None:
        if self._labels.get(name) == labels:
            return  # a heartbeat
        if labels is None:
            del self._labels[name]
        else:
            self._labels[name] = labels
        self._changed()


async def import_kopf() -> None:
    """Import kopf in a thread, since it takes half a second, in which Leases have to be renewed.

    The process does not wait for a daemon thread when it ends. It would wait for a thread of
    ``asyncio.to_thread``, and exceed the shutdown timeout on a busy machine.
    """
    imported: Future[None] = Future()
    imported.set_running_or_notify_cancel()  # from now on, a cancellation does not change it
    Thread(target=_import_into, args=(imported,), name="import kopf", daemon=True).start()
    await asyncio.wrap_future(imported)
    logging.getLogger("kopf").setLevel(logging.WARNING)


def _import_into(imported: Future[None]) -> None:
    try:
        import_module("kopf")
    except BaseException as error:
        imported.set_exception(error)
    else:
        imported.set_result(None)


async def _stop(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel the *tasks* of kopf, which cancel their own; ``kopf.run_tasks`` would cancel all tasks
    of the loop that it has not found at its start."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=STOP_TIMEOUT)
    # Its discovery does not cancel the requests that it waits for.
    left = [each for each in asyncio.all_tasks() if _is_of_kopf(each)]
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=STOP_TIMEOUT)


def _is_of_kopf(task: asyncio.Task[Any]) -> bool:
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and f"{os.sep}kopf{os.sep}" in code.co_filename
