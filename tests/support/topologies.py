"""HyperNodes, and gangs that require them, for tests of the scheduler."""

from collections.abc import Iterable

import msgspec
from support.admission import hypernode as manifest
from support.admission import member

from batholith.model.hypernode import HyperNode
from batholith.model.job import NetworkTopology

ALLOCATE = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins: [{name: priority}, {name: gang}, {name: predicates}, {name: proportion},
    {name: nodeorder}, {name: network-topology-aware}]
"""


def hypernode(
    name: str, nodes: Iterable[str] = (), of: Iterable[str] = (), *, tier: int = 1, called: str = ""
) -> HyperNode:
    """A HyperNode with *nodes*, and with the HyperNodes *of* lower tiers."""
    members = [*(member(each) for each in nodes), *(member(each, of="HyperNode") for each in of)]
    named = {"tierName": called} if called else {}
    return msgspec.convert(manifest(name, *members, tier=tier, **named), HyperNode)


def hard(tier: int | None = None, *, name: str = "") -> NetworkTopology:
    """A constraint that is never violated."""
    return NetworkTopology(mode="hard", highest_tier_allowed=tier, highest_tier_name=name)


def soft() -> NetworkTopology:
    """A preference for low tiers."""
    return NetworkTopology(mode="soft")
