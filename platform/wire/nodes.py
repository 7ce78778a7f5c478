"""Nodes, and the pods on them."""

from datetime import datetime

from .base import Items, Page, Record


class Node(Record, frozen=True):
    """A node."""

    name: str
    ready: bool = False
    unschedulable: bool = False
    """Whether new pods are kept away, as by `kubectl cordon`."""
    taints: list[str] = []
    """As kubectl writes them: ``key=value:effect``."""
    allocatable: dict[str, str] = {}
    """What pods may request, by resource."""
    labels: dict[str, str] = {}
    created_at: datetime | None = None
    deleting: bool = False


class NodePage(Page[Node], frozen=True):
    """One page of the nodes, by name."""


class NodePod(Record, frozen=True):
    """A pod on a node."""

    namespace: str
    name: str
    uid: str = ""
    phase: str = ""
    owner_kind: str = ""
    """Kind of the object that controls the pod; empty without one."""
    owner_name: str = ""
    requests: dict[str, str] = {}
    """What the scheduler counts; empty for a finished pod, and if an amount is malformed."""
    deleting: bool = False


class NodePodList(Items[NodePod], frozen=True):
    """The pods of a node."""
