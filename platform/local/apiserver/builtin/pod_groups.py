"""Defaults and validation of Kubernetes' own PodGroups and Workloads (``scheduling.k8s.io``)."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from ....model import validation
from ..errors.fields import (
    IMMUTABLE,
    FieldError,
    duplicate,
    invalid,
    not_supported,
    required,
    too_long,
    too_many,
)

Json = dict[str, Any]

_DISRUPTION_MODES = ("Pod", "PodGroup")
_CONDITION_STATUSES = ("False", "True", "Unknown")
_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_REASON_FORMAT = (
    "a condition reason must start with alphabetic character, optionally followed by a string of "
    "alphanumeric characters or '_,:', and must end with an alphanumeric character or '_' (e.g. "
    "'my_name',  or 'MY_NAME',  or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex "
    "used for validation is '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')"
)
_MAX_REASON, _MAX_MESSAGE = 1024, 32 * 1024
_HIGHEST_PRIORITY = 1_000_000_000
_MOST_TEMPLATES, _MOST_CLAIMS, _MOST_KEYS = 8, 4, 1


def default_podgroup(obj: Json) -> None:
    """Default a PodGroup."""
    if isinstance(spec := obj.get("spec"), dict):
        spec.setdefault("disruptionMode", "Pod")


def missing_template(reference: Json, workload: Json | None) -> str:
    """Return why a PodGroup may not be created with *reference* to *workload*; empty if it may."""
    name = f'Workload "{reference.get("workloadName", "")}"'
    if workload is None:
        return f"PodGroup rejected: {name} not found"
    if workload["metadata"].get("deletionTimestamp"):
        return f"PodGroup rejected: {name} is being deleted"
    template = reference.get("podGroupTemplateName", "")
    templates = (workload.get("spec") or {}).get("podGroupTemplates") or ()
    if any(each.get("name") == template for each in templates):
        return ""
    return f'PodGroup rejected: PodGroupTemplate "{template}" not found in {name}'


def validate_podgroup(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a PodGroup, whose spec is immutable."""
    spec = obj.get("spec") or {}
    if old is not None:
        return _changed(spec, old.get("spec") or {})
    errors: list[FieldError] = []
    if (reference := spec.get("podGroupTemplateRef")) is not None:
        path = "spec.podGroupTemplateRef"
        workload = reference.get("workload")
        if workload is None:
            errors += _union_errors(reference, path, ("workload",))
        else:
            path = f"{path}.workload"
            errors += _text_errors(workload, "workloadName", path, _SUBDOMAIN)
            errors += _text_errors(workload, "podGroupTemplateName", path, _LABEL)
    return errors + _group_errors(spec, "spec")


def validate_podgroup_status(obj: Json, old: Json) -> list[FieldError]:
    """Validate a write of the status of a PodGroup."""
    status = obj.get("status") or {}
    errors: list[FieldError] = []
    seen: set[str] = set()
    for index, condition in enumerate(status.get("conditions") or ()):
        path, kind = f"status.conditions[{index}]", condition.get("type", "")
        if kind in seen:
            errors.append(duplicate(f"{path}.type", kind))
        seen.add(kind)
        errors += condition_errors(condition, path)
    claims = {each.get("name") for each in (obj.get("spec") or {}).get("resourceClaims") or ()}
    for index, each in enumerate(status.get("resourceClaimStatuses") or ()):
        if each.get("name") not in claims:
            path = f"status.resourceClaimStatuses[{index}].name"
            text = "must match the name of an entry in `spec.resourceClaims`"
            errors.append(invalid(path, each.get("name", ""), text))
    return errors


