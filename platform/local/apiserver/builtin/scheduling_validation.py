"""Validation of scheduling constraints and of selectors."""

from typing import Any

from ....model import tolerations, validation
from ..errors.fields import (
    FieldError,
    duplicate,
    forbidden,
    invalid,
    not_supported,
    required,
)
from ..kinds.metadata import validate_labels

Json = dict[str, Any]

_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_SPREAD_ACTIONS = ("DoNotSchedule", "ScheduleAnyway")
_SPREAD_POLICIES = ("Honor", "Ignore")
_NODE_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")
_SELECTOR_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def validate_scheduling(spec: Json, path: str, errors: list[FieldError]) -> None:
    """Validate the scheduling constraints of a pod."""
    if selector := spec.get("nodeSelector"):
        errors += validate_labels(selector, f"{path}.nodeSelector")
    for index, toleration in enumerate(spec.get("tolerations", ())):
        validate_toleration(toleration, f"{path}.tolerations[{index}]", errors)
    if affinity := spec.get("affinity"):
        _validate_affinity(affinity, f"{path}.affinity", errors)
    if spreads := spec.get("topologySpreadConstraints"):
        _validate_spreads(spreads, f"{path}.topologySpreadConstraints", errors)
    if gates := spec.get("schedulingGates"):
        _validate_gates(gates, f"{path}.schedulingGates", errors)
    if (group := spec.get("schedulingGroup")) is not None:
        name, where = group.get("podGroupName", ""), f"{path}.schedulingGroup.podGroupName"
        if not name:
            errors.append(required(where))
        elif problem := validation.dns1123_subdomain_error(name):
            errors.append(invalid(where, name, problem))


def _validate_gates(gates: list[Json], path: str, errors: list[FieldError]) -> None:
    seen: set[str] = set()
    for index, gate in enumerate(gates):
        name = gate.get("name", "")
        if problem := validation.qualified_name_error(name):
            errors.append(invalid(f"{path}[{index}]", name, problem))
        if name in seen:
            errors.append(duplicate(f"{path}[{index}]", name))
        seen.add(name)


def _validate_spreads(spreads: list[Json], path: str, errors: list[FieldError]) -> None:
    pairs = [(each.get("topologyKey"), each.get("whenUnsatisfiable")) for each in spreads]
    last = {pair: index for index, pair in enumerate(pairs)}
    for index, (spread, pair) in enumerate(zip(spreads, pairs, strict=True)):
        field_path = f"{path}[{index}]"
        _validate_spread(spread, field_path, errors)
        if index < last[pair]:
            where = f"{field_path}.{{topologyKey, whenUnsatisfiable}}"
            errors.append(duplicate(where, f"{{{pair[0]}, {pair[1]}}}"))


def _validate_spread(spread: Json, path: str, errors: list[FieldError]) -> None:
    positive = "must be greater than zero"
    if spread.get("maxSkew", 0) < 1:
        errors.append(invalid(f"{path}.maxSkew", spread.get("maxSkew", 0), positive))
    if not spread.get("topologyKey"):
        errors.append(required(f"{path}.topologyKey", "can not be empty"))
    action = spread.get("whenUnsatisfiable", "")
    if action not in _SPREAD_ACTIONS:
        errors.append(not_supported(f"{path}.whenUnsatisfiable", action, _SPREAD_ACTIONS))
    if (domains := spread.get("minDomains")) is not None:
        if domains < 1:
            errors.append(invalid(f"{path}.minDomains", domains, positive))
        if action != "DoNotSchedule":
            text = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"
            errors.append(invalid(f"{path}.minDomains", domains, text))
    errors += [
        not_supported(f"{path}.{key}", policy, _SPREAD_POLICIES)
        for key in ("nodeAffinityPolicy", "nodeTaintsPolicy")
        if (policy := spread.get(key, "Honor")) not in _SPREAD_POLICIES
    ]
    _validate_label_keys(spread, "matchLabelKeys", path, errors)
    validate_selector(spread.get("labelSelector", {}), f"{path}.labelSelector", errors)


