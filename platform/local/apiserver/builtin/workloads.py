"""Defaults of the workload kinds of the group apps; see also :mod:`.workload_validation`."""

import re
from typing import Any

from ....model.names import TEMPLATE_GENERATION
from ..errors.fields import FieldError, invalid
from .pod_defaults import default_template

Json = dict[str, Any]

_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)


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
    if not strategy.get("type"):
        strategy["type"] = "RollingUpdate"
        strategy.setdefault("rollingUpdate", {})
    if strategy["type"] == "RollingUpdate" and "rollingUpdate" in strategy:
        strategy["rollingUpdate"].setdefault("partition", 0)
    spec.setdefault("revisionHistoryLimit", 10)
    retention = spec.setdefault("persistentVolumeClaimRetentionPolicy", {})
    retention.setdefault("whenDeleted", "Retain")
    retention.setdefault("whenScaled", "Retain")
    for claim in spec.get("volumeClaimTemplates", ()):
        claim |= {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
        claim.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")
        claim.setdefault("status", {}).setdefault("phase", "Pending")


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


def prepare_daemon_set_for_create(obj: Json) -> None:
    """Set the generation of the template, which is at least 1."""
    _set_template_generation(obj, max(_template_generation(obj), 1))


def prepare_daemon_set_for_update(obj: Json, old: Json) -> None:
    """Set the generation of the template: clients cannot change it, and a changed template does."""
    changed = obj.get("spec", {}).get("template") != old.get("spec", {}).get("template")
    _set_template_generation(obj, max(_template_generation(old), 1) + changed)


def template_generation_errors(obj: Json) -> list[FieldError]:
    """Validate the annotation with the generation of the template, as a client sent it."""
    value = (obj["metadata"].get("annotations") or {}).get(TEMPLATE_GENERATION, "0")
    if _INTEGER.fullmatch(value):
        return []
    return [invalid(f"metadata.annotations[{TEMPLATE_GENERATION}]", value, "must be an integer")]


def _template_generation(obj: Json) -> int:
    value = (obj["metadata"].get("annotations") or {}).get(TEMPLATE_GENERATION, "0")
    return int(value) if _INTEGER.fullmatch(value) else 0


def _set_template_generation(obj: Json, generation: int) -> None:
    if template_generation_errors(obj):
        return  # validation rejects it
    annotations = obj["metadata"].get("annotations") or {}
    obj["metadata"]["annotations"] = {**annotations, TEMPLATE_GENERATION: str(generation)}
