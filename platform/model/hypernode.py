"""Volcano's HyperNode (``topology.volcano.sh/v1alpha1``): a set of nodes close in the network."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from .base import ApiStruct
from .meta import LabelSelector, ObjectMeta
from .selectors import Selector, SelectorError, from_label_selector

if TYPE_CHECKING:
    import re2

NODE = "Node"
HYPERNODE = "HyperNode"
"""Types of members."""


class PatternError(ValueError):
    """A regular expression is invalid; the text is the reason."""


class ExactMatch(ApiStruct, frozen=True):
    """The member of one name."""

    name: str = ""


class RegexMatch(ApiStruct, frozen=True):
    """All members whose names contain a match of an RE2 pattern."""

    pattern: str = ""


class MemberSelector(ApiStruct, frozen=True):
    """One of three ways to select members; without any it selects nothing."""

    exact_match: ExactMatch | None = None
    regex_match: RegexMatch | None = None
    label_match: LabelSelector | None = None


class Member(ApiStruct, frozen=True):
    """Members of one type: nodes, or HyperNodes of lower tiers."""

    type: str = ""
    selector: MemberSelector = MemberSelector()


class HyperNodeSpec(ApiStruct, frozen=True):
    """Members and tier; the lower the tier, the closer are the nodes to each other."""

    tier: int = 0
    tier_name: str = ""
    members: tuple[Member, ...] = ()


class HyperNodeStatus(ApiStruct, frozen=True):
    """Status written by the HyperNode controller."""

    node_count: int = 0


class HyperNode(ApiStruct, frozen=True):
    """A set of nodes that are close to each other in the network."""

    metadata: ObjectMeta = ObjectMeta()
    spec: HyperNodeSpec = HyperNodeSpec()
    status: HyperNodeStatus = HyperNodeStatus()


@dataclass(frozen=True, slots=True)
class Domain:
    """A HyperNode with all its nodes, those of its member HyperNodes included."""

    name: str
    tier: int
    tier_name: str
    nodes: frozenset[str]


def resolve(
    hypernodes: Collection[HyperNode], nodes: Mapping[str, Mapping[str, str]]
) -> dict[str, Domain]:
    """Return the domains by name; *nodes*: the labels of the existing nodes by name.

    Members that do not exist, or whose selector is invalid, count as absent, as do HyperNodes in
    others of the same or a lower tier: so cycles, which may be stored without webhooks, end.
    """
    domains: dict[str, Domain] = {}
    below: dict[str, Domain] = {}
    ordered = sorted(hypernodes, key=lambda each: (each.spec.tier, each.metadata.name))
    for hypernode in ordered:
        spec, name = hypernode.spec, hypernode.metadata.name
        below |= {
            lower: domains[lower]
            for lower in domains.keys() - below.keys()
            if domains[lower].tier < spec.tier
        }
        found: set[str] = set()
        for member in spec.members:
            if member.type == NODE:
                found.update(_selected_nodes(member.selector, nodes))
            elif member.type == HYPERNODE:
                for lower in selected_names(member.selector, below):
                    found |= below[lower].nodes
        domains[name] = Domain(name, spec.tier, spec.tier_name, frozenset(found))
    return domains


def selected_names(selector: MemberSelector, names: Collection[str]) -> Iterator[str]:
    """Yield those of *names* that *selector* selects by name; labels select none."""
    if selector.exact_match is not None:
        if selector.exact_match.name in names:
            yield selector.exact_match.name
    elif selector.regex_match is not None:
        try:
            pattern = compile_pattern(selector.regex_match.pattern)
        except PatternError:
            return
        yield from (name for name in names if pattern.search(name))


def _selected_nodes(
    selector: MemberSelector, nodes: Mapping[str, Mapping[str, str]]
) -> Iterable[str]:
    if selector.label_match is None:
        return selected_names(selector, nodes)
    try:
        labels: Selector = from_label_selector(selector.label_match)
    except SelectorError:
        return ()
    return (name for name, own in nodes.items() if labels.matches(own))


@lru_cache(maxsize=1024)
def compile_pattern(pattern: str) -> "re2._Regexp[str]":
    """Compile a pattern, which is matched in linear time.

    Raises:
        PatternError: it is no regular expression in RE2 syntax.
    """
    import re2

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0]
        raise PatternError(reason.decode() if isinstance(reason, bytes) else str(reason)) from None
