"""Validation of ResourceQuotas."""

from collections.abc import Iterator
from typing import Any

from ....model import quantity, validation
from ....model.resource_names import COMPUTE, is_extended
from ..errors.fields import IMMUTABLE, NOT_NEGATIVE, FieldError, invalid, required

Json = dict[str, Any]

_COUNTED = (
    "pods", "resourcequotas", "services", "replicationcontrollers", "secrets", "configmaps",
    "persistentvolumeclaims", "services.nodeports", "services.loadbalancers",
)  # fmt: skip
_AMOUNTS = tuple(f"{prefix}{name}" for prefix in ("", "requests.", "limits.") for name in COMPUTE)
_STANDARD = frozenset((*_COUNTED, *_AMOUNTS, "requests.storage"))
_HUGE_PAGES = ("hugepages-", "requests.hugepages-")
_OF_PODS = frozenset(
    ("pods", *(each for each in _AMOUNTS if not each.endswith("ephemeral-storage")))
)
_EXISTS_ONLY = (
    "Terminating", "NotTerminating", "BestEffort", "NotBestEffort", "CrossNamespacePodAffinity",
)  # fmt: skip
_SCOPES = {
    **dict.fromkeys((*_EXISTS_ONLY, "PriorityClass"), _OF_PODS),
    "BestEffort": frozenset(("pods",)),
    "VolumeAttributesClass": frozenset(("persistentvolumeclaims", "requests.storage")),
}
"""The standard amounts that may be limited with a scope."""

_CONFLICTING = (("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating"))


def validate_quota(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate the limits and scopes of a quota; its scopes cannot be changed."""
    spec = obj.get("spec") or {}
    errors = [*_validate_amounts(spec, "spec", "hard"), *_validate_scopes(spec)]
    if spec.get("scopeSelector") is not None:
        errors += _validate_selector(spec)
    if old is not None:
        scopes, before = (each.get("scopes") or [] for each in (spec, old.get("spec") or {}))
        if set(scopes) != set(before):
            errors.append(invalid("spec.scopes", scopes, IMMUTABLE))
    return errors


def validate_quota_status(obj: Json, old: Json) -> list[FieldError]:
    """Validate the amounts of a quota's status."""
    status = obj.get("status") or {}
    return [each for key in ("hard", "used") for each in _validate_amounts(status, "status", key)]


def quota_warnings(obj: Json, old: Json | None) -> list[str]:
    """Warn of a new quota with limits that no pod can reach."""
    hard = (obj.get("spec") or {}).get("hard") or {}
    found = []
    for name in ("cpu", "memory", "storage", "ephemeral-storage"):
        request, limit = f"requests.{name}", f"limits.{name}"
        if request not in hard and name in ("cpu", "memory"):
            request = name
        if old is None and request in hard and limit in hard:
            amounts = quantity.parse(hard[request]), quantity.parse(hard[limit])
            if amounts[0] > amounts[1]:
                found.append(
                    f"ResourceQuota {request} ({amounts[0]}) should be less than {limit} "
                    f"({amounts[1]})"
                )
    return found


def is_standard(name: str) -> bool:
    """Whether a name without a domain is that of an amount of Kubernetes."""
    return name in _STANDARD or name.startswith(_HUGE_PAGES)


def _validate_amounts(holder: Json, start: str, key: str) -> Iterator[FieldError]:
    for name, text in sorted((holder.get(key) or {}).items()):
        path = f"{start}.{key}[{name}]"
        yield from _validate_name(name, path)
        amount = quantity.parse(text)
        if amount < quantity.ZERO:
            yield invalid(path, str(amount), NOT_NEGATIVE)
        whole = name in _COUNTED or (is_extended(name) and not name.startswith("requests."))
        if whole and amount.milli_value() % 1000:
            yield invalid(path, str(amount), "must be an integer")


def _validate_name(name: str, path: str) -> Iterator[FieldError]:
    problem = validation.qualified_name_error(name)
    if problem:
        yield invalid(path, name, problem)
    if "/" in name or is_standard(name):
        return
    if not problem and name != "storage":
        yield invalid(path, name, "must be a standard resource type or fully qualified")
    yield invalid(path, name, "must be a standard resource for quota")


def _validate_scopes(spec: Json) -> Iterator[FieldError]:
    path, scopes = "spec.scopes", spec.get("scopes") or []
    for scope in scopes:
        if scope not in _SCOPES:
            yield invalid(path, scopes, "unsupported scope")
        for _ in _unsupported(scope, spec):
            yield invalid(path, scopes, "unsupported scope applied to resource")
    yield from _conflicts(path, scopes, scopes)


def _unsupported(scope: str, spec: Json) -> list[str]:
    """Return the standard amounts that are limited, but not with this scope."""
    allowed = _SCOPES.get(scope)
    if allowed is None:
        return []
    return [name for name in spec.get("hard") or () if is_standard(name) and name not in allowed]


def _conflicts(path: str, scopes: list[str], shown: Any) -> Iterator[FieldError]:
    for pair in _CONFLICTING:
        if set(pair) <= set(scopes):
            yield invalid(path, shown, "conflicting scopes")


def _validate_selector(spec: Json) -> Iterator[FieldError]:
    path, selector = "spec.scopeSelector.matchExpressions", spec["scopeSelector"]
    expressions = selector.get("matchExpressions") or []
    for each in expressions:
        scope, operator = each.get("scopeName", ""), each.get("operator", "")
        values = each.get("values") or []
        if scope not in _SCOPES:
            yield invalid(f"{path}.scopeName", scope, "unsupported scope")
        for _ in _unsupported(scope, spec):
            yield invalid(path, selector, "unsupported scope applied to resource")
        if scope in _EXISTS_ONLY and operator != "Exists":
            yield invalid(
                f"{path}.operator",
                operator,
                "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, "
                "ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, "
                "ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity",
            )
        if operator in ("In", "NotIn"):
            if not values:
                text = (
                    "must be at least one value when `operator` is 'In' or 'NotIn' for scope "
                    "selector"
                )
                yield required(f"{path}.values", text)
        elif operator in ("Exists", "DoesNotExist"):
            if values:
                text = (
                    "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope "
                    "selector"
                )
                yield invalid(f"{path}.values", values, text)
        else:
            yield invalid(f"{path}.operator", operator, "not a valid selector operator")
    named = [each.get("scopeName", "") for each in expressions]
    yield from _conflicts(path, named, spec.get("scopes"))
