"""FlowSchemas and PriorityLevelConfigurations: defaults and validation."""

import math
from typing import Any

from ....model import validation
from ....model.names import Resource
from ..errors.fields import (
    FieldError,
    duplicate,
    forbidden,
    invalid,
    not_supported,
    required,
)
from .flow_control_objects import EXEMPT, FLOW_SCHEMAS, PRIORITY_LEVELS, fixed_spec

Json = dict[str, Any]

_ALL = "*"
_DEFAULT_PRECEDENCE, _MAX_PRECEDENCE = 1000, 10_000
_SUBJECTS = {"Group": "group", "ServiceAccount": "serviceAccount", "User": "user"}
"""Field of a subject by its kind."""

_VERBS = (
    "create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch",
)  # fmt: skip
_MAX_QUEUES = 10_000_000
_MAX_HASH_BITS = 60
_NO_NEGATIVE = "must be a non-negative integer"
_PERCENT = "must be between 0 and 100, inclusive"


def default_flow_schema(obj: Json) -> None:
    """Default a FlowSchema."""
    spec = obj.setdefault("spec", {})
    if not spec.get("matchingPrecedence"):
        spec["matchingPrecedence"] = _DEFAULT_PRECEDENCE


def default_priority_level(obj: Json) -> None:
    """Default a PriorityLevelConfiguration."""
    spec = obj.setdefault("spec", {})
    for key, shares in (("exempt", 0), ("limited", 30)):
        if (level := spec.get(key)) is not None:
            for name, number in (("nominalConcurrencyShares", shares), ("lendablePercent", 0)):
                if level.get(name) is None:
                    level[name] = number
    queuing = ((spec.get("limited") or {}).get("limitResponse") or {}).get("queuing")
    if queuing is not None:
        for name, number in (("handSize", 8), ("queues", 64), ("queueLengthLimit", 50)):
            queuing[name] = queuing.get(name) or number


