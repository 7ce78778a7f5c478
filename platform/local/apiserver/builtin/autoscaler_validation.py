"""Validation of HorizontalPodAutoscalers, as kube-apiserver's."""

from collections.abc import Iterator, Sequence
from typing import Any

from ....model.quantity import ZERO, parse
from ....model.validation import dns1123_label_error
from ..errors.fields import (
    NOT_NEGATIVE,
    FieldError,
    forbidden,
    invalid,
    not_supported,
    required,
)
from .resource_validation import container_resource_name_errors

Json = dict[str, Any]

_SOURCES = {
    "Object": "object",
    "External": "external",
    "Pods": "pods",
    "Resource": "resource",
    "ContainerResource": "containerResource",
}
"""Types of metrics, and the field with the source of each, of which the first is validated."""

_TARGETS = ("Utilization", "Value", "AverageValue")
_POLICIES = ("Pods", "Percent")
_SELECT_POLICIES = ("Disabled", "Max", "Min")
_MAX_WINDOW, _MAX_PERIOD = 3600, 1800
_NO_SCALING_TO_ZERO = (
    "must specify at least one Object or External metric to support scaling to zero replicas"
)
_TOO_SMALL = "must be greater than zero"


def validate_autoscaler(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a HorizontalPodAutoscaler of ``autoscaling/v2``."""
    spec = obj["spec"]
    before = old["spec"] if old else {}
    return [
        *_validate_counts(spec, before),
        *_validate_scale_target(spec["scaleTargetRef"], before.get("scaleTargetRef")),
        *_validate_metrics(spec, before),
        *_validate_behavior(spec.get("behavior") or {}),
    ]


def validate_status(obj: Json, old: Json) -> list[FieldError]:
    """Validate a write of the status of an autoscaler."""
    status = obj.get("status") or {}
    return [
        invalid(f"status.{field}", status[field], NOT_NEGATIVE)
        for field in ("currentReplicas", "desiredReplicas")
        if status.get(field, 0) < 0
    ]


def _validate_counts(spec: Json, before: Json) -> Iterator[FieldError]:
    least, most = spec.get("minReplicas"), spec.get("maxReplicas", 0)
    bound = 0 if before.get("minReplicas") == 0 else 1
    if least is not None and least < bound:
        yield invalid("spec.minReplicas", least, f"must be greater than or equal to {bound}")
    if not most:
        yield required("spec.maxReplicas", "must be set and greater than 0")
    elif most < 0:
        yield invalid("spec.maxReplicas", most, "must be greater than or equal to 1")
    if least is not None and most < least:
        text = "must be greater than or equal to `minReplicas`"
        yield invalid("spec.maxReplicas", most, text)


def _validate_scale_target(reference: Json, before: Json | None) -> Iterator[FieldError]:
    """Validate what is scaled: of the core group, only ReplicationControllers are scalable."""
    yield from _validate_reference(reference, "spec.scaleTargetRef")
    unchanged = before is not None and all(
        reference.get(field) == before.get(field) for field in ("apiVersion", "kind")
    )
    core = reference.get("kind") == "ReplicationController"
    error = _version_error(reference, core_allowed=core)
    if error and not unchanged:
        yield invalid("spec.scaleTargetRef.apiVersion", reference.get("apiVersion", ""), error)


def _version_error(reference: Json, *, core_allowed: bool) -> str:
    version = reference.get("apiVersion", "")
    if version.count("/") > 1:
        return f"unexpected GroupVersion string: {version}"
    if not core_allowed and not version.rpartition("/")[0]:
        return "apiVersion must specify API group"
    return ""


def _validate_reference(reference: Json, path: str) -> Iterator[FieldError]:
    for field in ("kind", "name"):
        yield from _validate_segment(reference.get(field, ""), f"{path}.{field}")


def _validate_segment(value: str, path: str, missing: str = "") -> Iterator[FieldError]:
    """Validate a required name that becomes a segment of a URL's path."""
    if not value:
        yield required(path, missing)
    elif value in (".", ".."):
        yield invalid(path, value, f"may not be '{value}'")
    else:
        for found in (each for each in ("/", "%") if each in value):
            yield invalid(path, value, f"may not contain '{found}'")


def _validate_metrics(spec: Json, before: Json) -> Iterator[FieldError]:
    metrics = spec.get("metrics") or ()
    known = any(
        _version_error(each["object"]["describedObject"], core_allowed=True)
        for each in before.get("metrics") or ()
        if each.get("type") == "Object" and each.get("object") is not None
    )
    for index, metric in enumerate(metrics):
        yield from _validate_metric(metric, f"spec.metrics[{index}]", versions=not known)
    if spec.get("minReplicas") == 0 and not any(
        each.get("type") in ("Object", "External") for each in metrics
    ):
        yield forbidden("spec.metrics", _NO_SCALING_TO_ZERO)


def _validate_metric(metric: Json, path: str, *, versions: bool) -> Iterator[FieldError]:
    """Validate a metric, *versions*: with the API version of the object that it is about."""
    kind = metric.get("type", "")
    if not kind:
        yield required(f"{path}.type", "must specify a metric source type")
    if kind not in _SOURCES:
        yield not_supported(f"{path}.type", kind, sorted(_SOURCES))
    expected = _SOURCES.get(kind, "")
    present = [field for field in _SOURCES.values() if metric.get(field) is not None]
    for field in present[:1]:
        yield from _validate_source(field, metric[field], f"{path}.{field}", versions=versions)
    if expected and expected not in present:
        text = "must populate information for the given metric source"
        yield required(f"{path}.{expected}", text)
    if len(present) != 1:
        for field in present:
            if field != expected:
                yield forbidden(f"{path}.{field}", "must populate the given metric source only")


def _validate_source(
    field: str, source: Json, path: str, *, versions: bool
) -> Iterator[FieldError]:
    target = source.get("target") or {}
    if field in ("resource", "containerResource"):
        yield from _validate_resource(field, source, path)
        yield from _validate_target(target, f"{path}.target")
        yield from _validate_resource_target(target, f"{path}.target")
        return
    if field == "object":
        described, at = source.get("describedObject") or {}, f"{path}.describedObject"
        yield from _validate_reference(described, at)
        if versions and (error := _version_error(described, core_allowed=True)):
            yield invalid(f"{at}.apiVersion", described["apiVersion"], error)
    name = (source.get("metric") or {}).get("name", "")
    yield from _validate_segment(name, f"{path}.metric.name", "must specify a metric name")
    yield from _validate_target(target, f"{path}.target")
    yield from _validate_metric_target(field, target, f"{path}.target")


def _validate_resource(field: str, source: Json, path: str) -> Iterator[FieldError]:
    name, container = source.get("name", ""), source.get("container", "")
    if not name:
        yield required(f"{path}.name", "must specify a resource name")
    if field == "resource":
        return
    if name:
        for problem in container_resource_name_errors(name):
            yield invalid(f"{path}.name", name, problem)
    if not container:
        yield required(f"{path}.container", "must specify a container")
    elif problem := dns1123_label_error(container):
        yield invalid(f"{path}.container", container, problem)


def _validate_target(target: Json, path: str) -> Iterator[FieldError]:
    kind = target.get("type", "")
    if not kind:
        yield required(f"{path}.type", "must specify a metric target type")
    if kind not in _TARGETS:
        yield invalid(f"{path}.type", kind, "must be either Utilization, Value, or AverageValue")
    for field in ("value", "averageValue"):
        if target.get(field) is not None and parse(target[field]) <= ZERO:
            yield invalid(f"{path}.{field}", target[field], "must be positive")
    utilization = target.get("averageUtilization")
    if utilization is not None and utilization < 1:
        yield invalid(f"{path}.averageUtilization", utilization, "must be greater than 0")


def _validate_resource_target(target: Json, path: str) -> Iterator[FieldError]:
    average, utilization = (target.get(f"average{end}") for end in ("Value", "Utilization"))
    if average is None and utilization is None:
        text = "must set either a target raw value or a target utilization"
        yield required(f"{path}.averageUtilization", text)
    if average is not None and utilization is not None:
        text = "may not set both a target raw value and a target utilization"
        yield forbidden(f"{path}.averageValue", text)


def _validate_metric_target(field: str, target: Json, path: str) -> Iterator[FieldError]:
    value, average = target.get("value"), target.get("averageValue")
    if field == "pods":
        if average is None:
            yield required(f"{path}.averageValue", "must specify a positive target averageValue")
    elif value is None and average is None:
        other = "averageValue" if field == "object" else "a per-pod target"
        text = f"must set either a target value or {other}"
        yield required(f"{path}.averageValue", text)
    elif field == "external" and value is not None and average is not None:
        text = "may not set both a target value for metric and a per-pod target"
        yield forbidden(f"{path}.value", text)


def _validate_behavior(behavior: Json) -> Iterator[FieldError]:
    for direction in ("scaleUp", "scaleDown"):
        if (rules := behavior.get(direction)) is not None:
            yield from _validate_rules(rules, f"spec.behavior.{direction}")


def _validate_rules(rules: Json, path: str) -> Iterator[FieldError]:
    window = rules.get("stabilizationWindowSeconds")
    if window is not None and window < 0:
        text = "must be greater than or equal to zero"
        yield invalid(f"{path}.stabilizationWindowSeconds", window, text)
    if window is not None and window > _MAX_WINDOW:
        text = f"must be less than or equal to {_MAX_WINDOW}"
        yield invalid(f"{path}.stabilizationWindowSeconds", window, text)
    select = rules.get("selectPolicy")
    if select is not None and select not in _SELECT_POLICIES:
        yield not_supported(f"{path}.selectPolicy", select, list(_SELECT_POLICIES))
    yield from _validate_policies(rules.get("policies") or (), f"{path}.policies")
    tolerance = rules.get("tolerance")
    if tolerance is not None and parse(tolerance) < ZERO:
        yield invalid(f"{path}.tolerance", tolerance, NOT_NEGATIVE)


def _validate_policies(policies: Sequence[Json], path: str) -> Iterator[FieldError]:
    if not policies:
        yield required(path, "must specify at least one Policy")
    for index, policy in enumerate(policies):
        at = f"{path}[{index}]"
        if policy.get("type") not in _POLICIES:
            yield not_supported(f"{at}.type", policy.get("type", ""), sorted(_POLICIES))
        if (value := policy.get("value", 0)) <= 0:
            yield invalid(f"{at}.value", value, _TOO_SMALL)
        if (period := policy.get("periodSeconds", 0)) <= 0:
            yield invalid(f"{at}.periodSeconds", period, _TOO_SMALL)
        elif period > _MAX_PERIOD:
            text = f"must be less than or equal to {_MAX_PERIOD}"
            yield invalid(f"{at}.periodSeconds", period, text)
