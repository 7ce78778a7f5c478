"""A copy of one kind of object, kept current by a watch, with indexes and handlers.

Objects are frozen and shared; they say what was known, not what is. A handler is called as
``handler(old, new)`` on the loop, in the order of the changes: ``(None, new)`` for an object that
came, ``(old, new)`` for one that changed, ``(old, None)`` for one that went. *old* is always the
very object handed over before, so counters can be taken back. A namesake with another uid goes and
comes. What happened while we were cut off is told as differences once we are back.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from ...model.meta import HasMeta
from ...model.names import Resource
from ..client.client import Client
from ..client.codec import ListScope
from ..gc_tuning import FREEZE_MIN_OBJECTS, freeze_heap, gc_paused
from ..supervision import supervise
from .indexes import Index
from .interning import Interner
from .reflector import InformerOptions, Reflector
from .relist import YIELD_EVERY

log = logging.getLogger(__name__)

T = TypeVar("T", bound=HasMeta)

EventHandler = Callable[[T | None, T | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class InformerStats:
    """What a cache holds and has seen since it was made."""

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
    """The objects, their indexes and those who want to know; the sink of the reflector."""

    def __init__(
        self, name: str, view: type[T], indexes: Mapping[str, Callable[[T], Iterable[str]]]
    ) -> None:
        self.version = ""
        self.list_complete = False
        self.objects: dict[str, T] = {}
        self.indexes = {index: Index(index, values) for index, values in indexes.items()}
        self.synced = asyncio.Event()
        self.added = self.updated = self.deleted = self.handler_errors = 0
        self._name = name
        self._intern = Interner(view).intern
        self._handlers: tuple[EventHandler[T], ...] = ()

    def add_event_handler(self, handler: EventHandler[T]) -> None:
        self._handlers += (handler,)
        for obj in tuple(self.objects.values()):
            self._call_handler(handler, None, obj)

    async def attach_event_handler(self, handler: EventHandler[T]) -> None:
        """Add a handler that may take long to hear of everything; changes go on meanwhile."""
        late = _InitialReplay[T](handler, self.objects)
        self._handlers += (late,)
        told = 0
        try:
            with gc_paused():
                for key in tuple(late.undelivered):
                    if late.undelivered.pop(key, None) is not None:
                        self._call_handler(handler, None, self.objects[key])
                        told += 1
                        if told % YIELD_EVERY == 0:
                            await asyncio.sleep(0)
            self._handlers = _with_replaced(self._handlers, late, (handler,))
        except BaseException:
            self._handlers = _with_replaced(self._handlers, late, ())
            raise

    @property
    def is_synced(self) -> bool:
        return self.synced.is_set()

    def on_list_complete(self, version: str) -> None:
        """The store is whole, and holds all changes up to *version*."""
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
        """Change the world first, then tell: a handler sees store and indexes as they are now."""
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
        except (Exception, asyncio.CancelledError):  # it awaits nothing, so that is its own
            self.handler_errors += 1
            about = new if new is not None else old
            key = about.metadata.key if about is not None else ""
            log.exception("a handler failed", extra={"resource": self._name, "key": key})


class _InitialReplay(Generic[T]):
    """A handler in the course of hearing what there is already.

    Of an object that it has not been told of yet it hears no changes: it will be told of it as it
    is when its turn comes.
    """

    def __init__(self, handler: EventHandler[T], objects: dict[str, T]) -> None:
        self.undelivered = objects.copy()  # of all ways to remember the keys the fastest, by far
        self._handler = handler

    def __call__(self, old: T | None, new: T | None) -> None:
        about = new if new is not None else old
        if about is None or about.metadata.key not in self.undelivered:
            self._handler(old, new)
        elif new is None:
            del self.undelivered[about.metadata.key]


def _with_replaced(
    handlers: tuple[EventHandler[T], ...],
    handler: EventHandler[T],
    replacements: tuple[EventHandler[T], ...],
) -> tuple[EventHandler[T], ...]:
    at = handlers.index(handler)
    return handlers[:at] + replacements + handlers[at + 1 :]


class KindSource(Generic[T]):
    """A cache and the one handler that is to hear of it, once :meth:`attach_event_handler` is
    called."""

    def __init__(self, informer: "Informer[T]", handler: EventHandler[T]) -> None:
        self._informer = informer
        self._handler = handler

    async def run(self) -> None:
        """Run the cache until cancelled."""
        await self._informer.run()

    async def wait_synced(self) -> None:
        """Wait until the cache holds the first list."""
        await self._informer.wait_synced()

    async def attach(self) -> None:
        """Tell the handler of everything there is, then of every change."""
        await self._informer.attach_event_handler(self._handler)


class Informer(Generic[T]):
    """Holds what the server holds of one resource, seen as *view*, narrowed by selectors.

    *indexes* maps a name to a function from an object to the values that it is found under.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        view: type[T],
        *,
        namespace: str = "",
        label_selector: str = "",
        field_selector: str = "",
        indexes: Mapping[str, Callable[[T], Iterable[str]]] | None = None,
        options: InformerOptions | None = None,
    ) -> None:
        self.name = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
        scope = ListScope(
            resource=resource,
            namespace=namespace,
            label_selector=label_selector,
            field_selector=field_selector,
        )
        self._store = _IndexedStore[T](self.name, view, indexes or {})
        self._reflector = Reflector(client, scope, view, self._store, options or InformerOptions())
        self._timing = (options or InformerOptions()).timing or client.timing
        self._reflector_task: asyncio.Task[None] | None = None
        self._runners = 0
        client.metrics.register_informer(self)

    def add_event_handler(self, handler: EventHandler[T]) -> None:
        """Tell *handler* of every object held now, then of every change.

        It must be quick and must not fail; a failure is logged and keeps nobody else from hearing.
        """
        self._store.add_event_handler(handler)

    async def attach_event_handler(self, handler: EventHandler[T]) -> None:
        """The same for a cache that may hold much: others on the loop get their turns meanwhile.

        Changes are told in between, and each object's story in its order. Returns once *handler*
        has heard of everything.
        """
        await self._store.attach_event_handler(handler)

    async def run(self) -> None:
        """Follow the server until cancelled; run again, it goes on where it was.

        Several may run the same cache, which saves watches: it follows until all are cancelled.
        """
        if self._reflector_task is None:
            self._reflector_task = asyncio.create_task(
                supervise(f"watch {self.name}", self._reflector.run, timing=self._timing)
            )
        following = self._reflector_task
        self._runners += 1
        try:
            await asyncio.shield(following)
        finally:
            self._runners -= 1
            if not self._runners:
                self._reflector_task = None
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

    async def wait_synced(self) -> None:
        """Wait until the first list is in the store and all handlers have heard of it."""
        await self._store.synced.wait()

    @property
    def synced(self) -> bool:
        """Whether the first list is in the store."""
        return self._store.synced.is_set()

    @property
    def stale_seconds(self) -> float:
        """Seconds for which the server could not be followed; 0 while it can."""
        return self._reflector.stale_seconds

    @property
    def resource_version(self) -> str:
        """All changes up to this version are in the store; empty while a list is due."""
        return self._store.version if self._store.list_complete else ""

    def get(self, key: str) -> T | None:
        """The object ``namespace/name`` (or ``name``), if it is there."""
        return self._store.objects.get(key)

    def by_index(self, index: str, value: str) -> Collection[T]:
        """Objects that *index* finds under *value*; a live view, not to be held over an await.

        Raises:
            KeyError: there is no such index.
        """
        return self._store.indexes[index].get(value)

    def __iter__(self) -> Iterator[T]:
        """All objects; not to be held over an await."""
        return iter(self._store.objects.values())

    def __len__(self) -> int:
        """How many objects are held."""
        return len(self._store.objects)

    def __contains__(self, key: object) -> bool:
        """Whether an object with that key is held."""
        return key in self._store.objects

    def stats(self) -> InformerStats:
        """Counts since the cache was made."""
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
            AssertionError: they don't.
        """
        store = self._store
        if store.added - store.deleted != len(store.objects):
            raise AssertionError("adds and deletes do not match the objects held")
        if any(key != obj.metadata.key for key, obj in store.objects.items()):
            raise AssertionError("an object lies under a key that is not its own")
        for name, index in store.indexes.items():
            fresh = Index(name, index.index_func)
            for key, obj in store.objects.items():
                fresh.update(key, None, obj)
            if fresh.groups() != index.groups():
                raise AssertionError(f"index {name} differs from the objects held")
