"""Controller of DaemonSets: one pod on each node that fits."""

from collections.abc import Iterator
from typing import assert_never

import msgspec

from ...kube.client.client import Client
from ...kube.informer.informer import Informer, KindSource
from ...machinery.clock import Clock
from ...machinery.event_recorder import Recorder
from ...machinery.merge_patch import merge_patch
from ...machinery.pod_control import Owner, from_template
from ...machinery.rate_limiters import ExponentialFailureRateLimiter
from ...machinery.reconcile.cache import WriteThroughCache
from ...machinery.reconcile.controller import Controller, ControllerSettings, RequeueAfter, Sync
from ...machinery.reconcile.events import Event, Events
from ...model.names import DAEMONSETS
from .daemon_rules import (
    TEMPLATE_GENERATION_LABEL,
    CreatePods,
    DaemonEffect,
    DaemonSet,
    DaemonView,
    DeletePods,
    ReplaceEnded,
    decide,
    node_of,
)
from .node_rules import Node, pinned_affinity, tolerations
from .pod_writes import PodWrites, WriteFailure, enqueue_owner
from .replica_sets import PodWriteError
from .revisions import REVISION_LABEL, DeleteRevision, Revision, RevisionWrites, template_data
from .types import Json, Pod, WriteStatus

POD_DELAY = 0.05
"""Seconds in which changes of pods are collected."""

INITIAL_DELAY, MAX_DELAY = 1.0, 900.0
"""Seconds until a pod that has ended is replaced, the first time and at most, on one node."""


