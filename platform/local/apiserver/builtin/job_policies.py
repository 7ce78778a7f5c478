"""Validation of the policies of batch Jobs: pod failures, success, replacement of pods."""

from typing import Any

from ....model import validation
from ..errors.fields import (
    NOT_NEGATIVE,
    FieldError,
    duplicate,
    invalid,
    invalid_whole,
    not_supported,
    required,
    too_long,
    too_many,
)
from .index_intervals import IntervalError, count_indexes

Json = dict[str, Any]

_ACTIONS = ("Count", "FailIndex", "FailJob", "Ignore")
_OPERATORS = ("In", "NotIn")
_STATUSES = ("False", "True", "Unknown")
_REPLACEMENTS = ("Failed", "TerminatingOrFailed")
_MAX_RULES = 20
_MAX_EXIT_CODES = 255
_MAX_PATTERNS = 20
_MAX_INDEXES_LENGTH = 64 * 1024


def validate_failure_policy(spec: Json, path: str) -> list[FieldError]:
    """Validate the pod failure policy of a Job's *spec*."""
    errors: list[FieldError] = []
    rules = spec["podFailurePolicy"].get("rules") or ()
    if len(rules) > _MAX_RULES:
        errors.append(too_many(f"{path}.rules", len(rules), _MAX_RULES))
    pod = spec.get("template", {}).get("spec", {})
    names = {
        container.get("name", "")
        for kind in ("containers", "initContainers")
        for container in pod.get(kind) or ()
    }
    for index, rule in enumerate(rules):
        _validate_failure_rule(spec, rule, f"{path}.rules[{index}]", names, errors)
    return errors


def _validate_failure_rule(
    spec: Json, rule: Json, path: str, names: set[str], errors: list[FieldError]
) -> None:
    action = rule.get("action")
    if action == "FailIndex" and "backoffLimitPerIndex" not in spec:
        text = "requires the backoffLimitPerIndex to be set"
        errors.append(invalid(f"{path}.action", action, text))
    else:
        _one_of(action, f"{path}.action", _ACTIONS, errors)
    exit_codes, conditions = rule.get("onExitCodes"), rule.get("onPodConditions")
    if exit_codes is not None:
        _validate_exit_codes(exit_codes, f"{path}.onExitCodes", names, errors)
    if conditions:
        _validate_conditions(conditions, f"{path}.onPodConditions", errors)
    if exit_codes is not None and conditions:
        text = "specifying both OnExitCodes and OnPodConditions is not supported"
        errors.append(invalid_whole(path, text))
    if exit_codes is None and not conditions:
        text = "specifying one of OnExitCodes and OnPodConditions is required"
        errors.append(invalid_whole(path, text))


def _validate_exit_codes(
    exit_codes: Json, path: str, names: set[str], errors: list[FieldError]
) -> None:
    _one_of(exit_codes.get("operator"), f"{path}.operator", _OPERATORS, errors)
    name = exit_codes.get("containerName")
    if name is not None and name not in names:
        text = "must be one of the container or initContainer names in the pod template"
        errors.append(invalid(f"{path}.containerName", name, text))
    values = exit_codes.get("values")
    if not values:
        errors.append(invalid(f"{path}.values", values, "at least one value is required"))
        return
    if len(values) > _MAX_EXIT_CODES:
        errors.append(too_many(f"{path}.values", len(values), _MAX_EXIT_CODES))
    seen: set[int] = set()
    for index, value in enumerate(values):
        if value == 0 and exit_codes.get("operator") == "In":
            text = "must not be 0 for the In operator"
            errors.append(invalid(f"{path}.values[{index}]", value, text))
        if value in seen:
            errors.append(duplicate(f"{path}.values[{index}]", value))
        seen.add(value)
    if values != sorted(values):
        errors.append(invalid(f"{path}.values", values, "must be ordered"))


def _validate_conditions(patterns: list[Json], path: str, errors: list[FieldError]) -> None:
    if len(patterns) > _MAX_PATTERNS:
        errors.append(too_many(path, len(patterns), _MAX_PATTERNS))
    for index, pattern in enumerate(patterns):
        name = pattern.get("type", "")
        if problem := validation.qualified_name_error(name):
            errors.append(invalid(f"{path}[{index}].type", name, problem))
        _one_of(pattern.get("status"), f"{path}[{index}].status", _STATUSES, errors)