def validate_flow_schema(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a FlowSchema."""
    spec = obj.get("spec", {})
    errors = []
    precedence, path = spec.get("matchingPrecedence", 0), "spec.matchingPrecedence"
    if precedence <= 0:
        errors.append(invalid(path, precedence, "must be a positive value"))
    if precedence > _MAX_PRECEDENCE:
        errors.append(invalid(path, precedence, f"must not be greater than {_MAX_PRECEDENCE}"))
    if precedence == 1 and obj["metadata"].get("name") != EXEMPT:
        text = "only the schema named 'exempt' may have matchingPrecedence 1"
        errors.append(invalid(path, precedence, text))
    method = spec.get("distinguisherMethod")
    if method is not None and method.get("type") not in ("ByNamespace", "ByUser"):
        allowed = ("ByNamespace", "ByUser")
        errors.append(not_supported("spec.distinguisherMethod.type", method, allowed))
    path = "spec.priorityLevelConfiguration.name"
    level = (spec.get("priorityLevelConfiguration") or {}).get("name", "")
    if not level:
        errors.append(required(path, "must reference a priority level"))
    elif problem := validation.dns1123_subdomain_error(level):
        errors.append(invalid(path, level, problem))
    for index, rule in enumerate(spec.get("rules") or ()):
        errors += _rule_errors(rule, f"spec.rules[{index}]")
    return errors + _fixed_errors(FLOW_SCHEMAS, obj)


def validate_priority_level(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a PriorityLevelConfiguration."""
    spec = obj.get("spec", {})
    kind, errors = spec.get("type", ""), []
    if (obj["metadata"].get("name") == EXEMPT) != (kind == "Exempt"):
        text = "must be 'Exempt' if and only if `name` is 'exempt'"
        errors.append(invalid("spec.type", kind, text))
    limited, exempt = spec.get("limited"), spec.get("exempt")
    if kind == "Exempt":
        if limited is not None:
            errors.append(forbidden("spec.limited", "must be nil if the type is not Limited"))
        errors += _level_errors(exempt or {}, "spec.exempt")
    elif kind == "Limited":
        if exempt is not None:
            errors.append(forbidden("spec.exempt", "must be nil if the type is Limited"))
        if limited is None:
            errors.append(required("spec.limited", "must not be empty when type is Limited"))
        else:
            errors += _level_errors(limited, "spec.limited")
            errors += _response_errors(limited.get("limitResponse") or {})
    elif kind:
        errors.append(not_supported("spec.type", kind, ("Exempt", "Limited")))
    else:
        errors.append(required("spec.type"))
    return errors + _fixed_errors(PRIORITY_LEVELS, obj)


def _fixed_errors(resource: Resource, obj: Json) -> list[FieldError]:
    """Return an error if the spec is not the one that the name requires."""
    name, spec = obj["metadata"].get("name", ""), obj.get("spec") or {}
    fixed = fixed_spec(resource, name, spec)
    if fixed is None or spec == fixed:
        return []
    return [invalid("spec", spec, f"spec of '{name}' must equal the fixed value")]


def validate_conditions(obj: Json, old: Json) -> list[FieldError]:
    """Validate the status of either kind."""
    errors, seen = [], set[str]()
    for index, condition in enumerate((obj.get("status") or {}).get("conditions") or ()):
        kind, path = condition.get("type", ""), f"status.conditions[{index}].type"
        if kind in seen:
            errors.append(duplicate(path, kind))
        seen.add(kind)
        if not kind:
            errors.append(required(path))
    return errors


def _rule_errors(rule: Json, path: str) -> list[FieldError]:
    errors = []
    subjects = rule.get("subjects") or ()
    if not subjects:
        errors.append(required(f"{path}.subjects", "subjects must contain at least one value"))
    for index, subject in enumerate(subjects):
        errors += _subject_errors(subject, f"{path}.subjects[{index}]")
    resources, others = (rule.get(key) or () for key in ("resourceRules", "nonResourceRules"))
    if not (resources or others):
        text = "at least one of resourceRules and nonResourceRules has to be non-empty"
        errors.append(required(path, text))
    for index, each in enumerate(resources):
        errors += _resource_rule_errors(each, f"{path}.resourceRules[{index}]")
    for index, each in enumerate(others):
        errors += _url_rule_errors(each, f"{path}.nonResourceRules[{index}]")
    return errors


def _subject_errors(subject: Json, path: str) -> list[FieldError]:
    kind = subject.get("kind", "")
    if kind not in _SUBJECTS:
        return [not_supported(f"{path}.kind", kind, _SUBJECTS)]
    own = _SUBJECTS[kind]
    errors = [
        forbidden(f"{path}.{key}", f"{key} is forbidden when subject kind is not '{other}'")
        for other, key in _SUBJECTS.items()
        if key != own and subject.get(key) is not None
    ]
    value, path = subject.get(own), f"{path}.{own}"
    if value is None:
        return [*errors, required(path, f"{own} is required when subject kind is '{kind}'")]
    name = value.get("name", "")
    if not name:
        errors.append(required(f"{path}.name"))
    if kind != "ServiceAccount":
        return errors
    if name not in ("", _ALL) and (problem := validation.dns1123_subdomain_error(name)):
        errors.append(invalid(f"{path}.name", name, problem))
    namespace = value.get("namespace", "")
    if not namespace:
        text = "must specify namespace for service account"
        errors.append(required(f"{path}.namespace", text))
    elif problem := validation.dns1123_label_error(namespace):
        errors.append(invalid(f"{path}.namespace", namespace, problem))
    return errors


def _verb_errors(rule: Json, path: str) -> list[FieldError]:
    verbs = rule.get("verbs") or []
    if not verbs:
        return [required(f"{path}.verbs", "verbs must contain at least one value")]
    if _ALL in verbs:
        return _alone(verbs, f"{path}.verbs", "verbs")
    if not set(verbs) <= set(_VERBS):
        return [not_supported(f"{path}.verbs", verbs, _VERBS)]
    return []


def _alone(values: list[str], path: str, what: str) -> list[FieldError]:
    """Return an error if the asterisk is among other values."""
    if len(values) == 1 or _ALL not in values:
        return []
    return [invalid(path, values, f"if '*' is present, must not specify other {what}")]


def _resource_rule_errors(rule: Json, path: str) -> list[FieldError]:
    errors = _verb_errors(rule, path)
    for key, one, what in (
        ("apiGroups", "api group", "api groups"),
        ("resources", "resource", "resources"),
    ):
        values = rule.get(key) or []
        if not values:
            text = f"resource rules must supply at least one {one}"
            errors.append(required(f"{path}.{key}", text))
        errors += _alone(values, f"{path}.{key}", what)
    namespaces = rule.get("namespaces") or []
    if not namespaces and not rule.get("clusterScope"):
        text = "resource rules that are not cluster scoped must supply at least one namespace"
        errors.append(required(f"{path}.namespaces", text))
    elif _ALL in namespaces:
        errors += _alone(namespaces, f"{path}.namespaces", "namespaces")
    else:
        for index, name in enumerate(namespaces):
            if problem := validation.dns1123_label_error(name):
                text = f"each member of this list must be '*' or a DNS-1123 label; {problem}"
                errors.append(invalid(f"{path}.namespaces[{index}]", name, text))
    return errors


def _url_rule_errors(rule: Json, path: str) -> list[FieldError]:
    errors = _verb_errors(rule, path)
    urls, path = rule.get("nonResourceURLs") or [], f"{path}.nonResourceURLs"
    if not urls:
        errors.append(required(path, "nonResourceURLs must contain at least one value"))
    elif _ALL in urls:
        errors += _alone(urls, path, "non-resource URLs")
    else:
        errors += [
            invalid(f"{path}[{index}]", url, problem)
            for index, url in enumerate(urls)
            if (problem := _url_problem(url))
        ]
    return errors


def _url_problem(url: str) -> str:
    if not url:
        return "must not be empty"
    if not url.startswith("/"):
        return "must start with slash"
    if " " in url:
        return "must not contain white-space"
    if "//" in url:
        return "must not contain double slash"
    wildcards = url.count(_ALL)
    if wildcards > 1 or (wildcards == 1 and not url.endswith("/*")):
        return "wildcard can only do suffix matching"
    return ""


def _level_errors(level: Json, path: str) -> list[FieldError]:
    errors = []
    shares, lendable = level.get("nominalConcurrencyShares", 0), level.get("lendablePercent", 0)
    if shares < 0:
        errors.append(invalid(f"{path}.nominalConcurrencyShares", shares, _NO_NEGATIVE))
    if not 0 <= lendable <= 100:
        errors.append(invalid(f"{path}.lendablePercent", lendable, _PERCENT))
    borrowed = level.get("borrowingLimitPercent") or 0
    if borrowed < 0:
        text = f"if specified, {_NO_NEGATIVE}"
        errors.append(invalid(f"{path}.borrowingLimitPercent", borrowed, text))
    return errors


def _response_errors(response: Json) -> list[FieldError]:
    kind, queuing = response.get("type", ""), response.get("queuing")
    path = "spec.limited.limitResponse"
    if kind == "Reject":
        text = "must be nil if limited.limitResponse.type is not Limited"
        return [] if queuing is None else [forbidden(f"{path}.queuing", text)]
    if kind == "Queue":
        text = "must not be empty if limited.limitResponse.type is Limited"
        if queuing is None:
            return [required(f"{path}.queuing", text)]
        return _queuing_errors(queuing, f"{path}.queuing")
    if not kind:
        return [required(f"{path}.type")]
    return [not_supported(f"{path}.type", kind, ("Queue", "Reject"))]


def _queuing_errors(queuing: Json, path: str) -> list[FieldError]:
    errors = []
    limit, queues, queues_each = (
        queuing.get(key, 0) for key in ("queueLengthLimit", "queues", "handSize")
    )
    if limit <= 0:
        errors.append(invalid(f"{path}.queueLengthLimit", limit, "must be positive"))
    if queues <= 0:
        errors.append(invalid(f"{path}.queues", queues, "must be positive"))
    elif queues > _MAX_QUEUES:
        text = f"must not be greater than {_MAX_QUEUES}"
        errors.append(invalid(f"{path}.queues", queues, text))
    if queues_each <= 0:
        errors.append(invalid(f"{path}.handSize", queues_each, "must be positive"))
    elif queues_each > queues:
        text = f"should not be greater than queues ({queues})"
        errors.append(invalid(f"{path}.handSize", queues_each, text))
    elif (bits := _hash_bits(queues, queues_each)) > _MAX_HASH_BITS:
        text = (
            f"required entropy bits of deckSize {queues} and handSize {queues_each} should not be "
            f"greater than {_MAX_HASH_BITS}: {bits}"
        )
        errors.append(invalid(f"{path}.handSize", queues_each, text))
    return errors


def _hash_bits(queues: int, queues_each: int) -> int:
    """Return the bits of a hash that deals *queues_each* of *queues*."""
    return math.ceil(math.log2(queues) * queues_each)
