"""Validation of ResourceClaims, ResourceClaimTemplates and DeviceClasses."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ....machinery.cel import device_selectors
from ....machinery.cel.environment import CompileError
from ....model import validation
from ....model.resource_names import is_extended
from ..errors.fields import (
    IMMUTABLE,
    FieldError,
    duplicate,
    first_positions,
    forbidden,
    invalid,
    not_supported,
    required,
    too_long,
    too_many,
)
from ..kinds.metadata import validate_annotations, validate_labels

Json = dict[str, Any]

MAX_DRIVER_NAME = 63
MAX_CONFIGS, MAX_REQUESTS = 32, 32
_MAX_CONSTRAINTS, _MAX_SELECTORS, _MAX_TOLERATIONS, _MAX_SUB_REQUESTS = 32, 32, 16, 8
_MAX_PARAMETERS, _MAX_IDENTIFIER = 10 * 1024, 32
_MODES = ("All", "ExactCount")
_OPERATORS = ("Equal", "Exists")
TAINT_EFFECTS = ("NoExecute", "NoSchedule", "None")
_REQUEST_REFERENCE = (
    "must be the name of a request in the claim or the name of a request and a subrequest "
    "separated by '/'"
)
_ONE_KIND = "exactly one of `exactly` or `firstAvailable` is required"
_C_IDENTIFIER = (
    "a valid C identifier must start with alphabetic character or '_', followed by a string of "
    "alphanumeric characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for "
    "validation is '[A-Za-z_][A-Za-z0-9_]*')"
)

RequestNames = Mapping[str, frozenset[str]]
"""The sub-requests of each request by their names."""


def validate_claim(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a ResourceClaim, whose spec is immutable."""
    spec = obj.get("spec") or {}
    if old is not None:
        return _unchanged(spec, old.get("spec") or {})
    return claim_spec_errors(spec, "spec")


