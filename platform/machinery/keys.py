"""Keys of work queues: of an object, of its controller, or its uid.

A key is usually ``namespace/name``. With a key by uid (:class:`UidKeys`) an object that was
recreated under its name is a different item of the queue.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from ..model.meta import HasMeta, ObjectMeta
from ..model.names import Resource
from .controller import TerminalError

T = TypeVar("T", bound=HasMeta)
T_co = TypeVar("T_co", bound=HasMeta, covariant=True)


class InvalidKeyError(TerminalError):
    """A key is neither ``namespace/name`` nor ``name``; no retry repairs that."""

    def __init__(self, key: str) -> None:
        super().__init__(f"unexpected key format: {key!r}")


def split_key(key: str) -> tuple[str, str]:
    """Return namespace and name; the namespace is empty for a cluster-scoped object.

    Raises:
        InvalidKeyError: the key has more than one slash.
    """
    namespace, slash, name = key.rpartition("/")
    if "/" in namespace:
        raise InvalidKeyError(key)
    return (namespace, name) if slash else ("", key)


def controller_key(child: ObjectMeta, owner: Resource) -> str | None:
    """Return the key of the *owner* object that controls a child; ``None`` if no such one does.

    The version of the reference is ignored.
    """
    reference = child.controller
    if reference is None or reference.kind != owner.kind:
        return None
    group = reference.api_version.rpartition("/")[0]
    if group != owner.group:
        return None
    return f"{child.namespace}/{reference.name}" if owner.namespaced else reference.name


def resolve_controller(
    child: ObjectMeta, owner: Resource, get: Callable[[str], T | None]
) -> T | None:
    """Return the object that controls a child, from the store behind *get*.

    An object that was recreated under the name, with another uid, does not control the child.
    """
    key, reference = controller_key(child, owner), child.controller
    if key is None or reference is None:
        return None
    found = get(key)
    return found if found is not None and found.metadata.uid == reference.uid else None


UID_INDEX = "uid"
"""Name of the index by uid."""


def index_by_uid(obj: HasMeta) -> tuple[str, ...]:
    """Index function: the object's uid."""
    return (obj.metadata.uid,)


class UidIndexed(Protocol[T_co]):
    """An informer with :data:`UID_INDEX`."""

    def by_index(self, index: str, value: str) -> Collection[T_co]:
        """Return the objects with *value* in *index*."""
        ...


class UidKeys(Generic[T]):
    """Keys by uid: the event handler that adds them, and the lookup of their objects.

    An object is found as long as the informer has it or :meth:`processing` it is going on, so that
    work on a deleted object can be completed.
    """

    def __init__(self, informer: UidIndexed[T], add: Callable[[str], object]) -> None:
        """*add* adds a key to the queue."""
        self._informer = informer
        self._add = add
        self._in_progress: dict[str, T] = {}

    def on_event(self, old: T | None, new: T | None) -> None:
        """Add the key of an object that was added or updated; event handler of the informer."""
        if new is not None:
            self._add(new.metadata.uid)

    def get(self, uid: str) -> T | None:
        """Return the object; ``None`` means that its key needs no further reconcile."""
        found = next(iter(self._informer.by_index(UID_INDEX, uid)), None)
        return found if found is not None else self._in_progress.get(uid)

    @contextmanager
    def processing(self, obj: T) -> Iterator[None]:
        """Keep *obj* for :meth:`get` until a block ends without an error."""
        self._in_progress[obj.metadata.uid] = obj
        yield
        self._in_progress.pop(obj.metadata.uid, None)

    def __len__(self) -> int:
        """Number of objects whose processing is not complete."""
        return len(self._in_progress)
