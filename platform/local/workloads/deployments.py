"""Controller of Deployments: scales the ReplicaSets of their templates."""

from collections.abc import Iterator
from typing import assert_never

import msgspec

from ...kube.client.client import Client
from ...kube.errors import AlreadyExistsError
from ...kube.informer.informer import Informer, KindSource
from ...machinery.claim import Claimer
from ...machinery.clock import Clock
from ...machinery.controller import RequeueError
from ...machinery.event_recorder import Recorder
from ...machinery.merge_patch import merge_patch
from ...machinery.pod_control import ApiObjectControl, Owner
from ...machinery.reconcile.cache import WriteThroughCache
from ...machinery.reconcile.controller import Controller, ControllerSettings, RequeueAfter, Sync
from ...machinery.reconcile.events import Events
from ...model.meta import HasMeta
from ...model.names import DEPLOYMENTS, REPLICASETS
from .deployment_rules import decide, split, without_hash
from .deployment_types import (
    HASH_LABEL,
    REVISION,
    CreateReplicaSet,
    DeleteReplicaSet,
    Deployment,
    DeploymentEffect,
    DeploymentView,
    UpdateReplicaSet,
    WriteDeployment,
)
from .replica_rules import ReplicaSet
from .types import Json, Pod

REPLICA_SET_DELAY = 0.05
"""Seconds in which changes of the counts of ReplicaSets are collected."""


