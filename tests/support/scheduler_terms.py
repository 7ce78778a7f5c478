"""Builders for pods with labels and terms on other pods."""

from typing import Any

import msgspec
from support.scheduler import SchedulerWorld, node, pod

from batholith.scheduler.state.core_types import Node, Pod

Json = dict[str, Any]

HOSTNAME = "kubernetes.io/hostname"


def zoned(name: str, zone: str = "", *, cpu: int = 8) -> Node:
    """A node with its host name, in *zone*."""
    return node(name, labels={HOSTNAME: name} | ({"zone": zone} if zone else {}), cpu=cpu)


def labelled(base: Pod, *, namespace: str = "ns", spec: Json | None = None, **labels: str) -> Pod:
    """*base* with labels and more fields of its spec."""
    body = msgspec.to_builtins(base)
    body["metadata"] |= {"labels": labels, "namespace": namespace}
    body["spec"] |= spec or {}
    return msgspec.convert(body, Pod)


def single(name: str) -> Pod:
    """A pod that is scheduled on its own."""
    return pod(name, scheduler="default-scheduler")


def node_for(world: SchedulerWorld, each: Pod) -> str | None:
    """The node that a cycle chooses for *each*, which stays."""
    world.upsert(each)
    return world.schedule().get(each.metadata.name)
