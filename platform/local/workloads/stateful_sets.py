"""Controller of StatefulSets: pods with names and claims of their own, in order."""

from collections.abc import Iterator
from typing import assert_never

import msgspec

from ...kube.client.client import Client
from ...kube.errors import AlreadyExistsError, ApiError
from ...kube.informer.informer import Informer, KindSource
from ...machinery.clock import Clock
from ...machinery.controller import RequeueError
from ...machinery.event_recorder import Recorder
from ...machinery.merge_patch import merge_patch
from ...machinery.pod_control import Owner
from ...machinery.reconcile.cache import WriteThroughCache
from ...machinery.reconcile.controller import Controller, ControllerSettings, RequeueAfter, Sync
from ...machinery.reconcile.events import Events
from ...model.names import PERSISTENTVOLUMECLAIMS, STATEFULSETS
from .pod_writes import PodWrites, enqueue_owner
from .revisions import REVISION_LABEL, DeleteRevision, Revision, RevisionWrites, template_data
from .stateful_rules import (
    CreateClaims,
    CreatePod,
    DeletePod,
    IdentifyPod,
    OwnClaim,
    StatefulEffect,
    StatefulView,
    decide,
)
from .stateful_types import Claim, PodRevisions, StatefulSet, new_claims, new_pod
from .types import Pod, WriteStatus

POD_DELAY = 0.05
"""Seconds in which changes of pods are collected."""


