"""Interning of equal values in cached objects, to save memory with thousands of similar pods.

Pods of one job differ in name, uid, versions and times and are equal in almost everything else.
After decoding, strings that are likely to repeat are replaced by their first occurrence, and so are
equal frozen structs and tuples. Objects compare equal before and after.

On an update, unchanged fields are taken from the previous object, which costs one comparison each
instead of a traversal.
"""

import functools
from collections.abc import Callable
from types import NoneType
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import force_setattr

T = TypeVar("T")

MAX_INTERNED_VALUES = 20_000
"""Maximum interned values; then the table is cleared, so that rare values do not accumulate."""

_UNIQUE_FIELDS = frozenset({"name", "uid", "resource_version", "generate_name"})
"""Fields whose values hardly ever repeat."""

_VOLATILE_SUFFIXES = ("_timestamp", "_time", "_at", "_ip", "_id")
"""Suffixes of the names of fields that let the values of a struct hardly ever repeat."""

_SCALARS = (str, int, float, bool, NoneType)

InternFunc = Callable[[dict[Any, Any], Any, Any], Any]
"""Maps the interned values, a value and its predecessor (or None) to the value to keep."""


class Interner(Generic[T]):
    """Interns the values of objects of one view."""

    def __init__(self, view: type[T]) -> None:
        self._interned: dict[Any, Any] = {}
        self._intern_object = _object_interner(view)

    def intern(self, obj: T, old: T | None = None) -> T:
        """Replace values in *obj* by equal interned ones; return *obj*.

        *old* is its previous state, already interned.
        """
        if len(self._interned) > MAX_INTERNED_VALUES:
            self._interned.clear()
        interned: T = self._intern_object(self._interned, obj, old)
        return interned

    def __len__(self) -> int:
        """Number of interned values."""
        return len(self._interned)


def _interner_for(kind: Any, outer: frozenset[Any], *, intern_whole: bool = True) -> InternFunc:
    """Return the function that interns values of *kind*, or `_unchanged`.

    *outer*: the structs in which the value lies.
    """
    kinds = [one for one in get_args(kind) if one is not NoneType]
    if kind is str:
        return _intern_value
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _struct_interner(kind, outer, intern_whole=intern_whole and _is_internable(kind))
    if get_origin(kind) is tuple and len(kinds) == 2 and kinds[1] is Ellipsis:
        return _tuple_interner(kinds[0], outer)
    if get_origin(kind) is dict and kinds == [str, str]:
        return _intern_dict_values
    if NoneType in get_args(kind) and len(kinds) == 1:
        return _interner_for(kinds[0], outer)
    return _unchanged


def _intern_value(interned: dict[Any, Any], value: Any, _: Any) -> Any:
    return interned.setdefault(value, value)


def _intern_dict_values(interned: dict[Any, Any], value: dict[str, str], _: Any) -> dict[str, str]:
    known = interned.setdefault
    for key, text in value.items():
        value[key] = known(text, text)
    return value


def _tuple_interner(item: Any, outer: frozenset[Any]) -> InternFunc:
    intern, internable = _interner_for(item, outer), _is_internable(item)
    if intern is _unchanged and not internable:
        return _unchanged

    def run(interned: dict[Any, Any], value: Any, _: Any) -> Any:
        if internable and (known := interned.get(value)) is not None:
            return known
        new = tuple([intern(interned, one, None) for one in value])
        return interned.setdefault(new, new) if internable else new

    return run


def _struct_interner(
    kind: type[msgspec.Struct], outer: frozenset[Any], *, intern_whole: bool
) -> InternFunc:
    if kind in outer:
        # Recursive struct: the inner ones are not interned.
        return _unchanged
    hints = _type_hints(kind)
    plan = [
        (field, intern)
        for field in kind.__struct_fields__
        if field not in _UNIQUE_FIELDS and not field.endswith(_VOLATILE_SUFFIXES)
        if (intern := _interner_for(hints[field], outer | {kind})) is not _unchanged
    ]

    def run(interned: dict[Any, Any], value: Any, old: Any) -> Any:
        if intern_whole and (known := interned.get(value)) is not None:
            return known
        for field, intern in plan:
            current = getattr(value, field)
            if current:
                previous = None if old is None else getattr(old, field)
                new = previous if previous == current else intern(interned, current, previous)
                if new is not current:
                    force_setattr(value, field, new)
        return interned.setdefault(value, value) if intern_whole else value

    return run


_object_interner: Callable[[Any], InternFunc] = functools.cache(
    functools.partial(_interner_for, outer=frozenset(), intern_whole=False)
)
"""Cached, as it takes milliseconds: the function that interns the values of objects of a view."""

_type_hints = functools.cache(get_type_hints)
"""Cached: takes a millisecond, and all informers use the same few structs."""


def _unchanged(interned: dict[Any, Any], value: Any, _: Any) -> Any:
    return value


def _is_internable(kind: Any, outer: frozenset[Any] = frozenset()) -> bool:
    """Return whether values of *kind* are hashable and likely to repeat."""
    if kind in _SCALARS:
        return True
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = kind.__struct_fields__
        if not kind.__struct_config__.frozen or any(
            field.endswith(_VOLATILE_SUFFIXES) for field in fields
        ):
            return False
        hints, current = _type_hints(kind), outer | {kind}
        return kind not in outer and all(_is_internable(hints[field], current) for field in fields)
    arguments = [argument for argument in get_args(kind) if argument is not Ellipsis]
    composed = get_origin(kind) is tuple or NoneType in arguments
    return composed and all(_is_internable(argument, outer) for argument in arguments)
