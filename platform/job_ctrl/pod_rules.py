"""What a cluster may do to a pod while it is created: LimitRanges, webhooks and policies that
mutate.

Only for placement at creation: a pod must have the requests that were planned.
"""

import asyncio
from collections.abc import Iterable, Iterator
from typing import TypeVar

from ..kube.client.client import Client
from ..kube.informer.factory import InformerFactory
from ..kube.informer.informer import Informer, OptionalSource
from ..machinery.clock import Clock
from ..machinery.lifecycle import Source
from ..machinery.served import ServedResources, run_while
from ..model import names
from ..model.base import ApiStruct
from ..model.meta import HasMeta, ObjectMeta
from .core_types import MetadataOnly
from .placement import Unplaced

T = TypeVar("T", bound=HasMeta)


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

    def __init__(
        self, client: Client, informers: InformerFactory, *, clock: Clock, namespace: str = ""
    ) -> None:
        """Read the rules for pods of *namespace*; empty for all."""
        self._limit_ranges = informers.informer(
            names.LIMITRANGES,
            MetadataOnly,
            namespace=namespace,
            indexes={_NAMESPACE: lambda each: (each.metadata.namespace,)},
        )
        self._webhooks = informers.informer(names.MUTATING_CONFIGURATIONS, _WebhookConfiguration)
        self._policies = _Policies(client, informers, clock)

    def sources(self) -> list[Source]:
        """Return the sources of the informers."""
        return [
            OptionalSource(self._limit_ranges, _ignore),
            OptionalSource(self._webhooks, _ignore),
            self._policies,
        ]

    def exclude(self, namespace: str) -> Unplaced | None:
        """Return why pods of *namespace* may differ from what is created, or ``None``."""
        is_known = _is_current(self._limit_ranges) and _is_current(self._webhooks)
        if not is_known or not self._policies.known:
            return Unplaced.UNKNOWN_RULES
        if any(True for _ in self._limit_ranges.by_index(_NAMESPACE, namespace)):
            return Unplaced.LIMIT_RANGE
        for configuration in self._webhooks:
            if any(_concerns_pods(webhook.rules) for webhook in configuration.webhooks):
                return Unplaced.MUTATION
        if any(
            _concerns_pods(each.spec.match_constraints.resource_rules) for each in self._policies
        ):
            return Unplaced.MUTATION
        return None


class _Policies:
    """The MutatingAdmissionPolicies of a cluster; many have no such kind."""

    def __init__(self, client: Client, informers: InformerFactory, clock: Clock) -> None:
        self._factory = informers
        self._clock = clock
        self._served = ServedResources(
            client, _POLICY_KINDS, clock=clock, interval=_DISCOVERY_SECONDS
        )
        self._informers: dict[names.Resource, Informer[_Policy]] = {}

    def __iter__(self) -> Iterator[_Policy]:
        for informer in self._informers.values():
            yield from informer

    @property
    def known(self) -> bool:
        """Whether all policies are known."""
        return self._served.known and all(
            kind in self._informers and _is_current(self._informers[kind])
            for kind in _POLICY_KINDS
            if self._served.has(kind)
        )

    async def run(self) -> None:
        """Watch the kinds that the API server has, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._served.run())
            for kind in _POLICY_KINDS:
                tasks.create_task(self._watch(kind))

    async def _watch(self, kind: names.Resource) -> None:
        served = self._served
        while True:
            await served.wait_until(lambda: served.has(kind))
            informer = self._informers[kind] = self._factory.informer(kind, _Policy)
            try:
                await run_while(informer.run(), served.wait_until(lambda: not served.has(kind)))
            finally:
                del self._informers[kind]

    async def wait_synced(self) -> None:
        """Wait until the policies are known, but not for long: until then no pod gets a node."""
        await run_while(self._wait_known(), self._clock.sleep(_SYNC_SECONDS))

    async def _wait_known(self) -> None:
        await self._served.wait_until(lambda: self._served.known)
        await asyncio.sleep(0)  # the informers are created
        for informer in list(self._informers.values()):
            await informer.wait_synced_or_refused()

    async def attach(self) -> None:
        """Add no event handler: the policies are read when they are needed."""


def _is_current(informer: Informer[T]) -> bool:
    return informer.synced and informer.stale_seconds < _MAX_STALE_SECONDS


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
_POLICY_KINDS = (names.MUTATING_POLICIES, names.MUTATING_POLICIES_BETA)
_SYNC_SECONDS = 5.0
_DISCOVERY_SECONDS = 60.0
"""Seconds between two checks whether the API server has such kinds."""
