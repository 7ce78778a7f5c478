"""Volcano's HyperNode (``topology.volcano.sh/v1alpha1``): a set of nodes close in the network."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
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
    status: HyperNodeStatus | None = None


@dataclass(frozen=True, slots=True)
class Domain:
    """A HyperNode with all its nodes, those of its member HyperNodes included."""

    name: str
    tier: int
    tier_name: str
    nodes: frozenset[str]


class HyperNodes:
    """The HyperNodes of a cluster and their nodes, kept up to date object by object."""

    def __init__(self) -> None:
        """Start without HyperNodes and nodes."""
        self._hypernodes: dict[str, HyperNode] = {}
        self._labels: dict[str, Mapping[str, str]] = {}
        self._matchers: dict[str, _NodeMatcher] = {}
        self._direct: dict[str, set[str]] = {}
        """The nodes that a HyperNode selects itself."""
        self._domains: dict[str, Domain] | None = None

    def __len__(self) -> int:
        """Return the number of HyperNodes."""
        return len(self._hypernodes)

    @property
    def labels(self) -> Mapping[str, Mapping[str, str]]:
        """The labels of the nodes, by name."""
        return self._labels

    def update(self, name: str, hypernode: HyperNode | None) -> bool:
        """Add, update or delete a HyperNode; returns whether its spec changed."""
        known = self._hypernodes.get(name)
        if (known and known.spec) == (hypernode and hypernode.spec):
            return False
        self._domains = None
        if hypernode is None:
            del self._hypernodes[name], self._matchers[name], self._direct[name]
            return True
        matcher = _NodeMatcher(hypernode.spec)
        self._hypernodes[name], self._matchers[name] = hypernode, matcher
        self._direct[name] = {
            each
            for each in matcher.possible(self._labels)
            if matcher.matches(each, self._labels[each])
        }
        return True

    def update_node(self, name: str, labels: Mapping[str, str] | None) -> bool:
        """Add or update a node, or remove it if *labels* is ``None``; returns whether that may
        change the nodes of a HyperNode."""
        if self._labels.get(name) == labels:
            return False
        if labels is None:
            del self._labels[name]
        else:
            self._labels[name] = labels
        for hypernode, matcher in self._matchers.items():
            direct = self._direct[hypernode]
            if labels is not None and matcher.matches(name, labels):
                direct.add(name)
            else:
                direct.discard(name)
        self._domains = None
        return True

    def domains(self) -> Mapping[str, Domain]:
        """Return the domains by name.

        Members that do not exist, or whose selector is invalid, count as absent, as do HyperNodes
        in others of the same or a lower tier: so cycles, which may be stored without webhooks, end.
        """
        if self._domains is None:
            self._domains = self._resolve()
        return self._domains

    def _resolve(self) -> dict[str, Domain]:
        domains: dict[str, Domain] = {}
        below: dict[str, Domain] = {}
        tier = -1
        ordered = sorted(self._hypernodes.items(), key=lambda each: (each[1].spec.tier, each[0]))
        for name, hypernode in ordered:
            spec = hypernode.spec
            if spec.tier > tier:
                tier, below = spec.tier, dict(domains)
            found = set(self._direct[name])
            for member in spec.members:
                if member.type == HYPERNODE:
                    for lower in selected_names(member.selector, below):
                        found |= below[lower].nodes
            domains[name] = Domain(name, spec.tier, spec.tier_name, frozenset(found))
        return domains


class _NodeMatcher:
    """Which nodes a HyperNode selects itself."""

    def __init__(self, spec: HyperNodeSpec) -> None:
        self._names: set[str] = set()
        self._patterns: list[re2._Regexp[str]] = []
        self._selectors: list[Selector] = []
        for member in spec.members:
            selector = member.selector
            if member.type != NODE:
                continue
            with suppress(PatternError, SelectorError):
                if selector.exact_match is not None:
                    self._names.add(selector.exact_match.name)
                elif selector.regex_match is not None:
                    self._patterns.append(compile_pattern(selector.regex_match.pattern))
                elif selector.label_match is not None:
                    self._selectors.append(from_label_selector(selector.label_match))

    def possible(self, nodes: Mapping[str, object]) -> Iterable[str]:
        """Return the nodes that may match, all that do among them."""
        return nodes if self._patterns or self._selectors else self._names & nodes.keys()

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Return whether a node is selected."""
        return (
            name in self._names
            or any(pattern.search(name) for pattern in self._patterns)
            or any(selector.matches(labels) for selector in self._selectors)
        )


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
