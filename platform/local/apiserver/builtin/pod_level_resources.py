"""Requests and limits of a whole pod: defaults, and validation against those of its containers."""

from typing import Any

import msgspec

from ....model.pod_resources import Amounts, PodResources, effective_resources
from ....model.quantity import parse
from ....model.resource_names import may_overcommit
from ..errors.fields import FieldError, forbidden, invalid, not_supported
from .resource_validation import HUGE_PAGES, resource_type_errors, validate_amounts

Json = dict[str, Any]

_SUPPORTED = ("cpu", HUGE_PAGES, "memory")


def default_pod_resources(spec: Json) -> None:
    """Default the limits of huge pages, and the requests where there are limits.

    A request is what the containers request together, and otherwise the limit.
    """
    resources = spec.get("resources")
    if not resources:
        return
    limits, requests = dict(resources.get("limits") or {}), dict(resources.get("requests") or {})
    if limits or requests:
        for name, amount in _of_containers(spec, "limits").items():
            if name.startswith(HUGE_PAGES) and name not in requests:
                limits.setdefault(name, str(amount))
    if limits:
        for name, amount in _of_containers(spec, "requests").items():
            if _is_supported(name) and may_overcommit(name):
                requests.setdefault(name, str(amount))
        for name, limit in limits.items():
            if _is_supported(name):
                requests.setdefault(name, limit)
    resources |= {
        key: amounts for key, amounts in (("limits", limits), ("requests", requests)) if amounts
    }


def validate_pod_resources(spec: Json, path: str, errors: list[FieldError]) -> None:
    """Validate names and amounts, and that what the containers have is within them."""
    resources = spec.get("resources")
    if resources is None:
        return
    path = f"{path}.resources"
    if resources.get("claims") is not None:
        text = "claims may not be set for Resources at pod-level"
        errors.append(forbidden(f"{path}.claims", text))
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for kind, amounts in (("limits", limits), ("requests", requests)):
        for name in amounts:
            _validate_name(name, f"{path}.{kind}[{name}]", errors)
    validate_amounts(resources, path, errors)
    _validate_total(_of_containers(spec, "requests"), requests, f"{path}.requests", errors)
    huge_pages = {
        name: amount
        for name, amount in _of_containers(spec, "limits").items()
        if name.startswith(HUGE_PAGES)
    }
    _validate_total(huge_pages, limits, f"{path}.limits", errors)
    for index, container in enumerate(spec.get("containers") or ()):
        for name, text in ((container.get("resources") or {}).get("limits") or {}).items():
            if name in limits and parse(text) > parse(limits[name]):
                where = f"{path}.containers[{index}][{name}].limits"
                detail = f"must be less than or equal to pod limits of {limits[name]}"
                errors.append(invalid(where, text, detail))


def _validate_name(name: str, path: str, errors: list[FieldError]) -> None:
    problems = resource_type_errors(name)
    errors += [invalid(path, name, problem) for problem in problems]
    if not problems and not _is_supported(name):
        errors.append(not_supported(path, name, _SUPPORTED))


def _validate_total(total: Amounts, allowed: Json, path: str, errors: list[FieldError]) -> None:
    """Check that the containers have no more together than the pod is allowed."""
    kind = path.rpartition(".")[2]
    for name, amount in total.items():
        if name in allowed and amount > parse(allowed[name]):
            text = f"must be greater than or equal to aggregate container {kind} of {amount}"
            errors.append(invalid(f"{path}[{name}]", allowed[name], text))


def _of_containers(spec: Json, kind: str) -> Amounts:
    """Return what the containers have together, without the resources of the whole pod."""
    containers = {
        key: [
            {
                "resources": {
                    each: (container.get("resources") or {}).get(each) or {}
                    for each in ("requests", "limits")
                },
                "restartPolicy": container.get("restartPolicy") or "",
            }
            for container in spec.get(key) or ()
        ]
        for key in ("containers", "initContainers")
    }
    return effective_resources(msgspec.convert(containers, PodResources), kind)


def _is_supported(name: str) -> bool:
    return name in ("cpu", "memory") or name.startswith(HUGE_PAGES)
