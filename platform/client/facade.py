"""Methods of the clients, built of operations: what both executors have in common."""

import inspect
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from .operations.scopes import Collection, ObjectRef

ScopeT = TypeVar("ScopeT")
ExecutorT = TypeVar("ExecutorT")


class Facade(Generic[ExecutorT, ScopeT]):
    """Operations on a scope: a server, a collection or an object."""

    def __init__(self, executor: ExecutorT, scope: ScopeT) -> None:
        self._executor = executor
        self._scope = scope


class HasRef(Protocol):
    """A handle, which a method by name accepts, too."""

    @property
    def ref(self) -> ObjectRef:
        """The object."""
        ...


def ref_of_key(collection: Collection, key: str | HasRef) -> ObjectRef:
    """Return the object of a handle, or of ``name`` or ``namespace/name``."""
    return collection.ref(key) if isinstance(key, str) else key.ref


def document(method: Callable[..., Any], function: Callable[..., Any], *, by_name: bool) -> None:
    """Give *method* the docstring and signature of the operation that it runs."""
    method.__doc__ = function.__doc__
    method.__name__ = method.__qualname__ = function.__name__
    own = inspect.signature(function)
    first, *others = own.parameters.values()
    this = first.replace(name="self", annotation=inspect.Parameter.empty)
    if by_name:
        others.insert(0, first.replace(annotation=str))
    method.__dict__["__signature__"] = own.replace(parameters=[this, *others])
