"""Validation of HorizontalPodAutoscalers, as kube-apiserver's."""

from collections.abc import Iterator
from typing import Any

from ....model.quantity import parse
from ..errors.fields import FieldError, forbidden, invalid, not_supported, required

Json = dict[str, Any]

_SOURCES = {
    "ContainerResource": "containerResource",
    "External": "external",
    "Object": "object",
    "Pods": "pods",
    "Resource": "resource",
}
"""Types of metrics, sorted, and the field with the source of each."""

_TARGETS = ("Utilization", "Value", "AverageValue")
_POLICIES = ("Pods", "Percent")
_SELECT_POLICIES = ("Disabled", "Max", "Min")
_MAX_WINDOW, _MAX_PERIOD = 3600, 1800
_POSITIVE, _ABOVE_ZERO = "must be positive", "must be greater than 0"
_NO_SCALING_TO_ZERO = (
    "must specify at least one Object or External metric to support scaling to zero replicas"
)
_TOO_SMALL = "must be greater than zero"


def validate_autoscaler(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a HorizontalPodAutoscaler of ``autoscaling/v2``."""
    spec = obj.get("spec", {})
    reference = spec.get("scaleTargetRef", {})
    before = ((old or {}).get("spec") or {}).get("scaleTargetRef", {})
    checked = old is None or reference.get("apiVersion") != before.get("apiVersion")
    return [
        *_validate_counts(spec),
        *_validate_reference(reference, "spec.scaleTargetRef"),
        *(_validate_group(reference) if checked else ()),
        *_validate_metrics(spec),
        *_validate_behavior(spec.get("behavior") or {}),
    ]


def _validate_counts(spec: Json) -> Iterator[FieldError]:
    least, most = spec.get("minReplicas"), spec.get("maxReplicas", 0)
    if least is not None and least < 1:
        yield invalid("spec.minReplicas", least, "must be greater than or equal to 1")
    if least == 0 and not any(
        each.get("type") in ("Object", "External") for each in spec.get("metrics") or ()
    ):
        yield forbidden("spec.metrics", _NO_SCALING_TO_ZERO)
    if not most:
        yield required("spec.maxReplicas")
    if most < 1:
        yield invalid("spec.maxReplicas", most, _ABOVE_ZERO)
    if least is not None and most < least:
        text = "must be greater than or equal to `minReplicas`"
        yield invalid("spec.maxReplicas", most, text)


def _validate_group(reference: Json) -> Iterator[FieldError]:
    """Yield an error if the kind of what is scaled has no group: only one of the core group can be
    scaled."""
    version, path = reference.get("apiVersion", ""), "spec.scaleTargetRef.apiVersion"
    if version.count("/") > 1:
        yield invalid(path, version, f"unexpected GroupVersion string: {version}")
    elif "/" not in version and reference.get("kind") != "ReplicationController":
        yield invalid(path, version, "apiVersion must specify API group")


def _validate_reference(reference: Json, path: str) -> Iterator[FieldError]:
    for field in ("kind", "name"):
        value = reference.get(field, "")
        if not value:
            yield required(f"{path}.{field}")
        elif value in (".", ".."):
            yield invalid(f"{path}.{field}", value, f"may not be '{value}'")
        else:
            for found in (each for each in ("/", "%") if each in value):
                yield invalid(f"{path}.{field}", value, f"may not contain '{found}'")


def _validate_metrics(spec: Json) -> Iterator[FieldError]:
    for index, metric in enumerate(spec.get("metrics") or ()):
        path, kind = f"spec.metrics[{index}]", metric.get("type", "")
        if not kind:
            yield required(f"{path}.type", "must specify a metric source type")
        if kind not in _SOURCES:
            yield not_supported(f"{path}.type", kind, list(_SOURCES))
        expected = _SOURCES.get(kind, "")
        present = [field for field in _SOURCES.values() if metric.get(field) is not None]
        for field in present:
            yield from _validate_source(field, metric[field], f"{path}.{field}")
        if expected and expected not in present:
            text = "must populate information for the given metric source"
            yield required(f"{path}.{expected}", text)
        if len(present) != 1:
            for field in present:
                if field != expected:
                    text = "must populate the given metric source only"
                    yield forbidden(f"{path}.{field}", text)


def _validate_source(field: str, source: Json, path: str) -> Iterator[FieldError]:
    target = source.get("target") or {}
    if field in ("resource", "containerResource"):
        if field == "containerResource" and not source.get("container"):
            yield required(f"{path}.container", "must specify a container")
        if not source.get("name"):
            yield required(f"{path}.name", "must specify a resource name")
        yield from _validate_target(target, f"{path}.target")
        yield from _validate_resource_target(target, f"{path}.target")
        return
    if field == "object":
        yield from _validate_reference(source.get("describedObject", {}), f"{path}.describedObject")
    if not (source.get("metric") or {}).get("name"):
        yield required(f"{path}.metric.name", "must specify a metric name")
    yield from _validate_target(target, f"{path}.target")
    yield from _validate_metric_target(field, target, f"{path}.target")


def _validate_target(target: Json, path: str) -> Iterator[FieldError]:
    kind = target.get("type", "")
    if not kind:
        yield required(f"{path}.type", "must specify a metric target type")
    if kind not in _TARGETS:
        yield invalid(f"{path}.type", kind, "must be either Utilization, Value, or AverageValue")
    for field in ("value", "averageValue"):
        if target.get(field) is not None and parse(target[field]) <= parse(0):
            yield invalid(f"{path}.{field}", str(parse(target[field])), _POSITIVE)
    utilization = target.get("averageUtilization")
    if utilization is not None and utilization < 1:
        yield invalid(f"{path}.averageUtilization", utilization, _ABOVE_ZERO)


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
        yield required(f"{path}.averageValue", "must set either a target value or averageValue")
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
    policies = rules.get("policies") or ()
    if not policies:
        yield required(f"{path}.policies", "must specify at least one Policy")
    for index, policy in enumerate(policies):
        at = f"{path}.policies[{index}]"
        if policy.get("type") not in _POLICIES:
            yield not_supported(f"{at}.type", policy.get("type", ""), sorted(_POLICIES))
        if (value := policy.get("value", 0)) <= 0:
            yield invalid(f"{at}.value", value, _TOO_SMALL)
        if (period := policy.get("periodSeconds", 0)) <= 0:
            yield invalid(f"{at}.periodSeconds", period, _TOO_SMALL)
        elif period > _MAX_PERIOD:
            text = f"must be less than or equal to {_MAX_PERIOD}"
            yield invalid(f"{at}.periodSeconds", period, text)
