"""Validation of DeviceTaintRules."""

from typing import Any

from ..errors.fields import FieldError, too_many
from . import device_validation as devices
from .device_status_validation import pool_name_errors
from .pod_groups import condition_errors
from .slice_validation import taint_errors

Json = dict[str, Any]

_MAX_CONDITIONS = 8


def validate_taint_rule(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a DeviceTaintRule."""
    spec = obj.get("spec") or {}
    selector, path = spec.get("deviceSelector") or {}, "spec.deviceSelector"
    errors: list[FieldError] = []
    if (driver := selector.get("driver")) is not None:
        errors += devices.driver_errors(driver, f"{path}.driver")
    if (pool := selector.get("pool")) is not None:
        errors += pool_name_errors(pool, f"{path}.pool")
    if (device := selector.get("device")) is not None:
        errors += devices.label_errors(device, f"{path}.device")
    return errors + taint_errors(spec.get("taint") or {}, "spec.taint")


def validate_taint_rule_status(obj: Json, old: Json) -> list[FieldError]:
    """Validate a write of the status of a DeviceTaintRule."""
    conditions, path = (obj.get("status") or {}).get("conditions") or [], "status.conditions"
    errors = [
        error
        for index, each in enumerate(conditions)
        for error in condition_errors(each, f"{path}[{index}]")
    ]
    errors += devices.repeated(conditions, "type", path)
    if len(conditions) > _MAX_CONDITIONS:
        errors.append(too_many(path, len(conditions), _MAX_CONDITIONS))
    return errors
