"""Conversion between ``autoscaling/v1`` HorizontalPodAutoscalers and the stored ``v2`` ones.

``autoscaling/v1`` has fields for the utilization of CPU alone. As on Kubernetes, annotations
contain the rest, so that a client of it can read an autoscaler and write it again without a loss.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from ....model import quantity
from ....model.names import Resource
from ..errors.fields import FieldError, MalformedError
from ..kinds.typed_json import decode_object
from . import core_objects
from .autoscaler_validation import validate_autoscaler

Json = dict[str, Any]

V1 = Resource("autoscaling", "v1", "horizontalpodautoscalers", "HorizontalPodAutoscaler")
V2 = Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")

_PREFIX = "autoscaling.alpha.kubernetes.io/"
_METRICS = f"{_PREFIX}metrics"
_BEHAVIOR = f"{_PREFIX}behavior"
_CURRENT_METRICS = f"{_PREFIX}current-metrics"
_CONDITIONS = f"{_PREFIX}conditions"
_DROPPED = (
    *(_METRICS, _BEHAVIOR, _CURRENT_METRICS, _CONDITIONS),
    *(f"{_PREFIX}scale-down-tolerance", f"{_PREFIX}scale-up-tolerance"),
)
_OF_SPEC = (_METRICS, _BEHAVIOR)
_OF_STATUS = (_CURRENT_METRICS, _CONDITIONS)
_SPEC_FIELDS = ("scaleTargetRef", "minReplicas", "maxReplicas")
_STATUS_FIELDS = ("observedGeneration", "lastScaleTime", "currentReplicas", "desiredReplicas")
_CONDITION = ("type", "status", "lastTransitionTime", "reason", "message")

_RESOURCE = (
    ("name", "name"),
    ("{}AverageUtilization", "{}.averageUtilization"),
    ("{}AverageValue", "{}.averageValue"),
)
_SOURCES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "object": (
        ("target", "describedObject"),
        ("metricName", "metric.name"),
        ("{}Value", "{}.value"),
        ("selector", "metric.selector"),
        ("averageValue", "{}.averageValue"),
    ),
    "pods": (
        ("metricName", "metric.name"),
        ("{}AverageValue", "{}.averageValue"),
        ("selector", "metric.selector"),
    ),
    "resource": _RESOURCE,
    "containerResource": (*_RESOURCE, ("container", "container")),
    "external": (
        ("metricName", "metric.name"),
        ("metricSelector", "metric.selector"),
        ("{}Value", "{}.value"),
        ("{}AverageValue", "{}.averageValue"),
    ),
}
"""Fields of the sources of metrics in ``v1``, in the order of Go's encoding, and in ``v2``.

