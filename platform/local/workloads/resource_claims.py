"""Controllers of ResourceClaims: one creates those of pods, the other one frees their devices."""

from collections.abc import Iterator
from typing import Any, assert_never

import msgspec

from ...kube.client.client import Client
from ...kube.errors import NotFoundError
from ...kube.informer.informer import Informer, KindSource
from ...machinery.clock import Clock
from ...machinery.event_recorder import Recorder, object_reference
from ...machinery.reconcile.cache import WriteThroughCache
from ...machinery.reconcile.controller import Controller, ControllerSettings, Sync
from ...model.names import PODS, RESOURCECLAIMS
from .claim_rules import (
    FINALIZER,
    ClaimEffect,
    ClaimView,
    CreateClaim,
    DeleteClaim,
    PodClaimsEffect,
    PodClaimsView,
    RemoveFinalizer,
    ReportFailure,
    Reserve,
    ResourceClaim,
    ResourceClaimTemplate,
    WriteClaimNames,
    WriteConsumers,
    claim_name,
    decide_claim,
    decide_pod,
)
from .types import Pod

CLAIMS_INDEX, TEMPLATES_INDEX = "resource-claims", "resource-claim-templates"


def claims_of(pod: Pod) -> Iterator[str]:
    """Yield the keys of the claims that *pod* uses."""
    created = pod.status.claim_names
    for each in pod.spec.resource_claims:
        name = each.resource_claim_name or created.get(each.name)
        if name:
            yield f"{pod.metadata.namespace}/{name}"


def templates_of(pod: Pod) -> Iterator[str]:
    """Yield the keys of the templates of claims that *pod* names."""
    for each in pod.spec.resource_claims:
        if each.resource_claim_template_name:
            yield f"{pod.metadata.namespace}/{each.resource_claim_template_name}"


