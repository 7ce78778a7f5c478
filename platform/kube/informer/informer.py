"""Informer: a local copy of one resource, kept by list and watch, with indexes and event handlers.

Objects are frozen and shared; they may lag behind the server. An event handler is called as
``handler(old, new)`` on the event loop, in the order of the changes: ``(None, new)`` on add,
``(old, new)`` on update, ``(old, None)`` on delete. *old* is always the object passed before, so
that counters can subtract it. An object recreated with another uid is a delete and an add. Changes
missed during a disconnect are delivered as differences by the next list.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypedDict, TypeVar, Unpack

from ...model.meta import HasMeta, ObjectMeta
from ...model.names import Resource
from ..client.client import Client
from ..client.codec import ListScope
from ..gc_tuning import FREEZE_MIN_OBJECTS, freeze_heap, gc_paused
from ..supervision import cancel_and_wait, supervise
from .indexes import Index
from .interning import Interner
from .reflector import InformerOptions, Reflector
from .relist import YIELD_EVERY

log = logging.getLogger(__name__)

T = TypeVar("T", bound=HasMeta)

EventHandler = Callable[[T | None, T | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class InformerStats:
    """Counts of an informer since its creation."""

    objects: int
    added: int
    updated: int
    deleted: int
    lists: int
    watches: int
    short_watches: int
    failures: int
    undecodable: int
    handler_errors: int


class _IndexedStore(Generic[T]):
    """Objects, indexes and event handlers; the store of the reflector."""

    def __init__(
        self,
        name: str,
        view: type[T],
        indexes: Mapping[str, Callable[[T], Iterable[str]]],
        transform: Callable[[T], T] | None,
    ) -> None:
        self.wants: Callable[[T], bool] = _wants_all
        self.version = ""
        self.list_complete = False
        self.objects: dict[str, T] = {}
        self.indexes = {index: Index(index, values) for index, values in indexes.items()}
        self.synced = asyncio.Event()
        self.added = self.updated = self.deleted = self.handler_errors = 0
        self._name = name
        self._intern = Interner(view).intern
        self._transform = transform
        self._handlers: tuple[EventHandler[T], ...] = ()

    def add_event_handler(self, handler: EventHandler[T]) -> None:
        self._handlers += (handler,)
        for obj in tuple(self.objects.values()):
            self._call_handler(handler, None, obj)

    async def attach_event_handler(self, handler: EventHandler[T]) -> None:
        """Add a handler with a long initial replay; other tasks run in between."""
        replay = _InitialReplay[T](handler, self.objects)
        self._handlers += (replay,)
        delivered = 0
        try:
            with gc_paused():
                for key in tuple(replay.undelivered):
                    if replay.undelivered.pop(key, None) is not None:
                        self._call_handler(handler, None, self.objects[key])
                        delivered += 1
                        if delivered % YIELD_EVERY == 0:
                            await asyncio.sleep(0)
            self._handlers = _with_replaced(self._handlers, replay, (handler,))
        except BaseException:
            self._handlers = _with_replaced(self._handlers, replay, ())
            raise

    def remove_event_handler(self, handler: EventHandler[T]) -> None:
        self._handlers = _with_replaced(self._handlers, handler, ())

    @property
    def is_synced(self) -> bool:
        return self.synced.is_set()

    def on_list_complete(self, version: str) -> None:
        """All changes up to *version* are in the store."""
        self.version, self.list_complete = version, True
        if not self.synced.is_set():
            self.synced.set()
            log.info("synced", extra={"resource": self._name, "objects": len(self.objects)})
            if len(self.objects) >= FREEZE_MIN_OBJECTS:
                freeze_heap()

    def apply(self, event_type: str, obj: T) -> None:
        if event_type == "DELETED":
            self.delete(obj.metadata.key)
        else:
            self.put(obj)

    def delete(self, key: str) -> None:
        old = self.objects.get(key)
        if old is not None:
            self.deleted += 1
            self._replace(key, old, None)

    def put(self, new: T) -> None:
        if not self.wants(new):
            self.delete(new.metadata.key)
            return
        if self._transform is not None:
            new = self._transform(new)
        key = new.metadata.key
        old = self.objects.get(key)
        if old is not None:
            if old.metadata.uid != new.metadata.uid:
                self.delete(key)
                old = None
            elif old.metadata.resource_version == new.metadata.resource_version:
                return
        if old is None:
            self.added += 1
        else:
            self.updated += 1
        self._replace(key, old, new)

    def _replace(self, key: str, old: T | None, new: T | None) -> None:
        """Update store and indexes first, so that handlers see the new state."""
        if new is None:
            del self.objects[key]
        else:
            self.objects[key] = self._intern(new, old)
        for index in self.indexes.values():
            index.update(key, old, new)
        for handler in self._handlers:
            self._call_handler(handler, old, new)

    def _call_handler(self, handler: EventHandler[T], old: T | None, new: T | None) -> None:
        try:
            handler(old, new)
        except (Exception, asyncio.CancelledError):  # no await inside: the handler's own
            self.handler_errors += 1
            obj = new if new is not None else old
            key = obj.metadata.key if obj is not None else ""
            log.exception("event handler failed", extra={"resource": self._name, "key": key})


def _wants_all(_: object) -> bool:
    return True


def _ignore(_: ObjectMeta, problem: str) -> None:
    """Do nothing else than to log the object."""


class _InitialReplay(Generic[T]):
    """A handler during its initial replay.

    Changes of an object that is not replayed yet are suppressed: the replay delivers its current
    state.
    """

    def __init__(self, handler: EventHandler[T], objects: dict[str, T]) -> None:
        self.undelivered = objects.copy()  # the fastest way to copy the keys
        self._handler = handler

    def __call__(self, old: T | None, new: T | None) -> None:
        obj = new if new is not None else old
        if obj is None or obj.metadata.key not in self.undelivered:
            self._handler(old, new)
        elif new is None:
            del self.undelivered[obj.metadata.key]


def _with_replaced(
    handlers: tuple[EventHandler[T], ...],
    handler: EventHandler[T],
    replacements: tuple[EventHandler[T], ...],
) -> tuple[EventHandler[T], ...]:
    at = handlers.index(handler)
    return handlers[:at] + replacements + handlers[at + 1 :]


class KindSource(Generic[T]):
    """An informer and its one event handler, added by :meth:`attach`, removed after :meth:`run`."""

    def __init__(self, informer: "Informer[T]", handler: EventHandler[T]) -> None:
        self._informer = informer
        self._handler = handler
        self._attached = False

    async def run(self) -> None:
        """Run the informer until cancelled; other users of it may run it longer."""
        try:
            await self._informer.run()
        finally:
            if self._attached:
                self._attached = False
                self._informer.remove_event_handler(self._handler)

    async def wait_synced(self) -> None:
        """Wait until the initial list is in the store."""
        await self._informer.wait_synced()

    async def attach(self) -> None:
        """Add the event handler; returns after its initial replay."""
        await self._informer.attach_event_handler(self._handler)
        self._attached = True


class OptionalSource(KindSource[T]):
    """A source of objects that a cluster may lack, or that may not be read there: then none exist
    until that changes."""

    def __init__(self, informer: "Informer[T]", handler: EventHandler[T]) -> None:
        super().__init__(informer, handler)
        informer.set_optional()

    async def wait_synced(self) -> None:
        """Wait until the initial list is in the store, or the server refuses to give it."""
        await self._informer.wait_synced_or_refused()


class InformerScope(TypedDict, Generic[T], total=False):
    """Which objects an informer has, and what it keeps of them; all objects by default."""

    namespace: str
    label_selector: str
    field_selector: str

    indexes: Mapping[str, Callable[[T], Iterable[str]]]
    """By name of an index, the function that computes an object's values."""

    transform: Callable[[T], T]
    """Returns what to keep of a received object, whose name, namespace, uid and resourceVersion it
    retains: less of objects that the controller does not need."""

    options: InformerOptions

    on_undecodable: Callable[[ObjectMeta, str], None]
    """Called with the metadata of each object that does not fit the view, and the reason."""


