"""Validation of the status of ResourceClaims: allocations, consumers, devices."""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from ....model import validation
from ..errors.fields import (
    IMMUTABLE,
    FieldError,
    duplicate,
    forbidden,
    invalid,
    not_supported,
    required,
    too_many,
)
from . import device_validation as devices
from .pod_groups import condition_errors
from .scheduling_validation import validate_node_selector

Json = dict[str, Any]

_MAX_CONSUMERS, _MAX_RESULTS, _MAX_CONDITIONS, _MAX_BINDING_CONDITIONS = 256, 32, 8, 4
_MAX_DATA, _MAX_POOL_NAME = 10 * 1024, 253
_SOURCES = ("FromClaim", "FromClass")
_DEVICE = ("driver", "pool", "device", "shareID")
_CONSUMER = ("resource", "name", "uid")


def prepare_claim_for_update(obj: Json, old: Json) -> None:
    """Remove the state of devices that are no longer allocated."""
    status = obj.get("status") or {}
    removed = _allocated(old.get("status") or {}) - _allocated(status)
    if kept := [each for each in status.get("devices") or () if _key(each) not in removed]:
        status["devices"] = kept
    else:
        status.pop("devices", None)


def validate_claim_status(obj: Json, old: Json) -> list[FieldError]:
    """Validate a write of the status of a ResourceClaim; an allocation cannot be changed."""
    status, before = obj.get("status") or {}, old.get("status") or {}
    errors = _consumer_errors(obj, status, before)
    allocated, states = _allocated(status), status.get("devices") or []
    for index, state in enumerate(states):
        errors += _state_errors(state, f"status.devices[{index}]", allocated)
    allocation, path = status.get("allocation"), "status.allocation"
    if allocation is None:
        return errors
    if before.get("allocation") is not None:
        if allocation != before["allocation"]:
            errors.append(invalid(path, allocation, IMMUTABLE))
        return errors
    names = devices.request_names((obj.get("spec") or {}).get("devices") or {})
    found = allocation.get("devices") or {}
    errors += devices.each_of(
        found.get("results") or [],
        _MAX_RESULTS,
        f"{path}.devices.results",
        lambda each, where: _result_errors(each, where, names),
    )
    errors += devices.each_of(
        found.get("config") or [],
        2 * devices.MAX_CONFIGS,
        f"{path}.devices.config",
        lambda each, where: _config_errors(each, where, names),
    )
    if (selector := allocation.get("nodeSelector")) is not None:
        validate_node_selector(selector, f"{path}.nodeSelector", errors)
    return errors


def _consumer_errors(obj: Json, status: Json, before: Json) -> list[FieldError]:
    consumers, path = status.get("reservedFor") or [], "status.reservedFor"
    errors = devices.each_of(
        consumers,
        _MAX_CONSUMERS,
        path,
        lambda each, where: [required(f"{where}.{key}") for key in _CONSUMER if not each.get(key)],
    )
    errors += devices.repeated(consumers, "uid", path)
    if consumers and status.get("allocation") is None:
        text = "may not be specified when `allocated` is not set"
        errors.append(forbidden(path, text))
    elif obj["metadata"].get("deletionTimestamp") and any(
        each not in (before.get("reservedFor") or ()) for each in consumers
    ):
        text = (
            "new entries may not be added while `deallocationRequested` or `deletionTimestamp` "
            "are set"
        )
        errors.append(forbidden(path, text))
    return errors


def _result_errors(result: Json, path: str, names: devices.RequestNames) -> list[FieldError]:
    errors = devices.reference_error(result.get("request", ""), f"{path}.request", names)
    errors += _device_errors(result, path)
    return errors + binding_condition_errors(result, path)


def _device_errors(device: Json, path: str) -> list[FieldError]:
    errors = devices.driver_errors(device.get("driver", ""), f"{path}.driver")
    errors += pool_name_errors(device.get("pool", ""), f"{path}.pool")
    errors += devices.label_errors(device.get("device", ""), f"{path}.device")
    share = device.get("shareID")
    if share is not None and not _is_uid(share):
        errors.append(invalid(f"{path}.shareID", share, "must be a UUID in lower case"))
    return errors


def _is_uid(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def pool_name_errors(name: str, path: str) -> list[FieldError]:
    """Require the name of a pool: DNS subdomains separated by slashes."""
    if not name:
        return [required(path)]
    errors = [
        invalid(path, each, problem)
        for each in name.split("/")
        if (problem := validation.dns1123_subdomain_error(each))
    ]
    if problem := validation.too_long_error(name, _MAX_POOL_NAME):
        errors.append(invalid(path, name, problem))
    return errors


def binding_condition_errors(device: Json, path: str) -> list[FieldError]:
    """Validate the conditions for which a binding waits, of a device or of a result."""
    wanted, failing = (
        device.get(key) or [] for key in ("bindingConditions", "bindingFailureConditions")
    )
    errors: list[FieldError] = []
    for key, names in (("bindingConditions", wanted), ("bindingFailureConditions", failing)):
        where = f"{path}.{key}"
        if len(names) > _MAX_BINDING_CONDITIONS:
            return [*errors, too_many(where, len(names), _MAX_BINDING_CONDITIONS)]
        for index, name in enumerate(names):
            if problem := validation.qualified_name_error(name):
                errors.append(invalid(where, name, problem))
            if name in names[:index]:
                errors.append(duplicate(f"{where}[{index}]", name))
    overlap = "bindingFailureConditions must not overlap with bindingConditions"
    errors += [
        invalid(f"{path}.bindingFailureConditions[{index}]", name, overlap)
        for index, name in enumerate(failing)
        if name in wanted
    ]
    if failing and not wanted:
        text = "bindingConditions are required to use bindingFailureConditions"
        errors.append(invalid(f"{path}.bindingConditions", wanted, text))
    if wanted and not failing:
        text = "bindingFailureConditions are required to use bindingConditions"
        errors.append(invalid(f"{path}.bindingFailureConditions", failing, text))
    return errors


def _config_errors(config: Json, path: str, names: devices.RequestNames) -> list[FieldError]:
    source, errors = config.get("source", ""), []
    if not source:
        errors.append(required(f"{path}.source"))
    elif source not in _SOURCES:
        errors.append(not_supported(f"{path}.source", source, _SOURCES))
    errors += devices.reference_errors(config.get("requests") or [], f"{path}.requests", names)
    return errors + devices.configuration_errors(config, path)


def _state_errors(state: Json, path: str, allocated: Iterable[Any]) -> list[FieldError]:
    errors = _device_errors(state, path)
    if _key(state) not in allocated:
        name = "/".join(state.get(key, "") for key in ("driver", "pool", "device"))
        errors.append(invalid(path, name, "must be an allocated device in the claim"))
    conditions = state.get("conditions") or []
    errors += devices.each_of(conditions, _MAX_CONDITIONS, f"{path}.conditions", condition_errors)
    errors += devices.repeated(conditions, "type", f"{path}.conditions")
    if state.get("data") is not None:
        errors += devices.raw_errors(state["data"], f"{path}.data", _MAX_DATA)
    return errors


def _allocated(status: Json) -> set[tuple[str, ...]]:
    found = (status.get("allocation") or {}).get("devices") or {}
    return {_key(each) for each in found.get("results") or ()}


def _key(device: Json) -> tuple[str, ...]:
    return tuple(device.get(key) or "" for key in _DEVICE)
