"""Controller of ReplicaSets and of ReplicationControllers, which differ in their selector."""

from collections import Counter
from collections.abc import Iterator
from typing import assert_never

import msgspec

from ...kube.client.client import Client
from ...kube.informer.informer import Informer, KindSource
from ...machinery.clock import Clock
from ...machinery.controller import WriteFailedError
from ...machinery.event_recorder import Recorder
from ...machinery.merge_patch import merge_patch
from ...machinery.pod_control import NameGenerator, Owner, from_template
from ...machinery.reconcile.cache import WriteThroughCache
from ...machinery.reconcile.controller import Controller, ControllerSettings, RequeueAfter, Sync
from ...model.names import REPLICASETS, Resource
from .pod_writes import PodWrites, WriteFailure, enqueue_owner
from .replica_rules import (
    CreatePods,
    DeletePods,
    ReplicaEffect,
    ReplicaSet,
    ReplicaView,
    decide,
)
from .types import Pod, WriteStatus

POD_DELAY = 0.05
"""Seconds in which changes of pods are collected."""


class ReplicaSetController(Controller[ReplicaView, ReplicaEffect]):
    """Keeps as many pods as the objects of one kind ask for."""

    def __init__(
        self,
        client: Client,
        resource: Resource,
        *,
        replica_sets: Informer[ReplicaSet],
        pods: Informer[Pod],
        clock: Clock | None = None,
        recorder: Recorder | None = None,
        names: NameGenerator | None = None,
    ) -> None:
        """*replica_sets* has the indexes ``namespace`` and ``owner``, *pods* also ``orphans``."""
        super().__init__(resource.kind.lower(), ControllerSettings(), clock=clock)
        self._resource = resource
        self._sets = WriteThroughCache(client, resource, ReplicaSet, replica_sets, clock=self.clock)
        self._pods = PodWrites(
            client, resource, pods, clock=self.clock, recorder=recorder, names=names
        )
        self.keep(self._sets, self._pods)
        self.sources = [
            KindSource(replica_sets, self.enqueue_changes(self._sets)),
            KindSource(pods, self._on_pod),
        ]

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        enqueue_owner(self._resource, self._add_later, old, new)
        if new is None or new.metadata.controller is not None:
            return
        if old is None or old.metadata.labels != new.metadata.labels or old.metadata.controller:
            for found in self._sets.by_index("namespace", new.metadata.namespace):
                if found.selector.matches(new.metadata.labels):
                    self._add_later(found.metadata.key)

    def _add_later(self, key: str) -> None:
        self.queue.add_after(key, POD_DELAY)

    async def observe(self, sync: Sync) -> ReplicaView | None:
        """Return a ReplicaSet with its pods."""
        await self._sets.confirm(sync.key)
        found = self._sets.get(sync.key)
        if found is None:
            return None
        pods = await self._pods.claim(found, found.selector, ReplicaSet)
        now, is_set = self.clock.now().timestamp(), self._resource == REPLICASETS
        view = ReplicaView(found, pods, now, counts_terminating=is_set)
        if len(view.active) > found.spec.replicas:
            view.related = self._related(found, view.active)
        return view

    def _related(self, found: ReplicaSet, active: list[Pod]) -> Counter[str]:
        """Count the active pods of the ReplicaSets of the same Deployment by node."""
        owner = found.metadata.controller
        if owner is None or self._resource != REPLICASETS:
            return Counter(pod.spec.node_name for pod in active)
        siblings = self._sets.by_index("owner", found.metadata.owner_identity(owner))
        return Counter(
            pod.spec.node_name
            for each in siblings
            for pod in self._pods.cache.by_index("owner", each.metadata.identity)
            if pod.is_active
        )

    def decide(self, view: ReplicaView) -> Iterator[ReplicaEffect]:
        """Return what the pods and the status need; see :func:`.replica_rules.decide`."""
        return decide(view)

    async def execute(self, sync: Sync, view: ReplicaView, effect: ReplicaEffect) -> None:
        """Execute one effect."""
        owner = Owner(resource=self._resource, metadata=view.owner.metadata)
        match effect:
            case CreatePods():
                bodies = [self._new_pod(view.owner, owner) for _ in range(effect.count)]
                self._note(sync, view, await self._pods.create(owner, bodies))
            case DeletePods():
                self._note(sync, view, await self._pods.delete(owner, effect.pods))
            case WriteStatus():
                patch = merge_patch(view.owner.status, effect.status)
                await self._sets.patch_status(view.owner.metadata, patch)
            case RequeueAfter(seconds):
                sync.after(seconds)
            case _:
                assert_never(effect)

    def _note(
        self, sync: Sync, view: ReplicaView, failure: WriteFailure | Exception | None
    ) -> None:
        """Note the outcome of writes: a failure is shown in the status, and retried."""
        if failure is None:
            sync.again = True
        elif isinstance(failure, Exception):
            raise failure
        else:
            view.failure = failure
            sync.errors.append(PodWriteError(failure[1]))

    def _new_pod(self, found: ReplicaSet, owner: Owner) -> dict[str, object]:
        prefix = f"{found.metadata.name}-"
        name = self._pods.new_name(prefix)
        template = msgspec.json.decode(found.spec.template)
        return from_template(template, owner, name=name, generate_name=prefix)


class PodWriteError(WriteFailedError):
    """Pods could not be created or deleted; the text is that of the server."""
