"""What a gang needs at least, in the words of a resource quota (``minResources``). Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from ..model import quantity
from ..model.base import Part
from ..model.job import TaskSpec
from ..model.quantity import ZERO, Quantity

Amounts = dict[str, Quantity]
_NATIVE = ("cpu", "memory", "ephemeral-storage")


class Resources(Part, frozen=True):
    """What a container (or a pod as a whole) asks for and may take at most."""

    requests: dict[str, str | int | float] = {}
    limits: dict[str, str | int | float] = {}


class Container(Part, frozen=True):
    """A container, or an init container; one that restarts always is a sidecar."""

    resources: Resources = Resources()
    restart_policy: str = ""


class PodSpec(Part, frozen=True):
    """The part of a pod's spec that says what it needs."""

    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    overhead: dict[str, str | int | float] = {}
    resources: Resources = Resources()
    priority_class_name: str = ""


class Template(Part, frozen=True):
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
            _add(sums, {name: amount * number for name, amount in need.usage.items()})
    pods = str(sum(shares))
    return {"count/pods": pods, "pods": pods} | {
        name: str(amount) for name, amount in sorted(sums.items())
    }


def _need(task: TaskSpec, priorities: Mapping[str, int]) -> TaskNeed:
    spec = msgspec.json.decode(task.template, type=Template).spec
    priority = priorities.get(spec.priority_class_name, 0)
    return TaskNeed(task, priority, _usage(spec))


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


def _usage(spec: PodSpec) -> Amounts:
    """What one pod counts for in a quota."""
    usage: Amounts = {}
    for name, amount in _effective(spec, "requests").items():
        if name in _NATIVE or name.startswith("hugepages-") or _extended(name):
            usage[name] = usage[f"requests.{name}"] = amount
    for name, amount in _effective(spec, "limits").items():
        if name in _NATIVE:
            usage[f"limits.{name}"] = amount
    return usage


def _extended(name: str) -> bool:
    return "/" in name and "kubernetes.io/" not in name


def _effective(spec: PodSpec, kind: str) -> Amounts:
    """What the pod needs at its busiest moment: while it starts, or when all containers run."""
    running = _sum(spec.containers, kind)
    starting: Amounts = {}
    sidecars: Amounts = {}
    for container in spec.init_containers:
        asked = _read(getattr(container.resources, kind))
        if container.restart_policy == "Always":
            _add(sidecars, asked)
            _add(running, asked)
            asked = dict(sidecars)
        else:
            _add(asked, sidecars)
        for name, amount in asked.items():
            starting[name] = max(amount, starting.get(name, ZERO))
    for name, amount in starting.items():
        running[name] = max(amount, running.get(name, ZERO))
    running |= _read(getattr(spec.resources, kind))
    overhead = _read(spec.overhead)
    if kind == "limits":  # overhead counts only towards a limit that is there
        overhead = {name: amount for name, amount in overhead.items() if name in running}
    _add(running, overhead)
    return running


def _sum(containers: Iterable[Container], kind: str) -> Amounts:
    total: Amounts = {}
    for container in containers:
        _add(total, _read(getattr(container.resources, kind)))
    return total


def _add(total: Amounts, more: Amounts) -> None:
    for name, amount in more.items():
        total[name] = total[name] + amount if name in total else amount


def _read(amounts: Mapping[str, str | int | float]) -> Amounts:
    return {name: quantity.parse(amount) for name, amount in amounts.items()}
