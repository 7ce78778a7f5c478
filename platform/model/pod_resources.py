"""Effective requests and limits of a pod: containers, sidecars, init containers and overhead.

Used by the scheduler, quotas, and for the ``minResources`` of PodGroups.
"""

from collections.abc import Iterable, Mapping

from .base import ApiStruct
from .quantity import ZERO, Quantity, parse
from .resource_names import COMPUTE, is_extended

Amounts = dict[str, Quantity]
SCALABLE = ("cpu", "memory")
"""Resources that a running pod can be given more or less of."""


class Resources(ApiStruct, frozen=True):
    """Requests and limits of a container, or of a pod (pod-level resources)."""

    requests: dict[str, str | int | float] = {}
    limits: dict[str, str | int | float] = {}


class ContainerResources(ApiStruct, frozen=True):
    """A container or init container; with ``restartPolicy: Always`` the latter is a sidecar."""

    resources: Resources = Resources()
    restart_policy: str = ""


class PodResources(ApiStruct, frozen=True):
    """Fields of a pod's spec that determine its resources."""

    containers: tuple[ContainerResources, ...] = ()
    init_containers: tuple[ContainerResources, ...] = ()
    overhead: dict[str, str | int | float] = {}
    resources: Resources = Resources()


def quota_usage(spec: PodResources, *, finished: bool = False) -> Amounts:
    """Return the usage of a pod in a ResourceQuota; a *finished* pod counts as an object only.

    Raises:
        QuantityError: an amount is not a quantity.
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
    """Return the pod's effective ``requests`` or ``limits``: the maximum of init and run phase.

    Raises:
        QuantityError: an amount is not a quantity.
    """
    running = _sum(spec.containers, kind)
    starting: Amounts = {}
    sidecars: Amounts = {}
    for container in spec.init_containers:
        request = _parse_amounts(getattr(container.resources, kind))
        if container.restart_policy == "Always":
            add(sidecars, request)
            add(running, request)
            request = dict(sidecars)
        else:
            add(request, sidecars)
        for name, amount in request.items():
            starting[name] = max(amount, starting.get(name, ZERO))
    for name, amount in starting.items():
        running[name] = max(amount, running.get(name, ZERO))
    running |= _parse_amounts(getattr(spec.resources, kind))
    overhead = _parse_amounts(spec.overhead)
    if kind == "limits":  # Overhead is added only to existing limits.
        overhead = {name: amount for name, amount in overhead.items() if name in running}
    add(running, overhead)
    return running


def add(total: Amounts, more: Mapping[str, Quantity]) -> None:
    """Add *more* to *total*, which is modified."""
    for name, amount in more.items():
        total[name] = total[name] + amount if name in total else amount


def _sum(containers: Iterable[ContainerResources], kind: str) -> Amounts:
    total: Amounts = {}
    for container in containers:
        add(total, _parse_amounts(getattr(container.resources, kind)))
    return total


def _parse_amounts(amounts: Mapping[str, str | int | float]) -> Amounts:
    return {name: parse(amount) for name, amount in amounts.items()}
