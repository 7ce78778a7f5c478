"""Validation of PodDisruptionBudgets."""

from typing import Any

from ..errors.fields import NOT_NEGATIVE, FieldError, invalid, not_supported
from .scheduling_validation import validate_selector
from .workload_validation import validate_amount

Json = dict[str, Any]

_EVICTION_POLICIES = ("AlwaysAllow", "IfHealthyBudget")
_COUNTS = ("disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods")


def validate_budget(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a PodDisruptionBudget."""
    spec = obj.get("spec") or {}
    errors = list[FieldError]()
    limits = [key for key in ("minAvailable", "maxUnavailable") if spec.get(key) is not None]
    if len(limits) > 1:
        text = "minAvailable and maxUnavailable cannot be both set"
        errors.append(invalid("spec", spec, text))
    for key in limits:
        errors += validate_amount(spec[key], f"spec.{key}")
    validate_selector(spec.get("selector") or {}, "spec.selector", errors)
    policy = spec.get("unhealthyPodEvictionPolicy")
    if policy is not None and policy not in _EVICTION_POLICIES:
        path = "spec.unhealthyPodEvictionPolicy"
        errors.append(not_supported(path, policy, _EVICTION_POLICIES))
    return errors


def validate_status(obj: Json, old: Json) -> list[FieldError]:
    """Validate the status of a PodDisruptionBudget."""
    status = obj.get("status") or {}
    return [
        invalid(f"status.{name}", status[name], NOT_NEGATIVE)
        for name in _COUNTS
        if status.get(name, 0) < 0
    ]