``{}`` is ``target`` in the spec and ``current`` in the status.
"""

_ALWAYS = {
    ("object", "targetValue"),
    ("pods", "targetAverageValue"),
    ("object", "currentValue"),
    ("pods", "currentAverageValue"),
    ("resource", "currentAverageValue"),
    ("containerResource", "currentAverageValue"),
    ("external", "currentValue"),
}
"""Quantities that ``v1`` contains even if they are zero or missing."""

_ORDERS = (
    ("kind", "name", "apiVersion"),
    ("matchLabels", "matchExpressions"),
    ("key", "operator", "values"),
)


def to_v2(obj: Json) -> Json:
    """Convert an autoscaler to the form that is stored."""
    if obj.get("apiVersion") == V2.api_version:
        return obj
    given = obj["metadata"].get("annotations") or {}
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    stored = {name: spec[name] for name in _SPEC_FIELDS if name in spec}
    stored["metrics"] = _decoded(given, _METRICS, lambda value: _metrics_to_v2(value, "target"), [])
    if (utilization := spec.get("targetCPUUtilizationPercentage")) is not None:
        target = {"type": "Utilization", "averageUtilization": utilization}
        stored["metrics"].append(_cpu({"target": target}))
    if not stored["metrics"]:
        del stored["metrics"]
    behavior = _decoded(given, _BEHAVIOR, _behavior_to_v2, {})
    if any(behavior.values()):
        stored["behavior"] = behavior
    observed = {name: status[name] for name in _STATUS_FIELDS if name in status}
    current: list[Json] = []
    if (utilization := status.get("currentCPUUtilizationPercentage")) is not None:
        current = [_cpu({"current": {"averageUtilization": utilization}})]
    observed["currentMetrics"] = _decoded(
        given, _CURRENT_METRICS, lambda value: _metrics_to_v2(value, "current"), current
    )
    observed["conditions"] = _decoded(given, _CONDITIONS, _conditions_to_v2, [])
    result = {**obj, "apiVersion": V2.api_version, "spec": stored, "status": observed}
    result["metadata"] = _with_annotations(obj["metadata"], {})
    core_objects.default_autoscaler(result)
    decode_object(result, V2)
    return result


def from_v2(obj: Json) -> Json:
    """Convert a stored autoscaler to ``autoscaling/v1``."""
    if obj.get("apiVersion") == V1.api_version:
        return obj
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    shown = {name: spec[name] for name in _SPEC_FIELDS if name in spec}
    annotations: Json = {}
    other = []
    for metric in spec.get("metrics") or ():
        utilization = _cpu_utilization(metric, "target")
        if utilization is None:
            other.append(_metric_to_v1(metric, "target"))
        else:
            shown.setdefault("targetCPUUtilizationPercentage", utilization)
    if other:
        annotations[_METRICS] = other
    if (behavior := spec.get("behavior")) is not None:
        annotations[_BEHAVIOR] = {
            "ScaleUp": _rules_to_v1(behavior.get("scaleUp")),
            "ScaleDown": _rules_to_v1(behavior.get("scaleDown")),
        }
    observed = {name: status[name] for name in _STATUS_FIELDS if name in status}
    current = status.get("currentMetrics") or ()
    for metric in current:
        if (utilization := _cpu_utilization(metric, "current")) is not None:
            observed["currentCPUUtilizationPercentage"] = utilization
    if current:
        annotations[_CURRENT_METRICS] = [_metric_to_v1(metric, "current") for metric in current]
    if conditions := status.get("conditions"):
        annotations[_CONDITIONS] = [
            _in_order({"lastTransitionTime": None, **each}, _CONDITION) for each in conditions
        ]
    result = {**obj, "apiVersion": V1.api_version, "spec": shown, "status": observed}
    encoded = {name: _go_json(value) for name, value in annotations.items()}
    result["metadata"] = _with_annotations(obj["metadata"], encoded)
    decode_object(result, V1)
    return result


def default_v1(obj: Json) -> None:
    """Default an ``autoscaling/v1`` autoscaler, and encode its annotations as Kubernetes does."""
    converted = from_v2(to_v2(obj))
    for name in ("metadata", "spec", "status"):
        if name in obj or name == "spec":
            obj[name] = converted[name]


def validate_v1(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate an ``autoscaling/v1`` autoscaler: the paths of errors are those of ``v2``."""
    return validate_autoscaler(to_v2(obj), to_v2(old) if old else None)


def prepare_for_create(obj: Json) -> None:
    """Remove the status from the annotations of a new autoscaler."""
    _keep_annotations(obj, {}, _OF_STATUS)


def prepare_for_update(obj: Json, old: Json) -> None:
    """Keep the status, which a write of the autoscaler does not change."""
    _keep_annotations(obj, old["metadata"].get("annotations") or {}, _OF_STATUS)


def prepare_for_status_update(obj: Json, old: Json) -> None:
    """Keep the spec, which a write of the status does not change."""
    _keep_annotations(obj, old["metadata"].get("annotations") or {}, _OF_SPEC)


def _keep_annotations(obj: Json, old: Mapping[str, str], names: tuple[str, ...]) -> None:
    given = obj["metadata"].get("annotations") or {}
    kept = {name: value for name, value in given.items() if name not in names}
    kept |= {name: old[name] for name in names if name in old}
    obj["metadata"] = _with(obj["metadata"], kept)


def _with_annotations(metadata: Json, encoded: Mapping[str, str]) -> Json:
    """Return *metadata* with exactly these annotations about fields that a version lacks."""
    given = metadata.get("annotations") or {}
    kept = {name: value for name, value in given.items() if name not in _DROPPED}
    return _with(metadata, {**kept, **encoded})


def _with(metadata: Json, annotations: Mapping[str, str]) -> Json:
    others = {name: value for name, value in metadata.items() if name != "annotations"}
    return {**others, "annotations": annotations} if annotations else others


def _decoded(
    annotations: Mapping[str, str], name: str, convert: Callable[[Any], Any], missing: Any
) -> Any:
    """Return the value of an annotation; as on Kubernetes, one that cannot be decoded has none."""
    try:
        return convert(json.loads(annotations.get(name, "")))
    except (ValueError, TypeError, AttributeError, KeyError, MalformedError):
        return missing


