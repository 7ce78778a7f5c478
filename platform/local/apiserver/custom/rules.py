"""``x-kubernetes-validations`` of schemas: rules in CEL, compiled with the schema.

Rules are evaluated after the schema has accepted an object. As on kube-apiserver, a rule that does
not use ``oldSelf`` is not evaluated for a value that has not changed.
"""

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import msgspec

from ....machinery.cel.cost import SizeOf
from ....machinery.cel.environment import (
    TOO_MANY_ITERATIONS,
    CompileError,
    Environment,
    EvaluationError,
    Program,
    evaluate_message,
)
from ....model import crds
from ..cel.schema_types import Convert, Schema, converter, schema_type
from ..errors.fields import (
    FieldError,
    duplicate,
    forbidden,
    invalid,
    invalid_whole,
    not_supported,
    required,
)
from .value_validation import MISSING

KEY = "x-kubernetes-validations"
MAX_SECONDS = 1.0
"""Processor time of the rules of one object."""

_REASONS = (
    "FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired",
)  # fmt: skip
_OUT_OF_BUDGET = (
    "validation failed due to running out of cost budget, no further validation rules will be run"
)
_OLD = re.compile(r"\boldSelf\b")
_STEP = re.compile(r"\.([^.\[\]]+)|\['((?:[^'\\]|\\.)*)'\]")


class Rule(NamedTuple):
    """One compiled rule."""

    text: str
    program: Program
    uses_old: bool
    optional_old: bool
    message: str
    message_program: Program | None
    reason: str
    field_path: str


class _Budget:
    """Processor time that is left for the rules of one object."""

    def __init__(self) -> None:
        self._end = time.thread_time() + MAX_SECONDS
        self.is_spent = False

    def check(self) -> bool:
        """Return whether time is left."""
        if not self.is_spent:
            self.is_spent = time.thread_time() > self._end
        return not self.is_spent


