"""Defaults and validation of the workload kinds of the group apps."""

from typing import Any

from ..errors.fields import IMMUTABLE, NOT_NEGATIVE, FieldError, invalid, not_supported, required
from .pod_defaults import default_template
from .pod_validation import validate_template
from .scheduling_validation import validate_selector

Json = dict[str, Any]

_COUNTS = ("replicas", "minReadySeconds", "revisionHistoryLimit")


def default_deployment(obj: Json) -> None:
    """Default a Deployment."""
    spec = obj.setdefault("spec", {})
    default_template(spec.get("template", {}))
    spec.setdefault("replicas", 1)
    strategy = spec.setdefault("strategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)


def default_replicas(obj: Json) -> None:
    """Default a ReplicaSet."""
    spec = obj.setdefault("spec", {})
    default_template(spec.get("template", {}))
    spec.setdefault("replicas", 1)


def default_replication_controller(obj: Json) -> None:
    """Default a ReplicationController, whose selector and labels are those of its template."""
    default_replicas(obj)
    labels = obj["spec"].get("template", {}).get("metadata", {}).get("labels")
    if labels:
        obj["spec"].setdefault("selector", dict(labels))
        obj["metadata"].setdefault("labels", dict(labels))


def default_stateful_set(obj: Json) -> None:
    """Default a StatefulSet."""
    default_replicas(obj)
    spec = obj["spec"]
    spec.setdefault("podManagementPolicy", "OrderedReady")
    strategy = spec.setdefault("updateStrategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        strategy.setdefault("rollingUpdate", {}).setdefault("partition", 0)
    spec.setdefault("revisionHistoryLimit", 10)
    retention = spec.setdefault("persistentVolumeClaimRetentionPolicy", {})
    retention.setdefault("whenDeleted", "Retain")
    retention.setdefault("whenScaled", "Retain")
    for claim in spec.get("volumeClaimTemplates", ()):
        claim |= {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
        claim.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")
        claim.setdefault("status", {"phase": "Pending"})


def default_daemon_set(obj: Json) -> None:
    """Default a DaemonSet."""
    spec = obj.setdefault("spec", {})
    default_template(spec.get("template", {}))
    strategy = spec.setdefault("updateStrategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", 1)
        rolling.setdefault("maxSurge", 0)
    spec.setdefault("revisionHistoryLimit", 10)


def validate_workload(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a kind that keeps pods of one template running."""
    spec = obj.get("spec", {})
    errors = _validate_counts(spec)
    template = spec.get("template", {})
    if obj.get("kind") != "ReplicationController":
        errors += _validate_selector(spec, template)
        if old is not None and spec.get("selector") != old.get("spec", {}).get("selector"):
            errors.append(invalid("spec.selector", spec.get("selector"), IMMUTABLE))
    if old is None or template != old.get("spec", {}).get("template"):
        errors += validate_template(template, "spec.template")
        policy = template.get("spec", {}).get("restartPolicy", "Always")
        if policy != "Always":
            field_path = "spec.template.spec.restartPolicy"
            errors.append(not_supported(field_path, policy, ("Always",)))
    return errors


def _validate_counts(spec: Json) -> list[FieldError]:
    return [
        invalid(f"spec.{key}", spec[key], NOT_NEGATIVE) for key in _COUNTS if spec.get(key, 0) < 0
    ]


def _validate_selector(spec: Json, template: Json) -> list[FieldError]:
    selector = spec.get("selector")
    if not selector:
        return [required("spec.selector")]
    errors: list[FieldError] = []
    validate_selector(selector, "spec.selector", errors)
    labels = template.get("metadata", {}).get("labels", {})
    if not selector.get("matchLabels", {}).items() <= labels.items():
        text = "`selector` does not match template `labels`"
        errors.append(invalid("spec.template.metadata.labels", labels, text))
    return errors
