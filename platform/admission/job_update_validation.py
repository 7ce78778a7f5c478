"""What may change in a job that exists."""

from collections.abc import Iterator
from typing import Any

from ..model import quantity
from ..model.admission import DeniedError, Json
from ..model.job import Job
from ..model.quantity import QuantityError
from .decoding import entries, part
from .task_validation import negative_problems, partition_problems, topology_problem

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


def check_changed_job(job: Job, new: Json, old: Json) -> None:
    """Check a change from *old* to *new*, which is *job* as a raw object.

    A write that leaves the spec alone is always right: what has come to be there in another way
    must not keep anybody from writing labels, or the last finalizer.

    Raises:
        DeniedError: with the first rule that the change breaks.
    """
    if part(new, "spec") == part(old, "spec"):
        return
    for problem in _problems(job, part(new, "spec"), part(old, "spec")):
        raise DeniedError(problem)


def _problems(job: Job, new: Json, old: Json) -> Iterator[str]:
    yield from negative_problems(job)
    for index, task in enumerate(job.spec.tasks):  # U1 to U3
        if task.min_available is not None and task.min_available > task.replicas:
            yield (
                f"'minAvailable' must be <= 'replicas' in task: {task.name}"
                f" (spec.tasks[{index}].minAvailable is {task.min_available},"
                f" spec.tasks[{index}].replicas {task.replicas}; minAvailable became the number of"
                " replicas at the job's creation unless it was given, so change both)"
            )
        yield from partition_problems(task, job.metadata.name)
    if job.spec.min_available > sum(task.replicas for task in job.spec.tasks):  # U4
        yield "job 'minAvailable' must not be greater than total replicas"
    if problem := topology_problem(job.spec.network_topology):  # U6
        yield problem
    if len(entries(new, "tasks")) != len(entries(old, "tasks")):  # U7
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
        if _normal_field(new, name) != _normal_field(old, name):
            yield f"spec.{name}"
    tasks = zip(entries(new, "tasks"), entries(old, "tasks"), strict=False)
    for index, (after, before) in enumerate(tasks):
        for name in sorted((after.keys() | before.keys()) - _MUTABLE_IN_TASK):
            if _normal(after.get(name), name) != _normal(before.get(name), name):
                yield f"spec.tasks[{index}].{name}"


def _normal_field(spec: Json, name: str) -> Any:
    if name != "volumes":
        return _normal(spec.get(name), name)
    # The controller writes the names of the claims that it made.
    return [
        _normal({field: value for field, value in volume.items() if field != "volumeClaimName"})
        if volume.get("volumeClaim")
        else _normal(volume)
        for volume in entries(spec, name)
    ] or None


def _normal(value: Any, name: str = "") -> Any:
    """*value* in the one form that all equal values have: what is empty becomes ``None``."""
    if isinstance(value, dict):
        if name in _QUANTITY_MAPS:
            return {key: _normal_quantity(inner) for key, inner in value.items()} or None
        inner = {key: _normal(each, key) for key, each in value.items()}
        if name in _MAPS:
            return inner or None
        return {key: each for key, each in inner.items() if each is not None} or None
    if isinstance(value, list):
        return [_normal(inner) for inner in value] or None
    if name in _QUANTITIES:
        return _normal_quantity(value)
    if value == "" or (name in _ABSENT_MEANS_ZERO and not value):
        return None
    return value


def _normal_quantity(value: Any) -> Any:
    try:
        return quantity.parse(value)
    except QuantityError:
        return value
