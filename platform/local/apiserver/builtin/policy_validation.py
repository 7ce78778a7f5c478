"""Validation of admission policies, their bindings and match conditions."""

import re
from collections.abc import Sequence
from typing import Any

from ....machinery.cel.environment import CompileError
from ....model import validation
from ..cel import mutation_objects
from ..cel.policy_expressions import Expressions
from ..errors.fields import FieldError, duplicate, first_positions, invalid, not_supported, required
from .expression_validation import check_expression, validate_conditions
from .scheduling_validation import validate_selector
from .webhook_validation import check_choice, validate_rule

Json = dict[str, Any]

_ACTIONS = ("Audit", "Deny", "Warn")
_REASONS = ("Forbidden", "Invalid", "RequestEntityTooLarge")
_PATCHES = {"ApplyConfiguration": "applyConfiguration", "JSONPatch": "jsonPatch"}
"""Fields of a mutation by its type."""

_MUTABLE = ("*", "CONNECT", "CREATE", "UPDATE")
_MAX_ANNOTATIONS = 20
_IDENTIFIER = re.compile(r"[_a-zA-Z][_a-zA-Z0-9]*", re.ASCII)


def validate_policy(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a policy; its expressions must compile."""
    spec: Json = obj.get("spec") or {}
    errors: list[FieldError] = []
    expressions = _validate_common(spec, errors, mutations=False)
    _validate_validations(obj, spec, expressions, errors)
    return errors


def validate_mutating_policy(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a MutatingAdmissionPolicy; its expressions must compile."""
    spec: Json = obj.get("spec") or {}
    errors: list[FieldError] = []
    expressions = _validate_common(spec, errors, mutations=True)
    mutations = spec.get("mutations") or ()
    if not mutations:
        errors.append(required("spec.mutations", "mutations must contain at least one item"))
    for index, each in enumerate(mutations):
        _validate_mutation(each, f"spec.mutations[{index}]", expressions, errors)
    policy = spec.get("reinvocationPolicy")
    if not policy:
        errors.append(required("spec.reinvocationPolicy"))
    elif policy not in ("IfNeeded", "Never"):
        allowed = ("IfNeeded", "Never")
        errors.append(not_supported("spec.reinvocationPolicy", policy, allowed))
    return errors


def _validate_mutation(
    mutation: Json, path: str, expressions: Expressions, errors: list[FieldError]
) -> None:
    patch_type = mutation.get("patchType")
    if not patch_type:
        errors.append(required(f"{path}.patchType"))
        return
    if patch_type not in _PATCHES:
        errors.append(not_supported(f"{path}.patchType", patch_type, _PATCHES))
        return
    for other, key in _PATCHES.items():
        if other == patch_type and mutation.get(key) is None:
            text = f"must be specified when patchType is {patch_type}"
            errors.append(required(f"{path}.{key}", text))
        elif other == patch_type:
            _validate_patch(mutation[key], f"{path}.{key}.expression", key, expressions, errors)
        elif mutation.get(key) is not None:
            text = f"must not be specified when patchType is {patch_type}"
            errors.append(invalid(f"{path}.{key}", f"{{{key}}}", text))


def _validate_patch(
    patch: Json, path: str, key: str, expressions: Expressions, errors: list[FieldError]
) -> None:
    text = (patch.get("expression") or "").strip()
    if not text:
        errors.append(required(path))
        return
    try:
        program = expressions.compile_mutation(text)
    except CompileError as error:
        errors.append(invalid(path, text, f"compilation failed: {error}"))
        return
    wanted = mutation_objects.RESULTS[key]
    if program.full_result != wanted:
        text_ = f"must evaluate to {wanted} but got {program.full_result}"
        errors.append(invalid(path, text, text_))


def _validate_common(spec: Json, errors: list[FieldError], *, mutations: bool) -> Expressions:
    """Validate what all policies have, and return their variables."""
    check_choice(spec, "failurePolicy", ("Fail", "Ignore"), "spec", errors)
    kind = spec.get("paramKind")
    if kind is not None:
        _validate_param_kind(kind, "spec.paramKind", errors)
    constraints = spec.get("matchConstraints")
    if constraints is None:
        errors.append(required("spec.matchConstraints"))
    else:
        _validate_match(constraints, "spec.matchConstraints", errors)
        if not constraints.get("resourceRules"):
            errors.append(required("spec.matchConstraints.resourceRules"))
        if mutations:
            _validate_operations(constraints, "spec.matchConstraints", errors)
    expressions = Expressions(params=kind is not None, mutations=mutations)
    conditions = spec.get("matchConditions") or ()
    validate_conditions(conditions, "spec.matchConditions", expressions, errors)
    for index, variable in enumerate(spec.get("variables") or ()):
        _validate_variable(variable, f"spec.variables[{index}]", expressions, errors)
    return expressions


def _validate_operations(match: Json, path: str, errors: list[FieldError]) -> None:
    for rule in match.get("resourceRules") or ():
        for operation in rule.get("operations") or ():
            if operation not in _MUTABLE:
                where = f"{path}.resourceRules.operations"
                errors.append(not_supported(where, operation, _MUTABLE))


def _validate_validations(
    obj: Json, spec: Json, expressions: Expressions, errors: list[FieldError]
) -> None:
    validations = spec.get("validations") or ()
    annotations = spec.get("auditAnnotations") or ()
    if not validations and not annotations:
        text = "validations or auditAnnotations must contain at least one item"
        errors += [required("spec.validations", text), required("spec.auditAnnotations", text)]
        return
    for index, each in enumerate(validations):
        _validate_validation(each, f"spec.validations[{index}]", expressions, errors)
    if len(annotations) > _MAX_ANNOTATIONS:
        text = f"must not have more than {_MAX_ANNOTATIONS} auditAnnotations"
        errors.append(invalid("spec.auditAnnotations", annotations, text))
    keys: set[str] = set()
    for index, each in enumerate(annotations):
        path, key = f"spec.auditAnnotations[{index}]", each.get("key") or ""
        name = f"{obj['metadata'].get('name', '')}/{key}"
        if problem := validation.qualified_name_error(name):
            errors.append(invalid(f"{path}.key", name, problem))
        check_expression(each, "valueExpression", path, expressions, errors, ("string", "null"))
        if key in keys:
            errors.append(duplicate(f"{path}.key", key))
        keys.add(key)


def _validate_validation(
    each: Json, path: str, expressions: Expressions, errors: list[FieldError]
) -> None:
    check_expression(each, "expression", path, expressions, errors, ("bool",))
    expression = each.get("messageExpression") or ""
    if expression and not expression.strip():
        text = "must be non-empty if specified"
        errors.append(invalid(f"{path}.messageExpression", expression, text))
    elif expression:
        check_expression(
            each, "messageExpression", path, expressions, errors, ("string",), authorizer=False
        )
    message = each.get("message") or ""
    if message and not message.strip():
        errors.append(invalid(f"{path}.message", message, "must be non-empty if specified"))
    elif "\n" in message.strip():
        errors.append(invalid(f"{path}.message", message, "must not contain line breaks"))
    if each.get("reason") is not None and each["reason"] not in _REASONS:
        errors.append(not_supported(f"{path}.reason", each["reason"], _REASONS))


def _validate_variable(
    variable: Json, path: str, expressions: Expressions, errors: list[FieldError]
) -> None:
    name, text = variable.get("name") or "", variable.get("expression") or ""
    if not name.strip():
        errors.append(required(f"{path}.name", "name is not specified"))
    elif not _IDENTIFIER.fullmatch(name):
        errors.append(invalid(f"{path}.name", name, "must be a valid CEL identifier"))
    if not text.strip():
        errors.append(required(f"{path}.expression", "expression is not specified"))
        return
    try:
        expressions.define(name, text)
    except CompileError as error:
        errors.append(invalid(f"{path}.expression", text, str(error)))


def _validate_param_kind(kind: Json, path: str, errors: list[FieldError]) -> None:
    version, name = kind.get("apiVersion") or "", kind.get("kind") or ""
    if not version:
        errors.append(required(f"{path}.apiVersion"))
    elif version.count("/") > 1:
        text = f"unexpected GroupVersion string: {version}"
        errors.append(invalid(f"{path}.apiVersion", version, text))
    if not name:
        errors.append(required(f"{path}.kind"))
    elif problem := validation.dns1035_label_error(name.lower()):
        text = f"may have mixed case, but should otherwise match: {problem}"
        errors.append(invalid(f"{path}.kind", name, text))


def _validate_match(match: Json, path: str, errors: list[FieldError]) -> None:
    check_choice(match, "matchPolicy", ("Equivalent", "Exact"), path, errors)
    for key in ("namespaceSelector", "objectSelector"):
        validate_selector(match.get(key) or {}, f"{path}.{key}", errors)
    for key in ("resourceRules", "excludeResourceRules"):
        for index, rule in enumerate(match.get(key) or ()):
            where = f"{path}.{key}[{index}]"
            _validate_resource_names(rule, where, errors)
            validate_rule(rule, where, errors)


def _validate_resource_names(rule: Json, path: str, errors: list[FieldError]) -> None:
    names = rule.get("resourceNames") or ()
    first = first_positions(names)
    for index, name in enumerate(names):
        where = f"{path}.resourceNames[{index}]"
        if problem := validation.path_segment_error(name):
            errors.append(invalid(where, name, problem))
        if first[name] < index:
            errors.append(duplicate(where, name))


def validate_binding(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a binding of a policy."""
    spec: Json = obj.get("spec") or {}
    errors = _validate_any_binding(spec)
    _validate_actions(spec.get("validationActions") or (), "spec.validationActions", errors)
    return errors


def validate_mutating_binding(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a binding of a MutatingAdmissionPolicy."""
    spec: Json = obj.get("spec") or {}
    errors = _validate_any_binding(spec)
    _validate_operations(spec.get("matchResources") or {}, "spec.matchResources", errors)
    return errors


def _validate_any_binding(spec: Json) -> list[FieldError]:
    errors: list[FieldError] = []
    name = spec.get("policyName") or ""
    if not name:
        errors.append(required("spec.policyName"))
    elif problem := validation.dns1123_subdomain_error(name):
        errors.append(invalid("spec.policyName", name, problem))
    if spec.get("paramRef") is not None:
        _validate_param_ref(spec["paramRef"], "spec.paramRef", errors)
    if spec.get("matchResources") is not None:
        _validate_match(spec["matchResources"], "spec.matchResources", errors)
    return errors


def _validate_param_ref(ref: Json, path: str, errors: list[FieldError]) -> None:
    name, selector = ref.get("name") or "", ref.get("selector")
    if name and selector is not None:
        text = "name and selector are mutually exclusive"
        errors.append(FieldError("FieldValueForbidden", f"{path}.name", f"Forbidden: {text}"))
        errors.append(FieldError("FieldValueForbidden", f"{path}.selector", f"Forbidden: {text}"))
    elif not name and selector is None:
        errors.append(required(path, "one of name or selector must be specified"))
    if name and (problem := validation.path_segment_error(name)):
        errors.append(invalid(f"{path}.name", name, problem))
    if selector is not None:
        validate_selector(selector, f"{path}.selector", errors)
    action = ref.get("parameterNotFoundAction")
    if action is None:
        errors.append(required(f"{path}.parameterNotFoundAction"))
    elif action not in ("Allow", "Deny"):
        errors.append(not_supported(f"{path}.parameterNotFoundAction", action, ("Deny", "Allow")))


def _validate_actions(actions: Sequence[str], path: str, errors: list[FieldError]) -> None:
    first = first_positions(actions)
    for index, action in enumerate(actions):
        if action not in _ACTIONS:
            errors.append(not_supported(f"{path}[{index}]", action, _ACTIONS))
        if first[action] < index:
            errors.append(duplicate(f"{path}[{index}]", action))
    if {"Deny", "Warn"} <= set(actions):
        text = (
            "must not contain both Deny and Warn (repeating the same validation failure "
            "information in the API response and headers serves no purpose)"
        )
        errors.append(invalid(path, actions, text))
    if not actions:
        errors.append(required(path, "at least one validation action is required"))
