"""Shared informers: one watch for all controllers of a process that ask for the same objects.

A process that works on some shards of the keys has controllers for each shard, and keeps only the
objects of these shards; it still receives all of them.
"""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, Unpack

from ...model.meta import HasMeta
from ...model.names import Resource
from ..client.client import Client
from .informer import EventHandler, Informer, InformerScope

T = TypeVar("T", bound=HasMeta)

OwnerKey = Callable[[T], str | None]
"""Returns the key of the object that a controller reconciles because of this one; None: none."""


class InformerFactory(Protocol):
    """Creates the informers of a controller, or returns shared ones."""

    def informer(
        self,
        resource: Resource,
        view: type[T],
        *,
        owner_key: OwnerKey[T] | None = None,
        **scope: Unpack[InformerScope[T]],
    ) -> Informer[T]:
        """Return an informer, as its constructor does.

        *owner_key* selects the objects that a shard needs; without one, these are all.
        """
        ...


class NewInformers:
    """An :class:`InformerFactory` whose informers are not shared."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def informer(
        self,
        resource: Resource,
        view: type[T],
        *,
        owner_key: OwnerKey[T] | None = None,
        **scope: Unpack[InformerScope[T]],
    ) -> Informer[T]:
        """Return a new informer of all objects."""
        return Informer(self._client, resource, view, **scope)


class _Shared:
    """One informer of a process, and what its controllers need of it."""

    def __init__(self, informer: Informer[Any]) -> None:
        self.informer = informer
        self.owner_keys: list[OwnerKey[Any]] = []
        self.all_wanted = False

    def narrow(self, owned: Callable[[str], bool]) -> None:
        if not self.all_wanted:
            keys = tuple(self.owner_keys)

            def wants(obj: HasMeta) -> bool:
                return any((found := key(obj)) is not None and owned(found) for key in keys)

            self.informer.keep_only(wants)


class SharedInformers:
    """The informers of a process that holds some shards, from which each shard has its view.

    *owner_key* functions and views must be the same objects for all shards.
    """

    def __init__(self, client: Client, *, shard_of: Callable[[str], int]) -> None:
        self._client = client
        self._shard_of = shard_of
        self._held: set[int] = set()
        self._shared: dict[tuple[object, ...], _Shared] = {}

    def for_shard(self, shard: int) -> "ShardInformers":
        """Return the factory of the controllers of *shard*."""
        return ShardInformers(self, shard)

    async def add_shard(self, shard: int) -> None:
        """Keep the objects of *shard*, too; return once they are in the store."""
        self._held.add(shard)
        self._narrow()
        for shared in list(self._shared.values()):
            if not shared.all_wanted:
                await shared.informer.relist()

    def remove_shard(self, shard: int) -> None:
        """Drop the objects of *shard*, whose controllers have ended."""
        self._held.discard(shard)
        self._narrow()

    def _narrow(self) -> None:
        for shared in self._shared.values():
            shared.narrow(self._owns)

    def _owns(self, key: str) -> bool:
        return self._shard_of(key) in self._held

    def view(
        self,
        shard: int,
        resource: Resource,
        view: type[T],
        owner_key: OwnerKey[T] | None,
        scope: InformerScope[T],
    ) -> Informer[T]:
        """Return the view of *shard* of the one informer with these options."""
        selectors = [
            scope.get(name, "") for name in ("namespace", "label_selector", "field_selector")
        ]
        kept = (scope.get("transform"), scope.get("options"), *sorted(scope.get("indexes", ())))
        key = (resource, view, *selectors, *kept)
        shared = self._shared.get(key)
        if shared is None:
            shared = self._shared[key] = _Shared(Informer(self._client, resource, view, **scope))
        if owner_key is None:
            shared.all_wanted = True
            shared.informer.keep_only(lambda _: True)
            return shared.informer
        if owner_key not in shared.owner_keys:
            shared.owner_keys.append(owner_key)
            shared.narrow(self._owns)
        shard_of = self._shard_of

        def wanted(obj: T) -> bool:
            found = owner_key(obj)
            return found is not None and shard_of(found) == shard

        return InformerView(shared.informer, wanted)


class ShardInformers:
    """The :class:`InformerFactory` of the controllers of one shard."""

    def __init__(self, shared: SharedInformers, shard: int) -> None:
        self._shared = shared
        self._shard = shard

    def informer(
        self,
        resource: Resource,
        view: type[T],
        *,
        owner_key: OwnerKey[T] | None = None,
        **scope: Unpack[InformerScope[T]],
    ) -> Informer[T]:
        """Return the shared informer of these options, whose handlers see the shard alone."""
        return self._shared.view(self._shard, resource, view, owner_key, scope)


class InformerView(Informer[T]):
    """An informer whose handlers get the changes of the *wanted* objects alone.

    An object that becomes wanted is added, one that no longer is wanted is deleted. Reads see all
    objects that the informer has.
    """

    def __init__(self, informer: Informer[T], wanted: Callable[[T], bool]) -> None:
        self.name = informer.name
        self._informer = informer
        self._wanted = wanted
        self._store = informer._store
        self._reflector = informer._reflector
        self._filtered: dict[EventHandler[T], EventHandler[T]] = {}

    def _filter(self, handler: EventHandler[T]) -> EventHandler[T]:
        wanted = self._wanted

        def on_change(old: T | None, new: T | None) -> None:
            old = old if old is not None and wanted(old) else None
            new = new if new is not None and wanted(new) else None
            if old is not None or new is not None:
                handler(old, new)

        self._filtered[handler] = on_change
        return on_change

    def add_event_handler(self, handler: EventHandler[T]) -> None:
        """Add *handler*, as :meth:`Informer.add_event_handler` does."""
        self._informer.add_event_handler(self._filter(handler))

    async def attach_event_handler(self, handler: EventHandler[T]) -> None:
        """Add *handler*, as :meth:`Informer.attach_event_handler` does."""
        await self._informer.attach_event_handler(self._filter(handler))

    def remove_event_handler(self, handler: EventHandler[T]) -> None:
        """Remove *handler*."""
        self._informer.remove_event_handler(self._filtered.pop(handler))

    async def run(self) -> None:
        """Run the shared informer."""
        await self._informer.run()