class DaemonSetController(Controller[DaemonView, DaemonEffect]):
    """Runs DaemonSets."""

    def __init__(
        self,
        client: Client,
        *,
        daemon_sets: Informer[DaemonSet],
        nodes: Informer[Node],
        revisions: Informer[Revision],
        pods: Informer[Pod],
        clock: Clock | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """*daemon_sets* has the index ``namespace``, *revisions* and *pods* ``owner``."""
        super().__init__("daemonset", ControllerSettings(), clock=clock)
        self._sets = WriteThroughCache(client, DAEMONSETS, DaemonSet, daemon_sets, clock=self.clock)
        self._nodes = nodes
        self._revisions = RevisionWrites(
            client, revisions, clock=self.clock, hash_label=REVISION_LABEL
        )
        self._pods = PodWrites(client, DAEMONSETS, pods, clock=self.clock, recorder=recorder)
        self._events = Events(recorder, DAEMONSETS)
        self._backoff = ExponentialFailureRateLimiter(INITIAL_DELAY, MAX_DELAY)
        self._replace_at: dict[str, dict[str, float]] = {}
        """When an ended pod may be replaced, by key and node."""
        self.keep(self._sets, self._pods)
        self.sources = [
            KindSource(daemon_sets, self.enqueue_changes(self._sets)),
            KindSource(nodes, self._on_node),
            KindSource(revisions, self._on_revision),
            KindSource(pods, self._on_pod),
        ]

    def forget(self, key: str) -> None:
        """Drop what is kept for *key*."""
        super().forget(key)
        for node in self._replace_at.pop(key, {}):
            self._backoff.forget(f"{key}/{node}")

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        if old is not None and new is not None and _placement(old) == _placement(new):
            return
        for found in self._sets.informer:
            self.queue.add_after(found.metadata.key, POD_DELAY)

    def _on_revision(self, old: Revision | None, new: Revision | None) -> None:
        """Do nothing: only this controller changes revisions."""

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        enqueue_owner(DAEMONSETS, self._add_later, old, new)
        if new is not None and new.metadata.controller is None:
            for found in self._sets.by_index("namespace", new.metadata.namespace):
                if found.selector.matches(new.metadata.labels):
                    self._add_later(found.metadata.key)

    def _add_later(self, key: str) -> None:
        self.queue.add_after(key, POD_DELAY)

    async def observe(self, sync: Sync) -> DaemonView | None:
        """Return a DaemonSet with its pods and all nodes; its revision exists then."""
        await self._sets.confirm(sync.key)
        found = self._sets.get(sync.key)
        if found is None:
            return None
        pods = await self._pods.claim(found, found.selector, DaemonSet)
        template: Json = msgspec.json.decode(found.spec.template)
        owner = Owner(resource=DAEMONSETS, metadata=found.metadata)
        labels = (template.get("metadata") or {}).get("labels") or {}
        history, update, collisions = await self._revisions.ensure(
            owner,
            template_data(template),
            labels=labels,
            collisions=found.status.get("collisionCount"),
        )
        digest = update.metadata.labels.get(REVISION_LABEL, "")
        live = {pod.metadata.labels.get(REVISION_LABEL, "") for pod in pods}
        names = {
            each.metadata.name
            for each in history.revisions
            if each.metadata.labels.get(REVISION_LABEL) in {*live, digest}
        }
        return DaemonView(
            found=found,
            pods=pods,
            nodes=list(self._nodes),
            template=template,
            hash=digest,
            expired=history.expired(names, found.spec.revision_history_limit),
            now=self.clock.now().timestamp(),
            collisions=collisions,
        )

    def decide(self, view: DaemonView) -> Iterator[DaemonEffect]:
        """Return what is due; see :func:`.daemon_rules.decide`."""
        return decide(view)

    async def execute(self, sync: Sync, view: DaemonView, effect: DaemonEffect) -> None:
        """Execute one effect."""
        owner = Owner(resource=DAEMONSETS, metadata=view.found.metadata)
        match effect:
            case CreatePods():
                bodies = [self._new_pod(view, owner, node) for node in effect.nodes]
                self._note(sync, await self._pods.create(owner, bodies))
            case DeletePods():
                self._note(sync, await self._pods.delete(owner, effect.pods))
            case ReplaceEnded():
                await self._replace(sync, owner, effect)
            case WriteStatus():
                patch = merge_patch(view.found.status, effect.status)
                await self._sets.patch_status(view.found.metadata, patch)
            case DeleteRevision():
                await self._revisions.delete(effect.revision)
            case RequeueAfter(seconds):
                sync.after(seconds)
            case _:
                assert_never(effect)

    async def _replace(self, sync: Sync, owner: Owner, effect: ReplaceEnded) -> None:
        """Delete ended pods, on each node after a delay that grows."""
        times, now = self._replace_at.setdefault(sync.key, {}), self.clock.monotonic()
        due = []
        for pod in effect.pods:
            node = node_of(pod)
            left = times.get(node, now) - now
            if left > 0:
                sync.after(left)
                continue
            times[node] = now + self._backoff.when(f"{sync.key}/{node}")
            failed = pod.status.phase == "Failed"
            what = "failed" if failed else "succeeded"
            reason = "FailedDaemonPod" if failed else "SucceededDaemonPod"
            text = f"Found {what} daemon pod {pod.metadata.key} on node {node}, will try to kill it"
            self._events.record(owner.metadata, Event(reason, text, warning=failed))
            due.append(pod)
        if due:
            self._note(sync, await self._pods.delete(owner, due))

    def _note(self, sync: Sync, failure: WriteFailure | Exception | None) -> None:
        if failure is None:
            sync.again = True
        elif isinstance(failure, Exception):
            raise failure
        else:
            raise PodWriteError(failure[1])

    def _new_pod(self, view: DaemonView, owner: Owner, node: str) -> Json:
        prefix = f"{owner.metadata.name}-"
        name = self._pods.new_name(prefix)
        body = from_template(view.template, owner, name=name, generate_name=prefix)
        labels = body["metadata"]["labels"]
        labels[REVISION_LABEL] = view.hash
        if generation := view.found.template_generation:
            labels[TEMPLATE_GENERATION_LABEL] = generation
        spec = body["spec"]
        spec["tolerations"] = tolerations(spec)
        spec["affinity"] = pinned_affinity(spec.get("affinity"), node)
        return body


def _placement(node: Node) -> tuple[object, ...]:
    return node.metadata.labels, node.spec.taints
