"""Lets cached objects share what they have in common, so that a thousand like pods cost little.

Pods of one job differ in name, uid, versions and times and are alike in almost all else. After
decoding, strings that are likely to repeat are replaced by the first of their kind, and so are
whole parts (frozen structs, tuples) that are equal. Objects look the same before and after.

Of an object that only changed, the parts that did not change are taken from its former state,
which is one comparison for each instead of a walk through them.
"""

import functools
from collections.abc import Callable
from types import NoneType
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import force_setattr

T = TypeVar("T")

MAX_INTERNED_VALUES = 20_000
"""Values remembered; past it the table starts anew, so rare values do not pile up for ever."""

_UNIQUE_FIELDS = frozenset({"name", "uid", "resource_version", "generate_name"})
"""Fields whose text hardly ever repeats."""

_VOLATILE_SUFFIXES = ("_timestamp", "_time", "_at", "_ip", "_id")
"""Endings of fields that make a whole part hardly ever repeat."""

_SCALARS = (str, int, float, bool, NoneType)

InternFunc = Callable[[Any, Any], Any]
"""From a value, and what stood in its place before (or None), makes the value to be kept."""


class Interner(Generic[T]):
    """Shares values between objects of one view."""

    def __init__(self, view: type[T]) -> None:
        self._interned: dict[Any, Any] = {}
        self._visiting: set[Any] = set()
        self._intern_object = self._interner_for(view, intern_whole=False)

    def intern(self, obj: T, old: T | None = None) -> T:
        """Make *obj* point to shared values where it has equal ones; returns it.

        *old* is its former state, already shared.
        """
        if len(self._interned) > MAX_INTERNED_VALUES:
            self._interned.clear()
        shared: T = self._intern_object(obj, old)
        return shared

    def __len__(self) -> int:
        """How many values are remembered."""
        return len(self._interned)

    def _interner_for(self, kind: Any, *, intern_whole: bool = True) -> InternFunc:
        """The function that shares values of *kind*; nothing to share leaves them as they are."""
        kinds = [one for one in get_args(kind) if one is not NoneType]
        if kind is str:
            return self._intern_value
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return self._struct_interner(kind, intern_whole=intern_whole and _is_internable(kind))
        if get_origin(kind) is tuple and len(kinds) == 2 and kinds[1] is Ellipsis:
            return self._tuple_interner(kinds[0])
        if get_origin(kind) is dict and kinds == [str, str]:
            return self._intern_dict_values
        if NoneType in get_args(kind) and len(kinds) == 1:
            return self._interner_for(kinds[0])
        return _unchanged

    def _intern_value(self, value: Any, _: Any) -> Any:
        return self._interned.setdefault(value, value)

    def _intern_dict_values(self, value: dict[str, str], _: Any) -> dict[str, str]:
        known = self._interned.setdefault
        for key, text in value.items():
            value[key] = known(text, text)
        return value

    def _tuple_interner(self, item: Any) -> InternFunc:
        share, whole = self._interner_for(item), _is_internable(item)
        if share is _unchanged and not whole:
            return _unchanged

        def run(value: Any, _: Any) -> Any:
            shared = tuple([share(one, None) for one in value])
            return self._intern_value(shared, None) if whole else shared

        return run

    def _struct_interner(self, kind: type[msgspec.Struct], *, intern_whole: bool) -> InternFunc:
        if kind in self._visiting:
            # a struct that contains itself: its inner ones are not worth the trouble
            return _unchanged
        self._visiting.add(kind)
        hints = _type_hints(kind)
        plan = [
            (field, share)
            for field in kind.__struct_fields__
            if field not in _UNIQUE_FIELDS and not field.endswith(_VOLATILE_SUFFIXES)
            if (share := self._interner_for(hints[field])) is not _unchanged
        ]
        self._visiting.discard(kind)

        def run(value: Any, old: Any) -> Any:
            for field, share in plan:
                here = getattr(value, field)
                if here:
                    there = None if old is None else getattr(old, field)
                    kept = there if there == here else share(here, there)
                    if kept is not here:
                        force_setattr(value, field, kept)
            return self._intern_value(value, None) if intern_whole else value

        return run


_type_hints = functools.cache(get_type_hints)
"""Of a struct; to read them takes a millisecond, and each cache asks for the same few."""


def _unchanged(value: Any, _: Any) -> Any:
    return value


def _is_internable(kind: Any, ancestors: frozenset[Any] = frozenset()) -> bool:
    """Whether whole values of *kind* can be compared by hash and are likely to repeat."""
    if kind in _SCALARS:
        return True
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = kind.__struct_fields__
        if not kind.__struct_config__.frozen or any(
            field.endswith(_VOLATILE_SUFFIXES) for field in fields
        ):
            return False
        hints, here = _type_hints(kind), ancestors | {kind}
        return kind not in ancestors and all(_is_internable(hints[field], here) for field in fields)
    parts = [part for part in get_args(kind) if part is not Ellipsis]
    composed = get_origin(kind) is tuple or NoneType in parts
    return composed and all(_is_internable(part, ancestors) for part in parts)
