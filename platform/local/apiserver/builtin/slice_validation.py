"""Validation of ResourceSlices: pools, devices, attributes, capacities, counters, taints."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from ....model import quantity, validation
from ..errors.fields import (
    IMMUTABLE,
    FieldError,
    duplicate,
    forbidden,
    invalid,
    invalid_whole,
    not_supported,
    required,
    too_long,
    too_many,
)
from . import device_validation as devices
from .device_status_validation import binding_condition_errors, pool_name_errors
from .scheduling_validation import validate_node_selector

Json = dict[str, Any]

_MAX_DEVICES, _MAX_ADVANCED_DEVICES = 128, 64
_MAX_COUNTER_SETS, _MAX_COUNTERS, _MAX_CONSUMPTIONS = 8, 32, 2
_MAX_ENTRIES, _MAX_ATTRIBUTE_VALUE, _MAX_TAINTS, _MAX_VALID_VALUES = 32, 64, 16, 10
_VALUES = ("bool", "int", "string", "version")
_NODES = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?"
    r"(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?",
    re.ASCII,
)
_UNCHANGED = (("pool", "name"), ("driver",), ("nodeName",))


def validate_slice(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a ResourceSlice; its driver, pool and node cannot be changed."""
    spec = obj.get("spec") or {}
    errors = devices.driver_errors(spec.get("driver", ""), "spec.driver")
    errors += _pool_errors(spec.get("pool") or {}, "spec.pool")
    if old is not None:
        before = old.get("spec") or {}
        errors += [
            invalid(f"spec.{'.'.join(path)}", _at(spec, path), IMMUTABLE)
            for path in _UNCHANGED
            if _at(spec, path) != _at(before, path)
        ]
    errors += _node_errors(spec, "spec", _NODES)
    found, counters = spec.get("devices") or [], spec.get("sharedCounters") or []
    if found and counters:
        text = "only one of `sharedCounters` or `devices` is allowed"
        errors.append(invalid("spec", "", text))
    advanced = any(each.get("taints") or each.get("consumesCounters") for each in found)
    per_device = bool(spec.get("perDeviceNodeSelection"))
    errors += devices.each_of(
        found,
        _MAX_ADVANCED_DEVICES if advanced else _MAX_DEVICES,
        "spec.devices",
        lambda each, where: _device_errors(each, where, per_device=per_device),
    )
    errors += devices.repeated(found, "name", "spec.devices")
    errors += devices.each_of(
        counters,
        _MAX_COUNTER_SETS,
        "spec.sharedCounters",
        lambda each, where: _counter_errors(each, where, "name"),
    )
    return errors + devices.repeated(counters, "name", "spec.sharedCounters")


def _at(spec: Json, path: Sequence[str]) -> Any:
    value: Any = spec
    for key in path:
        value = (value or {}).get(key)
    return value


def _pool_errors(pool: Json, path: str) -> list[FieldError]:
    errors = pool_name_errors(pool.get("name", ""), f"{path}.name")
    count, generation = pool.get("resourceSliceCount", 0), pool.get("generation", 0)
    if count <= 0:
        where = f"{path}.resourceSliceCount"
        errors.append(invalid(where, count, "must be greater than zero"))
    if generation < 0:
        text = "must be greater than or equal to zero"
        errors.append(invalid(f"{path}.generation", generation, text))
    return errors