class Informer(Generic[T]):
    """Informer of one resource, decoded as *view*."""

    def __init__(
        self,
        client: Client,
        resource: Resource,
        view: type[T],
        **scope: Unpack[InformerScope[T]],
    ) -> None:
        self.name = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
        selected = ListScope(
            resource=resource,
            namespace=scope.get("namespace", ""),
            label_selector=scope.get("label_selector", ""),
            field_selector=scope.get("field_selector", ""),
        )
        options = scope.get("options") or InformerOptions()
        self._store = _IndexedStore[T](
            self.name, view, scope.get("indexes", {}), scope.get("transform")
        )
        self._reflector = Reflector(
            client,
            selected,
            view,
            self._store,
            options,
            on_undecodable=scope.get("on_undecodable", _ignore),
        )
        self._timing = options.timing or client.timing

        self._reflector_task: asyncio.Task[None] | None = None
        self._runners = 0
        self._metrics = client.metrics
        self._metrics.register_informer(self)

    def add_event_handler(self, handler: EventHandler[T]) -> None:
        """Add *handler*; it gets an add for each object in the store, then every change.

        It must not block; an exception is logged and does not affect other handlers.
        """
        self._store.add_event_handler(handler)

    async def attach_event_handler(self, handler: EventHandler[T]) -> None:
        """Add *handler* to an informer with many objects: yields to other tasks during the replay.

        Changes are delivered in between, in order for each object. Returns once the replay is
        complete.
        """
        await self._store.attach_event_handler(handler)

    def remove_event_handler(self, handler: EventHandler[T]) -> None:
        """Remove *handler*, which was added before; it gets no more changes."""
        self._store.remove_event_handler(handler)

    def set_optional(self) -> None:
        """A cluster may lack the resource, or the right to read it."""
        self._reflector.is_optional = True

    def keep_only(self, wants: Callable[[T], bool]) -> None:
        """Keep only the objects for which *wants* returns True, from now on.

        The others are deleted. Those that were not kept so far are added by :meth:`relist`.
        """
        store = self._store
        store.wants = wants
        for key in [key for key, obj in store.objects.items() if not wants(obj)]:
            store.delete(key)

    async def relist(self) -> None:
        """List again, while the watch continues; return once the list is in the store.

        If the informer does not run, its next run begins with a list.
        """
        await self._reflector.relist()

    async def run(self) -> None:
        """List and watch until cancelled; a later run resumes from the last version.

        Concurrent runs use one watch, which ends when all of them are cancelled.
        """
        if self._reflector_task is None:
            self._reflector_task = asyncio.create_task(
                supervise(f"watch {self.name}", self._reflector.run, timing=self._timing)
            )
            self._metrics.register_informer(self)
        reflector_task = self._reflector_task
        self._runners += 1
        try:
            await asyncio.shield(reflector_task)
        finally:
            self._runners -= 1
            if not self._runners:
                self._reflector_task = None
                self._metrics.unregister_informer(self)
                await cancel_and_wait(reflector_task)

    async def wait_synced(self) -> None:
        """Wait until the initial list is in the store and delivered to all handlers."""
        await self._store.synced.wait()

    async def wait_synced_or_refused(self) -> None:
        """The same, or until the server reports that the resource does not exist or may not be
        read; it is asked again, and the objects are delivered then."""
        events = (self._store.synced, self._reflector.refused)
        waiting = [asyncio.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()

    @property
    def synced(self) -> bool:
        """Whether the initial list is in the store."""
        return self._store.synced.is_set()

    @property
    def is_absent(self) -> bool:
        """Whether the cluster lacks the resource, and may do so."""
        return self._reflector.is_absent

    @property
    def stale_seconds(self) -> float:
        """Seconds since the watch failed; 0 while the store is current."""
        return self._reflector.stale_seconds

    @property
    def resource_version(self) -> str:
        """All changes up to this version are in the store; empty while a relist is due."""
        return self._store.version if self._store.list_complete else ""

    def get(self, key: str) -> T | None:
        """Return the object ``namespace/name`` (or ``name``), if it exists."""
        return self._store.objects.get(key)

    def by_index(self, index: str, value: str) -> Collection[T]:
        """Return the objects with *value* in *index*; a live view, not to be kept over an await.

        Raises:
            KeyError: the index does not exist.
        """
        return self._store.indexes[index].get(value)

    @property
    def index_names(self) -> Collection[str]:
        """Names of the indexes."""
        return self._store.indexes.keys()

    def index_values(self, index: str, obj: T) -> Collection[str]:
        """Return the values of *obj*, which need not be in the store, in *index*.

        Raises:
            KeyError: the index does not exist.
        """
        return self._store.indexes[index].values(obj)

    def __iter__(self) -> Iterator[T]:
        """Iterate over all objects; do not await in between."""
        return iter(self._store.objects.values())

    def __len__(self) -> int:
        """Number of objects."""
        return len(self._store.objects)

    def __contains__(self, key: object) -> bool:
        """Whether the store has an object of that key."""
        return key in self._store.objects

    def stats(self) -> InformerStats:
        """Return the counts since creation."""
        store, counts = self._store, self._reflector.stats
        return InformerStats(
            objects=len(store.objects),
            added=store.added,
            updated=store.updated,
            deleted=store.deleted,
            lists=counts.lists,
            watches=counts.watches,
            short_watches=counts.short_watches,
            failures=counts.failures,
            undecodable=counts.undecodable,
            handler_errors=store.handler_errors,
        )

    def validate(self) -> None:
        """Check that counts, keys and indexes agree with the objects; for tests.

        Raises:
            AssertionError: they do not.
        """
        store = self._store
        if store.added - store.deleted != len(store.objects):
            raise AssertionError("adds and deletes do not match the objects")
        if any(key != obj.metadata.key for key, obj in store.objects.items()):
            raise AssertionError("an object is stored under a wrong key")
        for name, index in store.indexes.items():
            expected = Index(name, index.index_func)
            for key, obj in store.objects.items():
                expected.update(key, None, obj)
            if expected.groups() != index.groups():
                raise AssertionError(f"index {name} does not match the objects")
