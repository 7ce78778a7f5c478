"""The argument ``nodeaffinity.addedAffinity``: node affinity that all pods have besides their own.

It is the ``addedAffinity`` of kube-scheduler's NodeAffinityArgs. ``predicates`` reads what is
required, and ``nodeorder`` what is preferred.
"""

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from ...model.node_selectors import NodeSelector, NodeSelectorTerm
from ..state.core_types import PreferredSchedulingTerm
from .arguments import ArgumentError, mapping, require_read

NAME = "nodeaffinity.addedAffinity"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

_VALUE_COUNTS = {"Exists": (0, 0), "DoesNotExist": (0, 0), "Gt": (1, 1), "Lt": (1, 1)}
_ONE_OR_MORE = (1, 10_000)
_MAX_WEIGHT = 100

T = TypeVar("T")


def required(arguments: Mapping[str, object]) -> NodeSelector | None:
    """Return what is required of nodes, ``None`` if nothing is.

    Raises:
        ArgumentError: it is malformed.
    """
    found = _part(arguments, REQUIRED, NodeSelector, other=(PREFERRED, "nodeorder"))
    if found is None:
        return None
    if not found.node_selector_terms:
        raise ArgumentError(NAME, f"{REQUIRED} must have nodeSelectorTerms")
    for term in found.node_selector_terms:
        _check(term)
    return found


def preferred(arguments: Mapping[str, object]) -> tuple[PreferredSchedulingTerm, ...]:
    """Return which nodes are preferred.

    Raises:
        ArgumentError: it is malformed.
    """
    kind = tuple[PreferredSchedulingTerm, ...]
    found = _part(arguments, PREFERRED, kind, other=(REQUIRED, "predicates"))
    for each in found or ():
        if not 1 <= each.weight <= _MAX_WEIGHT:
            raise ArgumentError(NAME, f"weight must be from 1 to {_MAX_WEIGHT}: {each.weight}")
        _check(each.preference)
    return found or ()


def _part(
    arguments: Mapping[str, object], key: str, kind: type[T], *, other: tuple[str, str]
) -> T | None:
    given = mapping(arguments, NAME)
    if other[0] in given:
        raise ArgumentError(NAME, f"{other[0]} is an argument of the plugin {other[1]}")
    value = given.get(key)
    require_read(given, NAME)
    if value is None:
        return None
    try:
        found: T = msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ArgumentError(NAME, f"{key}: {error}") from error
    if unknown := _unread(value, msgspec.to_builtins(found)):
        raise ArgumentError(NAME, f"{key}: unknown field {unknown!r}")
    return found


def _unread(given: object, read: object) -> str:
    """Return a key in *given* that is not in *read*, apart from those of empty values."""
    if isinstance(given, dict):
        known = read if isinstance(read, dict) else {}
        for key, value in given.items():
            if key not in known and value not in (None, "", [], {}):
                return str(key)
            if found := _unread(value, known.get(key)):
                return found
    if isinstance(given, list) and isinstance(read, list | tuple):
        return next(filter(None, map(_unread, given, read)), "")
    return ""


def _check(term: NodeSelectorTerm) -> None:
    """Check the operators of *term*: a wrong one would match no node at all."""
    if not term.match_expressions and not term.match_fields:
        raise ArgumentError(NAME, "a term without matchExpressions and matchFields matches no node")
    for each in (*term.match_expressions, *term.match_fields):
        if each.operator not in ("In", "NotIn", *_VALUE_COUNTS):
            raise ArgumentError(NAME, f"{each.key}: unknown operator {each.operator!r}")
        fewest, most = _VALUE_COUNTS.get(each.operator, _ONE_OR_MORE)
        if not fewest <= len(each.values) <= most:
            problem = f"operator {each.operator} with {len(each.values)} values"
            raise ArgumentError(NAME, f"{each.key}: {problem}")
    for field in term.match_fields:
        if field.key != "metadata.name" or field.operator not in ("In", "NotIn"):
            raise ArgumentError(NAME, "matchFields must be of metadata.name with In or NotIn")