def _node_errors(holder: Json, path: str, names: Sequence[str]) -> list[FieldError]:
    """Require exactly one of the fields that state from which nodes devices can be used."""
    errors: list[FieldError] = []
    given = []
    for name in names:
        value = holder.get(name)
        if value is None:
            continue
        where = f"{path}.{name}"
        if name == "nodeSelector":
            validate_node_selector(value, where, errors)
            terms = value.get("nodeSelectorTerms") or []
            if len(terms) != 1 and path == "spec":
                text = "must have exactly one node selector term"
                errors.append(invalid(f"{where}.nodeSelectorTerms", terms, text))
        elif not value:
            text = "a non-empty string" if name == "nodeName" else "true"
            errors.append(invalid(where, value, f"must be either unset or set to {text}"))
            continue
        elif name == "nodeName" and (problem := validation.dns1123_subdomain_error(value)):
            errors.append(invalid(where, value, problem))
        given.append(f"`{name}`")
    text = f"exactly one of {', '.join(f'`{each}`' for each in names)} is required"
    if not given:
        errors.append(required(path, text))
    elif len(given) > 1:
        shown = f"{{{', '.join(given)}}}"
        errors.append(invalid(path, shown, f"{text}, but multiple fields are set"))
    return errors


def _device_errors(device: Json, path: str, *, per_device: bool) -> list[FieldError]:
    errors = devices.label_errors(device.get("name", ""), f"{path}.name")
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    if (count := len(attributes) + len(capacity)) > _MAX_ENTRIES:
        text = f"the total number of attributes and capacities must not exceed {_MAX_ENTRIES}"
        errors.append(invalid(path, count, text))
    for name, attribute in sorted(attributes.items()):
        errors += devices.qualified_name_errors(name, f"{path}.attributes")
        errors += _attribute_errors(attribute, f"{path}.attributes[{name}]")
    shared = bool(device.get("allowMultipleAllocations"))
    for name, amount in sorted(capacity.items()):
        errors += devices.qualified_name_errors(name, f"{path}.capacity")
        where = f"{path}.capacity[{name}].requestPolicy"
        if (policy := amount.get("requestPolicy")) is None:
            continue
        if shared:
            errors += _policy_errors(quantity.parse(amount.get("value", "0")), policy, where)
        else:
            errors.append(forbidden(where, "allowMultipleAllocations must be true"))
    errors += devices.each_of(
        device.get("taints") or [], _MAX_TAINTS, f"{path}.taints", taint_errors
    )
    consumed, where = device.get("consumesCounters") or [], f"{path}.consumesCounters"
    errors += devices.each_of(
        consumed,
        _MAX_CONSUMPTIONS,
        where,
        lambda each, at: _counter_errors(each, at, "counterSet"),
    )
    errors += devices.repeated(consumed, "counterSet", where)
    if per_device:
        errors += _node_errors(device, path, _NODES[:3])
    elif any(device.get(each) is not None for each in _NODES[:3]):
        text = (
            "`nodeName`, `nodeSelector` and `allNodes` can only be set if "
            "`perDeviceNodeSelection` is set to true in the ResourceSlice spec"
        )
        errors.append(invalid(path, None, text))
    return errors + binding_condition_errors(device, path)


def _attribute_errors(attribute: Json, path: str) -> list[FieldError]:
    errors = []
    for key in ("string", "version"):
        value = attribute.get(key)
        if value is None:
            continue
        if key == "version" and not _SEMVER.fullmatch(value):
            text = "must be a string compatible with semver.org spec 2.0.0"
            errors.append(invalid(f"{path}.{key}", value, text))
        if len(value.encode()) > _MAX_ATTRIBUTE_VALUE:
            errors.append(too_long(f"{path}.{key}", _MAX_ATTRIBUTE_VALUE))
    if sum(attribute.get(key) is not None for key in _VALUES) != 1:
        errors.append(invalid(path, attribute, "exactly one value must be specified"))
    return errors


def taint_errors(taint: Json, path: str) -> list[FieldError]:
    """Validate a taint of a device."""
    errors = []
    key, value, effect = (taint.get(each, "") for each in ("key", "value", "effect"))
    if problem := validation.qualified_name_error(key):
        errors.append(invalid(f"{path}.key", key, problem))
    if value and (problem := validation.label_value_error(value)):
        errors.append(invalid(f"{path}.value", value, problem))
    if not effect:
        errors.append(required(f"{path}.effect"))
    elif effect not in devices.TAINT_EFFECTS:
        errors.append(not_supported(f"{path}.effect", effect, devices.TAINT_EFFECTS))
    return errors