class DeploymentController(Controller[DeploymentView, DeploymentEffect]):
    """Rolls out the pod templates of Deployments."""

    def __init__(
        self,
        client: Client,
        *,
        deployments: Informer[Deployment],
        replica_sets: Informer[ReplicaSet],
        pods: Informer[Pod],
        clock: Clock | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """*deployments* has the index ``namespace``, the others ``owner``."""
        super().__init__("deployment", ControllerSettings(), clock=clock)
        self._client = client
        self._deployments = WriteThroughCache(
            client, DEPLOYMENTS, Deployment, deployments, clock=self.clock
        )
        self._sets = WriteThroughCache(
            client, REPLICASETS, ReplicaSet, replica_sets, clock=self.clock
        )
        self._pods = pods
        self._control = ApiObjectControl(client, REPLICASETS, ReplicaSet)
        self._events = Events(recorder, DEPLOYMENTS)
        self.keep(self._deployments)
        self.sources = [
            KindSource(deployments, self.enqueue_changes(self._deployments)),
            KindSource(replica_sets, self._on_replica_set),
            KindSource(pods, self._on_pod),
        ]

    def _on_replica_set(self, old: ReplicaSet | None, new: ReplicaSet | None) -> None:
        for each in (old, new):
            if each is not None and (key := _owner_key(each)):
                self.queue.add_after(key, REPLICA_SET_DELAY)
        if new is not None and new.metadata.controller is None:
            for found in self._deployments.by_index("namespace", new.metadata.namespace):
                if found.selector.matches(new.metadata.labels):
                    self.queue.add_after(found.metadata.key, REPLICA_SET_DELAY)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """Enqueue a Deployment that waits for its old pods to end."""
        pod = old if new is None else new if new.is_finished else None
        owner = pod.metadata.controller if pod is not None else None
        if pod is None or owner is None or owner.kind != REPLICASETS.kind:
            return
        found = self._sets.get(f"{pod.metadata.namespace}/{owner.name}")
        if found is not None and (key := _owner_key(found)):
            deployment = self._deployments.get(key)
            if deployment is not None and not deployment.is_rolling:
                self.queue.add_after(key, REPLICA_SET_DELAY)

    async def observe(self, sync: Sync) -> DeploymentView | None:
        """Return a Deployment with its ReplicaSets."""
        await self._deployments.confirm(sync.key)
        deployment = self._deployments.get(sync.key)
        if deployment is None:
            return None
        claimed = await self._claim(deployment)
        ordered = sorted(
            claimed,
            key=lambda each: (each.metadata.creation_timestamp or "", each.metadata.name),
        )
        template = msgspec.json.decode(deployment.spec.template)
        view = DeploymentView(deployment, ordered, False, self.clock.now().timestamp(), template)
        _, old = split(view)
        view.old_pods_run = any(each.count("replicas") for each in old) or any(
            not pod.is_finished
            for each in old
            for pod in self._pods.by_index("owner", each.metadata.identity)
        )
        return view

    async def _claim(self, deployment: Deployment) -> tuple[ReplicaSet, ...]:
        meta = deployment.metadata

        async def read() -> HasMeta:
            return await self._client.get(
                DEPLOYMENTS, meta.name, namespace=meta.namespace, view=Deployment
            )

        claimer = Claimer(
            control=self._control,
            owner=Owner(resource=DEPLOYMENTS, metadata=meta),
            selector=deployment.selector,
            read_owner=read,
        )
        owned = self._sets.by_index("owner", meta.identity)
        orphans = [
            each
            for each in self._sets.by_index("namespace", meta.namespace)
            if each.metadata.controller is None
        ]
        for each in owned:
            await self._sets.confirm(each.metadata.key)
        claim = await claimer.claim((*owned, *orphans))
        claim.raise_for_errors()
        return claim.children

    def decide(self, view: DeploymentView) -> Iterator[DeploymentEffect]:
        """Return the next step; see :func:`.deployment_rules.decide`."""
        return decide(view)

    async def execute(self, sync: Sync, view: DeploymentView, effect: DeploymentEffect) -> None:
        """Execute one effect."""
        match effect:
            case CreateReplicaSet():
                await self._create(view, effect)
                sync.again = True
            case UpdateReplicaSet():
                await self._update(view.deployment, effect)
                sync.again = True
            case DeleteReplicaSet():
                await self._sets.delete(effect.current.metadata, unmodified=True)
            case WriteDeployment():
                await self._write(view, effect)
                sync.again = True
            case RequeueAfter(seconds):
                sync.after(seconds)
            case _:
                assert_never(effect)

    async def _write(self, view: DeploymentView, effect: WriteDeployment) -> None:
        deployment = view.deployment
        body: Json = {"status": merge_patch(deployment.status, effect.status)}
        if effect.revision and effect.revision != deployment.metadata.annotations.get(REVISION):
            body["metadata"] = {"annotations": {REVISION: effect.revision}}
        await self._deployments.patch(deployment.metadata, body, subresource="status")

    async def _create(self, view: DeploymentView, effect: CreateReplicaSet) -> None:
        deployment = view.deployment
        meta = deployment.metadata
        try:
            await self._sets.create(_replica_set(view, effect), namespace=meta.namespace)
        except AlreadyExistsError:
            found = await self._sets.read(f"{meta.namespace}/{effect.name}")
            if found is None:
                raise RequeueError("ReplicaSet was deleted concurrently") from None
            template = msgspec.json.decode(found.spec.template)
            if meta.controls(found.metadata) and without_hash(template) == without_hash(
                view.template
            ):
                return  # by a request whose response was lost
            collisions = int(deployment.status.get("collisionCount") or 0) + 1
            await self._deployments.patch_status(meta, {"collisionCount": collisions})
            raise RequeueError(f"the name {effect.name} is taken") from None
        if effect.replicas:
            self._scaled(deployment, effect.name, 0, effect.replicas)

    async def _update(self, deployment: Deployment, effect: UpdateReplicaSet) -> None:
        current = effect.current
        body: Json = {}
        spec: Json = {}
        if effect.replicas is not None:
            spec["replicas"] = effect.replicas
        if effect.min_ready_seconds is not None:
            spec["minReadySeconds"] = effect.min_ready_seconds
        if spec:
            body["spec"] = spec
        if effect.annotations:
            body["metadata"] = {"annotations": effect.annotations}
        await self._sets.patch(current.metadata, body)
        if effect.replicas is not None:
            self._scaled(deployment, current.metadata.name, current.spec.replicas, effect.replicas)

    def _scaled(self, deployment: Deployment, name: str, before: int, after: int) -> None:
        direction = "up" if after > before else "down"
        text = f"Scaled {direction} replica set {name} from {before} to {after}"
        self._events.normal(deployment.metadata, "ScalingReplicaSet", text)


def _replica_set(view: DeploymentView, effect: CreateReplicaSet) -> Json:
    deployment, meta = view.deployment, view.deployment.metadata
    template = msgspec.json.decode(deployment.spec.template)
    metadata = template.setdefault("metadata", {})
    labels = {**(metadata.get("labels") or {}), HASH_LABEL: effect.hash}
    metadata["labels"] = labels
    selector: Json = msgspec.to_builtins(deployment.spec.selector)
    selector["matchLabels"] = {**selector.get("matchLabels", {}), HASH_LABEL: effect.hash}
    reference = Owner(resource=DEPLOYMENTS, metadata=meta).controller_reference()
    return {
        "metadata": {
            "name": effect.name,
            "namespace": meta.namespace,
            "labels": labels,
            "annotations": effect.annotations,
            "ownerReferences": [msgspec.to_builtins(reference)],
        },
        "spec": {
            "replicas": effect.replicas,
            "minReadySeconds": deployment.spec.min_ready_seconds,
            "selector": selector,
            "template": template,
        },
    }


def _owner_key(found: ReplicaSet) -> str:
    owner = found.metadata.controller
    if owner is None or (owner.api_version, owner.kind) != (
        DEPLOYMENTS.api_version,
        DEPLOYMENTS.kind,
    ):
        return ""
    return f"{found.metadata.namespace}/{owner.name}"
