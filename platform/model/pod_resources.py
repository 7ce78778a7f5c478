"""What a pod needs: its containers, side-cars, init containers and overhead together.

Shared by all who turn pods into amounts: PodGroups ask for them as ``minResources``.
"""

from collections.abc import Iterable, Mapping

from .base import ApiStruct
from .quantity import ZERO, Quantity, parse
from .resource_names import COMPUTE, is_extended

Amounts = dict[str, Quantity]


class Resources(ApiStruct, frozen=True):
    """What a container (or a pod as a whole) asks for and may take at most."""

    requests: dict[str, str | int | float] = {}
    limits: dict[str, str | int | float] = {}


class ContainerResources(ApiStruct, frozen=True):
    """A container, or an init container; one of those that restarts always is a side-car."""

    resources: Resources = Resources()
    restart_policy: str = ""


class PodResources(ApiStruct, frozen=True):
    """The part of a pod's spec that says what it needs."""

    containers: tuple[ContainerResources, ...] = ()
    init_containers: tuple[ContainerResources, ...] = ()
    overhead: dict[str, str | int | float] = {}
    resources: Resources = Resources()


def quota_usage(spec: PodResources, *, finished: bool = False) -> Amounts:
    """What a pod counts for in a resource quota; little, if it has *ended*.

    Raises:
        QuantityError: an amount is no quantity.
    """
    one = parse(1)
    if finished:
        return {"count/pods": one}
    usage = {"count/pods": one, "pods": one}
    for name, amount in effective_resources(spec, "requests").items():
        if name in COMPUTE or name.startswith("hugepages-") or is_extended(name):
            usage[name] = usage[f"requests.{name}"] = amount
    for name, amount in effective_resources(spec, "limits").items():
        if name in COMPUTE:
            usage[f"limits.{name}"] = amount
    return usage


def effective_resources(spec: PodResources, kind: str) -> Amounts:
    """``requests`` or ``limits`` of the pod at its busiest: starting, or with all running.

    Raises:
        QuantityError: an amount is no quantity.
    """
    running = _sum(spec.containers, kind)
    starting: Amounts = {}
    sidecars: Amounts = {}
    for container in spec.init_containers:
        asked = _parse_amounts(getattr(container.resources, kind))
        if container.restart_policy == "Always":
            add(sidecars, asked)
            add(running, asked)
            asked = dict(sidecars)
        else:
            add(asked, sidecars)
        for name, amount in asked.items():
            starting[name] = max(amount, starting.get(name, ZERO))
    for name, amount in starting.items():
        running[name] = max(amount, running.get(name, ZERO))
    running |= _parse_amounts(getattr(spec.resources, kind))
    overhead = _parse_amounts(spec.overhead)
    if kind == "limits":  # overhead counts only towards a limit that is there
        overhead = {name: amount for name, amount in overhead.items() if name in running}
    add(running, overhead)
    return running


def add(total: Amounts, more: Mapping[str, Quantity]) -> None:
    """Add *more* to *total* in place."""
    for name, amount in more.items():
        total[name] = total[name] + amount if name in total else amount


def _sum(containers: Iterable[ContainerResources], kind: str) -> Amounts:
    total: Amounts = {}
    for container in containers:
        add(total, _parse_amounts(getattr(container.resources, kind)))
    return total


def _parse_amounts(amounts: Mapping[str, str | int | float]) -> Amounts:
    return {name: parse(amount) for name, amount in amounts.items()}
