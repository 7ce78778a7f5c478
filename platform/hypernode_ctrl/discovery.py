"""Which HyperNodes the labels of nodes describe. Pure.

Nodes with the same value of the label of tier 1 form a HyperNode of that tier. Those of the next
tier consist of HyperNodes of the tier below, whose nodes have the same value of the next label. A
node without a label is in no HyperNode of that tier and those above.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..model.hypernode import (
    HYPERNODE,
    NODE,
    ExactMatch,
    HyperNode,
    HyperNodeSpec,
    Member,
    MemberSelector,
)
from .configuration import LABEL_SOURCE, TopologyType, cleaned, profile_label

SOURCE = "volcano.sh/network-topology-source"
"""Label of discovered HyperNodes: where they were discovered."""

PROFILE = "volcano.sh/network-topology-profile"
"""Label of those of a topology type that selects its nodes: the type."""

_SUFFIX_LENGTH = 5
_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Discovered:
    """A HyperNode as it is to be."""

    name: str
    labels: Labels
    spec: HyperNodeSpec


def discover(
    types: Mapping[str, TopologyType], nodes: Mapping[str, Labels], existing: Iterable[HyperNode]
) -> list[Discovered]:
    """Return the HyperNodes of *types*, by name, in the order in which they are to be created.

    *nodes* has the labels of nodes by name. Of *existing* HyperNodes the names are used again.
    """
    names = _Names(existing)
    return [each for name, given in types.items() for each in _of_type(name, given, nodes, names)]


def _of_type(
    type_name: str, given: TopologyType, nodes: Mapping[str, Labels], names: "_Names"
) -> list[Discovered]:
    found: list[Discovered] = []
    # What is a member of a HyperNode of the next tier: by name, the labels of its first node.
    lower: dict[str, Labels] = {
        name: labels
        for name, labels in sorted(nodes.items())
        if given.selector is None or given.selector.matches(labels)
    }
    kind = NODE
    own_labels = {SOURCE: LABEL_SOURCE}
    if given.selector is not None:
        own_labels[PROFILE] = profile_label(type_name)
    for tier, level in enumerate(given.levels, 1):
        key = level.label
        members: dict[str, list[str]] = {}
        for name, labels in lower.items():
            if value := labels.get(key, ""):
                members.setdefault(value, []).append(name)
        above: dict[str, Labels] = {}
        for value, own in sorted(members.items()):
            name = names.of(type_name, tier, key, value)
            members_now = tuple(members_of(kind, own))
            spec = HyperNodeSpec(tier=tier, tier_name=level.tier_name, members=members_now)
            found.append(Discovered(name, {key: value, **own_labels}, spec))
            above[name] = lower[own[0]]
        lower, kind = above, HYPERNODE
    return found


def members_of(kind: str, names: Iterable[str]) -> Iterable[Member]:
    """Yield members of one kind, in the order of their names."""
    for name in sorted(names):
        yield Member(type=kind, selector=MemberSelector(exact_match=ExactMatch(name=name)))


class _Names:
    """Names of discovered HyperNodes: those that they have, else fixed ones, so that a creation
    that is repeated after a crash fails instead of creating another object."""

    def __init__(self, existing: Iterable[HyperNode]) -> None:
        self._existing = sorted(existing, key=lambda each: each.metadata.name)

    def of(self, type_name: str, tier: int, key: str, value: str) -> str:
        prefix = f"hypernode-{cleaned(type_name)}-tier{tier}-"
        for each in self._existing:
            if each.metadata.labels.get(key) == value and each.metadata.name.startswith(prefix):
                return each.metadata.name
        digest = hashlib.sha256("\0".join((type_name, str(tier), key, value)).encode()).digest()
        return prefix + "".join(
            _ALPHABET[each % len(_ALPHABET)] for each in digest[:_SUFFIX_LENGTH]
        )


def is_discovered(hypernode: HyperNode, source: str = LABEL_SOURCE) -> bool:
    """Return whether *hypernode* was discovered by *source*."""
    return hypernode.metadata.labels.get(SOURCE) == source
