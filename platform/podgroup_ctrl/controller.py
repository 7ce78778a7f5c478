"""PodGroup controller: event handlers of pods, PodGroups and queues; what is known of a PodGroup.

Its keys are PodGroups, so that all pods of one owner are reconciled together by one worker.
Selectors exclude the pods of other schedulers and those of Volcano jobs, whose PodGroups the job
controller creates. :mod:`.decide` computes the effects, :mod:`.executor` executes them.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec

from ..kube.client.client import Client
from ..kube.errors import DecodeError, ForbiddenError, NotFoundError
from ..kube.informer.factory import InformerFactory, NewInformers
from ..kube.informer.informer import Informer, KindSource
from ..machinery.clock import Clock
from ..machinery.event_recorder import Recorder
from ..machinery.reconcile.cache import WriteThroughCache
from ..machinery.reconcile.controller import Controller, ControllerSettings, Sync
from ..machinery.reconcile.events import Events
from ..machinery.shards import WHOLE, Shard
from ..model.meta import OwnerReference
from ..model.names import PODGROUPS, PODS, QUEUES, SCHEDULER_NAME, TASK_INDEX, Resource
from ..model.pod_resources import quota_usage
from ..model.podgroup import PodGroup, PodGroupPhase
from ..model.quantity import QuantityError
from ..model.queue import Queue, QueueState
from ..model.run_times import deadline_annotation
from ..model.validation import dns1123_subdomain_error
from . import build
from .core_types import Owner, Pod
from .decide import (
    Effect,
    PodGroupView,
    decide,
    has_scalable_owner,
    is_scalable,
    may_be_left,
    template_of,
)
from .executor import PodGroupExecutor
from .groupers import annotation
from .groupers.base import Described, Grouper
from .groupers.registry import DEFAULT, Grouping

log = logging.getLogger(__name__)

_PODGROUP_INDEX = "group"
OWNERS = {
    ("apps", "ReplicaSet"): Resource("apps", "v1", "replicasets", "ReplicaSet"),
    ("apps", "DaemonSet"): Resource("apps", "v1", "daemonsets", "DaemonSet"),
    ("apps", "StatefulSet"): Resource("apps", "v1", "statefulsets", "StatefulSet"),
    ("batch", "Job"): Resource("batch", "v1", "jobs", "Job"),
}
"""Owners whose annotations are inherited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGroupSettings(ControllerSettings):
    """Options of the PodGroup controller."""

    scheduler_names: Sequence[str] = (SCHEDULER_NAME,)
    """Schedulers whose pods get PodGroups."""

    inherit_owner_annotations: bool = True
    """Whether a PodGroup inherits size and ``volcano.sh/`` annotations from the pod's owners."""

    groupers: Sequence[str] = DEFAULT
    """Names of the groupers that are enabled, see :data:`.groupers.registry.GROUPERS`."""


