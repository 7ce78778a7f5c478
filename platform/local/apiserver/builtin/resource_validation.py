"""Validation of the resource requests and limits of containers."""

from typing import Any

from ....model import quantity, validation
from ....model.resource_names import COMPUTE, is_extended, may_overcommit
from ..errors.fields import FieldError, forbidden, invalid, required

Json = dict[str, Any]

HUGE_PAGES = "hugepages-"
_NATIVE = ("pods", "storage", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory")
"""Known resource names that containers may not request."""


def validate_resources(resources: Json, path: str, errors: list[FieldError]) -> None:
    """Validate requests and limits: names, amounts, and that no request exceeds its limit."""
    for kind in ("limits", "requests"):
        for name in resources.get(kind) or ():
            where = f"{path}.{kind}[{name}]"
            problems = container_resource_name_errors(name)
            errors += [invalid(where, name, problem) for problem in problems]
    validate_amounts(resources, path, errors)


def validate_amounts(resources: Json, path: str, errors: list[FieldError]) -> None:
    """Validate amounts, and that no request exceeds its limit."""
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for kind, amounts in (("limits", limits), ("requests", requests)):
        for name, text in amounts.items():
            _validate_amount(name, text, f"{path}.{kind}[{name}]", errors)
    for name, text in requests.items():
        _validate_request(name, text, limits.get(name), path, errors)
    asked = limits.keys() | requests.keys()
    if not asked & {"cpu", "memory"} and any(name.startswith(HUGE_PAGES) for name in asked):
        errors.append(forbidden(path, "HugePages require cpu or memory"))


def _validate_amount(name: str, text: str, path: str, errors: list[FieldError]) -> None:
    amount = quantity.parse(text)
    if amount < quantity.ZERO:
        errors.append(invalid(path, text, "must be greater than or equal to 0"))
    elif is_extended(name) and not amount.is_whole:
        errors.append(invalid(path, text, "must be an integer"))
    elif name.startswith(HUGE_PAGES) and not _is_multiple(amount, name):
        detail = f"{text} is not positive integer multiple of {name}"
        errors.append(invalid(path, text, detail))


def _is_multiple(amount: quantity.Quantity, name: str) -> bool:
    """Return whether *amount* is a multiple of the huge page size in *name*."""
    try:
        size = quantity.parse(name.removeprefix(HUGE_PAGES)).value()
    except quantity.QuantityError:
        return False
    return size > 0 and amount.value() % size == 0


def container_resource_name_errors(name: str) -> list[str]:
    """Return what is wrong with the name of a resource of a container."""
    if name in COMPUTE:
        return []
    problems = resource_type_errors(name)
    if "/" in name:
        if is_extended(name) and (problems or name.startswith("requests.")):
            problems.append("doesn't follow extended resource name standard")
    elif not name.startswith(HUGE_PAGES):
        problems.append("must be a standard resource for containers")
    return problems


def resource_type_errors(name: str) -> list[str]:
    """Return what is wrong with the name of any resource."""
    if problem := validation.qualified_name_error(name):
        return [problem]
    known = "/" in name or name.startswith(HUGE_PAGES) or name in (*COMPUTE, *_NATIVE)
    return [] if known else ["must be a standard resource type or fully qualified"]


def _validate_request(
    name: str, text: str, limit: str | None, path: str, errors: list[FieldError]
) -> None:
    elastic = may_overcommit(name)
    if limit is None:
        if not elastic:
            detail = "Limit must be set for non overcommitable resources"
            errors.append(required(f"{path}.limits", detail))
        return
    wanted, most = quantity.parse(text), quantity.parse(limit)
    if wanted > most or (wanted != most and not elastic):
        relation = "less than or equal" if elastic else "equal"
        detail = f"must be {relation} to {name} limit of {limit}"
        errors.append(invalid(f"{path}.requests", text, detail))