def _checked(section: str, value: Json) -> Any:
    """Return the only field of a spec or status, decoded as one of an autoscaler.

    Raises:
        MalformedError: a field has a wrong type.
    """
    (name,) = value
    decode_object({"metadata": {}, section: value}, V2)
    return value.get(name)


def _metrics_to_v2(metrics: list[Json], kind: str) -> Any:
    section, name = ("spec", "metrics") if kind == "target" else ("status", "currentMetrics")
    return _checked(section, {name: [_metric_to_v2(metric, kind) for metric in metrics]}) or []


def _conditions_to_v2(conditions: list[Json]) -> Any:
    return _checked("status", {"conditions": conditions}) or []


def _behavior_to_v2(behavior: Json) -> Any:
    return _checked("spec", {"behavior": _lower(behavior)}) or {}


def _lower(value: Any) -> Any:
    """Return the encoding of an internal Go type with the names of ``v2``."""
    if isinstance(value, list):
        return [_lower(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {key[:1].lower() + key[1:]: _lower(each) for key, each in value.items()}


def _metric_to_v2(metric: Json, kind: str) -> Json:
    result: Json = {"type": metric.get("type", "")}
    for source, fields in _SOURCES.items():
        given = metric.get(source)
        if given is None:
            continue
        found: Json = {kind: {}}
        for name, path in fields:
            name = name.format(kind)
            value = given.get(name, "0" if (source, name) in _ALWAYS else None)
            if value is not None:
                parent, _, field = path.format(kind).rpartition(".")
                (found.setdefault(parent, {}) if parent else found)[field] = value
        if kind == "target":
            _set_target_type(source, found["target"])
        else:
            _drop_added_zero(found["current"])
        result[source] = found
    return result


def _set_target_type(source: str, target: Json) -> None:
    if source == "object" and "averageValue" in target and not quantity.parse(target["value"]):
        del target["value"]  # v1 cannot omit it
    by_average = "AverageValue"
    if source in ("resource", "containerResource"):
        target["type"] = "Utilization" if "averageUtilization" in target else by_average
    elif source == "object":
        target["type"] = by_average if "averageValue" in target else "Value"
    else:
        target["type"] = "Value" if "value" in target else by_average


def _drop_added_zero(current: Json) -> None:
    """Drop a zero next to another value, which ``v1`` requires even where ``v2`` has none."""
    for name in ("value", "averageValue"):
        if len(current) > 1 and name in current and not quantity.parse(current[name]):
            del current[name]


def _metric_to_v1(metric: Json, kind: str) -> Json:
    result: Json = {"type": metric.get("type", "")}
    for source, fields in _SOURCES.items():
        given = metric.get(source)
        if given is None:
            continue
        shown = result[source] = {}
        for name, path in fields:
            name = name.format(kind)
            value: Any = given
            for key in path.format(kind).split("."):
                value = (value or {}).get(key)
            if value is None and (source, name) in _ALWAYS:
                value = "0"
            if value is not None:
                shown[name] = _in_go_order(value)
    return result


def _rules_to_v1(rules: Json | None) -> Json | None:
    if rules is None:
        return None
    policies = rules.get("policies")
    return {
        "StabilizationWindowSeconds": rules.get("stabilizationWindowSeconds"),
        "SelectPolicy": rules.get("selectPolicy"),
        "Policies": policies
        and [
            {
                "Type": each.get("type", ""),
                "Value": each.get("value", 0),
                "PeriodSeconds": each.get("periodSeconds", 0),
            }
            for each in policies
        ],
        "Tolerance": rules.get("tolerance"),
    }


def _cpu(source: Json) -> Json:
    return {"type": "Resource", "resource": {"name": "cpu", **source}}


def _cpu_utilization(metric: Json, kind: str) -> int | None:
    """Return the utilization of CPU that *metric* is about, for which ``v1`` has a field."""
    source = metric.get("resource") or {}
    if metric.get("type") != "Resource" or source.get("name") != "cpu":
        return None
    found: int | None = (source.get(kind) or {}).get("averageUtilization")
    return found


def _in_order(value: Json, names: tuple[str, ...]) -> Json:
    return {name: value[name] for name in names if name in value}


def _in_go_order(value: Any) -> Any:
    """Return *value* with the keys in the order in which Go encodes them."""
    if isinstance(value, list):
        return [_in_go_order(each) for each in value]
    if not isinstance(value, dict):
        return value
    for names in _ORDERS:
        if value and value.keys() <= set(names):
            return {name: _in_go_order(each) for name, each in _in_order(value, names).items()}
    return dict(sorted(value.items()))


def _go_json(value: Any) -> str:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
