"""Validation of LimitRanges."""

from collections.abc import Iterator
from typing import Any

from ....model import quantity, validation
from ....model.quantity import Quantity
from ....model.resource_names import COMPUTE, may_overcommit
from ..errors.fields import FieldError, duplicate, forbidden, invalid, required
from .quota_validation import is_standard

Json = dict[str, Any]
Amounts = dict[str, Quantity]

_KINDS = ("max", "min", "default", "defaultRequest", "maxLimitRequestRatio")
_TYPES = ("Pod", "Container", "PersistentVolumeClaim")
_ONE = quantity.parse(1)


def validate_limit_range(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate the limits of a LimitRange."""
    errors: list[FieldError] = []
    seen: set[str] = set()
    for index, limit in enumerate((obj.get("spec") or {}).get("limits") or ()):
        path, kind = f"spec.limits[{index}]", limit.get("type") or ""
        if problem := validation.qualified_name_error(kind):
            errors.append(invalid(f"{path}.type", kind, problem))
        elif "/" not in kind and kind not in _TYPES:
            text = "must be a standard limit type or fully qualified"
            errors.append(invalid(f"{path}.type", kind, text))
        if kind in seen:
            errors.append(duplicate(f"{path}.type", kind))
        seen.add(kind)
        errors += _validate_limit(limit, kind, path)
    return errors


def _validate_limit(limit: Json, kind: str, path: str) -> Iterator[FieldError]:
    amounts: dict[str, Amounts] = {
        key: {name: quantity.parse(text) for name, text in (limit.get(key) or {}).items()}
        for key in _KINDS
    }
    if kind == "Pod":
        for key in ("default", "defaultRequest"):
            if amounts[key]:
                yield forbidden(f"{path}.{key}", "may not be specified when `type` is 'Pod'")
            amounts[key] = {}
    if kind == "PersistentVolumeClaim" and not (
        "storage" in amounts["min"] or "storage" in amounts["max"]
    ):
        text = "either minimum or maximum storage value is required, but neither was provided"
        yield required(f"{path}.limits", text)
    for key, found in amounts.items():
        for name in found:
            if problem := validation.qualified_name_error(name):
                yield invalid(f"{path}.{key}[{name}]", name, problem)
            elif "/" not in name and not _is_known(name, kind):
                text = "must be a standard resource type or fully qualified"
                yield invalid(f"{path}.{key}[{name}]", name, text)
    for name in sorted(set().union(*amounts.values())):
        yield from _compare({key: found.get(name) for key, found in amounts.items()}, name, path)


def _is_known(name: str, kind: str) -> bool:
    if kind in ("Pod", "Container"):
        return name in COMPUTE or name.startswith("hugepages-")
    return name == "storage" or is_standard(name)


_ORDERS = (
    ("min", "max", "min", "min value {} is greater than max value {}", 0),
    (
        "min", "defaultRequest", "defaultRequest",
        "min value {} is greater than default request value {}", 1,
    ),
    (
        "defaultRequest", "max", "defaultRequest",
        "default request value {} is greater than max value {}", 0,
    ),
    (
        "defaultRequest", "default", "defaultRequest",
        "default request value {} is greater than default limit value {}", 0,
    ),
    ("min", "default", "default", "min value {} is greater than default value {}", 0),
    ("default", "max", "default", "default value {} is greater than max value {}", 1),
)  # fmt: skip
"""What may not exceed what, the field of the error, its text, and which amount it repeats."""


def _compare(amounts: dict[str, Quantity | None], name: str, path: str) -> Iterator[FieldError]:
    for lower, upper, field, text, repeated in _ORDERS:
        pair = amounts[lower], amounts[upper]
        small, large = pair
        if small is not None and large is not None and small > large:
            where = f"{path}.{field}[{name}]"
            yield invalid(where, str(pair[repeated]), text.format(small, large))
    ratio, least, most = (amounts[key] for key in ("maxLimitRequestRatio", "min", "max"))
    where = f"{path}.maxLimitRequestRatio[{name}]"
    if ratio is not None and ratio < _ONE:
        yield invalid(where, str(ratio), f"ratio {ratio} is less than 1")
    if ratio is not None and least and most is not None:
        highest = most.nanos / least.nanos
        if ratio.nanos * least.nanos > most.nanos * _ONE.nanos:
            text = f"ratio {ratio} is greater than max/min = {highest:f}"
            yield invalid(where, str(ratio), text)
    default, request = amounts["default"], amounts["defaultRequest"]
    differ = default is not None and request is not None and default != request
    if differ and not may_overcommit(name):
        text = f"default value {default} must equal to defaultRequest value {request} in {name}"
        yield invalid(f"{path}.defaultRequest[{name}]", str(request), text)
