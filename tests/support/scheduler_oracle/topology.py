"""Domains of the network: which nodes HyperNodes have, and which of them a gang may use."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from support.scheduler_oracle.nodes import NodeState
from support.scheduler_oracle.objects import Config, PodFacts, total

from batholith.model.hypernode import HyperNode, Member
from batholith.model.podgroup import PodGroup

PLUGIN = "network-topology-aware"


@dataclass(frozen=True, slots=True)
class DomainFacts:
    """A HyperNode that has nodes."""

    tier: int
    name: str
    tier_name: str
    nodes: frozenset[str]

    def is_within(self, other: "DomainFacts") -> bool:
        """Whether it is *other*, or a part of it."""
        return self.tier <= other.tier and self.nodes <= other.nodes


def domains_of(
    hypernodes: Sequence[HyperNode], nodes: Mapping[str, NodeState]
) -> list[DomainFacts]:
    """Return the domains, by tier and name."""
    by_name = {each.metadata.name: each for each in hypernodes}

    def selected(member: Member, names: Collection[str]) -> list[str]:
        if member.selector.exact_match is not None:
            return [name for name in names if name == member.selector.exact_match.name]
        if member.selector.regex_match is not None:
            return [name for name in names if re.search(member.selector.regex_match.pattern, name)]
        if member.selector.label_match is not None and member.type == "Node":
            wanted = member.selector.label_match.match_labels.items()
            return [name for name in names if wanted <= nodes[name].labels.items()]
        return []

    def nodes_in(hypernode: HyperNode) -> set[str]:
        found: set[str] = set()
        for member in hypernode.spec.members:
            if member.type == "Node":
                found.update(selected(member, nodes))
                continue
            for name in selected(member, by_name):
                if by_name[name].spec.tier < hypernode.spec.tier:
                    found |= nodes_in(by_name[name])
        return found

    facts = [
        DomainFacts(each.spec.tier, name, each.spec.tier_name, frozenset(nodes_in(each)))
        for name, each in by_name.items()
    ]
    return sorted((each for each in facts if each.nodes), key=lambda each: (each.tier, each.name))


def allowed(
    group: PodGroup | None,
    domains: Sequence[DomainFacts],
    used: Collection[str],
    *,
    is_known: bool,
) -> tuple[list[DomainFacts], bool] | None:
    """Return the domains that a gang may use whose pods are on the nodes *used*, and whether it may
    use no others; ``None`` without a constraint, or if nothing *is_known* about the network."""
    topology = group.spec.network_topology if group is not None else None
    if topology is None or not is_known:
        return None
    around = [each for each in domains if each.nodes.issuperset(used)]
    tier: int | None = topology.highest_tier_allowed
    if topology.mode == "soft" or (tier is None and not topology.highest_tier_name):
        return around, False
    if tier is not None:
        return [each for each in around if each.tier <= tier], True
    named = [each for each in domains if each.tier_name == topology.highest_tier_name]
    return [each for each in around if any(each.is_within(one) for one in named)], True


def in_order(
    found: Sequence[DomainFacts],
    pods: Sequence[PodFacts],
    nodes: Mapping[str, NodeState],
    config: Config,
) -> Iterator[frozenset[str]]:
    """Yield the nodes of each domain, in the order in which they are tried for *pods*."""
    request = {name: units for name, units in total(pod.request for pod in pods).items() if units}
    weights = {"cpu": 1, "memory": 1} if PLUGIN in config.plugins else {}
    counted = [name for name in request if name in weights]

    def score(domain: DomainFacts) -> float:
        before, filled = [], []
        for name in counted:
            has = max(sum(nodes[each].allocatable.get(name, 0) for each in domain.nodes), 1)
            used = sum(nodes[each].used.get(name, 0) for each in domain.nodes)
            before.append(used / has)
            filled.append((used + request[name]) / has)
        if not filled:
            return 0.0
        if max(filled) > 1:
            return round(100 * sum(before) / len(before) - 100, 6)
        return round(100 * sum(filled) / len(filled), 6)

    for domain in sorted(found, key=lambda each: (each.tier, -score(each), each.name)):
        yield domain.nodes