def _one_of(
    value: str | None, path: str, allowed: tuple[str, ...], errors: list[FieldError]
) -> None:
    if not value:
        names = " ".join(f'"{name}"' for name in allowed)
        errors.append(required(path, f"valid values: [{names}]"))
    elif value not in allowed:
        errors.append(not_supported(path, value, allowed))


def validate_success_policy(spec: Json, path: str) -> list[FieldError]:
    """Validate the success policy of a Job's *spec*."""
    if spec.get("completionMode") != "Indexed":
        shown = internal_success_policy(spec["successPolicy"])
        return [invalid(path, shown, "requires indexed completion mode")]
    if "completions" not in spec:
        return []  # another error; all limits depend on it
    errors: list[FieldError] = []
    rules = spec["successPolicy"].get("rules") or ()
    if not rules:
        text = "at least one rules must be specified when the successPolicy is specified"
        errors.append(required(f"{path}.rules", text))
    if len(rules) > _MAX_RULES:
        errors.append(too_many(f"{path}.rules", len(rules), _MAX_RULES))
    for index, rule in enumerate(rules):
        _validate_success_rule(spec["completions"], rule, f"{path}.rules[{index}]", errors)
    return errors


def _validate_success_rule(
    completions: int, rule: Json, path: str, errors: list[FieldError]
) -> None:
    count, indexes = rule.get("succeededCount"), rule.get("succeededIndexes")
    if count is None and indexes is None:
        text = "at least one of succeededCount or succeededIndexes must be specified"
        errors.append(required(path, text))
    total = 0
    if indexes is not None:
        if len(indexes.encode()) > _MAX_INDEXES_LENGTH:
            errors.append(too_long(f"{path}.succeededIndexes", _MAX_INDEXES_LENGTH))
        try:
            total = count_indexes(indexes, completions)
        except IntervalError as error:
            text = f"error parsing succeededIndexes: {error}"
            errors.append(invalid(f"{path}.succeededIndexes", indexes, text))
    if count is None:
        return
    field_path = f"{path}.succeededCount"
    if count < 0:
        errors.append(invalid(field_path, count, NOT_NEGATIVE))
    if count > completions:
        text = f"must be less than or equal to {completions} (the number of specified completions)"
        errors.append(invalid(field_path, count, text))
    if indexes is not None and count > total:
        text = (
            f"must be less than or equal to {total} (the number of indexes in the specified "
            "succeededIndexes field)"
        )
        errors.append(invalid(field_path, count, text))


def validate_replacement_policy(spec: Json, path: str) -> list[FieldError]:
    """Validate when a Job replaces pods: with a failure policy, only when they have failed."""
    policy = spec.get("podReplacementPolicy")
    allowed = _REPLACEMENTS[:1] if "podFailurePolicy" in spec else _REPLACEMENTS
    if policy is None or policy in allowed:
        return []
    return [not_supported(path, policy, allowed)]


def internal_failure_policy(policy: Json | None) -> Json | None:
    """Return a pod failure policy in the form that kube-apiserver's messages have."""
    if policy is None:
        return None
    rules = [
        {
            "Action": rule.get("action", ""),
            "OnExitCodes": _internal_exit_codes(rule.get("onExitCodes")),
            "OnPodConditions": [
                {"Type": pattern.get("type", ""), "Status": pattern.get("status", "")}
                for pattern in rule.get("onPodConditions") or ()
            ]
            or None,
        }
        for rule in policy.get("rules") or ()
    ]
    return {"Rules": rules or None}


def _internal_exit_codes(exit_codes: Json | None) -> Json | None:
    if exit_codes is None:
        return None
    return {
        "ContainerName": exit_codes.get("containerName"),
        "Operator": exit_codes.get("operator", ""),
        "Values": exit_codes.get("values"),
    }


def internal_success_policy(policy: Json | None) -> Json | None:
    """Return a success policy in the form that kube-apiserver's messages have."""
    if policy is None:
        return None
    rules = [
        {
            "SucceededIndexes": rule.get("succeededIndexes"),
            "SucceededCount": rule.get("succeededCount"),
        }
        for rule in policy.get("rules") or ()
    ]
    return {"Rules": rules or None}
