"""Which HyperNodes the labels of nodes describe. Pure.

Nodes with the same value of the label of tier 1 form a HyperNode of that tier. Those of the next
tier consist of HyperNodes of the tier below, whose nodes have the same value of the next label. A
node without a label is in no HyperNode of that tier and those above.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
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
from .configuration import LABEL_SOURCE, cleaned

SOURCE = "volcano.sh/network-topology-source"
"""Label of discovered HyperNodes: where they were discovered."""

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
    types: Mapping[str, Sequence[str]], nodes: Mapping[str, Labels], existing: Iterable[HyperNode]
) -> list[Discovered]:
    """Return the HyperNodes of *types* (labels by tier, by name of the type), in the order in which
    they are to be created.

    *nodes* has the labels of nodes by name. Of *existing* HyperNodes the names are used again.
    """
    names = _Names(existing)
    return [each for name, labels in types.items() for each in _of_type(name, labels, nodes, names)]


def _of_type(
    type_name: str, keys: Sequence[str], nodes: Mapping[str, Labels], names: "_Names"
) -> list[Discovered]:
    found: list[Discovered] = []
    # What is a member of a HyperNode of the next tier: by name, the labels of its first node.
    lower: dict[str, Labels] = dict(sorted(nodes.items()))
    kind = NODE
    for tier, key in enumerate(keys, 1):
        members: dict[str, list[str]] = {}
        for name, labels in lower.items():
            if value := labels.get(key, ""):
                members.setdefault(value, []).append(name)
        above: dict[str, Labels] = {}
        for value, own in sorted(members.items()):
            name = names.of(type_name, tier, key, value)
            spec = HyperNodeSpec(tier=tier, tier_name=key, members=tuple(members_of(kind, own)))
            found.append(Discovered(name, {key: value, SOURCE: LABEL_SOURCE}, spec))
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