class PodClaimController(Controller[PodClaimsView, PodClaimsEffect]):
    """Creates the claims that pods name by templates."""

    def __init__(
        self,
        client: Client,
        *,
        pods: Informer[Pod],
        claims: Informer[ResourceClaim],
        templates: Informer[ResourceClaimTemplate],
        recorder: Recorder | None = None,
        clock: Clock | None = None,
    ) -> None:
        """*pods* has the indexes of :func:`claims_of` and :func:`templates_of`."""
        super().__init__("resource-claims-of-pods", ControllerSettings(), clock=clock)
        self._pods = WriteThroughCache(client, PODS, Pod, pods, clock=self.clock)
        self._claims = WriteThroughCache(
            client, RESOURCECLAIMS, ResourceClaim, claims, clock=self.clock
        )
        self._templates = templates
        self._recorder = recorder
        self.keep(self._pods)
        self.sources = [
            KindSource(claims, self._on_claim),
            KindSource(templates, self._on_template),
            KindSource(pods, self._on_pod),
        ]

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and new.spec.resource_claims:
            self.queue.add(new.metadata.key)

    def _on_claim(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        """A claim was deleted, or allocated, maybe for a pod that has a node already."""
        known = new or old
        if known is not None:
            for pod in self._pods.informer.by_index(CLAIMS_INDEX, known.metadata.key):
                self.queue.add(pod.metadata.key)

    def _on_template(
        self, old: ResourceClaimTemplate | None, new: ResourceClaimTemplate | None
    ) -> None:
        if old is None and new is not None:
            for pod in self._pods.informer.by_index(TEMPLATES_INDEX, new.metadata.key):
                self.queue.add(pod.metadata.key)

    async def observe(self, sync: Sync) -> PodClaimsView | None:
        """Return the pod with its claims and templates; ``None`` if it needs none any more."""
        pod = self._pods.get(sync.key)
        if pod is None or pod.is_terminating or pod.is_finished:
            return None
        namespace = pod.metadata.namespace
        names = {key.partition("/")[2] for key in claims_of(pod)}
        names |= {claim_name(pod, each) for each in pod.spec.resource_claims}
        claims = {name: self._claims.get(f"{namespace}/{name}") for name in names}
        templates = {key: self._templates.get(key) for key in templates_of(pod)}
        return PodClaimsView(
            pod,
            {name: claim for name, claim in claims.items() if claim is not None},
            {each.metadata.name: each for each in templates.values() if each is not None},
        )

    def decide(self, view: PodClaimsView) -> Iterator[PodClaimsEffect]:
        """See :func:`.claim_rules.decide_pod`."""
        return decide_pod(view)

    async def execute(self, sync: Sync, view: PodClaimsView, effect: PodClaimsEffect) -> None:
        """Write a claim, the status of the pod, or an event."""
        match effect:
            case CreateClaim(claim):
                await self._claims.create_or_get(claim)
            case WriteClaimNames(statuses):
                meta = view.pod.metadata
                await self._pods.patch_status(meta, {"resourceClaimStatuses": [*statuses]})
                sync.again = True
            case Reserve(claim):
                meta = view.pod.metadata
                consumer = {"resource": "pods", "name": meta.name, "uid": meta.uid}
                known = msgspec.to_builtins(claim.status.reserved_for)
                await self._claims.patch_status(claim.metadata, {"reservedFor": [*known, consumer]})
            case ReportFailure(message):
                if self._recorder is not None:
                    self._recorder.record(
                        object_reference(PODS, view.pod.metadata),
                        type="Warning",
                        reason="FailedResourceClaimCreation",
                        message=message,
                    )
            case _:
                assert_never(effect)


class ResourceClaimController(Controller[ClaimView, ClaimEffect]):
    """Frees the devices of claims whose pods have ended, and deletes claims of such pods."""

    def __init__(
        self,
        client: Client,
        *,
        pods: Informer[Pod],
        claims: Informer[ResourceClaim],
        clock: Clock | None = None,
    ) -> None:
        """*claims* has the index ``owner``."""
        super().__init__("resource-claims", ControllerSettings(), clock=clock)
        self._client = client
        self._pods = pods
        self._claims = WriteThroughCache(
            client, RESOURCECLAIMS, ResourceClaim, claims, clock=self.clock
        )
        self.keep(self._claims)
        self.sources = [KindSource(claims, self.enqueue_changes()), KindSource(pods, self._on_pod)]

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """A pod that uses claims was added, has ended, or was deleted."""
        known = new or old
        if known is None or not known.spec.resource_claims:
            return
        if old is None or new is None or _is_done(new):
            for key in claims_of(known):
                self.queue.add(key)

    async def observe(self, sync: Sync) -> ClaimView | None:
        """Return the claim, and which pods need it no longer."""
        claim = self._claims.get(sync.key)
        if claim is None:
            return None
        namespace = claim.metadata.namespace
        ended = {
            each.uid
            for each in claim.status.reserved_for
            if each.is_pod and await self._has_ended(namespace, each.name, each.uid)
        }
        owner = claim.metadata.controller
        is_unneeded = False
        if owner is not None and owner.kind == "Pod":
            pod = self._pods.get(f"{namespace}/{owner.name}")
            is_unneeded = pod is not None and (pod.metadata.uid != owner.uid or _is_done(pod))
        return ClaimView(claim, frozenset(ended), is_unneeded)

    async def _has_ended(self, namespace: str, name: str, uid: str) -> bool:
        """Return whether a pod has ended or does not exist; the informer may not have it yet."""
        pod = self._pods.get(f"{namespace}/{name}")
        if pod is None:
            try:
                pod = await self._client.get(PODS, name, namespace=namespace, view=Pod)
            except NotFoundError:
                return True
        return pod.metadata.uid != uid or _is_done(pod)

    def decide(self, view: ClaimView) -> Iterator[ClaimEffect]:
        """See :func:`.claim_rules.decide_claim`."""
        return decide_claim(view)

    async def execute(self, sync: Sync, view: ClaimView, effect: ClaimEffect) -> None:
        """Write the claim; each write has the version of the one before it."""
        claim = self._claims.get(sync.key)
        if claim is None:
            return
        meta = claim.metadata
        match effect:
            case WriteConsumers(remaining, keep_allocation):
                status: dict[str, Any] = {"reservedFor": msgspec.to_builtins(remaining) or None}
                if not keep_allocation:
                    status["allocation"] = None
                await self._claims.patch_status(meta, status)
            case RemoveFinalizer():
                finalizers = [each for each in meta.finalizers if each != FINALIZER]
                await self._claims.patch(meta, {"metadata": {"finalizers": finalizers}})
            case DeleteClaim():
                await self._claims.delete(meta, unmodified=True)
            case _:
                assert_never(effect)


def _is_done(pod: Pod) -> bool:
    """Return whether *pod* uses no devices any more, or never will."""
    return pod.is_finished or (pod.is_terminating and not pod.spec.node_name)
