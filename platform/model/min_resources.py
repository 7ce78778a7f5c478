"""Compute ``minResources`` of a gang, in the resource names of a ResourceQuota. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from .base import ApiStruct
from .job import TaskSpec
from .pod_resources import (
    Amounts,
    PodResources,
    add,
    quota_usage,
)


class PodSpec(PodResources, frozen=True):
    """Resources and priority of a pod's spec."""

    priority_class_name: str = ""


class Template(ApiStruct, frozen=True):
    """A pod template."""

    spec: PodSpec = PodSpec()


_DECODE = msgspec.json.Decoder(Template).decode


@dataclass(frozen=True, slots=True)
class TaskRequest:
    """A task with the priority and the quota usage of one of its pods."""

    task: TaskSpec
    priority: int
    usage: Amounts


def min_resources(
    tasks: Sequence[TaskSpec], min_available: int, *, priorities: Mapping[str, int]
) -> dict[str, str]:
    """Return ``minResources`` of a gang of *min_available* pods.

    *priorities* are the values of the PriorityClasses by name; a missing class counts as 0.

    Raises:
        QuantityError: a quantity in a template is malformed.
        msgspec.ValidationError: a template is malformed.
    """
    requests = [_task_request(task, priorities) for task in tasks]
    requests.sort(key=lambda request: -request.priority)
    counts = _pods_per_task(requests, min_available)
    sums: Amounts = {}
    for request, number in zip(requests, counts, strict=True):
        if number:
            add(sums, {name: amount * number for name, amount in request.usage.items()})
    pods = str(sum(counts))
    return {"count/pods": pods, "pods": pods} | {
        name: str(amount) for name, amount in sorted(sums.items())
    }


def priority_classes(tasks: Iterable[TaskSpec]) -> set[str]:
    """Return the priority classes of the pods of *tasks*; ``""`` for none.

    Raises:
        QuantityError: a quantity in a template is malformed.
        msgspec.ValidationError: a template is malformed.
    """
    return {_parse_template(bytes(task.template))[0] for task in tasks}


def _task_request(task: TaskSpec, priorities: Mapping[str, int]) -> TaskRequest:
    priority_class_name, usage = _parse_template(bytes(task.template))
    return TaskRequest(task, priorities.get(priority_class_name, 0), usage)


@lru_cache(maxsize=256)  # many jobs have the same template
def _parse_template(template: bytes) -> tuple[str, Amounts]:
    """Return the priority class and the quota usage of a pod."""
    spec = _DECODE(template).spec
    return spec.priority_class_name, quota_usage(spec)


def _pods_per_task(requests: Sequence[TaskRequest], min_available: int) -> list[int]:
    """Return the number of pods of each task in the gang's minimum."""
    tasks = [request.task for request in requests]
    minimum = [
        task.replicas if task.min_available is None else task.min_available for task in tasks
    ]
    counts = [0] * len(tasks)
    if min_available >= sum(minimum):
        _distribute(counts, [task.min_available or 0 for task in tasks], min_available)
        # The remaining pods count too, all of them for a task without ``minAvailable``.
        rest = [task.replicas - (task.min_available or 0) for task in tasks]
        _distribute(counts, rest, min_available - sum(counts))
    else:
        _distribute(counts, [task.replicas for task in tasks], min_available)
    return counts


def _distribute(counts: list[int], limits: Iterable[int], remaining: int) -> None:
    for index, limit in enumerate(limits):
        number = max(0, min(limit, remaining))
        counts[index] += number
        remaining -= number
