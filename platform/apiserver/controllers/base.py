"""The server's own controllers, as far as they are alike.

They live in the server's process, see every committed change at once and write by the same rules
as everybody. Each has a queue of keys, and one worker unless its keys wait for the disk a lot.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from dataclasses import dataclass

from ...kube.supervision import TASK_RESTARTS, supervise
from ...machinery.controller import ShardedQueue, run_workers
from ...model.names import Resource
from ..discovery.catalog import Catalog
from ..http.requests import Json, Target
from ..kinds.info import KindInfo
from ..storage.object_store import Shelf
from ..storage.stored_objects import Event
from ..verbs.deletes import Deleter
from ..verbs.writes import Call, Change, Writer, Written

log = logging.getLogger(__name__)

_START_AGAIN_AFTER = 1.0
"""Seconds after which a controller that missed a change looks at everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What keepers read and write with."""

    writer: Writer
    deleter: Deleter
    catalog: Catalog

    def shelf(self, resource: Resource) -> Shelf:
        """The shelf of a built-in resource."""
        return self.writer.registry.shelf(self.catalog.known(resource))

    def create(self, resource: Resource, namespace: str, obj: Json) -> Written:
        """Make an object of a built-in resource."""
        target = Target(namespace=namespace)
        return self.writer.create(Call(kind=self.catalog.known(resource), target=target), obj)

    def change(self, kind: KindInfo, key: tuple[str, str], change: Change) -> Written:
        """Change an object as it is, its status and finalizers too."""
        return self.writer.put(call_for(kind, key), change)


class Keeper(ABC):
    """A controller inside the server."""

    name: str
    workers = 1

    def __init__(self, tools: Tools) -> None:
        self.tools = tools
        self.queue = ShardedQueue(name=self.name, shards=self.workers)

    @abstractmethod
    def observe(self, shelf: Shelf, event: Event) -> None:
        """Look at a committed change; only queues keys."""

    @abstractmethod
    async def reconcile(self, key: str) -> float | None:
        """Bring what *key* names nearer to what it should be."""

    @abstractmethod
    def start(self) -> None:
        """Queue whatever may need a look after a restart."""

    def notice(self, shelf: Shelf, event: Event) -> None:
        """Look at a committed change; one that cannot be understood is made up for by a restart."""
        try:
            self.observe(shelf, event)
        except Exception:
            log.exception("cannot observe a change", extra={"controller": self.name})
            TASK_RESTARTS[self.name] += 1
            asyncio.get_running_loop().call_later(_START_AGAIN_AFTER, self._start_again)

    def _start_again(self) -> None:
        try:
            self.start()
        except Exception:
            log.exception("cannot take in what is stored", extra={"controller": self.name})
            asyncio.get_running_loop().call_later(_START_AGAIN_AFTER, self._start_again)

    async def run(self) -> None:
        """Work until cancelled."""
        await supervise(self.name, lambda: run_workers(self.queue, self.reconcile))


def call_for(kind: KindInfo, key: tuple[str, str]) -> Call:
    """A call of our own about one object."""
    return Call(kind=kind, target=Target(namespace=key[0], name=key[1]))


def without_finalizer(obj: Json, finalizer: str) -> Json:
    """*obj* without one of its finalizers."""
    metadata = dict(obj["metadata"])
    metadata["finalizers"] = [n for n in metadata.get("finalizers") or () if n != finalizer]
    if not metadata["finalizers"]:
        del metadata["finalizers"]
    return {**obj, "metadata": metadata}