class PodGroupController(Controller[PodGroupView, Effect]):
    """Controller of PodGroups for plain pods; see :meth:`run`."""

    def __init__(
        self,
        client: Client,
        *,
        settings: PodGroupSettings | None = None,
        clock: Clock | None = None,
        recorder: Recorder | None = None,
        podgroups: Informer[PodGroup] | None = None,
        informers: InformerFactory | None = None,
        shard: Shard = WHOLE,
    ) -> None:
        """*podgroups*: informer of all PodGroups; may be used and run by several controllers.

        Only the PodGroups of *shard* are reconciled, whose objects the other *informers* deliver.
        """
        self._settings = settings = settings or PodGroupSettings()
        super().__init__("podgroup", settings, clock=clock, shard=shard)
        self._client = client
        self._grouping = grouping = Grouping(settings.groupers)
        factory = informers or NewInformers(client)
        if podgroups is None:
            podgroups = factory.informer(PODGROUPS, PodGroup, owner_key=_own_key)
        self._podgroups = WriteThroughCache(
            client, PODGROUPS, PodGroup, podgroups, clock=self.clock
        )
        self._pods = {
            name: WriteThroughCache(
                client, PODS, Pod, _pod_informer(factory, name, grouping), clock=self.clock
            )
            for name in settings.scheduler_names
        }
        # PodGroups that the server rejected, perhaps because their queue is not open.
        self._rejected: set[str] = set()
        self.sources = [
            KindSource(podgroups, self._on_podgroup),
            KindSource(factory.informer(QUEUES, Queue), self._on_queue),
            *(KindSource(pods.informer, self._on_pod) for pods in self._pods.values()),
        ]
        self._executor = PodGroupExecutor(
            podgroups=self._podgroups,
            pods=self._pods,
            events=Events(recorder, PODS),
            rejected=self._rejected,
        )
        self.keep(self._podgroups)

    # Event handlers.

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        either = new or old
        if either is None or not self._grouping.is_managed(either):
            return
        if old is None or new is None or old.podgroup_name != new.podgroup_name:
            self.queue.add(self._grouping.key_of(either))

    def _on_podgroup(self, old: PodGroup | None, new: PodGroup | None) -> None:
        if new is None and old is not None:
            self.queue.add(old.metadata.key)
        elif old is None and new is not None and may_be_left(new):
            self.queue.add(new.metadata.key)  # perhaps scaled to zero before this start
        elif new is not None and _has_lost_pods(new) and not (old and _has_lost_pods(old)):
            self.queue.add(new.metadata.key)  # perhaps its owner was scaled down

    def _on_queue(self, old: Queue | None, new: Queue | None) -> None:
        opened = new is not None and new.status.state == QueueState.OPEN
        if opened and (old is None or old.status.state != QueueState.OPEN):
            rejected = [*self._rejected]
            self._rejected.clear()
            for key in rejected:
                self.queue.add(key)

    def forget(self, key: str) -> None:
        """Drop what is kept for a PodGroup that neither exists nor is needed."""
        super().forget(key)
        self._rejected.discard(key)

    # Reconcile.

    async def observe(self, sync: Sync) -> PodGroupView | None:
        """Return the PodGroup, its pods, and what is needed of the pods' owners."""
        key = sync.key
        pods = [
            pod for cache in self._pods.values() for pod in cache.by_index(_PODGROUP_INDEX, key)
        ]
        group = self._podgroups.get(key)
        view = PodGroupView(
            key=key,
            podgroup=group,
            pods=tuple(pod for pod in pods if not pod.is_finished),
            has_finished=any(pod.is_finished for pod in pods),
        )
        if view.pods:
            view = await self._with_gang(view)
            inherited = await self._inherited(view)
            return msgspec.structs.replace(view, inherited=inherited)
        if group is not None and annotation.is_of_pods(group):
            return view
        controller = group.metadata.controller if group is not None else None
        if group is not None and controller is not None and has_scalable_owner(group):
            owner = await self._owner(controller, group.metadata.namespace)
            return msgspec.structs.replace(view, owner=owner)
        return None if not pods else view

    async def _inherited(self, view: PodGroupView) -> dict[str, str]:
        """Return the merged annotations of the pods' owners, if the PodGroup depends on them."""
        pod = template_of(view)
        is_read = view.podgroup is None or (view.unannotated and is_scalable(pod))
        root = () if view.gang is None else (view.gang.annotations,)
        if not self._settings.inherit_owner_annotations or not is_read:
            return build.merge_owners(root)
        annotations = [*root]
        for owner in pod.metadata.owner_references:
            found = await self._owner(owner, pod.metadata.namespace)
            if found is not None:
                deadline = deadline_annotation(found.spec.active_deadline_seconds)
                annotations.append({**found.metadata.annotations, **deadline})
        return build.merge_owners(annotations)

    async def _with_gang(self, view: PodGroupView) -> PodGroupView:
        """Return *view* with the gang of a grouper, if the PodGroup depends on it."""
        found = self._grouping.of(template_of(view))
        if found is None or not (
            view.podgroup is None or view.unannotated or _has_lost_pods(view.podgroup)
        ):
            return view
        grouper, membership = found
        owner: Described | None = None
        if grouper.resource is not None:
            namespace = view.pods[0].metadata.namespace
            # The API server does not validate names in owner references.
            if error := dns1123_subdomain_error(membership.owner):
                return msgspec.structs.replace(view, unreadable=_unreadable(grouper, error))
            try:
                owner = await self._client.get(
                    grouper.resource, membership.owner, namespace=namespace, view=grouper.view
                )
            except (NotFoundError, ForbiddenError, DecodeError) as failure:
                return msgspec.structs.replace(view, unreadable=_unreadable(grouper, failure))
            if membership.owner_uid not in ("", owner.metadata.uid):
                return msgspec.structs.replace(
                    view, unreadable=_unreadable(grouper, "it was created again")
                )
        gang = grouper.gang(owner, view.pods)
        try:
            for role in gang.roles:
                quota_usage(role.spec)
        except QuantityError as failure:
            return msgspec.structs.replace(view, unreadable=_unreadable(grouper, failure))
        if not self._settings.inherit_owner_annotations:
            gang = replace(gang, annotations={})
        return msgspec.structs.replace(view, gang=gang)

    async def _owner(self, owner: OwnerReference, namespace: str) -> Owner | None:
        """Get an owner; None if it is of another kind, not found, or forbidden."""
        resource = OWNERS.get((owner.api_version.partition("/")[0], owner.kind))
        # The API server does not validate names in owner references.
        if resource is None or dns1123_subdomain_error(owner.name):
            return None
        try:
            return await self._client.get(resource, owner.name, namespace=namespace, view=Owner)
        except NotFoundError:
            return None
        except ForbiddenError as error:
            fields = {"owner": f"{namespace}/{owner.name}", "kind": owner.kind}
            log.warning(
                "cannot get owner, ignoring its annotations", extra={**fields, "error": str(error)}
            )
            return None

    def decide(self, view: PodGroupView) -> Iterable[Effect]:
        """Return what the PodGroup and its pods need; see :func:`.decide.decide`."""
        return decide(view)

    async def execute(self, sync: Sync, view: PodGroupView, effect: Effect) -> None:
        """Execute one effect; see :class:`.executor.PodGroupExecutor`."""
        await self._executor.execute(view, effect)


def _has_lost_pods(podgroup: PodGroup) -> bool:
    """Whether fewer pods than the minimum run, and some do."""
    return podgroup.status.phase == PodGroupPhase.UNKNOWN


def _own_key(podgroup: PodGroup) -> str:
    return podgroup.metadata.key


def _unreadable(grouper: Grouper, error: object) -> str:
    kind = grouper.name if grouper.resource is None else grouper.resource.kind
    return f"each pod is scheduled alone: cannot read the {kind} that describes its gang: {error}"


def _pod_informer(factory: InformerFactory, scheduler: str, grouping: Grouping) -> Informer[Pod]:
    """Return the informer of the pods of *scheduler* that are not part of a Volcano job.

    Pods of jobs are recognised by the task index label: users set the job name label on other
    pods, too. A job's pod without it has its PodGroup in an annotation.
    """
    return factory.informer(
        PODS,
        Pod,
        owner_key=grouping.key_of,
        field_selector=f"spec.schedulerName={scheduler}",
        label_selector=f"!{TASK_INDEX}",
        indexes={_PODGROUP_INDEX: grouping.index},
    )
