"""Validation of the fields that all kinds share."""

from collections.abc import Callable, Iterator

import msgspec

from .. import quantity, validation
from ..field_errors import ErrorList
from ..names import MULTIKUEUE, TRAINING_OPERATOR
from ..quantity import QuantityError
from ..quantity_advice import quantity_advice
from .kinds import TrainingKind
from .templates import containers
from .types import CleanPodPolicy, ReplicaSpec, RestartPolicy, RunPolicy, SchedulingPolicy

_MANAGERS = (TRAINING_OPERATOR, MULTIKUEUE)
_RUN_POLICY = "spec.runPolicy"
_MAX_POD_NAME = 63
"""A pod's name is also a host name, and most kinds create a Service of this name."""


def validate_name(
    kind: TrainingKind,
    name: str,
    specs: dict[str, ReplicaSpec],
    pod_name: Callable[[str, str, int], str],
) -> Iterator[str]:
    """Yield why *name* cannot be a job's name.

    *pod_name* returns the name of a pod of a job, a replica type and an index.
    """
    if kind.has_services and (error := validation.dns1035_label_error(name)):
        yield error
        return
    for spelling, spec in specs.items():
        replica_type = kind.canonical_type(spelling)
        if replica_type is None:
            continue
        last = pod_name(name, replica_type, max((spec.replicas or 1) - 1, 0))
        if error := validation.too_long_error(last, _MAX_POD_NAME):
            yield f"the name of its pod {last} {error}"


def validate_run_policy(policy: RunPolicy, errors: ErrorList) -> None:
    """Validate ``spec.runPolicy``."""
    if policy.managed_by is not None:
        errors.member(f"{_RUN_POLICY}.managedBy", policy.managed_by, _MANAGERS)
    if policy.clean_pod_policy is not None:
        allowed = tuple(CleanPodPolicy)
        errors.not_supported(f"{_RUN_POLICY}.cleanPodPolicy", policy.clean_pod_policy, allowed)
    for name, value in (
        ("ttlSecondsAfterFinished", policy.ttl_seconds_after_finished),
        ("activeDeadlineSeconds", policy.active_deadline_seconds),
        ("backoffLimit", policy.backoff_limit),
    ):
        errors.out_of_range(f"{_RUN_POLICY}.{name}", value, minimum=0)
    if policy.scheduling_policy is not None:
        _validate_scheduling_policy(policy.scheduling_policy, errors)


def _validate_scheduling_policy(policy: SchedulingPolicy, errors: ErrorList) -> None:
    path = f"{_RUN_POLICY}.schedulingPolicy"
    errors.out_of_range(f"{path}.minAvailable", policy.min_available, minimum=0)
    timeout = policy.schedule_timeout_seconds
    errors.out_of_range(f"{path}.scheduleTimeoutSeconds", timeout, minimum=0)
    for field, name in (("queue", policy.queue), ("priorityClass", policy.priority_class)):
        if name:
            error = validation.dns1123_subdomain_error(name)
            errors.invalid(f"{path}.{field}", name, error)
    for resource, amount in (policy.min_resources or {}).items():
        where = f"{path}.minResources[{resource}]"
        try:
            negative = quantity.parse(amount) < quantity.ZERO
        except QuantityError as error:
            errors.invalid(where, amount, f"{error}: {quantity_advice(amount)}")
        else:
            errors.invalid(where, amount, "must not be negative" if negative else "")


def validate_replica_specs(
    kind: TrainingKind, specs: dict[str, ReplicaSpec], errors: ErrorList
) -> None:
    """Validate the replica types and their templates."""
    path = f"spec.{kind.replica_field}"
    if not specs:
        errors.required(path, "must have at least one replica type")
    # API servers sort the keys; the canonical spelling is not the duplicate.
    ordered = sorted(specs.items(), key=lambda each: (each[0] not in kind.replica_types, each[0]))
    errors.duplicates(path, [(f"[{key}]", kind.canonical_type(key) or "") for key, _ in ordered])
    for spelling, spec in ordered:
        where = f"{path}[{spelling}]"
        if kind.canonical_type(spelling) is None:
            errors.member(where, spelling, kind.replica_types)
        errors.out_of_range(f"{where}.replicas", spec.replicas, minimum=0, maximum=2**31 - 1)
        errors.not_supported(f"{where}.restartPolicy", spec.restart_policy, tuple(RestartPolicy))
        _validate_containers(kind, spec.template, f"{where}.template.spec.containers", errors)


def _validate_containers(
    kind: TrainingKind, template: msgspec.Raw, path: str, errors: ErrorList
) -> None:
    try:
        found = containers(template)
    except msgspec.ValidationError as error:
        errors.add(path.removesuffix(".spec.containers"), str(error))
        return
    if not found:
        errors.required(path, "must have at least one container")
        return
    for index, container in enumerate(found):
        if not container.image:
            errors.required(f"{path}[{index}].image")
        if not container.name:
            errors.required(f"{path}[{index}].name")
    if kind.needs_main_container and all(each.name != kind.main_container for each in found):
        errors.required(path, f"must have a container with the name {kind.main_container}")


def validate_immutable(new: RunPolicy, old: RunPolicy, errors: ErrorList) -> None:
    """Check that an update does not change immutable fields of ``spec.runPolicy``."""
    if new.managed_by != old.managed_by:
        errors.invalid(f"{_RUN_POLICY}.managedBy", new.managed_by, "field is immutable")
    old_queue = old.scheduling_policy.queue if old.scheduling_policy else ""
    new_queue = new.scheduling_policy.queue if new.scheduling_policy else ""
    if old_queue and new_queue != old_queue:
        path = f"{_RUN_POLICY}.schedulingPolicy.queue"
        errors.invalid(path, new_queue, "field is immutable once it is set")
