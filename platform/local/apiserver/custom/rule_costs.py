"""Costs of the rules in a definition: those that could take too long are not accepted.

As on kube-apiserver, a schema bounds the sizes of values by ``maxItems``, ``maxProperties`` and
``maxLength``, or by what fits into a request.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ....machinery.cel.cost import MOST, Path, Size
from ..cel.schema_types import Schema, escape
from ..errors.fields import FieldError, forbidden
from .rules import KEY, branches_with_rules, environment, nodes_below

MAX_COST = 10_000_000
"""Units that all evaluations of one rule may cost."""

MAX_TOTAL = 100_000_000
"""Units that all rules of one schema may cost."""

_SHOWN = 4
"""Rules that are named if the total is too large."""

_REQUEST_SIZE = 3 * 1024 * 1024
_TIME_SIZE, _DATE_SIZE = 32, 12
_SCALARS = {"boolean": 4, "number": 1, "integer": 1}
"""Least bytes of a value in JSON."""

_TEXTS = {
    "duration": (_TIME_SIZE, 3), "date": (_DATE_SIZE, _DATE_SIZE), "date-time": (_TIME_SIZE, 21),
}  # fmt: skip
"""Most characters of a text, and its least bytes in JSON, by format."""

_IDENTITY: Schema = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "generateName": {"type": "string"}},
}


class _Value(NamedTuple):
    """What a schema allows."""

    most: int = 0
    """Most items or characters."""

    least_bytes: int = 2
    """Of the value in JSON."""

    fields: Mapping[str, "_Value"] = {}
    item: "_Value | None" = None
    key: "_Value | None" = None

    def at(self, step: str) -> "_Value | None":
        """Return the value after one step of a path."""
        if step in ("@items", "@values"):
            return self.item
        return self.key if step == "@keys" else self.fields.get(step)


def _value(schema: Schema, *, is_resource: bool = False) -> _Value | None:
    """Return what a schema allows; ``None`` if rules cannot refer to it."""
    is_resource = is_resource or bool(schema.get("x-kubernetes-embedded-resource"))
    longest = schema.get("maxLength")
    if schema.get("x-kubernetes-int-or-string"):
        return _Value(_REQUEST_SIZE - 2 if longest is None else 4 * longest, 1)
    kind = schema.get("type")
    if kind == "array":
        return _array(schema)
    if kind == "object":
        return _object(schema, is_resource=is_resource)
    if kind == "string":
        return _text(schema)
    return _Value(0, _SCALARS[kind]) if kind in _SCALARS else None


def _array(schema: Schema) -> _Value | None:
    item = _value(schema.get("items") or {})
    if item is None:
        return None
    most = schema.get("maxItems")
    if most is None:
        most = (_REQUEST_SIZE - 2) // (item.least_bytes + 1)
    return _Value(max(most, 0), item=item)


def _object(schema: Schema, *, is_resource: bool) -> _Value | None:
    additional = schema.get("additionalProperties")
    if isinstance(additional, Mapping):
        value = _value(additional)
        if value is None:
            return None
        most = schema.get("maxProperties")
        if most is None:
            most = (_REQUEST_SIZE - 2) // (value.least_bytes + 6)
        return _Value(max(most, 0), item=value, key=_Value())
    properties = dict(schema.get("properties") or {})
    if is_resource:
        text = {"type": "string"}
        properties |= {"kind": text, "apiVersion": text, "metadata": _IDENTITY}
    fields, least_bytes = {}, 2
    for name, node in properties.items():
        found = _value(node)
        if found is None:
            continue
        if (field := escape(name)) is not None:
            fields[field] = found
        if name in (schema.get("required") or ()) and "default" not in node:
            least_bytes += len(name) + found.least_bytes + 4
    return _Value(0, least_bytes, fields)


def _text(schema: Schema) -> _Value:
    known = _TEXTS.get(schema.get("format", ""))
    if known is not None:
        return _Value(*known)
    longest, enum = schema.get("maxLength"), schema.get("enum")
    if longest is not None:
        characters = 1 if schema.get("format") == "byte" else 4
        return _Value(max(longest, 0) * characters)
    if enum and schema.get("format") != "byte":
        return _Value(max(len(each.encode()) for each in enum if isinstance(each, str)))
    return _Value(_REQUEST_SIZE - 2)


class _Rule(NamedTuple):
    """The cost of one expression."""

    path: str
    cost: int


def cost_errors(schema: Schema, path: str) -> list[FieldError]:
    """Return the errors of rules in a valid structural schema that could cost too much."""
    errors: list[FieldError] = []
    rules: list[_Rule] = []
    for what, rule in _rules(schema, path, 1, is_resource=True):
        rules.append(rule)
        if rule.cost > MAX_COST:
            errors.append(forbidden(rule.path, _message(what, rule.cost, MAX_COST)))
    total = min(sum(rule.cost for rule in rules), MOST)
    if total > MAX_TOTAL:
        expensive = [rule for rule in rules if rule.cost >= MAX_TOTAL // 100]
        text = "contributed to estimated rule cost total exceeding cost limit for entire"
        errors += [
            forbidden(rule.path, f"{text} OpenAPIv3 schema")
            for rule in sorted(expensive, key=lambda each: -each.cost)[:_SHOWN]
        ]
        what = "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema"
        errors.append(forbidden(path, _message(what, total, MAX_TOTAL)))
    return errors


def _rules(
    schema: Schema, path: str, count: int | None, *, is_resource: bool = False
) -> Iterator[tuple[str, _Rule]]:
    """Yield the cost of each expression; *count* is how many values of a node an object has.

    ``None`` if that is not limited.
    """
    is_resource = is_resource or bool(schema.get("x-kubernetes-embedded-resource"))
    below = count
    if count is not None:
        below = _times(count, schema)
    for step, node in nodes_below(schema):
        yield from _rules(node, path + step, below)
    if schema.get(KEY):
        yield from _node_rules(schema, path, count, is_resource=is_resource)
    for index, branch in enumerate(branches_with_rules(schema)):
        yield from _node_rules(branch, f"{path}.allOf[{index}]", count, is_resource=is_resource)


def _times(count: int, schema: Schema) -> int | None:
    """Return how many values there are below a node, of which there are *count*."""
    limit: Any = 1
    if schema.get("type") == "array":
        limit = schema.get("maxItems")
    elif schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        limit = schema.get("maxProperties")
    return None if limit is None else min(count * max(limit, 0), MOST)


def _node_rules(
    schema: Schema, path: str, count: int | None, *, is_resource: bool
) -> Iterator[tuple[str, _Rule]]:
    root = _value(schema, is_resource=is_resource)
    if root is None:
        return
    values = _REQUEST_SIZE // (root.least_bytes + 1) if count is None else count

    def size_of(steps: Path) -> Size | None:
        found: _Value | None = root
        for step in steps[1:]:
            found = found.at(step) if found else None
        return Size(0, found.most) if found else None

    for index, rule in enumerate(schema[KEY]):
        where = f"{path}.{KEY}[{index}]"
        optional = bool(rule.get("optionalOldSelf"))
        used = environment(schema, is_resource=is_resource, optional=optional)
        cost = used.estimate(rule["rule"], size_of)
        yield "estimated rule cost", _Rule(f"{where}.rule", min(cost * values, MOST))
        if message := rule.get("messageExpression"):
            cost = used.estimate(message, size_of)
            yield "estimated messageExpression cost", _Rule(f"{where}.messageExpression", cost)


def _message(what: str, cost: int, limit: int) -> str:
    factor = cost / limit
    text = f"{factor:.1f}x"
    if factor > 100:
        text = "more than 100x"
    elif factor < 1.5:
        text = f"{factor:f}x"
    return (
        f"{what} exceeds budget by factor of {text} (try simplifying the rule, or adding maxItems, "
        "maxProperties, and maxLength where arrays, maps, and strings are declared)"
    )