class StatefulSetController(Controller[StatefulView, StatefulEffect]):
    """Runs StatefulSets."""

    def __init__(
        self,
        client: Client,
        *,
        stateful_sets: Informer[StatefulSet],
        revisions: Informer[Revision],
        claims: Informer[Claim],
        pods: Informer[Pod],
        clock: Clock | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """*stateful_sets* has the index ``namespace``, *revisions* and *pods* ``owner``."""
        super().__init__("statefulset", ControllerSettings(), clock=clock)
        self._sets = WriteThroughCache(
            client, STATEFULSETS, StatefulSet, stateful_sets, clock=self.clock
        )
        self._claims = WriteThroughCache(
            client, PERSISTENTVOLUMECLAIMS, Claim, claims, clock=self.clock
        )
        self._revisions = RevisionWrites(client, revisions, clock=self.clock)
        self._pods = PodWrites(client, STATEFULSETS, pods, clock=self.clock, recorder=recorder)
        self._events = Events(recorder, STATEFULSETS)
        self.keep(self._sets, self._pods)
        self.sources = [
            KindSource(stateful_sets, self.enqueue_changes(self._sets)),
            KindSource(revisions, self._on_revision),
            KindSource(claims, self._on_claim),
            KindSource(pods, self._on_pod),
        ]

    def _on_revision(self, old: Revision | None, new: Revision | None) -> None:
        """Do nothing: only this controller changes revisions."""

    def _on_claim(self, old: Claim | None, new: Claim | None) -> None:
        """Do nothing: a lost claim is created when its pod is, or waits for it."""

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        enqueue_owner(STATEFULSETS, self._add_later, old, new)
        if new is not None and new.metadata.controller is None:
            for found in self._sets.by_index("namespace", new.metadata.namespace):
                if found.selector.matches(new.metadata.labels) and found.ordinal(new) >= 0:
                    self._add_later(found.metadata.key)

    def _add_later(self, key: str) -> None:
        self.queue.add_after(key, POD_DELAY)

    async def observe(self, sync: Sync) -> StatefulView | None:
        """Return a StatefulSet with its pods; its revisions exist then."""
        await self._sets.confirm(sync.key)
        found = self._sets.get(sync.key)
        if found is None:
            return None
        pods = await self._pods.claim(
            found, found.selector, StatefulSet, adopts=lambda pod: found.ordinal(pod) >= 0
        )
        owner = Owner(resource=STATEFULSETS, metadata=found.metadata)
        history, update, collisions = await self._revisions.ensure(
            owner,
            template_data(msgspec.json.decode(found.spec.template)),
            labels=dict(found.spec.selector.match_labels) if found.spec.selector else {},
            collisions=found.status.get("collisionCount"),
        )
        current = history.named(str(found.status.get("currentRevision") or "")) or update
        revisions = PodRevisions(
            current.metadata.name, update.metadata.name, current.template, update.template
        )
        ordinals = {*found.ordinals, *(found.ordinal(pod) for pod in pods)}
        names = {name for ordinal in ordinals for name in found.claim_names(ordinal)}
        namespace = found.metadata.namespace
        claims = {
            name: claim for name in names if (claim := self._claims.get(f"{namespace}/{name}"))
        }
        live = {pod.metadata.labels.get(REVISION_LABEL, "") for pod in pods}
        live |= {revisions.current, revisions.update}
        return StatefulView(
            found=found,
            pods=pods,
            claims=claims,
            revisions=revisions,
            collisions=collisions,
            expired=history.expired(live, found.spec.revision_history_limit),
            now=self.clock.now().timestamp(),
        )

    def decide(self, view: StatefulView) -> Iterator[StatefulEffect]:
        """Return what is due; see :func:`.stateful_rules.decide`."""
        return decide(view)

    async def execute(self, sync: Sync, view: StatefulView, effect: StatefulEffect) -> None:
        """Execute one effect."""
        match effect:
            case CreatePod():
                await self._create_claims(view.found, effect.ordinal, effect.claims)
                await self._create(view.found, effect)
                sync.again = True
            case CreateClaims():
                await self._create_claims(view.found, effect.ordinal, effect.claims)
                sync.again = True
            case DeletePod():
                await self._delete(view.found, effect)
                sync.again = True
            case IdentifyPod():
                await self._identify(view.found, effect)
                sync.again = True
            case OwnClaim():
                body = {"metadata": {"ownerReferences": effect.owners}}
                await self._claims.patch(effect.claim.metadata, body)
            case WriteStatus():
                patch = merge_patch(view.found.status, effect.status)
                await self._sets.patch_status(view.found.metadata, patch)
            case DeleteRevision():
                await self._revisions.delete(effect.revision)
            case RequeueAfter(seconds):
                sync.after(seconds)
            case _:
                assert_never(effect)

    async def _create(self, found: StatefulSet, effect: CreatePod) -> None:
        meta = found.metadata
        body = new_pod(found, effect.template, effect.revision, effect.ordinal)
        name = body["metadata"]["name"]
        what = f"Pod {name} in StatefulSet {meta.name}"
        try:
            await self._pods.cache.create(body, namespace=meta.namespace)
        except AlreadyExistsError:
            pod = await self._pods.cache.read(f"{meta.namespace}/{name}")
            if pod is None or not meta.controls(pod.metadata):
                raise RequeueError(f"the pod {name} exists and is not this set's") from None
            return  # by a request whose response was lost
        except ApiError as error:
            text = f"Create {what} failed error: {error.message}"
            self._events.warning(meta, "FailedCreate", text)
            raise
        self._events.normal(meta, "SuccessfulCreate", f"Create {what} successful")

    async def _identify(self, found: StatefulSet, effect: IdentifyPod) -> None:
        meta, pod = found.metadata, effect.pod.metadata
        what = f"Update Pod {pod.name} in StatefulSet {meta.name}"
        try:
            await self._pods.cache.patch(pod, {"metadata": {"labels": dict(effect.labels)}})
        except ApiError as error:
            self._events.warning(meta, "FailedUpdate", f"{what} failed error: {error.message}")
            raise
        self._events.normal(meta, "SuccessfulUpdate", f"{what} successful")

    async def _create_claims(
        self, found: StatefulSet, ordinal: int, missing: tuple[str, ...]
    ) -> None:
        meta = found.metadata
        for body in new_claims(found, ordinal, missing):
            name = body["metadata"]["name"]
            what = f"Claim {name} Pod {found.pod_name(ordinal)} in StatefulSet {meta.name}"
            try:
                await self._claims.create(body, namespace=meta.namespace)
            except AlreadyExistsError:
                await self._claims.read(f"{meta.namespace}/{name}")
                continue
            except ApiError as error:
                text = f"Create {what} failed error: {error.message}"
                self._events.warning(meta, "FailedCreate", text)
                raise
            self._events.normal(meta, "SuccessfulCreate", f"Create {what} success")

    async def _delete(self, found: StatefulSet, effect: DeletePod) -> None:
        meta, pod = found.metadata, effect.pod
        if effect.failed:
            failed = pod.status.phase == "Failed"
            reason = "RecreatingFailedPod" if failed else "RecreatingTerminatedPod"
            state = "failed" if failed else "terminated"
            text = f"StatefulSet {meta.key} is recreating {state} Pod {pod.metadata.name}"
            self._events.warning(meta, reason, text)
        if await self._pods.cache.delete(pod.metadata):
            text = f"Delete Pod {pod.metadata.name} in StatefulSet {meta.name} successful"
            self._events.normal(meta, "SuccessfulDelete", text)
