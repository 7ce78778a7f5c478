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
class TaskNeed:
    """A task, with what one of its pods needs and how important they are."""

    task: TaskSpec
    priority: int
    usage: Amounts


def minimum(
    tasks: Sequence[TaskSpec], min_available: int, *, priorities: Mapping[str, int]
) -> dict[str, str]:
    """``minResources`` of a gang of *min_available* pods.

    *priorities* are the values of the priority classes by name; a class that is not there counts
    as 0.

    Raises:
        QuantityError: a template holds something that is no quantity.
        msgspec.ValidationError: a template is no pod template.
    """
    needs = [_need(task, priorities) for task in tasks]
    needs.sort(key=lambda need: -need.priority)
    shares = _shares(needs, min_available)
    sums: Amounts = {}
    for need, number in zip(needs, shares, strict=True):
        if number:
            add(sums, {name: amount * number for name, amount in need.usage.items()})
    pods = str(sum(shares))
    return {"count/pods": pods, "pods": pods} | {
        name: str(amount) for name, amount in sorted(sums.items())
    }


def _need(task: TaskSpec, priorities: Mapping[str, int]) -> TaskNeed:
    spec = msgspec.json.decode(task.template, type=Template).spec
    priority = priorities.get(spec.priority_class_name, 0)
    return TaskNeed(task, priority, quota_usage(spec))


def _shares(needs: Sequence[TaskNeed], gang: int) -> list[int]:
    """How many pods of each task the gang's minimum is made of."""
    tasks = [need.task for need in needs]
    least = [task.replicas if task.min_available is None else task.min_available for task in tasks]
    shares = [0] * len(tasks)
    if gang >= sum(least):
        asked = [task.min_available or 0 for task in tasks]
        _hand_out(shares, asked, gang)
        # What a task without a minimum of its own may add is all it has.
        _hand_out(shares, [task.replicas - ask for task, ask in zip(tasks, asked, strict=True)],
                  gang - sum(shares))  # fmt: skip
    else:
        _hand_out(shares, [task.replicas for task in tasks], gang)
    return shares


def _hand_out(shares: list[int], at_most: Iterable[int], left: int) -> None:
    for index, most in enumerate(at_most):
        share = max(0, min(most, left))
        shares[index] += share
        left -= share
