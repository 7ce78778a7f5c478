"""Checks of single values, each compiled once per schema node and called for every value.

Messages are kube-apiserver's, because clients show them and some tests match them.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from ....machinery.cel.formats import format_named
from ..errors.fields import (
    FieldError,
    duplicate,
    invalid,
    not_supported,
    too_long,
    too_many,
    wrong_type,
)
from .go_regex import compile_go, program_size, spend

MISSING: Any = object()
"""Used instead of an old value if there was none."""

Check = Callable[[Any, str, list[FieldError], Any], None]
"""Called with value, path, the errors so far and the old value; appends to the errors."""

Compile = Callable[[Mapping[str, Any]], Check]

_INT32 = (-(2**31), 2**31 - 1)
_INT_OR_STRING = [{"type": "integer"}, {"type": "string"}]
_GO_NAMES = {
    dict: "object",
    list: "array",
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "float64",
    type(None): "null",
}
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "number": (int, float),
}


class ValueChecks(NamedTuple):
    """Checks of a node without its children."""

    of_type: Check
    logical: list[Check]
    """For values of any type."""

    of_value: list[Check]
    """For values of the right type only."""


def value_checks(schema: Mapping[str, Any], compile_node: Compile) -> ValueChecks:
    """Compile the checks of a node without its children."""
    factories = (_bounds, _lengths, _pattern, _format, _sizes, _uniqueness)
    of_value = [check for factory in factories if (check := factory(schema))]
    enum = _enum(schema)
    logical = [*((enum,) if enum else ()), *_logical_checks(schema, compile_node)]
    return ValueChecks(_type_check(schema), logical, of_value)


def _where(path: str) -> str:
    return f"{path} in body"


def _type_check(schema: Mapping[str, Any]) -> Check:
    if schema.get("x-kubernetes-int-or-string"):
        return _int_or_string
    name = schema.get("type")
    if name == "integer":
        return _integer_check(schema.get("format", ""))
    allowed = _TYPES.get(name or "")
    if allowed is None:
        return _anything

    def check(value: Any, path: str, errors: list[FieldError], old: Any) -> None:
        if type(value) not in allowed:
            errors.append(_of_type(path, value, str(name)))

    return check


def _of_type(path: str, value: Any, name: str, *, number: str = "float64") -> FieldError:
    # A number that is no integer is a float, whose name in messages varies.
    given = number if _is_number(value) and not _is_whole(value) else _GO_NAMES[type(value)]
    return wrong_type(path, given, f'{_where(path)} must be of type {name}: "{given}"')


def _anything(value: Any, path: str, errors: list[FieldError], old: Any) -> None:
    """Accept every type."""


def _int_or_string(value: Any, path: str, errors: list[FieldError], old: Any) -> None:
    if type(value) is not str and not _is_whole(value):
        errors.append(_of_type(path, value, "integer,string", number="number"))


def _is_whole(value: Any) -> bool:
    """Return whether a value is an integer to Go, which decodes numbers beyond int64 as float."""
    if type(value) is float:
        return value.is_integer() and abs(value) < 2**53
    return type(value) is int and -(2**63) <= value < 2**63


def _integer_check(form: str) -> Check:
    shown = "float64" if form else "number"
    text = f"with format {form}" if form else "(default format)"

    def check(value: Any, path: str, errors: list[FieldError], old: Any) -> None:
        number, whole = _is_number(value), _is_whole(value)
        if not whole:
            errors.append(
                _of_type(path, value, form if number and form else "integer", number=shown)
            )
        fits = whole and (form != "int32" or _INT32[0] <= value <= _INT32[1])
        if number and not fits:
            errors.append(_of_whole(f"Checked value must be of type integer {text} in {path}"))

    return check


def _enum(schema: Mapping[str, Any]) -> Check | None:
    allowed = schema.get("enum")
    if not allowed:
        return None
    texts = {msgspec.json.encode(value) for value in allowed}

    def check(value: Any, path: str, errors: list[FieldError], old: Any) -> None:
        # As text, because Python takes True for 1.
        if msgspec.json.encode(value) not in texts:
            errors.append(not_supported(path, value, allowed))

    return check


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _bounds(schema: Mapping[str, Any]) -> Check | None:
    low = schema.get("minimum", -math.inf)
    high = schema.get("maximum", math.inf)
    step = schema.get("multipleOf")
    above, below = schema.get("exclusiveMinimum", False), schema.get("exclusiveMaximum", False)
    if step is None and low == -math.inf and high == math.inf:
        return None

    def check(value: Any, path: str, errors: list[FieldError], old: Any) -> None:
        if not _is_number(value):
            return
        problem = ""
        if value < low or (above and value == low):
            problem = f"should be greater than {'' if above else 'or equal to '}{low:g}"
        elif value > high or (below and value == high):
            problem = f"should be less than {'' if below else 'or equal to '}{high:g}"
        elif step and math.remainder(value, step):
            problem = f"should be a multiple of {step:g}"
        if problem:
            errors.append(invalid(path, value, f"{_where(path)} {problem}"))

    return check


def _lengths(schema: Mapping[str, Any]) -> Check | None:
    low, high = schema.get("minLength", 0), schema.get("maxLength")
    if not low and high is None:
        return None

    def check(value: Any, path: str, errors: list[FieldError], old: Any) -> None:
        if type(value) is not str:
            return
        if high is not None and len(value) > high:
            errors.append(too_long(path, high))
        if len(value) < low:
            text = f"{_where(path)} should be at least {low} chars long"
            errors.append(invalid(path, value, text))

    return check


def _pattern(schema: Mapping[str, Any]) -> Check | None:
    pattern = schema.get("pattern")
    if not pattern:
        return None
    search, size = compile_go(pattern), program_size(pattern)

    def check(value: Any, path: str, errors: list[FieldError], old: Any) -> None:
        if type(value) is not str:
            return
        spend(size * len(value), path)
        if not search(value):
            errors.append(invalid(path, value, f"{_where(path)} should match '{pattern}'"))

    return check


def _format(schema: Mapping[str, Any]) -> Check | None:
    name = schema.get("format", "")
    fits = format_named(name)
    if fits is None:
        return None

    def check(value: Any, path: str, errors: list[FieldError], old: Any) -> None:
        if type(value) is str and not fits(value):
            text = f'{_where(path)} must be of type {name}: "{value}"'
            errors.append(wrong_type(path, value, text))

    return check


def _sizes(schema: Mapping[str, Any]) -> Check | None:
    low = schema.get("minItems", schema.get("minProperties", 0))
    high = schema.get("maxItems", schema.get("maxProperties"))
    if not low and high is None:
        return None
    noun = "items" if "minItems" in schema else "properties"

    def check(value: Any, path: str, errors: list[FieldError], old: Any) -> None:
        if type(value) not in (list, dict):
            return
        if high is not None and len(value) > high:
            errors.append(too_many(path, len(value), high))
        if len(value) < low:
            text = f"{_where(path)} should have at least {low} {noun}"
            errors.append(invalid(path, len(value), text))

    return check


def _uniqueness(schema: Mapping[str, Any]) -> Check | None:
    """Check that the items of a set, or the keys of a map list, are unique."""
    kind = schema.get("x-kubernetes-list-type")
    keys = tuple(schema.get("x-kubernetes-list-map-keys", ()))
    if kind not in ("set", "map"):
        return None

    def check(value: Any, path: str, errors: list[FieldError], old: Any) -> None:
        if type(value) is not list:
            return
        seen = set()
        for index, item in enumerate(value):
            identity = item
            if kind == "map":
                if type(item) is not dict:
                    continue
                identity = {key: item[key] for key in keys if key in item}
            text = msgspec.json.encode(identity, order="sorted")
            if text in seen:
                errors.append(duplicate(f"{path}[{index}]", identity))
            seen.add(text)

    return check


def _logical_checks(schema: Mapping[str, Any], compile_node: Compile) -> list[Check]:
    factories = (("anyOf", _any_of), ("oneOf", _one_of), ("allOf", _all_of))
    checks = [
        factory([compile_node(branch) for branch in schema[name]])
        for name, factory in factories
        if schema.get(name)
    ]
    if schema.get("x-kubernetes-int-or-string") and schema.get("anyOf") == _INT_OR_STRING:
        # The branches allow what the type allows: skip them, because quantities are frequent.
        checks[0] = _unless_int_or_string(checks[0])
    return [*checks, _not(compile_node(schema["not"]))] if "not" in schema else checks


def _unless_int_or_string(rest: Check) -> Check:
    def check(value: Any, path: str, errors: list[FieldError], old: Any) -> None:
        if type(value) is not str and not _is_whole(value):
            rest(value, path, errors, old)

    return check


def _results(branches: list[Check], value: Any, path: str) -> list[list[FieldError]]:
    """Collect the errors of each branch."""
    results: list[list[FieldError]] = []
    for branch in branches:
        found: list[FieldError] = []
        branch(value, path, found, MISSING)
        results.append(found)
    return results


def _any_of(branches: list[Check]) -> Check:
    def check(value: Any, path: str, errors: list[FieldError], old: Any) -> None:
        results = _results(branches, value, path)
        if all(results):
            errors.append(_of_whole(f'"{path}" must validate at least one schema (anyOf)'))
            errors += results[0]

    return check


def _one_of(branches: list[Check]) -> Check:
    def check(value: Any, path: str, errors: list[FieldError], old: Any) -> None:
        results = _results(branches, value, path)
        fitting = sum(not found for found in results)
        if fitting != 1:
            count = f"Found {fitting} valid alternatives" if fitting else "Found none valid"
            text = f'"{path}" must validate one and only one schema (oneOf). {count}'
            errors.append(_of_whole(text))
            errors += [] if fitting else results[0]

    return check


def _all_of(branches: list[Check]) -> Check:
    def check(value: Any, path: str, errors: list[FieldError], old: Any) -> None:
        results = _results(branches, value, path)
        errors += [error for found in results for error in found]
        if any(results):
            none = ". None validated" if all(results) else ""
            errors.append(_of_whole(f'"{path}" must validate all the schemas (allOf){none}'))

    return check


def _not(branch: Check) -> Check:
    def check(value: Any, path: str, errors: list[FieldError], old: Any) -> None:
        if not _results([branch], value, path)[0]:
            errors.append(_of_whole(f'"{path}" must not validate the schema (not)'))

    return check


def _of_whole(text: str) -> FieldError:
    """Return an error that names its field only in the text."""
    return FieldError("FieldValueInvalid", "<nil>", f'Invalid value: "": {text}')