def _validate_label_keys(term: Json, kind: str, path: str, errors: list[FieldError]) -> None:
    if not (keys := term.get(kind)):
        return
    if "labelSelector" not in term:
        text = "must not be specified when labelSelector is not set"
        errors.append(forbidden(f"{path}.{kind}", text))
        return
    for index, key in enumerate(keys):
        if problem := validation.qualified_name_error(key):
            errors.append(invalid(f"{path}.{kind}[{index}]", key, problem))


def validate_toleration(toleration: Json, path: str, errors: list[FieldError]) -> None:
    """Validate a toleration."""
    key, operator = toleration.get("key"), toleration.get("operator", "Equal")
    if key and (problem := validation.qualified_name_error(key)):
        errors.append(invalid(f"{path}.key", key, problem))
    if not key and operator != "Exists":
        text = (
            'operator must be Exists when `key` is empty, which means "match all values and all '
            'keys"'
        )
        errors.append(invalid(f"{path}.operator", toleration.get("operator", ""), text))
    value = toleration.get("value", "")
    if operator in tolerations.NUMBER_OPERATORS:
        problems = tolerations.number_problems(value)
        errors += [invalid(f"{path}.value", value, problem) for problem in problems]
    elif operator not in tolerations.OPERATORS:
        errors.append(not_supported(f"{path}.operator", operator, tolerations.OPERATORS))
    elif operator == "Exists" and value:
        text = "value must be empty when `operator` is 'Exists'"
        errors.append(invalid(f"{path}.operator", value, text))
    elif problem := validation.label_value_error(value):
        errors.append(invalid(f"{path}.operator", value, problem))
    if (effect := toleration.get("effect")) and effect not in _EFFECTS:
        errors.append(not_supported(f"{path}.effect", effect, _EFFECTS))
    if "tolerationSeconds" in toleration and effect != "NoExecute":
        text = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        errors.append(invalid(f"{path}.effect", effect or "", text))


def _validate_affinity(affinity: Json, path: str, errors: list[FieldError]) -> None:
    node = affinity.get("nodeAffinity", {})
    needed = node.get(_REQUIRED)
    if needed is not None:
        validate_node_selector(needed, f"{path}.nodeAffinity.{_REQUIRED}", errors)
    field_path = f"{path}.nodeAffinity.{_PREFERRED}"
    for index, preferred in enumerate(node.get(_PREFERRED, ())):
        _validate_weight(preferred, f"{field_path}[{index}].weight", errors)
        _validate_node_term(
            preferred.get("preference", {}), f"{field_path}[{index}].preference", errors
        )
    for kind in ("podAffinity", "podAntiAffinity"):
        _validate_pod_affinity(affinity.get(kind, {}), f"{path}.{kind}", errors)


def validate_node_selector(selector: Json, path: str, errors: list[FieldError]) -> None:
    """Validate a selector of nodes at *path*, whose values are checked, too."""
    field_path = f"{path}.nodeSelectorTerms"
    terms = selector.get("nodeSelectorTerms") or ()
    if not terms:
        errors.append(required(field_path, "must have at least one node selector term"))
    for index, term in enumerate(terms):
        _validate_node_term(term, f"{field_path}[{index}]", errors)
        _validate_label_values(term, f"{field_path}[{index}]", errors)


def _validate_weight(term: Json, path: str, errors: list[FieldError]) -> None:
    if not 1 <= term.get("weight", 0) <= 100:
        errors.append(invalid(path, term.get("weight", 0), "must be in the range 1-100"))


def _validate_node_term(term: Json, path: str, errors: list[FieldError]) -> None:
    for index, expression in enumerate(term.get("matchExpressions", ())):
        field_path = f"{path}.matchExpressions[{index}]"
        validate_expression(expression, field_path, _NODE_OPERATORS, errors)
    for index, expression in enumerate(term.get("matchFields", ())):
        _validate_node_field(expression, f"{path}.matchFields[{index}]", errors)


