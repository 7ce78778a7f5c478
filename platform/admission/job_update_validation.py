"""Validation of Job updates."""

from collections.abc import Iterator
from typing import Any

from ..model import quantity
from ..model.admission import DeniedError, Json, ObjectReader, nested_list, nested_object
from ..model.arrays import array_errors
from ..model.job import Job
from ..model.names import MAX_PARALLEL
from ..model.quantity import QuantityError
from .annotations import AnnotatedJob, annotation_errors
from .task_validation import negative_errors, partition_errors, size_error, topology_error

_MUTABLE = frozenset(("minAvailable", "priorityClassName", "suspend", "tasks"))
_MUTABLE_IN_TASK = frozenset(("replicas", "minAvailable"))
_ABSENT_MEANS_ZERO = frozenset(
    ("maxRetry", "minPartitions", "hostNetwork", "hostPID", "hostIPC", "stdin", "tty", "readOnly")
)
"""Fields for which unset and zero mean the same."""

_QUANTITY_MAPS = frozenset(("requests", "limits", "overhead"))
_QUANTITIES = frozenset(("sizeLimit", "divisor"))
_MAPS = frozenset(("plugins", "labels", "annotations", "nodeSelector", "matchLabels"))
"""Maps with user-defined keys: a key is significant even if its value is empty."""


def validate_job_update(
    job: Job, new: Json, old: Json, reader: ObjectReader, *, max_pods: int
) -> None:
    """Validate the update of *old* to *new*; *job* is *new* decoded.

    What is unchanged, the spec and the annotations of the time limit, is always valid: a job stored
    without validation must not block updates of labels or finalizers.

    Raises:
        DeniedError: with the first error.
    """
    for error in _annotation_errors(job, old, reader):
        raise DeniedError(error)
    is_same_spec = nested_object(new, "spec") == nested_object(old, "spec")
    if not is_same_spec or _annotation(new, MAX_PARALLEL) != _annotation(old, MAX_PARALLEL):
        for error in array_errors(job):
            raise DeniedError(error)
    if is_same_spec:
        return
    if error := size_error(job, max_pods):
        raise DeniedError(error)
    for error in _update_errors(job, nested_object(new, "spec"), nested_object(old, "spec")):
        raise DeniedError(error)


def _annotation_errors(job: Job, old: Json, reader: ObjectReader) -> Iterator[str]:
    """Yield what is wrong with the annotations that the update changes."""
    annotated = AnnotatedJob(
        name=job.metadata.name,
        annotations=job.metadata.annotations,
        queue=job.spec.queue,
        is_update=True,
    )
    before = nested_object(nested_object(old, "metadata"), "annotations")
    return annotation_errors(annotated, before, reader, volcano=True)


def _annotation(job: Json, name: str) -> object:
    return nested_object(nested_object(job, "metadata"), "annotations").get(name)


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
    if error := topology_error(job.spec.network_topology):  # U6
        yield error
    if len(nested_list(new, "tasks")) != len(nested_list(old, "tasks")):  # U7
        yield "job updates may not add or remove tasks"
    if changed := list(changed_fields(new, old)):  # U8
        yield (
            "job updates may not change fields other than `minAvailable`, `tasks[*].replicas under"
            " spec` and `PriorityClassName`, besides `tasks[*].minAvailable` and `suspend`;"
            f" changed: {', '.join(changed)}"
        )


def changed_fields(new: Json, old: Json) -> Iterator[str]:
    """Yield the paths of immutable fields that differ; *new* and *old* are specs."""
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
    # The controller sets the names of the PVCs that it creates.
    return [
        _normalize({field: value for field, value in volume.items() if field != "volumeClaimName"})
        if volume.get("volumeClaim")
        else _normalize(volume)
        for volume in nested_list(spec, name)
    ] or None


def _normalize(value: Any, name: str = "") -> Any:
    """Return *value* in a form that compares equal for equivalent values; empty is ``None``."""
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
