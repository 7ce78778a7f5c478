"""What a cluster may do to a pod while it is created: LimitRanges, webhooks and policies that
mutate.

Only for placement at creation: a pod must have the requests that were planned.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from ...kube.client.client import Client
from ...kube.informer.factory import InformerFactory
from ...kube.informer.informer import Informer, OptionalSource
from ...machinery.clock import Clock
from ...machinery.lifecycle import Source
from ...machinery.served import ServedResources, run_while
from ...model import names
from ...model.meta import HasMeta, MetadataOnly
from .admission_rules import Binding, Mutator, Policy, WebhookConfiguration, mutators
from .placement import Unplaced

T = TypeVar("T", bound=HasMeta)


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
        self._webhooks = informers.informer(names.MUTATING_CONFIGURATIONS, WebhookConfiguration)
        self._namespaces = informers.informer(names.NAMESPACES, MetadataOnly)
        self._policies = _Policies(client, informers, clock, self._on_mutator)
        self._mutators: tuple[Mutator, ...] | None = None
        """What may change pods; ``None`` if that is to be computed again."""

    def sources(self) -> list[Source]:
        """Return the sources of the informers."""
        return [
            OptionalSource(self._limit_ranges, _ignore),
            OptionalSource(self._webhooks, self._on_mutator),
            OptionalSource(self._namespaces, _ignore),
            self._policies,
        ]

    @property
    def policies_known(self) -> bool:
        """Whether the policies of the API server have been read, if it serves such kinds."""
        return self._policies.known

    def exclude(self, namespace: str, pods: Collection[Mapping[str, str]]) -> Unplaced | None:
        """Return why one of *pods*, given by labels, may differ from what is created, or ``None``.

        The label of the index in the task is not read.
        """
        is_known = _is_current(self._limit_ranges) and _is_current(self._webhooks)
        if not is_known or not self.policies_known:
            return Unplaced.UNKNOWN_RULES
        if any(True for _ in self._limit_ranges.by_index(_NAMESPACE, namespace)):
            return Unplaced.LIMIT_RANGE
        if self._mutators is None:
            self._mutators = tuple(
                mutators(self._webhooks, self._policies.policies(), self._policies.bindings())
            )
        if not self._mutators:
            return None
        labels = self._labels_of(namespace)
        found = {each.may_change(pods, labels) for each in self._mutators}
        if True in found:
            return Unplaced.MUTATION
        return Unplaced.UNKNOWN_RULES if None in found else None

    def _labels_of(self, namespace: str) -> Mapping[str, str] | None:
        """Return the labels of *namespace*, or ``None`` if they are not known."""
        found = self._namespaces.get(namespace) if _is_current(self._namespaces) else None
        return None if found is None else found.metadata.labels

    def _on_mutator(self, old: object, new: object) -> None:
        """Forget what was computed from webhooks, policies and bindings."""
        self._mutators = None


class _Policies:
    """The MutatingAdmissionPolicies of a cluster and their bindings; many have no such kind."""

    def __init__(
        self,
        client: Client,
        informers: InformerFactory,
        clock: Clock,
        on_change: Callable[[object, object], None],
    ) -> None:
        """*on_change* is called when one of them changes, and when their kinds do."""
        self._factory = informers
        self._clock = clock
        self._on_change = on_change
        self._served = ServedResources(client, _KINDS, clock=clock, interval=_DISCOVERY_SECONDS)
        self._informers: dict[names.Resource, Informer[Any]] = {}

    def policies(self) -> list[Policy]:
        """Return the policies."""
        return self._all(_POLICY_KINDS)

    def bindings(self) -> list[Binding]:
        """Return their bindings."""
        return self._all(_BINDING_KINDS)

    def _all(self, kinds: Collection[names.Resource]) -> list[Any]:
        return [each for kind in kinds for each in self._informers.get(kind, ())]

    @property
    def known(self) -> bool:
        """Whether all of them are known."""
        return self._served.known and all(
            kind in self._informers and _is_current(self._informers[kind])
            for kind in _KINDS
            if self._served.has(kind)
        )

    async def run(self) -> None:
        """Watch the kinds that the API server has, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._served.run())
            for kind in _KINDS:
                tasks.create_task(self._watch(kind))

    async def _watch(self, kind: names.Resource) -> None:
        served = self._served
        while True:
            await served.wait_until(lambda: served.has(kind))
            informer: Informer[Any] = self._factory.informer(kind, _KINDS[kind])
            self._informers[kind] = informer
            informer.add_event_handler(self._on_change)
            try:
                await run_while(informer.run(), served.wait_until(lambda: not served.has(kind)))
            finally:
                informer.remove_event_handler(self._on_change)
                del self._informers[kind]
                self._on_change(None, None)

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


def _ignore(old: object, new: object) -> None:
    """Handle no event: the rules are read when they are needed."""


_NAMESPACE = "namespace"
_MAX_STALE_SECONDS = 30.0
"""Seconds after which rules count as unknown while their watch fails."""
_POLICY_KINDS = (names.MUTATING_POLICIES, names.MUTATING_POLICIES_BETA)
_BINDING_KINDS = (names.MUTATING_BINDINGS, names.MUTATING_BINDINGS_BETA)
_KINDS: Mapping[names.Resource, type[Any]] = {
    **dict.fromkeys(_POLICY_KINDS, Policy),
    **dict.fromkeys(_BINDING_KINDS, Binding),
}
_SYNC_SECONDS = 5.0
_DISCOVERY_SECONDS = 60.0
"""Seconds between two checks whether the API server has such kinds."""
