"""Terms of a pod on other pods: affinity, anti-affinity and topology spread, compiled.

A term is about the pods that a :class:`PodSelector` selects, and about the domains of a topology
key: nodes with an equal label. Equal selectors of different pods are one object, so pods are
counted once for all of them (see :mod:`.pod_topology`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from weakref import WeakValueDictionary

from ....model.meta import LabelSelector
from ....model.selectors import NOTHING, Operator, Requirement, Selector, from_label_selector
from ..core_types import (
    Affinity,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    TopologySpreadConstraint,
    WeightedPodAffinityTerm,
)
from .default_spread import DefaultTerms
from .node_counts import NodeCounts

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SelectedPods:
    """Pods of some namespaces whose labels match."""

    labels: Selector
    namespaces: frozenset[str]
    namespace_labels: Selector = NOTHING
    """Namespaces in addition, by their labels."""

    def matches(self, namespace: str, labels: Labels, namespace_labels: Labels) -> bool:
        """Return whether a pod with *labels* in *namespace* is selected."""
        return (
            namespace in self.namespaces or self.namespace_labels.matches(namespace_labels)
        ) and self.labels.matches(labels)


@dataclass(frozen=True, slots=True)
class SelectorKey:
    """What determines a :class:`PodSelector`."""

    conditions: tuple[SelectedPods, ...]
    """All must select the pod."""

    without_terminating: bool = False


class PodSelector:
    """Selects pods, and counts those on nodes while a term with it is in use."""

    __slots__ = ("__weakref__", "awaited_by", "holders", "key", "preferences", "targets", "uses")

    def __init__(self, key: SelectorKey) -> None:
        """Start unused."""
        self.key = key
        self.uses = 0
        """How many known pods have a term with it."""
        self.awaited_by = 0
        """How many of them may become schedulable when a selected pod gets a node."""
        self.targets = NodeCounts()
        """Selected pods on each node."""
        self.holders: dict[str, NodeCounts] = {}
        """Pods on each node that require anti-affinity to the selected pods, by topology key."""
        self.preferences: dict[str, NodeCounts] = {}
        """Weights of the pods on each node that prefer selected pods near, by topology key."""

    def matches(
        self, namespace: str, labels: Labels, namespace_labels: Labels, *, terminating: bool
    ) -> bool:
        """Return whether a pod with *labels* in *namespace* is selected."""
        if terminating and self.key.without_terminating:
            return False
        return all(
            each.matches(namespace, labels, namespace_labels) for each in self.key.conditions
        )

    @property
    def uses_namespace_labels(self) -> bool:
        """Whether it refers to labels of namespaces."""
        return any(each.namespace_labels.requirements for each in self.key.conditions)

    def pivot(self) -> tuple[str, frozenset[str]] | None:
        """Return a label, and the values of which a selected pod has one."""
        for condition in self.key.conditions:
            for requirement in condition.labels.requirements:
                if requirement.operator is Operator.IN:
                    return requirement.key, requirement.values
        return None


@dataclass(frozen=True, slots=True)
class PodTerm:
    """A term of anti-affinity, or a preferred term."""

    selector: PodSelector
    topology_key: str
    weight: int = 1
    """Of a preferred term: negative for anti-affinity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadTerm:
    """A topology spread constraint."""

    selector: PodSelector
    topology_key: str
    max_skew: int
    min_domains: int
    honors_affinity: bool
    """Whether only nodes that match node selector and affinity of the pod have domains."""
    honors_taints: bool
    """Whether only nodes whose taints the pod tolerates have domains."""
    counts_pods: bool
    """Whether it counts pods: an empty selector selects all pods, yet counts none."""
    is_optional: bool = False
    """Whether nodes without the label of the topology key are preferred by other constraints."""


@dataclass(frozen=True)
class PodTerms:
    """All terms of a pod."""

    affinity: PodSelector | None = None
    """Selects the pods that match all terms of required affinity."""
    affinity_keys: tuple[str, ...] = ()
    anti_affinity: tuple[PodTerm, ...] = ()
    preferred: tuple[PodTerm, ...] = ()
    spread: tuple[SpreadTerm, ...] = ()
    """Constraints with ``DoNotSchedule``."""
    soft_spread: tuple[SpreadTerm, ...] = ()
    """Constraints with ``ScheduleAnyway``."""

    @cached_property
    def selectors(self) -> tuple[PodSelector, ...]:
        """All selectors, each once."""
        every = [self.affinity] if self.affinity else []
        for terms in (self.anti_affinity, self.preferred, self.spread, self.soft_spread):
            every += [each.selector for each in terms]
        return tuple(dict.fromkeys(every))

    @cached_property
    def awaited(self) -> tuple[PodSelector, ...]:
        """Selectors of pods with which the pod may be schedulable: to which it has affinity, or one
        more of which in the domain with the fewest reduces the skew."""
        affinity = (self.affinity,) if self.affinity else ()
        return (*affinity, *(each.selector for each in self.spread))


NO_TERMS = PodTerms()