class RuleNode:
    """The rules of one node of a schema, and of the nodes below it."""

    def __init__(self, schema: Schema, *, is_resource: bool) -> None:
        """Compile the rules.

        Raises:
            CompileError: one has an error; definitions with one are not accepted.
        """
        self._type = schema.get("type", "")
        self._convert: Convert | None = None
        self._environment: Environment | None = None
        self._optional: Environment | None = None
        self._rules: list[Rule] = []
        if declared := schema.get(KEY):
            self._convert = converter(schema)
            self._environment = environment(schema, is_resource=is_resource)
            if any(each.get("optionalOldSelf") for each in declared):
                self._optional = environment(schema, is_resource=is_resource, optional=True)
            self._rules = [self._compile(each) for each in declared]
        self._keys = tuple(schema.get("x-kubernetes-list-map-keys") or ())
        self._items = rule_node(schema.get("items"))
        self._values = rule_node(schema.get("additionalProperties"))
        found = ((k, rule_node(node)) for k, node in (schema.get("properties") or {}).items())
        self._properties = {key: node for key, node in found if node is not None}
        self._all_of = [
            RuleNode(node, is_resource=is_resource) for node in branches_with_rules(schema)
        ]

    def _compile(self, rule: Mapping[str, Any]) -> Rule:
        used = self._optional if rule.get("optionalOldSelf") else self._environment
        if used is None:
            raise CompileError("the schema has no type for rules")
        text, message = rule["rule"], rule.get("messageExpression")
        return Rule(
            text=text,
            program=used.compile(text),
            uses_old=uses_old_self(text),
            optional_old=bool(rule.get("optionalOldSelf")),
            message=(rule.get("message") or "").strip(),
            message_program=used.compile(message) if message else None,
            reason=rule.get("reason") or "FieldValueInvalid",
            field_path=rule.get("fieldPath") or "",
        )

    def validate(self, value: Any, old: Any, path: str, errors: list[FieldError]) -> None:
        """Add the errors of *value*, which the schema has accepted; *old*: ``MISSING`` if none."""
        self._validate(value, old, path, errors, _Budget())

    def _validate(
        self, value: Any, old: Any, path: str, errors: list[FieldError], budget: _Budget
    ) -> None:
        if value is None or budget.is_spent:
            return
        if self._rules:
            self._evaluate(value, old, path, errors, budget)
        for branch in self._all_of:
            branch._validate(value, old, path, errors, budget)
        if isinstance(value, dict):
            before = old if isinstance(old, dict) else {}
            for key, item in value.items():
                node: RuleNode | None = self._properties.get(key)
                below = f"{path}.{key}" if path else key
                if node is None and self._values is not None:
                    node, below = self._values, f"{path}[{key}]"
                if node is not None:
                    node._validate(item, before.get(key, MISSING), below, errors, budget)
        elif isinstance(value, list) and self._items is not None:
            before_items = self._by_key(old)
            for index, item in enumerate(value):
                was = before_items.get(self._key(item), MISSING)
                self._items._validate(item, was, f"{path}[{index}]", errors, budget)

    def _by_key(self, old: Any) -> dict[str, Any]:
        """Return the old items of a list with keys: those of others have no old value."""
        if not self._keys or not isinstance(old, list):
            return {}
        return {self._key(item): item for item in old}

    def _key(self, item: Any) -> str:
        if not self._keys or not isinstance(item, dict):
            return ""
        return repr([item.get(key) for key in self._keys])

    def _evaluate(
        self, value: Any, old: Any, path: str, errors: list[FieldError], budget: _Budget
    ) -> None:
        convert = self._convert or (lambda same: same)
        is_new = old is MISSING or old is None
        unchanged = not is_new and old == value
        known: dict[str, Any] = {"self": convert(value)}
        if not is_new:
            known["oldSelf"] = convert(old)
        activations: dict[bool, Any] = {}
        for rule in self._rules:
            if (rule.uses_old and is_new and not rule.optional_old) or (
                unchanged and not rule.uses_old
            ):
                continue
            if not budget.check():
                errors.append(invalid(path, self._type, _OUT_OF_BUDGET))
                return
            activation = activations.get(rule.optional_old)
            if activation is None:
                activation = self._activation(known, optional=rule.optional_old)
                activations[rule.optional_old] = activation
            error = self._error(rule, activation, value, path, budget)
            if error is not None:
                errors.append(error)
            if budget.is_spent:
                return

    def _activation(self, known: dict[str, Any], *, optional: bool) -> Any:
        used = self._optional if optional else self._environment
        if used is None:
            raise EvaluationError("the schema has no type for rules")
        if not optional:
            return used.activation({"oldSelf": None, **known})
        # The library has no values of optional types, so expressions derive it from a list.
        return used.activation(
            {"self": known["self"], OLD_LIST: [known["oldSelf"]] if "oldSelf" in known else []}
        )

    def _error(
        self, rule: Rule, activation: Any, value: Any, path: str, budget: _Budget
    ) -> FieldError | None:
        shown = rule.message or rule.text.strip()
        try:
            if rule.program.evaluate(activation) is True:
                return None
        except EvaluationError as error:
            if str(error) == "no such overload":
                text = (
                    f"'{error}': call arguments did not match a supported operator, function or "
                    f"macro signature for rule: {shown}"
                )
                return invalid(path, self._type, text)
            if str(error) == TOO_MANY_ITERATIONS:
                budget.is_spent = True
                text = (
                    f"'{error}': no further validation rules will be run due to call cost exceeds "
                    f"limit for rule: {shown}"
                )
                return invalid(path, self._type, text)
            return invalid(path, self._type, f"{error} evaluating rule: {shown}")
        detail = (
            evaluate_message(rule.message_program, activation)
            or rule.message
            or f"failed rule: {shown}"
        )
        if rule.field_path:
            path = f"{path}{rule.field_path}" if path else rule.field_path.removeprefix(".")
        return _field_error(rule.reason, path, value, detail or f"failed rule: {shown}")


OLD_LIST = "oldSelfOrNone"
_OPTIONAL_PREFIX = f"cel.bind(oldSelf, {OLD_LIST}[?0], "


class _OptionalEnvironment(Environment):
    """Expressions in which ``oldSelf`` is an optional value."""

    def compile(self, expression: str) -> Program:
        return super().compile(f"{_OPTIONAL_PREFIX}{expression}\n)")

    def estimate(self, expression: str, size_of: SizeOf) -> int:
        return super().estimate(f"{_OPTIONAL_PREFIX}{expression}\n)", size_of)


def environment(schema: Schema, *, is_resource: bool, optional: bool = False) -> Environment:
    """Return the environment of the rules of a node."""
    found = schema_type(schema, is_resource=is_resource)
    if optional:
        variables = {"self": found.name, OLD_LIST: f"list({found.name})"}
        return _OptionalEnvironment(variables, descriptors=found.descriptors)
    variables = {"self": found.name, "oldSelf": found.name}
    return Environment(variables, descriptors=found.descriptors)


