"""Methods of the clients, built of operations: what both executors have in common."""

import inspect
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar, get_args, get_origin

from .arguments import explicit_signature
from .effects import Emit
from .operations.scopes import Collection, ObjectRef

ScopeT = TypeVar("ScopeT")
ExecutorT = TypeVar("ExecutorT")


class Facade(Generic[ExecutorT, ScopeT]):
    """Operations on a scope: a server, a collection or an object."""

    def __init__(self, executor: ExecutorT, scope: ScopeT) -> None:
        self._executor = executor
        self._scope = scope

    def __init_subclass__(cls) -> None:
        """Name methods as callers do, not as the operations that they run."""
        super().__init_subclass__()
        for name, method in vars(cls).items():
            if inspect.isfunction(method):
                method.__name__ = name
                method.__qualname__ = f"{cls.__qualname__}.{name}"


class HasRef(Protocol):
    """A handle, which a method by name accepts, too."""

    @property
    def ref(self) -> ObjectRef:
        """The object."""
        ...


def ref_of_key(collection: Collection, key: str | HasRef) -> ObjectRef:
    """Return the object of a handle, or of ``name`` or ``namespace/name``."""
    return collection.ref(key) if isinstance(key, str) else key.ref


def document(
    method: Callable[..., Any],
    function: Callable[..., Any],
    *,
    by_name: bool,
    returns: Any = None,
    items: Any = None,
) -> None:
    """Give *method* the docstring and signature of the operation that it runs.

    Args:
        method: the method of a client.
        function: the operation, of which the first parameter is its scope.
        by_name: whether the method also takes the name of the object.
        returns: what the method returns; by default the result of the operation.
        items: type of the iterator that the method returns, if it yields the items of a stream
            operation.
    """
    method.__doc__ = function.__doc__
    own = explicit_signature(function)
    first, *others = own.parameters.values()
    this = first.replace(name="self", annotation=inspect.Parameter.empty)
    if by_name:
        others.insert(0, first.replace(annotation=str | HasRef))
    if returns is None:
        result = _result(own.return_annotation)
        returns = result if items is None else items[result]
    method.__dict__["__signature__"] = own.replace(
        parameters=[this, *others], return_annotation=returns
    )


def _result(annotation: Any) -> Any:
    """Return what an operation results in, or a stream emits: a generator yields effects, too."""
    effects, _, result = get_args(annotation)
    for each in get_args(effects):
        if get_origin(each) is Emit:
            [result] = get_args(each)
    return result
