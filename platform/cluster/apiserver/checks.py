"""The checks that a schema can ask of one value, each made once and called for every value.

The words are those of kube-apiserver, because clients show them and some tests look for them.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from .fields import FieldError, duplicate, invalid, not_supported, too_long, too_many, wrong_type
from .formats import FORMATS
from .go_regex import compile_go

MISSING: Any = object()
"""In place of an old value where there was none."""

Check = Callable[[Any, str, list[FieldError], Any], None]
"""Called with value, path, the errors so far and the old value; adds to the errors."""

Compile = Callable[[Mapping[str, Any]], Check]

_INT32 = (-(2**31), 2**31 - 1)
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


def value_checks(schema: Mapping[str, Any], compile_node: Compile) -> list[Check]:
    """Make the checks of a node itself; the first is that of its type."""
    makers = (_enum, _bounds, _lengths, _pattern, _format, _sizes, _uniqueness)
    checks = [_type_check(schema), *(made for make in makers if (made := make(schema)))]
    checks += _junctors(schema, compile_node)
    return checks


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


def _of_type(path: str, value: Any, name: str) -> FieldError:
    given = _GO_NAMES.get(type(value), "string")
    return wrong_type(path, given, f'{_where(path)} must be of type {name}: "{given}"')


def _anything(value: Any, path: str, errors: list[FieldError], old: Any) -> None:
    """Accept every type."""


def _int_or_string(value: Any, path: str, errors: list[FieldError], old: Any) -> None:
    if type(value) not in (int, str):
        errors.append(_of_type(path, value, "integer,string"))


def _integer_check(form: str) -> Check:
    def check(value: Any, path: str, errors: list[FieldError], old: Any) -> None:
        whole = type(value) is int or (type(value) is float and value.is_integer())
        if not whole:
            name = form if type(value) is float and form else "integer"
            errors.append(_of_type(path, value, name))
        fits = whole and _INT32[0] <= value <= _INT32[1]
        if form == "int32" and type(value) in (int, float) and not fits:
            text = f"Checked value must be of type integer with format int32 in {path}"
            errors.append(FieldError("FieldValueInvalid", "<nil>", f'Invalid value: "": {text}'))

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
    compiled = compile_go(pattern) if pattern else None
    if compiled is None:
        return None
    search = compiled.search

    def check(value: Any, path: str, errors: list[FieldError], old: Any) -> None:
        if type(value) is str and not search(value):
            errors.append(invalid(path, value, f"{_where(path)} should match '{pattern}'"))

    return check


def _format(schema: Mapping[str, Any]) -> Check | None:
    name = schema.get("format", "")
    fits = FORMATS.get(name)
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
    """Check that the entries of a set, or the keys of a list that is a map, are unique."""
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


def _junctors(schema: Mapping[str, Any], compile_node: Compile) -> list[Check]:
    made = []
    for name, wants in (
        ("allOf", "all the schemas"),
        ("anyOf", "at least one schema"),
        ("oneOf", "one and only one schema"),
    ):
        if branches := schema.get(name):
            made.append(_junctor(name, wants, [compile_node(branch) for branch in branches]))
    if "not" in schema:
        made.append(_junctor("not", "the schema", [compile_node(schema["not"])]))
    return made


def _junctor(name: str, wants: str, branches: list[Check]) -> Check:
    verb = "must not validate" if name == "not" else "must validate"

    def check(value: Any, path: str, errors: list[FieldError], old: Any) -> None:
        results: list[list[FieldError]] = []
        for branch in branches:
            found: list[FieldError] = []
            branch(value, path, found, MISSING)
            results.append(found)
        fitting = sum(not found for found in results)
        fits = {
            "allOf": fitting == len(branches),
            "anyOf": fitting > 0,
            "oneOf": fitting == 1,
            "not": fitting == 0,
        }[name]
        if fits:
            return
        more = ". Found none valid" if name == "oneOf" and not fitting else ""
        errors.append(invalid(path, _shown(value), f'"{path}" {verb} {wants} ({name}){more}'))
        if len(results) == 1 or name == "allOf":
            errors.extend(error for found in results for error in found)

    return check


def _shown(value: Any) -> Any:
    return "" if isinstance(value, dict | list) else value