class TermCompiler:
    """Compiles terms of pods; equal selectors become one object."""

    def __init__(self) -> None:
        """Start without selectors."""
        self._selectors: WeakValueDictionary[SelectorKey, PodSelector] = WeakValueDictionary()

    def compile(self, pod: Pod, default: DefaultTerms | None = None) -> PodTerms:
        """Return the terms of *pod*, which has the constraints *default*, if there are any.

        Raises:
            SelectorError: a selector is invalid.
        """
        spec_affinity = pod.spec.affinity or Affinity()
        required, preferred = _terms(spec_affinity.pod_affinity)
        anti_required, anti_preferred = _terms(spec_affinity.pod_anti_affinity)
        constraints = pod.spec.topology_spread_constraints
        if default is not None:
            constraints = default.spread.constraints
        affinity = self._selector(_selected_pods(term, pod) for term in required)
        return PodTerms(
            affinity=affinity if required else None,
            affinity_keys=tuple(dict.fromkeys(term.topology_key for term in required)),
            anti_affinity=tuple(self._term(term, pod, 1) for term in anti_required),
            preferred=(
                *(self._term(each.pod_affinity_term, pod, each.weight) for each in preferred),
                *(self._term(each.pod_affinity_term, pod, -each.weight) for each in anti_preferred),
            ),
            spread=tuple(
                self._spread(each, pod, default)
                for each in constraints
                if each.when_unsatisfiable != "ScheduleAnyway"
            ),
            soft_spread=tuple(
                self._spread(each, pod, default)
                for each in constraints
                if each.when_unsatisfiable == "ScheduleAnyway"
            ),
        )

    def _term(self, term: PodAffinityTerm, pod: Pod, weight: int) -> PodTerm:
        return PodTerm(self._selector((_selected_pods(term, pod),)), term.topology_key, weight)

    def _spread(
        self, constraint: TopologySpreadConstraint, pod: Pod, default: DefaultTerms | None
    ) -> SpreadTerm:
        if default is None:
            labels = _with_labels(constraint.label_selector, pod, equal=constraint.match_label_keys)
        else:
            labels = default.selector
        conditions = (SelectedPods(labels, frozenset((pod.metadata.namespace,))),)
        return SpreadTerm(
            selector=self._selector(conditions, without_terminating=True),
            topology_key=constraint.topology_key,
            max_skew=constraint.max_skew,
            min_domains=1 if constraint.min_domains is None else constraint.min_domains,
            honors_affinity=constraint.node_affinity_policy in (None, "", "Honor"),
            honors_taints=constraint.node_taints_policy == "Honor",
            counts_pods=bool(labels.requirements),
            is_optional=default is not None and default.spread.is_system,
        )

    def _selector(
        self, conditions: Iterable[SelectedPods], *, without_terminating: bool = False
    ) -> PodSelector:
        key = SelectorKey(tuple(dict.fromkeys(conditions)), without_terminating)
        selector = self._selectors.get(key)
        if selector is None:
            selector = self._selectors[key] = PodSelector(key)
        return selector


def has_terms(spec: PodSpec) -> bool:
    """Return whether a pod with *spec* has terms on other pods."""
    affinity = spec.affinity
    return bool(
        spec.topology_spread_constraints
        or (affinity and (affinity.pod_affinity or affinity.pod_anti_affinity))
    )


def label_keys(spec: PodSpec) -> tuple[str, ...]:
    """Return the labels of the pod itself that its terms refer to."""
    keys: list[str] = []
    for constraint in spec.topology_spread_constraints:
        keys += constraint.match_label_keys
    affinity = spec.affinity
    for each in (affinity.pod_affinity, affinity.pod_anti_affinity) if affinity else ():
        required, preferred = _terms(each)
        for term in (*required, *(weighted.pod_affinity_term for weighted in preferred)):
            keys += term.match_label_keys
            keys += term.mismatch_label_keys
    return tuple(dict.fromkeys(keys))


def _terms(
    affinity: PodAffinity | None,
) -> tuple[tuple[PodAffinityTerm, ...], tuple[WeightedPodAffinityTerm, ...]]:
    if affinity is None:
        return (), ()
    return (
        affinity.required_during_scheduling_ignored_during_execution,
        affinity.preferred_during_scheduling_ignored_during_execution,
    )


def _selected_pods(term: PodAffinityTerm, pod: Pod) -> SelectedPods:
    namespaces = frozenset(term.namespaces)
    if not namespaces and term.namespace_selector is None:
        namespaces = frozenset((pod.metadata.namespace,))
    labels = _with_labels(
        term.label_selector, pod, equal=term.match_label_keys, unequal=term.mismatch_label_keys
    )
    return SelectedPods(labels, namespaces, from_label_selector(term.namespace_selector))


def _with_labels(
    selector: LabelSelector | None,
    pod: Pod,
    *,
    equal: Iterable[str] = (),
    unequal: Iterable[str] = (),
) -> Selector:
    """Return *selector* with the labels of *pod* for the keys *equal* and *unequal*.

    kube-apiserver adds them when a pod is created, so one that is there already is not added.
    """
    parsed = from_label_selector(selector)
    if parsed.nothing:
        return parsed
    requirements = [*parsed.requirements]
    for operator, keys in ((Operator.IN, equal), (Operator.NOT_IN, unequal)):
        for key in keys:
            value = pod.metadata.labels.get(key)
            known = any((each.key, each.operator) == (key, operator) for each in requirements)
            if value is not None and not known:
                requirements.append(Requirement(key, operator, frozenset((value,))))
    return Selector(tuple(dict.fromkeys(requirements)))
