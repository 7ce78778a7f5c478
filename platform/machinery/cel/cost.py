"""Estimated costs of expressions: the most that an evaluation may cost, in Kubernetes' units.

A unit is roughly one step of the evaluation. The schema limits the sizes of values, so an estimate
holds for each object that the schema accepts.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from .checked import Checked, Expression, Type
from .signatures import ABSTRACT_TYPES

MOST = 2**64 - 1
"""What cannot be counted."""

_TRAVERSAL, _REGEX = 0.1, 0.25
"""Units per character of a text, and of a regular expression."""

_FORMAT_REGEX = 128
"""Characters of the regular expression that a format counts as."""

_LIST, _MAP, _MESSAGE = 10, 30, 40
_AUTHORIZER_CHECK = 350_000
_REQUIREMENT = _LIST + _MESSAGE
_ACCUMULATORS = frozenset(("@result", "__result__"))
_SCALARS = frozenset(("bool", "double", "duration", "int", "timestamp", "uint"))
_COMPARISONS = frozenset(
    ("equals", "not_equals", *(
        f"{kind}_{of}"
        for kind in ("less", "greater", "less_equals", "greater_equals")
        for of in ("string", "bytes")
    ))
)  # fmt: skip


class Size(NamedTuple):
    """Least and most items of a list or map, or characters of a text."""

    least: int = 0
    most: int = MOST

    def union(self, other: "Size") -> "Size":
        """Return a size that covers both."""
        return Size(min(self.least, other.least), max(self.most, other.most))

    def plus(self, other: "Size") -> "Size":
        """Return the size of both together."""
        return Size(_capped(self.least + other.least), _capped(self.most + other.most))

    def times(self, other: "Size") -> "Size":
        """Return the size of as many of the other."""
        return Size(_capped(self.least * other.least), _capped(self.most * other.most))


UNKNOWN = Size()

Path = tuple[str, ...]
"""Steps from a variable to a value: names of fields, ``@items``, ``@keys``, ``@values``."""

SizeOf = Callable[[Path], Size | None]
"""Returns the size of a value; ``None`` if it is not known."""


class _Entries(NamedTuple):
    """Sizes of the keys and values, or the items, of a list or map."""

    is_list: bool
    keys: Size
    values: Size


class _Local(NamedTuple):
    """A variable of a loop."""

    path: Path
    size: Size | None
    entries: _Entries | None = None


class _Call(NamedTuple):
    """Cost of a call apart from its arguments, and the size of its result if it is known."""

    cost: int
    size: Size | None = None


def estimate(checked: Checked, size_of: SizeOf) -> int:
    """Return the most that the evaluation of a checked expression costs.

    The library compiles no expression that is nested more than some 32 times, so neither this nor
    decoding recurses deeply.
    """
    return _Estimator(checked, size_of).cost(checked.root)


def _capped(number: int) -> int:
    return min(number, MOST)


def _scaled(number: int, factor: float) -> int:
    return MOST if number >= MOST else _capped(math.ceil(number * factor))


class _Estimator:
    """The estimate of one expression."""

    def __init__(self, checked: Checked, size_of: SizeOf) -> None:
        self._checked = checked
        self._size_of = size_of
        self._paths: dict[int, Path] = {}
        self._sizes: dict[int, Size] = {}
        self._entries: dict[int, _Entries] = {}
        self._locals: dict[str, list[_Local]] = {}

    def cost(self, node: Expression) -> int:
        """Return the cost of a node with all below it."""
        match node.kind:
            case "literal":
                return 0
            case "ident":
                found = self._local(node.name)
                self._paths[node.id] = found.path if found else (node.name,)
                return 1
            case "select":
                return self._select(node)
            case "call":
                return self._call(node)
            case "list" | "map":
                return self._created(node)
            case "message":
                return _capped(sum(map(self.cost, node.operands)) + _MESSAGE)
            case _:
                return self._loop(node)

    def _select(self, node: Expression) -> int:
        (operand,) = node.operands
        cost = self.cost(operand)
        if node.is_test:
            return cost
        self._paths[node.id] = (*self._path(operand), node.name)
        return _capped(cost + (self._type(operand).kind in ("map", "message")))

    def _created(self, node: Expression) -> int:
        costs, sizes = [], []
        for each in node.operands:
            costs.append(self.cost(each))
            sizes.append(self._size_or_unknown(each))
        is_list = node.kind == "list"
        keys, values = ([], sizes) if is_list else (sizes[::2], sizes[1::2])
        self._entries[node.id] = _Entries(
            is_list, Size(1, 1) if is_list else _union(keys), _union(values)
        )
        return _capped(sum(costs) + (_LIST if is_list else _MAP))

    def _loop(self, node: Expression) -> int:
        iterated, initial, condition, step, result = node.operands
        variable, accumulator = node.variables
        cost = self.cost(iterated) + self.cost(initial)
        local = _Local(self._path(initial), self._size(initial), self._entries_of(initial))
        is_bind = (
            iterated.kind == "list"
            and not iterated.operands
            and condition.kind == "literal"
            and accumulator not in _ACCUMULATORS
        )
        with self._scope(accumulator, local):
            if is_bind:
                cost += self.cost(result)
                self._copy_sizes(node, result)
                return _capped(cost)
            with self._scope(variable, self._iterated(iterated)):
                each = _capped(self.cost(condition) + self.cost(step))
            cost += self.cost(result)
        count = self._size_or_unknown(iterated)
        if initial.kind in ("list", "map"):
            self._sizes[node.id] = count
            if (entries := self._entries_of(step)) is not None:
                self._entries[node.id] = entries
        elif (size := self._size(initial)) is not None:
            self._sizes[node.id] = size
        return _capped(cost + _capped(count.most * each))

    def _iterated(self, iterated: Expression) -> _Local:
        """Return the variable of a loop over *iterated*."""
        entries = self._entries_of(iterated)
        is_list = entries.is_list if entries else self._type(iterated).kind == "list"
        size = None
        if entries is not None:
            size = entries.values if is_list else entries.keys
        return _Local((*self._path(iterated), "@items" if is_list else "@keys"), size)

    def _call(self, node: Expression) -> int:
        arguments = node.operands
        costs = [self.cost(each) for each in arguments]
        if node.name == "dyn":
            self._copy_sizes(node, arguments[0])
            return _capped(1 + costs[0])
        for each in arguments:
            self._size(each)
        overloads = self._checked.overloads.get(node.id) or ()
        if not overloads:
            return 0
        cost = 0 if node.target is None else self.cost(node.target)
        calls = []
        size: Size | None = None
        for overload in overloads:
            call = self._overload(node, overload, costs)
            calls.append(call.cost)
            if call.size is not None:
                size = call.size if size is None else size.union(call.size)
            if overload in ("index_list", "index_map"):
                entries = self._entries_of(arguments[0])
                size = entries.values if entries else None
                step = "@items" if overload == "index_list" else "@values"
                self._paths[node.id] = (*self._path(arguments[0]), step)
            if size is None:
                size = self._size(node)
        if size is not None:
            self._sizes[node.id] = size
        return _capped(cost + max(calls))

    def _overload(self, node: Expression, overload: str, costs: list[int]) -> _Call:
        """Return the cost of one overload of a call with its arguments."""
        found = self._kubernetes_function(node, overload) or self._text_function(node, overload)
        if found is not None:
            return found._replace(cost=_capped(found.cost + sum(costs)))
        if overload == "conditional":
            _, first, second = node.operands
            of_first, of_second = self._entries_of(first), self._entries_of(second)
            if of_first and of_second:
                self._entries[node.id] = _joined(of_first, of_second)
            size = self._size_or_unknown(first).union(self._size_or_unknown(second))
            return _Call(_capped(costs[0] + max(costs[1:])), size)
        if overload in ("logical_and", "logical_or"):
            return _Call(_capped(sum(costs)))
        return _Call(_capped(1 + sum(costs)))

    def _text_function(self, node: Expression, overload: str) -> _Call | None:
        """Return the cost of a function of the language whose cost depends on sizes."""
        sizes = [self._size_or_unknown(each) for each in node.operands]
        if overload in _COMPARISONS:
            return _Call(_scaled(min(sizes[0].most, sizes[1].most), _TRAVERSAL))
        if overload in ("starts_with_string", "ends_with_string"):
            return _Call(_scaled(sizes[0].most, _TRAVERSAL))
        if overload == "in_list":
            return _Call(sizes[1].most)
        if overload in ("add_string", "add_bytes", "add_list"):
            return self._sum(node, sizes[0].plus(sizes[1]), is_list=overload == "add_list")
        if overload in ("string_to_bytes", "bytes_to_string"):
            least, most = sizes[0]
            to_bytes = overload == "string_to_bytes"
            size = Size(least, _capped(4 * most)) if to_bytes else Size(least // 4, most)
            return _Call(_scaled(most, _TRAVERSAL), size)
        if node.target is None or node.name not in ("matches", "contains"):
            return None
        text = self._size_or_unknown(node.target)
        if node.name == "matches":
            return _Call(_matching(text, sizes[0]))
        return _Call(_capped(_scaled(text.most, _TRAVERSAL) * _scaled(sizes[0].most, _TRAVERSAL)))

    def _sum(self, node: Expression, size: Size, *, is_list: bool) -> _Call:
        one, other = (self._entries_of(each) for each in node.operands)
        if one and other:
            self._entries[node.id] = _joined(one, other)
        return _Call(1 if is_list else _scaled(size.most, _TRAVERSAL), size)

    def _kubernetes_function(self, node: Expression, overload: str) -> _Call | None:
        """Return the cost of a function that Kubernetes adds."""
        name, arguments = node.name, node.operands
        if name == "check":
            return _Call(_AUTHORIZER_CHECK)
        if name == "optional.ofNonZeroValue" and arguments[0].name in ("validate", "format.named"):
            return _Call(0)  # added by formats.with_optionals
        if name in ("fieldSelector", "labelSelector"):
            length = self._size_or_unknown(arguments[0]).most
            requirements = _scaled(_scaled(length, 0.5), _REQUIREMENT)
            return _Call(_capped(_LIST + _scaled(length, _TRAVERSAL) + requirements))
        if name in ("_==_", "_!=_"):
            types = [self._type(each) for each in arguments]
            of_kubernetes = types[0] == types[1] and types[0].name in ABSTRACT_TYPES
            return _Call(1) if of_kubernetes and name == "_==_" else None
        if name in _OF_SETS:
            product = self._size_or_unknown(arguments[0]).times(self._size_or_unknown(arguments[1]))
            return _Call(_capped(_capped(product.most * _OF_SETS[name]) + 1))
        if name in ("url", "cidr", "isIP", "isCIDR", "quantity", "isQuantity", "semver", "isSemver",
                    "ip", "ip.isCanonical") and arguments:  # fmt: skip
            size = self._size_or_unknown(arguments[0])
            factor = 2 * _TRAVERSAL if name == "ip.isCanonical" else _TRAVERSAL
            return _Call(_scaled(size.most, factor), size if name == "url" else None)
        if node.target is None:
            return None
        if name == "validate":
            size = self._size_or_unknown(arguments[0])
            return _Call(_scaled(_scaled(size.most, _TRAVERSAL), _FORMAT_REGEX * _REGEX))
        return self._member_function(node, node.target, overload)

    def _member_function(self, node: Expression, target: Expression, overload: str) -> _Call | None:
        name, size = node.name, self._size_or_unknown(target)
        arguments = [self._size_or_unknown(each) for each in node.operands]
        if name in ("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"):
            return self._search(target, size)
        if name in ("lowerAscii", "upperAscii", "substring", "trim"):
            return _Call(_scaled(size.most, _TRAVERSAL), size)
        if name == "replace":
            replaced = _replaced(size, arguments[0], arguments[1])
            return _Call(_scaled(size.most, 2 * _TRAVERSAL), replaced)
        if name == "split":
            limit = node.operands[1].value if len(arguments) > 1 else None
            most = (limit if limit >= 0 else MOST) if isinstance(limit, int) else size.most
            return _Call(_scaled(size.most, 2 * _TRAVERSAL), Size(0, most))
        if name == "join":
            whole = size.times(self._item_size(target))
            if arguments:
                gaps = Size(max(size.least - 1, 0), max(size.most - 1, 0))
                whole = whole.plus(arguments[0].times(gaps))
            return _Call(_scaled(whole.most, _TRAVERSAL), whole)
        if name in ("find", "findAll"):
            return _Call(_matching(size, arguments[0]), Size(0, size.most))
        if name in _OF_RANGES:
            is_text = self._type(node.operands[0]).kind == "string"
            text = _scaled(arguments[0].most, _TRAVERSAL) if is_text else 0
            return _Call(_capped(_OF_RANGES[name] + text))
        return None

    def _search(self, target: Expression, size: Size) -> _Call:
        """Return the cost to compare each item of a list, or character of a text."""
        parameters = self._type(target).parameters
        if not parameters:
            return _Call(_scaled(size.most, _TRAVERSAL))
        each = 1
        if parameters[0].kind in ("string", "bytes"):
            each += _scaled(self._item_size(target).most, _TRAVERSAL)
        return _Call(_capped(size.most * each))

    def _item_size(self, target: Expression) -> Size:
        """Return the size of the items of a list."""
        path = self._known_path(target)
        return self._size_of((*path, "@items")) or UNKNOWN if path else UNKNOWN

    def _local(self, name: str) -> _Local | None:
        found = self._locals.get(name)
        return found[-1] if found else None

    @contextmanager
    def _scope(self, name: str, local: _Local) -> Iterator[None]:
        self._locals.setdefault(name, []).append(local)
        yield
        self._locals[name].pop()

    def _type(self, node: Expression) -> Type:
        return self._checked.types.get(node.id, Type())

    def _path(self, node: Expression) -> Path:
        if node.kind == "ident" and (found := self._local(node.name)):
            return found.path
        return self._paths.get(node.id, ())

    def _known_path(self, node: Expression) -> Path:
        path = self._path(node)
        return () if path and path[0] in _ACCUMULATORS else path

    def _size_or_unknown(self, node: Expression) -> Size:
        return self._size(node) or UNKNOWN

    def _size(self, node: Expression) -> Size | None:
        if (known := self._sizes.get(node.id)) is not None:
            return known
        if node.kind == "literal":
            return Size(node.size, node.size)
        if node.kind in ("list", "map"):
            count = len(node.operands) // (1 if node.kind == "list" else 2)
            return Size(count, count)
        path = self._path(node)
        if path and (found := self._size_of(path)) is not None:
            self._sizes[node.id] = found
            return found
        if _is_scalar(self._type(node)):
            return Size(1, 1)
        local = self._local(node.name) if node.kind == "ident" else None
        return local.size if local else None

    def _entries_of(self, node: Expression) -> _Entries | None:
        if (known := self._entries.get(node.id)) is not None:
            return known
        local = self._local(node.name) if node.kind == "ident" else None
        return local.entries if local else None

    def _copy_sizes(self, node: Expression, other: Expression) -> None:
        if (size := self._size(other)) is not None:
            self._sizes[node.id] = size
        if (entries := self._entries_of(other)) is not None:
            self._entries[node.id] = entries


_OF_RANGES = {
    "containsIP": math.ceil(32 * _TRAVERSAL),
    "containsCIDR": math.ceil(32 * _TRAVERSAL) + math.ceil(16 * _TRAVERSAL) + 1,
}
"""Cost of the functions of address ranges, apart from parsing a text."""

_OF_SETS = {"sets.contains": 1, "sets.intersects": 1, "sets.equivalent": 2}
"""How often the items of two sets are compared, by function."""


def _union(sizes: list[Size]) -> Size:
    if not sizes:
        return Size(0, 0)
    return Size(min(each.least for each in sizes), max(each.most for each in sizes))


def _joined(one: _Entries, other: _Entries) -> _Entries:
    return _Entries(one.is_list, one.keys.union(other.keys), one.values.union(other.values))


def _is_scalar(found: Type) -> bool:
    if found.name == "optional_type" and found.parameters:
        return _is_scalar(found.parameters[0])
    return found.kind in _SCALARS


def _matching(text: Size, pattern: Size) -> int:
    """Return the cost to match a text with a regular expression."""
    return _capped(_scaled(_capped(text.most + 1), _TRAVERSAL) * _scaled(pattern.most, _REGEX))


def _replaced(size: Size, found: Size, by: Size) -> Size:
    """Return the size of a text in which *found* is replaced by *by*."""
    kept_most = kept_least = 0
    if found.least == 0:
        most, kept_most = _capped(size.most + 1), size.most
    elif by.most <= found.least:
        most, kept_most = 0, size.most
    else:
        most = _scaled(size.most, 1 / found.least)
    if found.most == 0:
        least, kept_least = _capped(size.least + 1), size.least
    elif found.most <= by.least:
        least, kept_least = 0, size.least
    else:
        least = math.ceil(size.least / found.most)
    return Size(least, most).times(by).plus(Size(kept_least, kept_most))
