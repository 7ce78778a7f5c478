"""Which mutating webhooks and policies may change a new pod. Pure.

Kubernetes decides that for each request; here it is decided before the pod exists, from its
namespace and its labels. What depends on anything else counts as a match.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...model import names
from ...model.base import ApiStruct
from ...model.meta import LabelSelector, ObjectMeta
from ...model.selectors import Selector, SelectorError, from_label_selector

GATE_CONDITION = f"object.metadata.?annotations[?'{names.QUEUE_GATE}'].orValue('') == 'true'"
"""The condition of this project's webhook for pods: false for all pods that get a node, as those
with that annotation are not described."""


class Rule(ApiStruct, frozen=True):
    """Requests for which a webhook or policy is called."""

    operations: tuple[str, ...] = ()
    api_groups: tuple[str, ...] = ()
    api_versions: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    resource_names: tuple[str, ...] = ()
    """Of policies only; empty for all."""

    scope: str = "*"


class MatchCondition(ApiStruct, frozen=True):
    """A condition on the request; all must hold."""

    expression: str = ""


class Webhook(ApiStruct, frozen=True):
    """A webhook of a MutatingWebhookConfiguration."""

    rules: tuple[Rule, ...] = ()
    namespace_selector: LabelSelector = LabelSelector()
    object_selector: LabelSelector = LabelSelector()
    match_conditions: tuple[MatchCondition, ...] = ()


class WebhookConfiguration(ApiStruct, frozen=True):
    """A MutatingWebhookConfiguration."""

    metadata: ObjectMeta = ObjectMeta()
    webhooks: tuple[Webhook, ...] = ()


class MatchResources(ApiStruct, frozen=True):
    """Requests that a policy or its binding selects."""

    resource_rules: tuple[Rule, ...] = ()
    """Empty for all."""

    exclude_resource_rules: tuple[Rule, ...] = ()
    namespace_selector: LabelSelector = LabelSelector()
    object_selector: LabelSelector = LabelSelector()


class PolicySpec(ApiStruct, frozen=True):
    """``spec`` of a MutatingAdmissionPolicy."""

    match_constraints: MatchResources = MatchResources()
    match_conditions: tuple[MatchCondition, ...] = ()


class Policy(ApiStruct, frozen=True):
    """A MutatingAdmissionPolicy, which has no effect without a binding."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PolicySpec = PolicySpec()


class BindingSpec(ApiStruct, frozen=True):
    """``spec`` of a MutatingAdmissionPolicyBinding."""

    policy_name: str = ""
    match_resources: MatchResources = MatchResources()


class Binding(ApiStruct, frozen=True):
    """A MutatingAdmissionPolicyBinding."""

    metadata: ObjectMeta = ObjectMeta()
    spec: BindingSpec = BindingSpec()


@dataclass(frozen=True, slots=True)
class Mutator:
    """Pods that a webhook or a policy may change: those that all selectors select."""

    namespaces: tuple[Selector, ...]
    pods: tuple[Selector, ...]

    def may_change(
        self, pods: Iterable[Mapping[str, str]], namespace: Mapping[str, str] | None
    ) -> bool | None:
        """Return whether one of *pods*, given by labels, may be changed in a namespace with labels
        *namespace*; ``None`` if that depends on labels of the namespace, which are not known."""
        if not any(all(each.matches(labels) for each in self.pods) for labels in pods):
            return False
        if not any(each.requirements for each in self.namespaces):
            return True
        if namespace is None:
            return None
        return all(each.matches(namespace) for each in self.namespaces)


def mutators(
    configurations: Iterable[WebhookConfiguration],
    policies: Iterable[Policy],
    bindings: Iterable[Binding],
) -> Iterator[Mutator]:
    """Return the webhooks and the bound policies that may change new pods."""
    for configuration in configurations:
        for each in configuration.webhooks:
            if _any_concerns_pods(each.rules) and _may_hold(each.match_conditions):
                yield Mutator(_selectors(each.namespace_selector), _pod_selectors(each))
    bound: dict[str, list[MatchResources]] = {}
    for binding in bindings:
        bound.setdefault(binding.spec.policy_name, []).append(binding.spec.match_resources)
    for policy in policies:
        own = policy.spec.match_constraints
        if not _selects_pods(own) or not _may_hold(policy.spec.match_conditions):
            continue
        for added in bound.get(policy.metadata.name, ()):
            if _selects_pods(added):
                yield Mutator(
                    _selectors(own.namespace_selector, added.namespace_selector),
                    _pod_selectors(own, added),
                )


def _selects_pods(resources: MatchResources) -> bool:
    # Whether a rule with names excludes a pod depends on the name.
    excluded = (each for each in resources.exclude_resource_rules if not each.resource_names)
    if _any_concerns_pods(excluded):
        return False
    return not resources.resource_rules or _any_concerns_pods(resources.resource_rules)


def _any_concerns_pods(rules: Iterable[Rule]) -> bool:
    """Return whether one of *rules* is for the creation of pods."""
    return any(
        not {"CREATE", "*"}.isdisjoint(rule.operations)
        and not {"", "*"}.isdisjoint(rule.api_groups)
        and not {"v1", "*"}.isdisjoint(rule.api_versions)
        and rule.scope in ("*", "Namespaced")
        and any(map(_is_pods, rule.resources))
        for rule in rules
    )


def _is_pods(resource: str) -> bool:
    """Return whether *resource* of a rule includes pods; ``pods/*`` does, with its subresources."""
    kind, _, subresource = resource.partition("/")
    return kind in ("pods", "*") and subresource in ("", "*")


def _may_hold(conditions: Sequence[MatchCondition]) -> bool:
    """Return whether all *conditions* may hold for a pod that gets a node."""
    return not any(each.expression.strip() == GATE_CONDITION for each in conditions)


def _selectors(*selectors: LabelSelector) -> tuple[Selector, ...]:
    """Return *selectors*; one that is malformed selects all."""
    found = []
    for each in selectors:
        try:
            found.append(from_label_selector(each))
        except SelectorError:
            found.append(Selector())
    return tuple(found)


def _pod_selectors(*matching: Webhook | MatchResources) -> tuple[Selector, ...]:
    """Return the selectors of pods, without what they require of the index in the task."""
    return tuple(
        Selector(tuple(each for each in selector.requirements if each.key != names.TASK_INDEX))
        for selector in _selectors(*(each.object_selector for each in matching))
    )
