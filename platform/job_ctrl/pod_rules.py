"""What a cluster may do to a pod while it is created: LimitRanges, webhooks and policies that
mutate.

Only for placement at creation: a pod must have the requests that were planned.
"""

from collections.abc import Iterable

from ..kube.informer.factory import InformerFactory
from ..kube.informer.informer import Informer, OptionalSource
from ..machinery.lifecycle import Source
from ..model import names
from ..model.base import ApiStruct
from ..model.meta import ObjectMeta
from .core_types import MetadataOnly
from .placement import Unplaced


class _Rule(ApiStruct, frozen=True):
    """Which requests a webhook or policy is called for."""

    operations: tuple[str, ...] = ()
    api_groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()


class _Webhook(ApiStruct, frozen=True):
    rules: tuple[_Rule, ...] = ()


class _WebhookConfiguration(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    webhooks: tuple[_Webhook, ...] = ()


class _MatchConstraints(ApiStruct, frozen=True):
    resource_rules: tuple[_Rule, ...] = ()


class _PolicySpec(ApiStruct, frozen=True):
    match_constraints: _MatchConstraints = _MatchConstraints()


class _Policy(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: _PolicySpec = _PolicySpec()


class PodRules:
    """The rules of a cluster for new pods."""

    def __init__(self, informers: InformerFactory, *, namespace: str = "") -> None:
        """Read the rules for pods of *namespace*; empty for all."""
        self._limit_ranges = informers.informer(
            names.LIMITRANGES,
            MetadataOnly,
            namespace=namespace,
            indexes={_NAMESPACE: lambda each: (each.metadata.namespace,)},
        )
        self._webhooks = informers.informer(names.MUTATING_CONFIGURATIONS, _WebhookConfiguration)
        self._policies = [
            informers.informer(resource, _Policy)
            for resource in (names.MUTATING_POLICIES, names.MUTATING_POLICIES_BETA)
        ]

    def sources(self) -> list[Source]:
        """Return the sources of the informers."""
        return [
            OptionalSource(self._limit_ranges, _ignore),
            OptionalSource(self._webhooks, _ignore),
            *(OptionalSource(policies, _ignore) for policies in self._policies),
        ]

    def exclude(self, namespace: str) -> Unplaced | None:
        """Return why pods of *namespace* may differ from what is created, or ``None``."""
        informers: tuple[
            Informer[MetadataOnly] | Informer[_WebhookConfiguration] | Informer[_Policy], ...
        ] = (self._limit_ranges, self._webhooks, *self._policies)
        for informer in informers:
            is_known = informer.synced and informer.stale_seconds < _MAX_STALE_SECONDS
            if not is_known and not informer.missing:
                return Unplaced.UNKNOWN_RULES
        if any(True for _ in self._limit_ranges.by_index(_NAMESPACE, namespace)):
            return Unplaced.LIMIT_RANGE
        for configuration in self._webhooks:
            if any(_concerns_pods(webhook.rules) for webhook in configuration.webhooks):
                return Unplaced.MUTATION
        for policies in self._policies:
            if any(_concerns_pods(each.spec.match_constraints.resource_rules) for each in policies):
                return Unplaced.MUTATION
        return None


def _concerns_pods(rules: Iterable[_Rule]) -> bool:
    """Return whether a rule may concern the creation of pods, in any namespace."""
    return any(
        not {"CREATE", "*"}.isdisjoint(rule.operations)
        and not {"", "*"}.isdisjoint(rule.api_groups)
        and not {"pods", "*", "*/*"}.isdisjoint(rule.resources)
        for rule in rules
    )


def _ignore(old: object, new: object) -> None:
    """Handle no event: the rules are read when they are needed."""


_NAMESPACE = "namespace"
_MAX_STALE_SECONDS = 30.0
"""Seconds after which rules count as unknown while their watch fails."""
