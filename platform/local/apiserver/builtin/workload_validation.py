"""Validation of the kinds that keep pods of one template running."""

import re
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from ....model import selectors, validation
from ....model.meta import LabelSelector
from ..errors.fields import (
    IMMUTABLE,
    NOT_NEGATIVE,
    FieldError,
    forbidden,
    invalid,
    not_supported,
    required,
)
from .pod_validation import validate_template
from .scheduling_validation import validate_selector
from .volume_validation import claim_spec_errors
from .workloads import template_generation_errors

Json = dict[str, Any]

_PERCENT = re.compile(r"[0-9]+%")
_PERCENT_PROBLEM = (
    "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or "
    "'93%', regex used for validation is '[0-9]+%')"
)
_MUTABLE_STATEFUL_SET_FIELDS = (
    "replicas", "ordinals", "template", "updateStrategy", "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy", "minReadySeconds",
)  # fmt: skip
_STATEFUL_SET_UPDATE = (
    "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', "
    "'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and "
    "'minReadySeconds' are forbidden"
)
_CLAIM_POLICIES = ("Retain", "Delete")


def validate_pod_template(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a PodTemplate."""
    return validate_template(obj.get("template", {}), "template")


def validate_deployment(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a Deployment."""
    spec = obj.get("spec", {})
    errors = _validate_counts(
        spec, ("replicas", "minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds")
    )
    errors += _validate_selected_template(obj, old, "deployment")
    strategy = spec.get("strategy", {})
    rolling, path = strategy.get("rollingUpdate"), "spec.strategy.rollingUpdate"
    if strategy.get("type") == "Recreate" and rolling is not None:
        text = "may not be specified when strategy `type` is 'Recreate'"
        errors.append(forbidden(path, text))
    elif strategy.get("type") == "RollingUpdate":
        unavailable, surge = (rolling.get(key, 0) for key in ("maxUnavailable", "maxSurge"))
        errors += validate_amount(unavailable, f"{path}.maxUnavailable")
        errors += validate_amount(surge, f"{path}.maxSurge", limited=False)
        if not (_amount(unavailable) or _amount(surge)):
            text = "may not be 0 when `maxSurge` is 0"
            errors.append(invalid(f"{path}.maxUnavailable", unavailable, text))
    elif strategy.get("type") != "Recreate":
        errors.append(not_supported("spec.strategy", strategy, ("Recreate", "RollingUpdate")))
    deadline = spec.get("progressDeadlineSeconds")
    if deadline is not None and deadline <= spec.get("minReadySeconds", 0):
        text = "must be greater than minReadySeconds"
        errors.append(invalid("spec.progressDeadlineSeconds", deadline, text))
    return errors + _validate_same_selector(spec, old)


def validate_replica_set(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a ReplicaSet."""
    spec = obj.get("spec", {})
    errors = _validate_counts(spec, ("replicas", "minReadySeconds"))
    errors += _validate_selected_template(obj, old, "deployment")
    return errors + _validate_same_selector(spec, old)


def validate_replication_controller(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a ReplicationController."""
    spec = obj.get("spec", {})
    errors = _validate_counts(spec, ("replicas", "minReadySeconds"))
    selector, template = spec.get("selector") or {}, spec.get("template")
    if not selector:
        errors.append(required("spec.selector"))
    if template is None:
        return [*errors, required("spec.template")]
    labels = template.get("metadata", {}).get("labels", {})
    if selector and not selector.items() <= labels.items():
        errors.append(_not_selected(labels))
    return errors + _validate_template(obj, old)


def validate_stateful_set(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a StatefulSet."""
    spec = obj.get("spec", {})
    errors = _validate_counts(spec, ("replicas", "minReadySeconds"))
    errors += _validate_stateful_set_policies(spec)
    start = spec.get("ordinals", {}).get("start", 0)
    if start < 0:
        errors.append(invalid("spec.ordinals.start", start, NOT_NEGATIVE))
    service = spec.get("serviceName", "")
    if old is None and service and (problem := validation.dns1123_label_error(service)):
        errors.append(invalid("spec.serviceName", service, problem))
    for index, claim in enumerate(spec.get("volumeClaimTemplates", ()) if old is None else ()):
        path = f"spec.volumeClaimTemplates[{index}].spec"
        errors += claim_spec_errors(claim.get("spec", {}), path)
    errors += _validate_selected_template(obj, old, "statefulset")
    if old is not None:
        before = old.get("spec", {})
        changed = {key for key in spec.keys() | before.keys() if spec.get(key) != before.get(key)}
        if changed - set(_MUTABLE_STATEFUL_SET_FIELDS):
            errors.append(forbidden("spec", _STATEFUL_SET_UPDATE))
    return errors


def _validate_stateful_set_policies(spec: Json) -> list[FieldError]:
    errors = []
    management = spec.get("podManagementPolicy")
    if management not in ("OrderedReady", "Parallel"):
        text = "must be 'OrderedReady' or 'Parallel'"
        errors.append(invalid("spec.podManagementPolicy", management, text))
    strategy = spec.get("updateStrategy", {})
    rolling, path = strategy.get("rollingUpdate"), "spec.updateStrategy.rollingUpdate"
    if strategy.get("type") == "OnDelete":
        if rolling is not None:
            errors.append(invalid(path, rolling, "only allowed for updateStrategy 'RollingUpdate'"))
    elif strategy.get("type") == "RollingUpdate":
        partition = (rolling or {}).get("partition", 0)
        if partition < 0:
            errors.append(invalid(f"{path}.partition", partition, NOT_NEGATIVE))
    else:
        text = "must be 'RollingUpdate' or 'OnDelete'"
        errors.append(invalid("spec.updateStrategy", strategy, text))
    retention = spec.get("persistentVolumeClaimRetentionPolicy", {})
    for key in ("whenDeleted", "whenScaled"):
        if retention.get(key) not in _CLAIM_POLICIES:
            field_path = f"spec.persistentVolumeClaimRetentionPolicy.{key}"
            errors.append(not_supported(field_path, retention.get(key), _CLAIM_POLICIES))
    return errors


def validate_daemon_set(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a DaemonSet."""
    spec = obj.get("spec", {})
    errors = _validate_counts(spec, ("minReadySeconds", "revisionHistoryLimit"))
    errors += _validate_selected_template(obj, old, "daemonset")
    strategy = spec.get("updateStrategy", {})
    if strategy.get("type") == "RollingUpdate":
        rolling, path = strategy.get("rollingUpdate", {}), "spec.updateStrategy.rollingUpdate"
        unavailable, surge = (rolling.get(key, 0) for key in ("maxUnavailable", "maxSurge"))
        errors += validate_amount(unavailable, f"{path}.maxUnavailable")
        errors += validate_amount(surge, f"{path}.maxSurge")
        if _amount(unavailable) and _amount(surge):
            text = "may not be set when maxUnavailable is non-zero"
            errors.append(invalid(f"{path}.maxSurge", surge, text))
        elif not (_amount(unavailable) or _amount(surge)):
            errors.append(required(f"{path}.maxUnavailable", "cannot be 0 when maxSurge is 0"))
    elif strategy.get("type") != "OnDelete":
        allowed = ("RollingUpdate", "OnDelete")
        errors.append(not_supported("spec.updateStrategy", strategy, allowed))
    errors += template_generation_errors(obj)
    return errors + _validate_same_selector(spec, old)


def validate_controller_revision(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a ControllerRevision, whose data never change."""
    errors = []
    revision = obj.get("revision", 0)
    if revision < 0:
        errors.append(invalid("revision", revision, NOT_NEGATIVE))
    data = obj.get("data")
    if old is not None:
        return errors if data == old.get("data") else [*errors, invalid("data", data, IMMUTABLE)]
    if data is None:
        errors.append(required("data", "data is mandatory"))
    elif not isinstance(data, dict):
        errors.append(required("data", "data must be a valid JSON object"))
    return errors


def status_validator(
    counts: Iterable[str], *, at_most_replicas: Iterable[str] = ()
) -> Callable[[Json, Json], list[FieldError]]:
    """Return the validation of a status.

    Its *counts* are not negative, and those *at_most_replicas* not greater than all replicas.
    """
    names, limited = tuple(counts), tuple(at_most_replicas)

    def validate(obj: Json, old: Json) -> list[FieldError]:
        status, before = obj.get("status", {}), old.get("status", {})
        errors = [
            invalid(f"status.{name}", status[name], NOT_NEGATIVE)
            for name in names
            if status.get(name, 0) < 0
        ]
        for name in limited:
            if status.get(name, 0) > status.get("replicas", 0):
                text = "cannot be greater than status.replicas"
                errors.append(invalid(f"status.{name}", status[name], text))
        if limited and status.get("availableReplicas", 0) > status.get("readyReplicas", 0):
            text = "cannot be greater than readyReplicas"
            available = status["availableReplicas"]
            errors.append(invalid("status.availableReplicas", available, text))
        collisions = status.get("collisionCount", 0)
        if collisions < before.get("collisionCount", 0):
            errors.append(invalid("status.collisionCount", collisions, "cannot be decremented"))
        return errors

    return validate


def _validate_counts(spec: Json, names: Iterable[str]) -> list[FieldError]:
    return [
        invalid(f"spec.{name}", spec[name], NOT_NEGATIVE) for name in names if spec.get(name, 0) < 0
    ]


def _validate_selected_template(obj: Json, old: Json | None, kind: str) -> list[FieldError]:
    """Validate the selector, and the template, whose labels it must select."""
    spec = obj.get("spec", {})
    selector = spec.get("selector")
    errors: list[FieldError] = []
    if selector is not None:
        validate_selector(selector, "spec.selector", errors)
    elif kind != "daemonset":
        errors.append(required("spec.selector"))
    labels = spec.get("template", {}).get("metadata", {}).get("labels", {})
    try:
        converted = msgspec.convert(selector, LabelSelector) if selector is not None else None
        matches = selectors.from_label_selector(converted).matches(labels)
    except (selectors.SelectorError, msgspec.ValidationError):
        if kind == "daemonset":
            return errors + _validate_template(obj, old)
        errors.append(invalid("spec.selector", selector, "invalid label selector"))
        # As kube-apiserver: what is not selected is not checked.
        return errors + (_restart_errors(obj) if kind == "statefulset" else [])
    if selector is not None and not any(selector.values()):
        errors.append(invalid("spec.selector", selector, f"empty selector is invalid for {kind}"))
    elif not matches:
        errors.append(_not_selected(labels))
    return errors + _validate_template(obj, old)


def _not_selected(labels: Json) -> FieldError:
    text = "`selector` does not match template `labels`"
    return invalid("spec.template.metadata.labels", labels, text)


def _validate_same_selector(spec: Json, old: Json | None) -> list[FieldError]:
    if old is None or spec.get("selector") == old.get("spec", {}).get("selector"):
        return []
    return [invalid("spec.selector", spec.get("selector"), IMMUTABLE)]


def _validate_template(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a template that is new or has changed."""
    template = obj.get("spec", {}).get("template", {})
    if old is not None and template == old.get("spec", {}).get("template"):
        return []
    return validate_template(_with_claims(obj), "spec.template") + _restart_errors(obj)


def _with_claims(obj: Json) -> Json:
    """Return the template with the volumes that its pods will have.

    The claims of a StatefulSet are volumes that containers may mount, and replace volumes of
    the same name. They are the first volumes, so that indexes in errors are those of
    kube-apiserver.
    """
    spec = obj.get("spec", {})
    template: Json = spec.get("template", {})
    names = dict.fromkeys(
        claim.get("metadata", {}).get("name", "") for claim in spec.get("volumeClaimTemplates", ())
    )
    if not names:
        return template
    pod_spec = template.get("spec", {})
    claims = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names]
    others = [each for each in pod_spec.get("volumes", ()) if each.get("name", "") not in names]
    return {**template, "spec": {**pod_spec, "volumes": claims + others}}


def _restart_errors(obj: Json) -> list[FieldError]:
    """Return the errors of a template whose pods would end."""
    spec, errors = obj.get("spec", {}).get("template", {}).get("spec", {}), []
    policy = spec.get("restartPolicy", "Always")
    if policy != "Always":
        errors.append(not_supported("spec.template.spec.restartPolicy", policy, ("Always",)))
    if spec.get("activeDeadlineSeconds") is not None:
        kind = "ReplicaSet" if obj.get("kind") == "Deployment" else obj.get("kind")
        text = f"activeDeadlineSeconds in {kind} is not Supported"
        errors.append(forbidden("spec.template.spec.activeDeadlineSeconds", text))
    return errors


def validate_amount(value: Any, path: str, *, limited: bool = True) -> list[FieldError]:
    """Validate a number or percentage, at most 100 percent if *limited*."""
    if isinstance(value, str):
        if not _PERCENT.fullmatch(value):
            return [invalid(path, value, _PERCENT_PROBLEM)]
        if limited and _amount(value) > 100:
            return [invalid(path, value, "must not be greater than 100%")]
        return []
    return [invalid(path, value, NOT_NEGATIVE)] if value < 0 else []


def _amount(value: Any) -> int:
    """Return a number, or that of a text, with or without a percent sign; 0 for other texts."""
    if isinstance(value, int):
        return value
    return int(value.rstrip("%")) if re.fullmatch(r"[0-9]+%?", value) else 0
