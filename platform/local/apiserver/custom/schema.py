"""Structural schemas of custom kinds, compiled to closures: one per node and task.

:func:`compile_schema` compiles the OpenAPI of a definition to a :class:`StructuralSchema`, which
prunes, defaults and validates objects. Single values are validated in :mod:`.value_validation`;
whether a schema is structural is checked in :mod:`.structural`.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from ....machinery.cel.environment import CompileError
from ..errors.fields import FieldError, forbidden, invalid, required
from ..kinds import go_types
from ..kinds.info import OFFLOAD_THRESHOLD
from ..kinds.metadata import TYPE_META
from .go_regex import PatternStepsError, limited_steps, program_size
from .rules import RuleNode, are_checked, has_rules, rule_errors, rule_node
from .sharing import SHARED
from .structural import structural_errors
from .value_validation import MISSING, Check, value_checks

Schema = Mapping[str, Any]
Prune = Callable[[Any], list[str] | None]
"""Removes unknown fields in place; returns their paths below the value."""

Default = Callable[[Any], None]
"""Sets defaults below the value, in place."""

_RULES_THRESHOLD = 16 * 1024
"""Bytes of an object from which rules in CEL may take too long for the event loop."""

_STEPS = 4_000_000
"""Steps of matching patterns that take some 25 ms."""

__all__ = ["FieldError", "StructuralSchema", "compile_schema", "schema_errors"]


class StructuralSchema:
    """A compiled schema. Objects are plain JSON dicts, modified in place."""

    def __init__(self, openapi: Schema) -> None:
        self.openapi = openapi = SHARED.share(openapi)
        """The schema itself, not to be changed."""
        self._prune = _pruner(openapi, embedded=True) or _prune_nothing
        self._default = _defaulter(openapi)
        self._check = _checker(openapi)
        self.has_rules = has_rules(openapi)
        """Whether the schema has rules in CEL."""

        limit = _RULES_THRESHOLD if self.has_rules else OFFLOAD_THRESHOLD
        self.offload_threshold = min(limit, _STEPS // max(_matching_steps(openapi), 1))
        """Bytes of an object from which validation may take too long for the event loop."""

    def prune(self, obj: dict[str, Any]) -> list[str]:
        """Remove unknown fields, and nulls if not nullable; return the unknown paths."""
        return sorted(self._prune(obj) or ())

    def default(self, obj: dict[str, Any]) -> None:
        """Set defaults."""
        if self._default:
            self._default(obj)

    @cached_property
    def _rules(self) -> RuleNode | CompileError | None:
        """The rules in CEL, compiled on first use; why they do not compile."""
        try:
            return rule_node(self.openapi, is_resource=True)
        except CompileError as error:
            return error

    def validate_rules(
        self, obj: dict[str, Any], old: dict[str, Any] | None = None
    ) -> list[FieldError]:
        """Evaluate the rules in CEL for *obj*, which is otherwise valid."""
        errors: list[FieldError] = []
        rules = self._rules
        if isinstance(rules, CompileError):
            # Only of a definition that an older version of Batholith has accepted.
            text = f"rule compiler initialization error: {rules}"
            errors.append(invalid("", "object", text))
        elif rules is not None:
            rules.validate(obj, MISSING if old is None else old, "", errors)
        return errors

    def validate(self, obj: dict[str, Any], old: dict[str, Any] | None = None) -> list[FieldError]:
        """Validate *obj*; errors of unchanged values in *old* are tolerated."""
        errors: list[FieldError] = []
        try:
            with limited_steps():
                self._check(obj, "", errors, MISSING if old is None else old)
        except PatternStepsError as error:
            errors.append(forbidden(error.path, str(error)))
        return errors


def compile_schema(openapi: Schema) -> StructuralSchema:
    """Compile the schema of an object.

    Raises:
        ValueError: the schema is not structural; the message names the path.
    """
    if errors := schema_errors(openapi, "openAPIV3Schema"):
        raise ValueError(errors[0].message)
    return StructuralSchema(openapi)


def schema_errors(openapi: Schema, path: str) -> list[FieldError]:
    """Return the errors of a schema: not structural, or with invalid defaults."""
    try:
        with limited_steps():
            found = structural_errors(openapi, path) or _default_errors(openapi, path)
            if found or not has_rules(openapi) or are_checked(openapi):
                return found
            return rule_errors(openapi, path)
    except PatternStepsError as error:
        return [forbidden(path, str(error))]


def _default_errors(schema: Schema, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    if "default" in schema:
        value = copy.deepcopy(schema["default"])
        if (complete := _defaulter(schema)) is not None:
            complete(value)
        _checker(schema)(value, "", errors, MISSING)
        errors = [error._replace(field=f"{path}.default") for error in errors]
    for key, node in schema.get("properties", {}).items():
        errors += _default_errors(node, f"{path}.properties[{key}]")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            errors += _default_errors(schema[key], f"{path}.{key}")
    return errors


def _matching_steps(schema: Schema) -> int:
    """Return the maximum pattern steps per character of an object."""
    return SHARED.compiled("steps", schema, _count_matching_steps)


def _count_matching_steps(schema: Schema) -> int:
    here = [schema["not"]] if schema.get("not") else []
    for junctor in ("allOf", "anyOf", "oneOf"):
        here += schema.get(junctor) or ()
    below = [*schema.get("properties", {}).values(), schema.get("items")]
    below.append(schema.get("additionalProperties"))
    deeper = max((_matching_steps(node) for node in below if isinstance(node, dict)), default=0)
    # Branches validate the same value as the node.
    own = program_size(schema["pattern"]) if schema.get("pattern") else 0
    return max(own, deeper) + sum(map(_matching_steps, here))


# Pruning


def _prune_nothing(value: Any) -> list[str] | None:
    return None


def _pruner(schema: Schema, *, embedded: bool = False) -> Prune | None:
    """Return the pruner of a node, ``None`` if it keeps everything."""
    if "items" in schema:
        return _list_pruner(_pruner(schema["items"]))
    additional = schema.get("additionalProperties")
    if additional is not None and additional is not False:
        return _map_pruner(additional) if isinstance(additional, dict) else None
    embedded = embedded or schema.get("x-kubernetes-embedded-resource", False)
    is_object = schema.get("type") == "object" or "properties" in schema
    if not is_object:
        return None
    if embedded:
        return _object_pruner(schema, embedded=True)
    return SHARED.compiled("prune", schema, _object_pruner)


def _list_pruner(prune: Prune | None) -> Prune | None:
    if prune is None:
        return None

    def prune_list(value: Any) -> list[str] | None:
        if type(value) is not list:
            return None
        unknown: list[str] = []
        for index, item in enumerate(value):
            if found := prune(item):
                unknown += [f"[{index}]{_joint(path)}" for path in found]
        return unknown

    return prune_list


def _joint(path: str) -> str:
    return path if path.startswith("[") else f".{path}"


def _map_pruner(schema: Schema) -> Prune:
    prune = _pruner(schema)
    nullable = schema.get("nullable", False)

    def prune_map(value: Any) -> list[str] | None:
        if type(value) is not dict:
            return None
        unknown: list[str] = []
        nulls = []
        for key, item in value.items():
            if item is None and not nullable:
                nulls.append(key)
            elif prune and (found := prune(item)):
                unknown += [key + _joint(path) for path in found]
        for key in nulls:
            del value[key]
        return unknown

    return prune_map


def _object_pruner(schema: Schema, *, embedded: bool = False) -> Prune:
    fields = _known_fields(schema, embedded=embedded)
    keep = schema.get("x-kubernetes-preserve-unknown-fields", False)
    other = (False, None) if keep else None

    def prune_object(value: Any) -> list[str] | None:
        if type(value) is not dict:
            return None
        unknown: list[str] = []
        dropped = []
        for key, item in value.items():
            field = fields.get(key, other)
            if field is None:
                dropped.append(key)
                unknown.append(key)
            elif item is None:
                if field[0]:
                    dropped.append(key)
            elif field[1] and (found := field[1](item)):
                unknown += [key + _joint(path) for path in found]
        for key in dropped:
            del value[key]
        return unknown

    return prune_object


def _known_fields(schema: Schema, *, embedded: bool) -> dict[str, tuple[bool, Prune | None]]:
    """Return for each field whether a null is dropped, and the pruner of its value."""
    fields: dict[str, tuple[bool, Prune | None]] = {
        key: (not node.get("nullable", False), _pruner(node))
        for key, node in schema.get("properties", {}).items()
    }
    if embedded:
        head: dict[str, tuple[bool, Prune | None]] = dict.fromkeys(TYPE_META, (False, None))
        fields |= {**head, "metadata": (False, _prune_metadata)}
    return fields


def _prune_metadata(value: Any) -> list[str] | None:
    if type(value) is not dict:
        return None
    known = go_types.json_fields(go_types.OBJECT_META)
    unknown = [key for key in value if key not in known]
    for key in [key for key, item in value.items() if item is None or key not in known]:
        del value[key]
    return unknown


# Defaulting


def _defaulter(schema: Schema) -> Default | None:
    """Return the defaulter of a node, ``None`` if there is no default below it."""
    return SHARED.compiled("default", schema, _compile_defaulter)


def _compile_defaulter(schema: Schema) -> Default | None:
    if "items" in schema:
        below = _defaulter(schema["items"])
        return _each(below) if below else None
    additional = schema.get("additionalProperties")
    if isinstance(additional, dict):
        below = _defaulter(additional)
        return _each(below) if below else None
    properties = schema.get("properties", {})
    values = [(key, node["default"]) for key, node in properties.items() if "default" in node]
    inner = [
        (key, defaulter) for key, node in properties.items() if (defaulter := _defaulter(node))
    ]
    if not values and not inner:
        return None

    def default_object(value: Any) -> None:
        if type(value) is not dict:
            return
        for key, default in values:
            if key not in value:
                value[key] = copy.deepcopy(default)
        for key, below in inner:
            if key in value:
                below(value[key])

    return default_object


def _each(below: Default) -> Default:
    def default_each(value: Any) -> None:
        if isinstance(value, dict | list):
            for item in value.values() if isinstance(value, dict) else value:
                below(item)

    return default_each


# Validation


def _checker(schema: Schema) -> Check:
    """Return the check of a node and of everything below it."""
    return SHARED.compiled("check", schema, _compile_checker)


def _compile_checker(schema: Schema) -> Check:
    of_type, junctors, checks = value_checks(schema, _checker)
    checks += _presence_checks(schema)
    nullable = schema.get("nullable", False)
    below = _below(schema)
    if not (junctors or checks or nullable or below):
        return of_type
    if below and not (junctors or nullable) and schema.get("type") in _CONTAINERS:
        return _container_check(_CONTAINERS[schema["type"]], of_type, checks, below)

    def check(value: Any, path: str, errors: list[FieldError], old: Any) -> None:
        if value is None and nullable:
            return
        found = len(errors)
        of_type(value, path, errors, old)
        fits = len(errors) == found
        for each in junctors:
            each(value, path, errors, old)
        if not fits:
            return
        for each in checks:
            each(value, path, errors, old)
        if below:
            below(value, path, errors, old)

    return check


def _presence_checks(schema: Schema) -> Iterator[Check]:
    if keys := schema.get("required"):
        yield _requires(tuple(keys))
    if schema.get("x-kubernetes-embedded-resource"):
        yield _requires_head


_CONTAINERS: Mapping[str, type] = {"object": dict, "array": list}


def _container_check(container: type, of_type: Check, checks: list[Check], below: Check) -> Check:
    def check(value: Any, path: str, errors: list[FieldError], old: Any) -> None:
        if type(value) is not container:
            of_type(value, path, errors, old)
            return
        for each in checks:
            each(value, path, errors, old)
        below(value, path, errors, old)

    return check


def _requires(keys: tuple[str, ...]) -> Check:
    def check(value: Any, path: str, errors: list[FieldError], old: Any) -> None:
        if type(value) is dict:
            errors += [required(_join(path, key)) for key in keys if key not in value]

    return check


def _requires_head(value: Any, path: str, errors: list[FieldError], old: Any) -> None:
    errors += [required(_join(path, key)) for key in TYPE_META if not value.get(key)]


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _below(schema: Schema) -> Check | None:
    if "items" in schema:
        return _items_check(_checker(schema["items"]), schema)
    additional = schema.get("additionalProperties")
    if isinstance(additional, dict):
        return _values_check(_checker(additional))
    if properties := schema.get("properties"):
        return _properties_check(
            {key: (_plain_type(node), _checker(node)) for key, node in properties.items()}
        )
    return None


_PLAIN_TYPES: Mapping[str, type] = {"string": str, "boolean": bool}
_UNCHECKED_KEYS = frozenset({"type", "nullable", "default", "description", "title", "example"})


def _plain_type(schema: Schema) -> type | None:
    """Return the Python type of the values that are valid because of their type alone."""
    return _PLAIN_TYPES.get(schema.get("type", "")) if schema.keys() <= _UNCHECKED_KEYS else None


def _properties_check(checks: Mapping[str, tuple[type | None, Check]]) -> Check:
    def check(value: Any, path: str, errors: list[FieldError], old: Any) -> None:
        if type(value) is not dict:
            return
        before = old if type(old) is dict else {}
        for key, item in value.items():
            if (found := checks.get(key)) and type(item) is not found[0]:
                was = before.get(key, MISSING)
                if was is MISSING or was != item:
                    found[1](item, f"{path}.{key}" if path else key, errors, was)

    return check


def _values_check(below: Check) -> Check:
    def check(value: Any, path: str, errors: list[FieldError], old: Any) -> None:
        if type(value) is not dict:
            return
        before = old if type(old) is dict else {}
        for key, item in value.items():
            was = before.get(key, MISSING)
            if was is MISSING or was != item:
                below(item, _join(path, key), errors, was)

    return check


def _items_check(below: Check, schema: Schema) -> Check:
    keys = schema.get("x-kubernetes-list-map-keys", ())

    def check(value: Any, path: str, errors: list[FieldError], old: Any) -> None:
        if type(value) is not list:
            return
        # Only items with an identity have an old value.
        before = (
            {_identity(item, keys): item for item in old if type(item) is dict}
            if keys and type(old) is list
            else {}
        )
        for index, item in enumerate(value):
            was = before.get(_identity(item, keys), MISSING) if before else MISSING
            if was is MISSING or was != item:
                below(item, f"{path}[{index}]", errors, was)

    return check


def _identity(item: Any, keys: tuple[str, ...]) -> str:
    return repr([item.get(key) for key in keys]) if type(item) is dict else repr(item)