def _counter_errors(holder: Json, path: str, key: str) -> list[FieldError]:
    """Validate a set of counters, or what a device uses of one."""
    errors = devices.label_errors(holder.get(key, ""), f"{path}.{key}")
    counters, where = holder.get("counters") or {}, f"{path}.counters"
    if not counters:
        errors.append(required(where))
    elif len(counters) > _MAX_COUNTERS:
        errors.append(too_many(where, len(counters), _MAX_COUNTERS))
    else:
        for name in sorted(counters):
            errors += devices.label_errors(name, where)
    return errors


def _policy_errors(most: quantity.Quantity, policy: Json, path: str) -> list[FieldError]:
    """Validate which amounts of a capacity may be requested."""
    values, limits = policy.get("validValues") or [], policy.get("validRange")
    if values and limits is not None:
        text = (
            'exactly one policy can be specified, cannot specify "validValues" and "validRange" '
            "at the same time"
        )
        return [forbidden(path, text)]
    if not values and limits is None:
        return []
    kind = "validValues" if values else "validRange"
    if policy.get("default") is None:
        return [required(f"{path}.default", f"required when {kind} is defined")]
    default, path = quantity.parse(policy["default"]), f"{path}.{kind}"
    if limits is not None:
        return _range_errors(most, default, limits, path)
    return _values_errors(most, default, values, path)


def _values_errors(
    most: quantity.Quantity, default: quantity.Quantity, values: Sequence[str], path: str
) -> list[FieldError]:
    if len(values) > _MAX_VALID_VALUES:
        return [too_many(path, len(values), _MAX_VALID_VALUES)]
    amounts, errors = [quantity.parse(each) for each in values], []
    for index, (before, after) in enumerate(pairwise(amounts), start=1):
        if before > after:
            text = "values must be sorted in ascending order"
            errors.append(invalid(f"{path}[{index}]", str(after), text))
    for index, amount in enumerate(amounts):
        if amount > most:
            text = f"option is larger than capacity value: {most}"
            errors.append(invalid(f"{path}[{index}]", str(amount), text))
        if amount in amounts[:index]:
            errors.append(duplicate(f"{path}[{index}]", str(amount.value())))
    if default not in amounts:
        text = "default value is not valid according to the requestPolicy"
        errors.append(invalid(path, str(default), text))
    return errors


def _range_errors(
    most: quantity.Quantity, default: quantity.Quantity, limits: Mapping[str, str], path: str
) -> list[FieldError]:
    if limits.get("min") is None:
        return [required(f"{path}.min", "required when validRange is defined")]
    amounts = {key: quantity.parse(text) for key, text in limits.items() if text is not None}
    least, highest, step = amounts["min"], amounts.get("max"), amounts.get("step")
    checks = [
        (least > most, "min", f"min is larger than capacity value: {most}"),
        (default < least, "min", f"default is less than min: {least}"),
    ]
    if highest is not None:
        checks += [
            (least > highest, "max", f"min is larger than max: {highest}"),
            (highest > most, "max", f"max is larger than capacity value: {most}"),
            (default > highest, "max", f"default is more than max: {highest}"),
        ]
    if step is not None:
        text = f"value is not a multiple of a given step ({step}) from ({least})"
        steps = step.value()
        if steps <= 0:
            return [invalid(f"{path}.step", str(step), "must be greater than zero")]
        checks.append(
            (
                least.value() + steps > most.value(),
                "step",
                f"one step is larger than capacity value: {most}",
            )
        )
        checks += [
            (bool((each.value() - least.value()) % steps), "step", text)
            for each in (default, highest)
            if each is not None
        ]
    return [invalid_whole(f"{path}.{key}", text) for failed, key, text in checks if failed]
