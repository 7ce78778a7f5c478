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

LIMIT = 20_000
"""Values remembered; past it the table starts anew, so rare values do not pile up for ever."""

_UNIQUE = frozenset({"name", "uid", "resource_version", "generate_name"})
"""Fields whose text hardly ever repeats."""

_PASSING = ("_timestamp", "_time", "_at", "_ip", "_id")
"""Endings of fields that make a whole part hardly ever repeat."""

_PLAIN = (str, int, float, bool, NoneType)

Share = Callable[[Any, Any], Any]
"""From a value, and what stood in its place before (or None), makes the value to be kept."""


class Sharer(Generic[T]):
    """Shares values between objects of one view."""

    def __init__(self, view: type[T]) -> None:
        self._known: dict[Any, Any] = {}
        self._busy: set[Any] = set()
        self._share = self._for(view, whole=False)

    def share(self, obj: T, old: T | None = None) -> T:
        """Make *obj* point to shared values where it has equal ones; returns it.

        *old* is its former state, already shared.
        """
        if len(self._known) > LIMIT:
            self._known.clear()
        shared: T = self._share(obj, old)
        return shared

    def __len__(self) -> int:
        """How many values are remembered."""
        return len(self._known)

    def _for(self, kind: Any, *, whole: bool = True) -> Share:
        """The function that shares values of *kind*; nothing to share leaves them as they are."""
        kinds = [one for one in get_args(kind) if one is not NoneType]
        if kind is str:
            return self._same
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return self._for_struct(kind, whole=whole and _repeats(kind))
        if get_origin(kind) is tuple and len(kinds) == 2 and kinds[1] is Ellipsis:
            return self._for_tuple(kinds[0])
        if get_origin(kind) is dict and kinds == [str, str]:
            return self._share_values
        if NoneType in get_args(kind) and len(kinds) == 1:
            return self._for(kinds[0])
        return _leave

    def _same(self, value: Any, _: Any) -> Any:
        return self._known.setdefault(value, value)

    def _share_values(self, value: dict[str, str], _: Any) -> dict[str, str]:
        known = self._known.setdefault
        for key, text in value.items():
            value[key] = known(text, text)
        return value

    def _for_tuple(self, item: Any) -> Share:
        share, whole = self._for(item), _repeats(item)
        if share is _leave and not whole:
            return _leave

        def run(value: Any, _: Any) -> Any:
            shared = tuple([share(one, None) for one in value])
            return self._same(shared, None) if whole else shared

        return run

    def _for_struct(self, kind: type[msgspec.Struct], *, whole: bool) -> Share:
        if kind in self._busy:
            return _leave  # a struct that contains itself: its inner ones are not worth the trouble
        self._busy.add(kind)
        hints = _hints(kind)
        plan = [
            (field, share)
            for field in kind.__struct_fields__
            if field not in _UNIQUE and not field.endswith(_PASSING)
            if (share := self._for(hints[field])) is not _leave
        ]
        self._busy.discard(kind)

        def run(value: Any, old: Any) -> Any:
            for field, share in plan:
                here = getattr(value, field)
                if here:
                    there = None if old is None else getattr(old, field)
                    kept = there if there == here else share(here, there)
                    if kept is not here:
                        force_setattr(value, field, kept)
            return self._same(value, None) if whole else value

        return run


_hints = functools.cache(get_type_hints)
"""Of a struct; to read them takes a millisecond, and each cache asks for the same few."""


def _leave(value: Any, _: Any) -> Any:
    return value


def _repeats(kind: Any, above: frozenset[Any] = frozenset()) -> bool:
    """Whether whole values of *kind* can be compared by hash and are likely to repeat."""
    if kind in _PLAIN:
        return True
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = kind.__struct_fields__
        if not kind.__struct_config__.frozen or any(field.endswith(_PASSING) for field in fields):
            return False
        hints, here = _hints(kind), above | {kind}
        return kind not in above and all(_repeats(hints[field], here) for field in fields)
    parts = [part for part in get_args(kind) if part is not Ellipsis]
    composed = get_origin(kind) is tuple or NoneType in parts
    return composed and all(_repeats(part, above) for part in parts)
