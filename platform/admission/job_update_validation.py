"""What may change in a job that exists."""

from collections.abc import Iterator
from typing import Any

from ..model import quantity
from ..model.admission import DeniedError, Json
from ..model.job import Job
from ..model.quantity import QuantityError
from .decoding import nested_list, nested_object
from .task_validation import negative_errors, partition_errors, topology_error

_MUTABLE = frozenset(("minAvailable", "priorityClassName", "suspend", "tasks"))
_MUTABLE_IN_TASK = frozenset(("replicas", "minAvailable"))
_ABSENT_MEANS_ZERO = frozenset(
    ("maxRetry", "minPartitions", "hostNetwork", "hostPID", "hostIPC", "stdin", "tty", "readOnly")
)
"""Fields that have no meaning of their own for "not set"."""

_QUANTITY_MAPS = frozenset(("requests", "limits", "overhead"))
_QUANTITIES = frozenset(("sizeLimit", "divisor"))
_MAPS = frozenset(("plugins", "labels", "annotations", "nodeSelector", "matchLabels"))
"""Objects whose keys are the user's: a key counts even when it stands for nothing."""


def validate_job_update(job: Job, new: Json, old: Json) -> None:
    """Check a change from *old* to *new*, which is *job* as a raw object.

    A write that leaves the spec alone is always right: what has come to be there in another way
    must not keep anybody from writing labels, or the last finalizer.

    Raises:
        DeniedError: with the first rule that the change breaks.
    """
    if nested_object(new, "spec") == nested_object(old, "spec"):
        return
    for problem in _update_errors(job, nested_object(new, "spec"), nested_object(old, "spec")):
        raise DeniedError(problem)


def _update_errors(job: Job, new: Json, old: Json) -> Iterator[str]:
    yield from negative_errors(job)
    for index, task in enumerate(job.spec.tasks):  # U1 to U3
        if task.min_available is not None and task.min_available > task.replicas:
            yield (
                f"'minAvailable' must be <= 'replicas' in task: {task.name}"
                f" (spec.tasks[{index}].minAvailable is {task.min_available},"
                f" spec.tasks[{index}].replicas {task.replicas}; minAvailable became the number of"
                " replicas at the job's creation unless it was given, so change both)"
            )
        yield from partition_errors(task, job.metadata.name)
    if job.spec.min_available > sum(task.replicas for task in job.spec.tasks):  # U4
        yield "job 'minAvailable' must not be greater than total replicas"
    if problem := topology_error(job.spec.network_topology):  # U6
        yield problem
    if len(nested_list(new, "tasks")) != len(nested_list(old, "tasks")):  # U7
        yield "job updates may not add or remove tasks"
    if changed := list(changed_fields(new, old)):  # U8
        yield (
            "job updates may not change fields other than `minAvailable`, `tasks[*].replicas under"
            " spec` and `PriorityClassName`, besides `tasks[*].minAvailable` and `suspend`;"
            f" changed: {', '.join(changed)}"
        )


def changed_fields(new: Json, old: Json) -> Iterator[str]:
    """The paths of the fields that differ and may not; *new* and *old* are specs."""
    for name in sorted((new.keys() | old.keys()) - _MUTABLE):
        if _normalize_field(new, name) != _normalize_field(old, name):
            yield f"spec.{name}"
    tasks = zip(nested_list(new, "tasks"), nested_list(old, "tasks"), strict=False)
    for index, (after, before) in enumerate(tasks):
        for name in sorted((after.keys() | before.keys()) - _MUTABLE_IN_TASK):
            if _normalize(after.get(name), name) != _normalize(before.get(name), name):
                yield f"spec.tasks[{index}].{name}"


def _normalize_field(spec: Json, name: str) -> Any:
    if name != "volumes":
        return _normalize(spec.get(name), name)
    # The controller writes the names of the claims that it made.
    return [
        _normalize({field: value for field, value in volume.items() if field != "volumeClaimName"})
        if volume.get("volumeClaim")
        else _normalize(volume)
        for volume in nested_list(spec, name)
    ] or None


def _normalize(value: Any, name: str = "") -> Any:
    """*value* in the one form that all equal values have: what is empty becomes ``None``."""
    if isinstance(value, dict):
        if name in _QUANTITY_MAPS:
            return {key: _normalize_quantity(inner) for key, inner in value.items()} or None
        inner = {key: _normalize(each, key) for key, each in value.items()}
        if name in _MAPS:
            return inner or None
        return {key: each for key, each in inner.items() if each is not None} or None
    if isinstance(value, list):
        return [_normalize(inner) for inner in value] or None
    if name in _QUANTITIES:
        return _normalize_quantity(value)
    if value == "" or (name in _ABSENT_MEANS_ZERO and not value):
        return None
    return value


def _normalize_quantity(value: Any) -> Any:
    try:
        return quantity.parse(value)
    except QuantityError:
        return value
