"""Resizes of pods that their node cannot carry out; pure."""

import msgspec

from ....model.pod_resources import SCALABLE, PodResources, effective_resources
from ....model.quantity import ZERO, Quantity, parse
from ..http.requests import Json


def denial(pod: Json, node: Json | None) -> str:
    """Return why a pod cannot have its resources on *node*; empty if it may."""
    if node is None:
        return f'node "{pod["spec"]["nodeName"]}" not found'
    requests = effective_resources(msgspec.convert(pod["spec"], PodResources), "requests")
    allocatable = node.get("status", {}).get("allocatable") or {}
    lacking = []
    for name in SCALABLE:
        wanted, most = requests.get(name, ZERO), parse(allocatable.get(name, 0))
        if wanted > most:
            amounts = f"requested: {_number(name, wanted)}, allocatable: {_number(name, most)}"
            lacking.append(f"{name}, {amounts}")
    if not lacking:
        return ""
    return f"node didn't have enough allocatable resources: {'; '.join(lacking)}"


def _number(name: str, amount: Quantity) -> int:
    """Return CPU in millicores, and memory in bytes."""
    return amount.nanos // (1_000_000 if name == "cpu" else 1_000_000_000)
