"""Validation of webhook configurations."""

from collections.abc import Sequence
from typing import Any

from ....model import validation
from ..cel.policy_expressions import Expressions
from ..errors.fields import FieldError, duplicate, invalid, not_supported, required
from ..kinds.webhook_clients import validate_client_config, validate_review_versions
from .expression_validation import validate_conditions
from .scheduling_validation import validate_selector

Json = dict[str, Any]

OPERATIONS = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")
_SCOPES = ("*", "Cluster", "Namespaced")
_SIDE_EFFECTS = ("None", "NoneOnDryRun")
_MAX_TIMEOUT = 30
_MIN_SEGMENTS = 3


def validate_webhooks(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate the webhooks of a configuration."""
    errors: list[FieldError] = []
    names: set[str] = set()
    for index, hook in enumerate(obj.get("webhooks") or ()):
        path = f"webhooks[{index}]"
        _validate_webhook(hook, path, errors)
        versions = hook.get("admissionReviewVersions") or ()
        validate_review_versions(versions, f"{path}.admissionReviewVersions", errors)
        name = hook.get("name", "")
        if name in names:
            errors.append(duplicate(f"{path}.name", name))
        elif name:
            names.add(name)
    return errors


def _validate_webhook(hook: Json, path: str, errors: list[FieldError]) -> None:
    _validate_name(hook.get("name", ""), f"{path}.name", errors)
    for index, rule in enumerate(hook.get("rules") or ()):
        validate_rule(rule, f"{path}.rules[{index}]", errors)
    check_choice(hook, "failurePolicy", ("Fail", "Ignore"), path, errors)
    check_choice(hook, "matchPolicy", ("Equivalent", "Exact"), path, errors)
    if hook.get("sideEffects") is None:
        text = f"must specify one of {', '.join(_SIDE_EFFECTS)}"
        errors.append(required(f"{path}.sideEffects", text))
    check_choice(hook, "sideEffects", _SIDE_EFFECTS, path, errors)
    timeout = hook.get("timeoutSeconds")
    if timeout is not None and not 1 <= timeout <= _MAX_TIMEOUT:
        text = f"the timeout value must be between 1 and {_MAX_TIMEOUT} seconds"
        errors.append(invalid(f"{path}.timeoutSeconds", timeout, text))
    for key in ("namespaceSelector", "objectSelector"):
        if hook.get(key) is not None:
            validate_selector(hook[key], f"{path}.{key}", errors)
    check_choice(hook, "reinvocationPolicy", ("IfNeeded", "Never"), path, errors)
    if conditions := hook.get("matchConditions"):
        expressions = Expressions(params=False, namespace=False)
        validate_conditions(conditions, f"{path}.matchConditions", expressions, errors)
    validate_client_config(hook.get("clientConfig") or {}, f"{path}.clientConfig", errors)


def check_choice(
    obj: Json, key: str, allowed: Sequence[str], path: str, errors: list[FieldError]
) -> None:
    """Check that a field has one of the values of a fixed set, if it is set."""
    if obj.get(key) is not None and obj[key] not in allowed:
        errors.append(not_supported(f"{path}.{key}", obj[key], allowed))


def _validate_name(name: str, path: str, errors: list[FieldError]) -> None:
    if not name:
        errors.append(required(path))
    elif problem := validation.dns1123_subdomain_error(name):
        errors.append(invalid(path, name, problem))
    elif len(name.split(".")) < _MIN_SEGMENTS:
        text = "should be a domain with at least three segments separated by dots"
        errors.append(invalid(path, name, text))


def validate_rule(rule: Json, path: str, errors: list[FieldError]) -> None:
    """Validate one rule of a webhook or policy."""
    wanted = rule.get("operations") or ()
    if not wanted:
        errors.append(required(f"{path}.operations"))
    if len(wanted) > 1 and "*" in wanted:
        text = "if '*' is present, must not specify other operations"
        errors.append(invalid(f"{path}.operations", wanted, text))
    for index, operation in enumerate(wanted):
        if operation not in OPERATIONS:
            errors.append(not_supported(f"{path}.operations[{index}]", operation, OPERATIONS))
    _validate_names(rule, "apiGroups", "API groups", path, errors)
    _validate_names(rule, "apiVersions", "API versions", path, errors)
    for index, version in enumerate(rule.get("apiVersions") or ()):
        if not version:
            errors.append(required(f"{path}.apiVersions[{index}]"))
    _validate_resources(rule.get("resources") or (), f"{path}.resources", errors)
    check_choice(rule, "scope", _SCOPES, path, errors)


def _validate_names(rule: Json, key: str, what: str, path: str, errors: list[FieldError]) -> None:
    found = rule.get(key) or ()
    if not found:
        errors.append(required(f"{path}.{key}"))
    if len(found) > 1 and "*" in found:
        text = f"if '*' is present, must not specify other {what}"
        errors.append(invalid(f"{path}.{key}", found, text))


def _validate_resources(resources: Sequence[str], path: str, errors: list[FieldError]) -> None:
    if not resources:
        errors.append(required(path))
    all_subresources: set[str] = set()
    all_resources: set[str] = set()
    for index, each in enumerate(resources):
        if not each:
            errors.append(required(f"{path}[{index}]"))
            continue
        name, slash, subresource = each.partition("/")
        if not slash:
            continue
        for known, pattern in (
            (name in all_subresources, f"{name}/*"),
            (subresource in all_resources, f"*/{subresource}"),
        ):
            if known:
                text = f"if '{pattern}' is present, must not specify {each}"
                errors.append(invalid(f"{path}[{index}]", each, text))
        if subresource == "*":
            all_subresources.add(name)
        if name == "*":
            all_resources.add(subresource)
    _validate_wildcards(resources, path, errors)


def _validate_wildcards(resources: Sequence[str], path: str, errors: list[FieldError]) -> None:
    if len(resources) > 1 and "*/*" in resources:
        text = "if '*/*' is present, must not specify other resources"
        errors.append(invalid(path, resources, text))
    plain = [each for each in resources if each and "/" not in each]
    if "*" in plain and plain[-1] != "*":
        text = "if '*' is present, must not specify other resources without subresources"
        errors.append(invalid(path, resources, text))
