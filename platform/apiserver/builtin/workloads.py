"""Defaults and validation of the workload kinds: apps and batch."""

from typing import Any

from ..errors.fields import IMMUTABLE, NOT_NEGATIVE, FieldError, invalid, not_supported, required
from .pod_defaults import default_template
from .pod_validation import validate_template
from .scheduling_validation import validate_selector

Json = dict[str, Any]

_UID_LABELS = ("batch.kubernetes.io/controller-uid", "controller-uid")
_NAME_LABELS = ("batch.kubernetes.io/job-name", "job-name")
_COUNTS = ("replicas", "minReadySeconds", "revisionHistoryLimit", "parallelism", "completions")


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


def default_job(obj: Json) -> None:
    """Default a batch Job."""
    default_job_spec(obj.setdefault("spec", {}))


def default_job_spec(spec: Json) -> None:
    """Default the fields that a Job and the template of a CronJob have in common."""
    default_template(spec.get("template", {}))
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = spec["parallelism"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", 2**31 - 1 if "backoffLimitPerIndex" in spec else 6)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    has_failure_policy = "podFailurePolicy" in spec
    spec.setdefault(
        "podReplacementPolicy", "Failed" if has_failure_policy else "TerminatingOrFailed"
    )
    spec.setdefault("manualSelector", False)


def prepare_job_for_create(obj: Json) -> None:
    """Set the generated selector of a Job, by its uid, and the labels that it matches."""
    spec, metadata = obj["spec"], obj["metadata"]
    template = spec.get("template")
    if spec.get("manualSelector") or template is None:
        return
    labels = template.setdefault("metadata", {}).setdefault("labels", {})
    labels |= dict.fromkeys(_UID_LABELS, metadata.get("uid", ""))
    labels |= dict.fromkeys(_NAME_LABELS, metadata.get("name", ""))
    if not metadata.get("labels"):
        metadata["labels"] = dict(labels)
    selector = spec.setdefault("selector", {}).setdefault("matchLabels", {})
    selector[_UID_LABELS[0]] = metadata.get("uid", "")


def default_cron_job(obj: Json) -> None:
    """Default a CronJob."""
    spec = obj.setdefault("spec", {})
    default_job_template(spec.get("jobTemplate", {}).get("spec", {}))
    spec.setdefault("concurrencyPolicy", "Allow")
    spec.setdefault("suspend", False)
    spec.setdefault("successfulJobsHistoryLimit", 3)
    spec.setdefault("failedJobsHistoryLimit", 1)


def default_job_template(spec: Json) -> None:
    """Default the pods of a CronJob's Job template; the rest is defaulted when a Job is created."""
    default_template(spec.get("template", {}))


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


def validate_job(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a batch Job."""
    spec = obj.get("spec", {})
    errors = _validate_counts(spec)
    if old is not None:
        errors += _validate_job_update(spec, old.get("spec", {}))
    if old is None or spec.get("template") != old.get("spec", {}).get("template"):
        errors += validate_template(spec.get("template", {}), "spec.template")
        policy = spec.get("template", {}).get("spec", {}).get("restartPolicy")
        if policy not in ("OnFailure", "Never"):
            text = 'Required value: valid values: "OnFailure", "Never"'
            path = "spec.template.spec.restartPolicy"
            errors.append(FieldError("FieldValueRequired", path, text))
    return errors


def _validate_job_update(spec: Json, old: Json) -> list[FieldError]:
    fixed = ["selector", "completionMode"]
    if spec.get("completionMode") != "Indexed":
        fixed.append("completions")
    # The scheduling constraints of a suspended Job may change: job queueing systems depend on it.
    if not old.get("suspend"):
        fixed.append("template")
    return [
        invalid(f"spec.{key}", spec.get(key), IMMUTABLE)
        for key in fixed
        if spec.get(key) != old.get(key)
    ]


def validate_cron_job(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a CronJob."""
    spec = obj.get("spec", {})
    errors = [] if spec.get("schedule") else [required("spec.schedule")]
    policies = ("Allow", "Forbid", "Replace")
    if spec.get("concurrencyPolicy") not in policies:
        given = spec.get("concurrencyPolicy")
        errors.append(not_supported("spec.concurrencyPolicy", given, policies))
    template = spec.get("jobTemplate", {}).get("spec", {}).get("template", {})
    return errors + validate_template(template, "spec.jobTemplate.spec.template")