def uses_old_self(text: str) -> bool:
    """Return whether a rule is one about transitions."""
    return bool(_OLD.search(_without_literals(text)))


def _without_literals(text: str) -> str:
    return re.sub(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|//.*", "''", text)


def rule_node(schema: Any, *, is_resource: bool = False) -> RuleNode | None:
    """Return the compiled rules of a schema; ``None`` if it has none.

    Raises:
        CompileError: one has an error.
    """
    if not isinstance(schema, Mapping) or not has_rules(schema):
        return None
    embedded = bool(schema.get("x-kubernetes-embedded-resource"))
    return RuleNode(schema, is_resource=is_resource or embedded)


def has_rules(schema: Schema) -> bool:
    """Return whether a schema has rules anywhere."""
    branches = schema.get("allOf") or ()
    return (
        bool(schema.get(KEY))
        or any(node.get(KEY) for node in branches)
        or any(has_rules(node) for _, node in nodes_below(schema))
    )


def are_checked(schema: Schema) -> bool:
    """Return whether a schema is of our own definitions, so that its rules are known to be valid.

    Their compiler has 20 MiB, and most clusters have neither other rules, nor objects for which
    these are evaluated.
    """
    return _digest(schema) in _own_digests()


@cache
def _own_digests() -> frozenset[bytes]:
    return frozenset(
        _digest(schema)
        for definition in (*crds.load(), *crds.load_training())
        for version in definition["spec"]["versions"]
        if has_rules(schema := version["schema"]["openAPIV3Schema"])
    )


def _digest(schema: Schema) -> bytes:
    return hashlib.sha256(msgspec.json.encode(schema, order="sorted")).digest()


def nodes_below(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Yield the nodes below a node, with the steps to them."""
    for key, node in (schema.get("properties") or {}).items():
        yield f".properties[{key}]", node
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), Mapping):
            yield f".{key}", schema[key]


def branches_with_rules(schema: Schema) -> Iterator[Schema]:
    """Yield the branches of ``allOf`` with rules, with the fields of the node itself."""
    own = {key: value for key, value in schema.items() if key not in (KEY, "allOf")}
    for node in schema.get("allOf") or ():
        if node.get(KEY):
            yield _without_deeper_rules({**own, KEY: node[KEY]})


def _without_deeper_rules(schema: Schema) -> Schema:
    """Return a node without the rules below it."""
    found = dict(schema)
    for key in ("items", "additionalProperties"):
        if isinstance(found.get(key), Mapping):
            found[key] = _without_rules(found[key])
    if "properties" in found:
        nodes = found["properties"].items()
        found["properties"] = {key: _without_rules(node) for key, node in nodes}
    return found


def _without_rules(schema: Schema) -> Schema:
    return {key: value for key, value in _without_deeper_rules(schema).items() if key != KEY}


def _field_error(reason: str, path: str, value: Any, detail: str) -> FieldError:
    whole = isinstance(value, dict | list)
    if reason == "FieldValueForbidden":
        return forbidden(path, detail)
    if reason == "FieldValueRequired":
        return required(path, detail)
    if reason == "FieldValueDuplicate":
        return FieldError(reason, path, "Duplicate value") if whole else duplicate(path, value)
    return invalid_whole(path, detail) if whole else invalid(path, value, detail)


# Validation of the rules in a definition.


def rule_errors(schema: Schema, path: str) -> list[FieldError]:
    """Return the errors of the rules in a structural schema; they are compiled."""
    errors: list[FieldError] = []
    _check_node(schema, path, errors, is_resource=True, correlatable=True)
    return errors


def _check_node(
    schema: Schema,
    path: str,
    errors: list[FieldError],
    *,
    is_resource: bool = False,
    correlatable: bool,
) -> None:
    rules = schema.get(KEY) or ()
    found = len(errors)
    for index, rule in enumerate(rules):
        _check_fields(schema, rule, f"{path}.{KEY}[{index}]", errors)
    if rules and len(errors) == found:
        embedded = bool(schema.get("x-kubernetes-embedded-resource"))
        _check_expressions(
            schema, path, errors, is_resource=is_resource or embedded, correlatable=correlatable
        )
    for index, node in enumerate(branches_with_rules(schema)):
        _check_node(
            node,
            f"{path}.allOf[{index}]",
            errors,
            is_resource=is_resource,
            correlatable=correlatable,
        )
    for index, node in enumerate(schema.get("allOf") or ()):
        if any(has_rules(below) for _, below in nodes_below(node)):
            text = "rules below allOf are not supported by the embedded cluster"
            errors.append(forbidden(f"{path}.allOf[{index}]", text))
    keyed = schema.get("x-kubernetes-list-type") == "map"
    for step, node in nodes_below(schema):
        below = correlatable and (step != ".items" or keyed)
        _check_node(node, path + step, errors, correlatable=below)


def _check_fields(
    schema: Schema, rule: Mapping[str, Any], path: str, errors: list[FieldError]
) -> None:
    text, message = (rule.get("rule") or "").strip(), rule.get("message") or ""
    if not text:
        errors.append(required(f"{path}.rule", "rule is not specified"))
    elif message and not message.strip():
        errors.append(invalid(f"{path}.message", message, "must be non-empty if specified"))
    elif "\n" in message.strip():
        errors.append(invalid(f"{path}.message", message, "must not contain line breaks"))
    elif "\n" in text and not message:
        why = "message must be specified if rule contains line breaks"
        errors.append(required(f"{path}.message", why))
    expression = rule.get("messageExpression") or ""
    if expression and not expression.strip():
        why = "messageExpression must be non-empty if specified"
        errors.append(required(f"{path}.messageExpression", why))
    reason = rule.get("reason")
    if reason is not None and reason not in _REASONS:
        errors.append(not_supported(f"{path}.reason", reason, _REASONS))
    field_path = rule.get("fieldPath") or ""
    if field_path and not field_path.strip():
        errors.append(invalid(f"{path}.fieldPath", field_path, "must be non-empty if specified"))
    if "\n" in field_path:
        errors.append(invalid(f"{path}.fieldPath", field_path, "must not contain line breaks"))
    if field_path and not _is_field_path(schema, field_path):
        errors.append(invalid(f"{path}.fieldPath", field_path, "must be a valid path"))


def _is_field_path(schema: Schema, path: str) -> bool:
    """Return whether a path leads to a field below *schema*."""
    position = 0
    node: Any = schema
    while position < len(path):
        match = _STEP.match(path, position)
        if match is None or not isinstance(node, Mapping):
            return False
        key = match[1] if match[1] is not None else re.sub(r"\\(.)", r"\1", match[2])
        properties = node.get("properties")
        node = properties.get(key) if properties else node.get("additionalProperties")
        position = match.end()
    return isinstance(node, Mapping)


def _check_expressions(
    schema: Schema,
    path: str,
    errors: list[FieldError],
    *,
    is_resource: bool,
    correlatable: bool,
) -> None:
    plain = environment(schema, is_resource=is_resource)
    for index, rule in enumerate(schema[KEY]):
        where = f"{path}.{KEY}[{index}]"
        used = plain
        if rule.get("optionalOldSelf"):
            used = environment(schema, is_resource=is_resource, optional=True)
        if not _compiles(used.compile, rule, "rule", "bool", where, errors):
            continue
        if uses_old_self(rule["rule"]) and not correlatable:
            text = "oldSelf cannot be used on the uncorrelatable portion of the schema within"
            errors.append(invalid(f"{where}.rule", rule["rule"], f"{text} {path}"))
        elif not uses_old_self(rule["rule"]) and rule.get("optionalOldSelf") is not None:
            text = "may not be set if oldSelf is not used in rule"
            errors.append(invalid(f"{where}.optionalOldSelf", rule["optionalOldSelf"], text))
        if rule.get("messageExpression"):
            _compiles(used.compile, rule, "messageExpression", "string", where, errors)


def _compiles(
    compile_: Callable[[str], Program],
    rule: Mapping[str, Any],
    key: str,
    result: str,
    path: str,
    errors: list[FieldError],
) -> bool:
    try:
        found = compile_(rule[key]).result
    except CompileError as error:
        what = "compilation failed" if key == "rule" else "messageExpression compilation failed"
        errors.append(invalid(f"{path}.{key}", rule, f"{what}: {error}"))
        return False
    if found != result:
        what = "cel expression must evaluate to a bool"
        if key != "rule":
            what = "messageExpression must evaluate to a string"
        errors.append(invalid(f"{path}.{key}", rule, what))
        return False
    return True
