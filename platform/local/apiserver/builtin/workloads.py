"""Defaults of the workload kinds of the group apps; see also :mod:`.workload_validation`."""

from typing import Any

from .pod_defaults import default_template

Json = dict[str, Any]


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
