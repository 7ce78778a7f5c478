"""Elastic policies of the kinds whose number of workers may change within a range."""

from typing import Any, TypeVar

import msgspec

from ..base import ApiStruct
from ..field_errors import ErrorList
from .types import TrainingSpec

_PATH = "spec.elasticPolicy"
WORKER = "Worker"


class ElasticRange(ApiStruct, frozen=True):
    """Range of the number of workers, and when an autoscaler changes it."""

    min_replicas: int | None = None
    max_replicas: int | None = None
    max_restarts: int | None = None
    metrics: tuple[msgspec.Raw, ...] = ()


E = TypeVar("E", bound=ElasticRange)


def default_range(policy: E, spec: TrainingSpec) -> E:
    """Return *policy* with both limits; *spec* has defaults, and a Worker entry if it is valid."""
    low, high = policy.min_replicas, policy.max_replicas
    workers = spec.replica_specs.get(WORKER)
    if low is None and high is None and workers is not None:
        low = high = max(workers.replicas or 0, 1)
    low, high = (high if low is None else low), (low if high is None else high)
    if (low, high) == (policy.min_replicas, policy.max_replicas):
        return policy
    return msgspec.structs.replace(policy, min_replicas=low, max_replicas=high)


def validate_range(
    policy: ElasticRange, *, workers: bool, replica_field: str, errors: ErrorList
) -> None:
    """Validate *policy*; *workers* is whether the job has a Worker entry."""
    if not workers:
        path = f"spec.{replica_field}[{WORKER}]"
        errors.required(path, "must be set if elasticPolicy is")
    low, high = policy.min_replicas, policy.max_replicas
    errors.out_of_range(f"{_PATH}.minReplicas", low, minimum=1)
    errors.out_of_range(f"{_PATH}.maxReplicas", high, minimum=1)
    errors.out_of_range(f"{_PATH}.maxRestarts", policy.max_restarts, minimum=0)
    if low is not None and high is not None and low > high:
        detail = f"must be less than or equal to maxReplicas, {high}"
        errors.invalid(f"{_PATH}.minReplicas", low, detail)


RANGE_SCHEMA: dict[str, Any] = {
    "minReplicas": {
        "description": "Minimum number of workers; defaults to maxReplicas.",
        "type": "integer",
        "format": "int32",
        "minimum": 1,
    },
    "maxReplicas": {
        "description": "Maximum number of workers; defaults to minReplicas.",
        "type": "integer",
        "format": "int32",
        "minimum": 1,
    },
    "maxRestarts": {
        "description": "Number of times that the workers of a job may be restarted.",
        "type": "integer",
        "format": "int32",
        "minimum": 0,
    },
    "metrics": {
        "description": "Metrics by which the number of workers is scaled.",
        "type": "array",
        "items": {"x-batholith-type": "io.k8s.api.autoscaling.v2.MetricSpec"},
    },
}
"""Properties of :class:`ElasticRange` in the custom resource definition."""