def validate_workload(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a Workload, whose spec is immutable."""
    spec = obj.get("spec") or {}
    if old is not None:
        return _changed(spec, old.get("spec") or {})
    errors: list[FieldError] = []
    if (owner := spec.get("controllerRef")) is not None:
        path = "spec.controllerRef"
        if owner.get("apiGroup"):
            errors += _text_errors(owner, "apiGroup", path, _SUBDOMAIN)
        errors += _text_errors(owner, "kind", path, validation.path_segment_error)
        errors += _text_errors(owner, "name", path, validation.path_segment_error)
    templates, path = spec.get("podGroupTemplates") or [], "spec.podGroupTemplates"
    if not templates:
        errors.append(required(path))
    if len(templates) > _MOST_TEMPLATES:
        return [*errors, too_many(path, len(templates), _MOST_TEMPLATES)]
    errors += _duplicates(templates, path)
    for index, template in enumerate(templates):
        errors += _text_errors(template, "name", f"{path}[{index}]", _LABEL)
        errors += _group_errors(template, f"{path}[{index}]")
    return errors


def _group_errors(spec: Json, path: str) -> list[FieldError]:
    """Validate what PodGroups and their templates have in common."""
    errors = _policy_errors(spec.get("schedulingPolicy") or {}, f"{path}.schedulingPolicy")
    keys = (spec.get("schedulingConstraints") or {}).get("topology") or []
    where = f"{path}.schedulingConstraints.topology"
    if len(keys) > _MOST_KEYS:
        errors.append(too_many(where, len(keys), _MOST_KEYS))
    else:
        for index, each in enumerate(keys):
            errors += _text_errors(
                each, "key", f"{where}[{index}]", validation.qualified_name_error
            )
    errors += _claim_errors(spec.get("resourceClaims") or [], f"{path}.resourceClaims")
    mode = spec.get("disruptionMode")
    if mode is not None and mode not in _DISRUPTION_MODES:
        errors.append(not_supported(f"{path}.disruptionMode", mode, _DISRUPTION_MODES))
    if spec.get("priorityClassName"):
        errors += _text_errors(spec, "priorityClassName", path, _SUBDOMAIN)
    if (priority := spec.get("priority")) is not None and priority > _HIGHEST_PRIORITY:
        text = f"must be less than or equal to {_HIGHEST_PRIORITY}"
        errors.append(invalid(f"{path}.priority", priority, text))
    return errors


def _policy_errors(policy: Json, path: str) -> list[FieldError]:
    errors = _union_errors(policy, path, ("basic", "gang"))
    if (gang := policy.get("gang")) is not None:
        count, where = gang.get("minCount", 0), f"{path}.gang.minCount"
        if not count:
            errors.append(required(where))
        elif count < 0:
            errors.append(invalid(where, count, "must be greater than or equal to 1"))
    return errors


def _claim_errors(claims: Sequence[Json], path: str) -> list[FieldError]:
    if len(claims) > _MOST_CLAIMS:
        return [too_many(path, len(claims), _MOST_CLAIMS)]
    errors = _duplicates(claims, path)
    for index, claim in enumerate(claims):
        where = f"{path}[{index}]"
        references = ("resourceClaimName", "resourceClaimTemplateName")
        errors += _union_errors(claim, where, references)
        errors += _text_errors(claim, "name", where, _LABEL)
        for each in references:
            if claim.get(each) is not None:
                errors += _text_errors(claim, each, where, _SUBDOMAIN)
    return errors


def condition_errors(condition: Json, path: str) -> list[FieldError]:
    """Validate a condition of Kubernetes' common type."""
    kind, status = condition.get("type", ""), condition.get("status", "")
    reason, message = condition.get("reason", ""), condition.get("message", "")
    errors = []
    if problem := validation.qualified_name_error(kind):
        errors.append(invalid(f"{path}.type", kind, problem))
    if status not in _CONDITION_STATUSES:
        errors.append(not_supported(f"{path}.status", status, _CONDITION_STATUSES))
    if condition.get("observedGeneration", 0) < 0:
        text = "must be greater than or equal to zero"
        generation = condition["observedGeneration"]
        errors.append(invalid(f"{path}.observedGeneration", generation, text))
    if not condition.get("lastTransitionTime"):
        errors.append(required(f"{path}.lastTransitionTime"))
    if not reason:
        errors.append(required(f"{path}.reason"))
    elif not _REASON.fullmatch(reason):
        errors.append(invalid(f"{path}.reason", reason, _REASON_FORMAT))
    if len(reason) > _MAX_REASON:
        errors.append(too_long(f"{path}.reason", _MAX_REASON))
    if len(message.encode()) > _MAX_MESSAGE:
        errors.append(too_long(f"{path}.message", _MAX_MESSAGE))
    return errors


def _changed(spec: Json, before: Json) -> list[FieldError]:
    fields = sorted(spec.keys() | before.keys())
    return [
        invalid(f"spec.{each}", None, IMMUTABLE)
        for each in fields
        if spec.get(each) != before.get(each)
    ]


def _union_errors(obj: Json, path: str, members: Sequence[str]) -> list[FieldError]:
    """Reject an object that has not exactly one of *members*."""
    given = [each for each in members if obj.get(each) is not None]
    if len(given) == 1:
        return []
    names = ", ".join(f"`{each}`" for each in members)
    if not given:
        return [invalid(path, "", f"must specify one of: {names}")]
    return [invalid(path, f"{{{', '.join(given)}}}", f"must specify exactly one of: {names}")]


def _text_errors(
    obj: Json, field: str, path: str, problem_of: Callable[[str], str]
) -> list[FieldError]:
    """Require text in *field* for which *problem_of* returns nothing."""
    text, where = obj.get(field, ""), f"{path}.{field}"
    if not text:
        return [required(where)]
    problem = problem_of(text)
    return [invalid(where, text, problem)] if problem else []


def _duplicates(items: Sequence[Json], path: str) -> list[FieldError]:
    seen: set[str] = set()
    errors = []
    for index, each in enumerate(items):
        name = each.get("name", "")
        if name in seen:
            errors.append(duplicate(f"{path}[{index}]", each))
        seen.add(name)
    return errors


_LABEL, _SUBDOMAIN = validation.dns1123_label_error, validation.dns1123_subdomain_error