def validate_claim_template(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a ResourceClaimTemplate, whose spec is immutable."""
    spec = obj.get("spec") or {}
    if old is not None:
        return _unchanged(spec, old.get("spec") or {})
    metadata = spec.get("metadata") or {}
    return [
        *validate_labels(metadata.get("labels"), "spec.metadata.labels"),
        *(
            forbidden(f"spec.metadata.{key}", "cannot be set")
            for key in metadata.keys() - {"annotations", "labels"}
            if metadata[key]
        ),
        *validate_annotations(metadata.get("annotations"), "spec.metadata.annotations"),
        *claim_spec_errors(spec.get("spec") or {}, "spec.spec"),
    ]


def validate_device_class(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a DeviceClass."""
    spec = obj.get("spec") or {}
    errors = _selector_errors(spec.get("selectors") or [], "spec.selectors")
    errors += each_of(spec.get("config") or [], MAX_CONFIGS, "spec.config", configuration_errors)
    name = spec.get("extendedResourceName")
    if name is not None and (not is_extended(name) or validation.qualified_name_error(name)):
        text = "must be a valid extended resource name"
        errors.append(invalid("spec.extendedResourceName", name, text))
    return errors


def _unchanged(spec: Json, before: Json) -> list[FieldError]:
    return [] if spec == before else [invalid("spec", spec, IMMUTABLE)]


# -- claims ----------------------------------------------------------------------------------------


def claim_spec_errors(spec: Json, path: str) -> list[FieldError]:
    """Validate the spec of a claim at *path*."""
    devices, path = spec.get("devices") or {}, f"{path}.devices"
    names = request_names(devices)
    requests = devices.get("requests") or []
    errors = each_of(requests, MAX_REQUESTS, f"{path}.requests", _request_errors)
    errors += repeated(requests, "name", f"{path}.requests")
    errors += each_of(
        devices.get("constraints") or [],
        _MAX_CONSTRAINTS,
        f"{path}.constraints",
        lambda each, where: _constraint_errors(each, where, names),
    )
    errors += each_of(
        devices.get("config") or [],
        MAX_CONFIGS,
        f"{path}.config",
        lambda each, where: [
            *reference_errors(each.get("requests") or [], f"{where}.requests", names),
            *configuration_errors(each, where),
        ],
    )
    return errors


def request_names(devices: Json) -> RequestNames:
    """Return the requests of a claim, and of each the sub-requests."""
    return {
        request.get("name", ""): frozenset(
            each.get("name", "") for each in request.get("firstAvailable") or ()
        )
        for request in devices.get("requests") or ()
    }


def _request_errors(request: Json, path: str) -> list[FieldError]:
    errors = label_errors(request.get("name", ""), f"{path}.name")
    exactly, first = request.get("exactly"), request.get("firstAvailable") or []
    if exactly is None and not first:
        return [*errors, required(path, _ONE_KIND)]
    if exactly is not None and first:
        return [*errors, invalid(path, None, f"{_ONE_KIND}, but multiple fields are set")]
    if exactly is not None:
        return errors + _choice_errors(exactly, f"{path}.exactly")
    path = f"{path}.firstAvailable"
    errors += each_of(
        first,
        _MAX_SUB_REQUESTS,
        path,
        lambda each, where: [
            *label_errors(each.get("name", ""), f"{where}.name"),
            *_choice_errors(each, where),
        ],
    )
    return errors + repeated(first, "name", path)


def _choice_errors(choice: Json, path: str) -> list[FieldError]:
    """Validate what requests and sub-requests have in common."""
    errors = []
    name, where = choice.get("deviceClassName", ""), f"{path}.deviceClassName"
    if not name:
        errors.append(required(where))
    elif problem := validation.dns1123_subdomain_error(name):
        errors.append(invalid(where, name, problem))
    errors += _selector_errors(choice.get("selectors") or [], f"{path}.selectors")
    mode, count = choice.get("allocationMode", ""), choice.get("count", 0)
    if mode not in _MODES:
        errors.append(not_supported(f"{path}.allocationMode", mode, _MODES))
    elif mode == "All" and count:
        text = "must not be specified when allocationMode is 'All'"
        errors.append(invalid(f"{path}.count", count, text))
    elif mode == "ExactCount" and count <= 0:
        errors.append(invalid(f"{path}.count", count, "must be greater than zero"))
    tolerations = choice.get("tolerations") or []
    errors += each_of(tolerations, _MAX_TOLERATIONS, f"{path}.tolerations", _toleration_errors)
    for name in (choice.get("capacity") or {}).get("requests") or {}:
        errors += qualified_name_errors(name, f"{path}.capacity.requests")
    return errors


def _selector_errors(selectors: Sequence[Json], path: str) -> list[FieldError]:
    return each_of(selectors, _MAX_SELECTORS, path, _selector_error)


def _selector_error(selector: Json, path: str) -> list[FieldError]:
    if selector.get("cel") is None:
        return [required(f"{path}.cel")]
    expression, path = selector["cel"].get("expression", ""), f"{path}.cel.expression"
    if len(expression.encode()) > device_selectors.MAX_LENGTH:
        return [too_long(path, device_selectors.MAX_LENGTH)]
    try:
        found = device_selectors.compiled(expression)
    except CompileError as error:
        return [invalid(path, expression, f"compilation failed: {error}")]
    if found.cost > device_selectors.MAX_COST:
        return [forbidden(path, "too complex, exceeds cost limit")]
    return []


def _toleration_errors(toleration: Json, path: str) -> list[FieldError]:
    errors = []
    key, value = toleration.get("key", ""), toleration.get("value", "")
    if key and (problem := validation.qualified_name_error(key)):
        errors.append(invalid(f"{path}.key", key, problem))
    operator = toleration.get("operator", "")
    if operator == "Exists":
        if value:
            text = "must be empty for operator `Exists`"
            errors.append(invalid(f"{path}.value", value, text))
    elif operator == "Equal":
        if problem := validation.label_value_error(value):
            errors.append(invalid(f"{path}.value", value, problem))
    elif not operator:
        errors.append(required(f"{path}.operator"))
    else:
        errors.append(not_supported(f"{path}.operator", operator, _OPERATORS))
    effect = toleration.get("effect", "")
    if effect and effect not in TAINT_EFFECTS:
        errors.append(not_supported(f"{path}.effect", effect, TAINT_EFFECTS))
    return errors


def _constraint_errors(constraint: Json, path: str, names: RequestNames) -> list[FieldError]:
    errors = reference_errors(constraint.get("requests") or [], f"{path}.requests", names)
    kinds = [each for each in ("matchAttribute", "distinctAttribute") if constraint.get(each)]
    if not kinds:
        text = 'exactly one of "matchAttribute" or "distinctAttribute" is required'
        return [*errors, required(path, text)]
    if len(kinds) > 1:
        text = 'exactly one of "matchAttribute" or "distinctAttribute" is required'
        return [*errors, invalid(path, None, f"{text}, but multiple fields are set")]
    name, where = constraint[kinds[0]], f"{path}.{kinds[0]}"
    errors += qualified_name_errors(name, where)
    if "/" not in name:
        text = "a fully qualified name must be a domain and a name separated by a slash"
        errors.append(invalid(where, name, text))
    return errors


# -- what several kinds have ---------------------------------------------------------------------


def configuration_errors(config: Json, path: str) -> list[FieldError]:
    """Validate the parameters of a driver."""
    opaque, path = config.get("opaque"), f"{path}.opaque"
    if opaque is None:
        return [required(path)]
    errors = driver_errors(opaque.get("driver", ""), f"{path}.driver")
    return errors + raw_errors(opaque.get("parameters"), f"{path}.parameters", _MAX_PARAMETERS)


def raw_errors(value: Any, path: str, limit: int) -> list[FieldError]:
    """Require a JSON object of at most *limit* bytes."""
    if value is None:
        return [required(path)]
    if len(json.dumps(value, separators=(",", ":")).encode()) > limit:
        return [too_long(path, limit)]
    if not isinstance(value, dict):
        return [invalid(path, "<value omitted>", "must be a valid JSON object")]
    return []


def reference_errors(references: Sequence[str], path: str, names: RequestNames) -> list[FieldError]:
    """Validate references to requests or sub-requests."""
    if len(references) > MAX_REQUESTS:
        return [too_many(path, len(references), MAX_REQUESTS)]
    errors = []
    for index, reference in enumerate(references):
        errors += reference_error(reference, f"{path}[{index}]", names)
        if reference in references[:index]:
            errors.append(duplicate(f"{path}[{index}]", reference))
    return errors


def reference_error(reference: str, path: str, names: RequestNames) -> list[FieldError]:
    """Validate one reference to a request or a sub-request."""
    segments = reference.split("/")
    if len(segments) > 2:
        return [invalid(path, reference, _REQUEST_REFERENCE)]
    errors = [each for segment in segments for each in label_errors(segment, path)]
    found = names.get(segments[0])
    if found is None or (len(segments) == 2 and segments[1] not in found):
        errors.append(invalid(path, reference, _REQUEST_REFERENCE))
    return errors


def label_errors(name: str, path: str) -> list[FieldError]:
    """Require a DNS label."""
    if not name:
        return [required(path)]
    problem = validation.dns1123_label_error(name)
    return [invalid(path, name, problem)] if problem else []


def driver_errors(name: str, path: str) -> list[FieldError]:
    """Require the name of a driver: a DNS subdomain, which may have capital letters."""
    if not name:
        return [required(path)]
    errors = []
    if len(name) > MAX_DRIVER_NAME:
        errors.append(too_long(path, MAX_DRIVER_NAME))
    if problem := validation.dns1123_subdomain_error(name.lower()):
        errors.append(invalid(path, name, problem))
    return errors


def qualified_name_errors(name: str, path: str) -> list[FieldError]:
    """Require the name of an attribute or a capacity: a C identifier, maybe with a domain."""
    domain, slash, identifier = name.partition("/")
    if not slash:
        return _identifier_errors(name, path)
    errors = (
        driver_errors(domain, path)
        if domain
        else [invalid(path, "", "the domain must not be empty")]
    )
    if not identifier:
        return [*errors, invalid(path, "", "the name must not be empty")]
    return errors + ([] if "/" in identifier else _identifier_errors(identifier, path))


def _identifier_errors(identifier: str, path: str) -> list[FieldError]:
    errors = []
    if len(identifier) > _MAX_IDENTIFIER:
        errors.append(too_long(path, _MAX_IDENTIFIER))
    if not (identifier.isidentifier() and identifier.isascii()):
        errors.append(invalid(path, identifier, _C_IDENTIFIER))
    return errors


def each_of(
    items: Sequence[Json],
    limit: int,
    path: str,
    errors_of: Callable[[Json, str], Iterable[FieldError]],
) -> list[FieldError]:
    """Validate each item of a list of at most *limit* items."""
    if len(items) > limit:
        return [too_many(path, len(items), limit)]
    return [
        error for index, each in enumerate(items) for error in errors_of(each, f"{path}[{index}]")
    ]


def repeated(items: Sequence[Json], key: str, path: str) -> list[FieldError]:
    """Reject items whose *key* is that of an earlier one."""
    values = [each.get(key, "") for each in items]
    first = first_positions(values)
    return [
        duplicate(f"{path}[{index}]", value)
        for index, value in enumerate(values)
        if first[value] < index
    ]