def _validate_label_values(term: Json, path: str, errors: list[FieldError]) -> None:
    """Validate the values of required expressions; those of preferences are not checked."""
    for index, expression in enumerate(term.get("matchExpressions", ())):
        field_path = f"{path}.matchExpressions[{index}].values"
        errors += [
            invalid(f"{field_path}[{number}]", value, problem)
            for number, value in enumerate(expression.get("values", ()))
            if (problem := validation.label_value_error(value))
        ]


def _validate_node_field(expression: Json, path: str, errors: list[FieldError]) -> None:
    """Validate a field selector of nodes: metadata.name is the only field."""
    operator, values = expression.get("operator", ""), expression.get("values") or ()
    if operator not in ("In", "NotIn"):
        errors.append(invalid(f"{path}.operator", operator, "not a valid selector operator"))
    elif len(values) != 1:
        text = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
        errors.append(required(f"{path}.values", text))
    key = expression.get("key", "")
    if key != "metadata.name":
        errors.append(invalid(f"{path}.key", key, "not a valid field selector key"))
        return
    errors += [
        invalid(f"{path}.values[{number}]", value, problem)
        for number, value in enumerate(values)
        if (problem := validation.dns1123_subdomain_error(value))
    ]


def validate_expression(
    expression: Json, path: str, operators: tuple[str, ...], errors: list[FieldError]
) -> None:
    """Validate one expression of a label or node selector."""
    operator, values = expression.get("operator", ""), expression.get("values") or ()
    if operator not in operators:
        errors.append(invalid(f"{path}.operator", operator, "not a valid selector operator"))
    elif operator in ("In", "NotIn") and not values:
        text = "must be specified when `operator` is 'In' or 'NotIn'"
        errors.append(required(f"{path}.values", text))
    elif operator in ("Exists", "DoesNotExist") and values:
        text = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
        errors.append(forbidden(f"{path}.values", text))
    elif operator in ("Gt", "Lt") and len(values) != 1:
        text = "must be specified single value when `operator` is 'Lt' or 'Gt'"
        errors.append(required(f"{path}.values", text))
    if problem := validation.qualified_name_error(expression.get("key", "")):
        errors.append(invalid(f"{path}.key", expression.get("key", ""), problem))


def validate_selector(selector: Json, path: str, errors: list[FieldError]) -> None:
    """Validate a label selector."""
    errors += validate_labels(selector.get("matchLabels"), f"{path}.matchLabels")
    for index, expression in enumerate(selector.get("matchExpressions", ())):
        field_path = f"{path}.matchExpressions[{index}]"
        validate_expression(expression, field_path, _SELECTOR_OPERATORS, errors)
    _validate_label_values(selector, path, errors)


def _validate_pod_affinity(affinity: Json, path: str, errors: list[FieldError]) -> None:
    terms = [
        (term, f"{path}.{_REQUIRED}[{i}]") for i, term in enumerate(affinity.get(_REQUIRED, ()))
    ]
    for index, preferred in enumerate(affinity.get(_PREFERRED, ())):
        _validate_weight(preferred, f"{path}.{_PREFERRED}[{index}].weight", errors)
        terms.append(
            (preferred.get("podAffinityTerm", {}), f"{path}.{_PREFERRED}[{index}].podAffinityTerm")
        )
    for term, field_path in terms:
        _validate_pod_term(term, field_path, errors)


def _validate_pod_term(term: Json, path: str, errors: list[FieldError]) -> None:
    for kind in ("labelSelector", "namespaceSelector"):
        if selector := term.get(kind):
            validate_selector(selector, f"{path}.{kind}", errors)
    errors += [
        invalid(f"{path}.namespace", name, problem)
        for name in term.get("namespaces", ())
        if (problem := validation.dns1123_label_error(name))
    ]
    for kind in ("matchLabelKeys", "mismatchLabelKeys"):
        _validate_label_keys(term, kind, path, errors)
    key = term.get("topologyKey", "")
    if not key:
        errors.append(required(f"{path}.topologyKey", "can not be empty"))
    if problem := validation.qualified_name_error(key):
        errors.append(invalid(f"{path}.topologyKey", key, problem))
