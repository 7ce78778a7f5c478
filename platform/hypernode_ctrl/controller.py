"""HyperNode controller: the number of nodes of each HyperNode, and their discovery by labels of
nodes or by a Unified Fabric Manager.

kopf notes changes; what they mean is decided from a new list of all objects, which are few and
change rarely.
"""

import asyncio
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, assert_never

import msgspec

from ..kube.client.client import Client
from ..kube.errors import AlreadyExistsError, NotFoundError
from ..machinery.clock import Clock
from ..machinery.event_recorder import Recorder, object_reference
from ..machinery.reconcile.controller import Controller, ControllerSettings, Sync
from ..model.base import ApiStruct
from ..model.hypernode import HyperNode
from ..model.meta import MetadataOnly, ObjectMeta, preconditions
from ..model.names import CONFIGMAPS, HYPERNODES, NODES, SYSTEM_NAMESPACE
from .configuration import CONFIGMAP, KEY, ConfigurationError, Discovery, parse
from .decide import Create, Delete, Effect, SetNodeCount, Update, View, decide
from .discovery import Discovered
from .operator import Operator, RestoreSignals, remove_signal_handlers
from .port_reader import PortReader
from .ufm import Port

log = logging.getLogger(__name__)

_ALL = "hypernodes"
"""The only key: all HyperNodes are decided together."""

INVALID = "InvalidDiscovery"
"""Reason of the event about a configuration that is invalid, or not implemented."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HyperNodeSettings(ControllerSettings):
    """Settings of the controller."""

    workers: int = 1
    namespace: str = SYSTEM_NAMESPACE
    """Of the ConfigMap with the configuration."""

    delay: float = 0.2
    """Seconds for which changes are collected."""

    resync: float = 600.0
    """Seconds after which all is compared again: kopf does not see a deletion while a watch is
    interrupted."""

    restore_signals: RestoreSignals = remove_signal_handlers


def configuration_namespace() -> str:
    """Return the namespace of this process's own pod, or the default one."""
    names = ("KUBE_POD_NAMESPACE", "POD_NAMESPACE")
    return next(filter(None, map(os.environ.get, names)), SYSTEM_NAMESPACE)


class _ConfigMap(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] = {}


class HyperNodeController(Controller[View, Effect]):
    """Controller of HyperNodes."""

    sources = ()

    def __init__(
        self,
        client: Client,
        *,
        settings: HyperNodeSettings | None = None,
        clock: Clock | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """Without a *recorder* it records no events."""
        self._settings = settings or HyperNodeSettings()
        super().__init__("hypernode", self._settings, clock=clock)
        self._client = client
        self._recorder = recorder
        self._operator = Operator(
            client,
            self._changed,
            namespace=self._settings.namespace,
            restore_signals=self._settings.restore_signals,
        )
        self._reported: tuple[str, ...] = ()
        self._ports = PortReader(client, self.clock)

    def _changed(self) -> None:
        self.queue.add_after(_ALL, self._settings.delay)

    async def run(
        self, *, ready: asyncio.Event | None = None, elected: asyncio.Event | None = None
    ) -> None:
        """Watch and write from *elected* on until cancelled; *ready* is set at once."""
        if ready is not None:
            ready.set()
        if elected is not None:
            await elected.wait()
        watching = asyncio.create_task(self._operator.run())
        self.queue.add(_ALL)
        try:
            await self.work()
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching

    async def observe(self, sync: Sync) -> View:
        """Return all HyperNodes and nodes, and the configuration."""
        sync.after(self._settings.resync)
        hypernodes = await self._client.list(HYPERNODES, view=HyperNode)
        nodes = await self._client.list(NODES, view=MetadataOnly)
        labels = {each.metadata.name: each.metadata.labels for each in nodes.items}
        configmap, discovery = await self._discovery()
        ports: tuple[Port, ...] | None = None
        if configmap is not None and discovery is not None:
            ports = await self._ports.current(discovery.ufm)
            self._report(configmap, (*discovery.problems, *self._ports.problems))
            if discovery.ufm is not None:
                sync.after(min(self._settings.resync, self._ports.seconds_left))
        return View(hypernodes.items, labels, discovery, ports)

    def decide(self, view: View) -> Iterator[Effect]:
        """Create, update and delete what is discovered, then count nodes."""
        return decide(view)

    async def execute(self, sync: Sync, view: View, effect: Effect) -> None:
        """Write one HyperNode; those that were deleted concurrently are left to the next event."""
        with suppress(NotFoundError):
            match effect:
                case Create(hypernode):
                    await self._create(hypernode)
                case Update(meta, hypernode):
                    spec = {"members": None, **msgspec.to_builtins(hypernode.spec)}
                    changed = {**preconditions(meta), "labels": dict(hypernode.labels)}
                    await self._patch(meta, {"metadata": changed, "spec": spec})
                case Delete(meta):
                    await self._client.delete(HYPERNODES, meta.name, uid=meta.uid)
                case SetNodeCount(meta, count):
                    body = {"metadata": preconditions(meta), "status": {"nodeCount": count}}
                    await self._patch(meta, body, subresource="status")
                case _:
                    assert_never(effect)

    async def _create(self, hypernode: Discovered) -> None:
        with suppress(AlreadyExistsError):
            await self._client.create(
                HYPERNODES,
                {
                    "apiVersion": HYPERNODES.api_version,
                    "kind": HYPERNODES.kind,
                    "metadata": {"name": hypernode.name, "labels": dict(hypernode.labels)},
                    "spec": msgspec.to_builtins(hypernode.spec),
                },
            )

    async def _patch(
        self, meta: ObjectMeta, body: dict[str, Any], *, subresource: str = ""
    ) -> None:
        await self._client.patch(HYPERNODES, meta.name, body, subresource=subresource)

    async def _discovery(self) -> tuple[_ConfigMap | None, Discovery | None]:
        """Return what is configured, and where; ``None`` without a configuration, or if it is
        invalid."""
        try:
            configmap = await self._client.get(
                CONFIGMAPS, CONFIGMAP, namespace=self._settings.namespace, view=_ConfigMap
            )
        except NotFoundError:
            return None, None
        text = configmap.data.get(KEY)
        if text is None:
            return configmap, None
        try:
            return configmap, parse(text, self._settings.namespace)
        except ConfigurationError as error:
            self._report(configmap, (str(error),))
            return configmap, None

    def _report(self, configmap: _ConfigMap, problems: tuple[str, ...]) -> None:
        """Report *problems* once."""
        new = [each for each in problems if each not in self._reported]
        self._reported = problems
        for problem in new:
            log.warning("configuration of discovery", extra={"problem": problem})
            if self._recorder is not None:
                reference = object_reference(CONFIGMAPS, configmap.metadata)
                self._recorder.record(reference, type="Warning", reason=INVALID, message=problem)
