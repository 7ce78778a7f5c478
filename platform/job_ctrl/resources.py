"""What a gang needs at least, in the words of a resource quota (``minResources``). Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ..model.base import ApiStruct
from ..model.job import TaskSpec
from ..model.pod_resources import Amounts, PodResources, add, quota_usage


class PodSpec(PodResources, frozen=True):
    """The part of a pod's spec that says what it needs, and how much it matters."""

    priority_class_name: str = ""


class Template(ApiStruct, frozen=True):
    """A pod template."""

    spec: PodSpec = PodSpec()


@dataclass(frozen=True, slots=True)
class TaskRequest:
    """A task, with what one of its pods needs and how important they are."""

    task: TaskSpec
    priority: int
    usage: Amounts


def min_resources(
    tasks: Sequence[TaskSpec], min_available: int, *, priorities: Mapping[str, int]
) -> dict[str, str]:
    """``minResources`` of a gang of *min_available* pods.

    *priorities* are the values of the priority classes by name; a class that is not there counts
    as 0.

    Raises:
        QuantityError: a template holds something that is no quantity.
        msgspec.ValidationError: a template is no pod template.
    """
    needs = [_task_request(task, priorities) for task in tasks]
    needs.sort(key=lambda need: -need.priority)
    shares = _pods_per_task(needs, min_available)
    sums: Amounts = {}
    for need, number in zip(needs, shares, strict=True):
        if number:
            add(sums, {name: amount * number for name, amount in need.usage.items()})
    pods = str(sum(shares))
    return {"count/pods": pods, "pods": pods} | {
        name: str(amount) for name, amount in sorted(sums.items())
    }


def _task_request(task: TaskSpec, priorities: Mapping[str, int]) -> TaskRequest:
    spec = msgspec.json.decode(task.template, type=Template).spec
    priority = priorities.get(spec.priority_class_name, 0)
    return TaskRequest(task, priority, quota_usage(spec))


def _pods_per_task(requests: Sequence[TaskRequest], min_available: int) -> list[int]:
    """How many pods of each task the gang's minimum is made of."""
    tasks = [need.task for need in requests]
    least = [task.replicas if task.min_available is None else task.min_available for task in tasks]
    shares = [0] * len(tasks)
    if min_available >= sum(least):
        asked = [task.min_available or 0 for task in tasks]
        _distribute(shares, asked, min_available)
        # What a task without a minimum of its own may add is all it has.
        _distribute(shares, [task.replicas - ask for task, ask in zip(tasks, asked, strict=True)],
                  min_available - sum(shares))  # fmt: skip
    else:
        _distribute(shares, [task.replicas for task in tasks], min_available)
    return shares


def _distribute(counts: list[int], limits: Iterable[int], remaining: int) -> None:
    for index, most in enumerate(limits):
        share = max(0, min(most, remaining))
        counts[index] += share
        remaining -= share
