"""The podgroup controller's shell: makes a PodGroup for pods that came without one.

Its keys are PodGroups, so that all pods of one owner are looked at together and by one worker. The
API server leaves out, by selectors, the pods of other schedulers and those of Volcano jobs, whose
PodGroups the job controller makes.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..kube.client.client import Client, PatchType
from ..kube.errors import (
    AlreadyExistsError,
    BadRequestError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
)
from ..kube.informer.informer import Informer, KindSource
from ..machinery.batches import run_concurrently
from ..machinery.clock import Clock, SystemClock
from ..machinery.controller import (
    RECONCILE_TIMEOUT,
    RequeueError,
    ShardedQueue,
    WorkerSettings,
    run_workers,
)
from ..machinery.event_recorder import Recorder, object_reference
from ..machinery.expectations import Expectations
from ..machinery.lifecycle import Source, run_controller
from ..machinery.metrics import WorkQueueMetrics
from ..model.meta import OwnerReference, preconditions
from ..model.names import (
    GROUP_NAME,
    PODGROUPS,
    PODS,
    QUEUES,
    SCHEDULER_NAME,
    TASK_INDEX,
    Resource,
)
from ..model.podgroup import PodGroup
from ..model.queue import Queue, QueueState
from ..model.validation import dns1123_subdomain_error
from . import build
from .core_types import OwnerView, PodView, by_group

log = logging.getLogger(__name__)

_GROUP = "group"
OWNERS = {
    ("apps", "ReplicaSet"): Resource("apps", "v1", "replicasets", "ReplicaSet"),
    ("apps", "DaemonSet"): Resource("apps", "v1", "daemonsets", "DaemonSet"),
    ("apps", "StatefulSet"): Resource("apps", "v1", "statefulsets", "StatefulSet"),
    ("batch", "Job"): Resource("batch", "v1", "jobs", "Job"),
}
"""Owners whose annotations say something about the gang."""
_SCALED = ("ReplicaSet", "StatefulSet")
"""Owners that stay when they want no pods; their PodGroup then goes."""
_REFUSALS = (BadRequestError, ForbiddenError, InvalidError)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGroupSettings:
    """How the podgroup controller works."""

    workers: int = 5
    """PodGroups worked on at the same time."""

    reconcile_timeout: float = RECONCILE_TIMEOUT
    """Seconds that one look at a PodGroup may take before it is cancelled and tried again."""

    scheduler_names: Sequence[str] = (SCHEDULER_NAME,)
    """Pods of these schedulers get PodGroups."""

    inherit_owner_annotations: bool = True
    """Whether a PodGroup takes its size and ``volcano.sh/`` annotations from the pod's owners."""

    work_metrics: WorkQueueMetrics | None = None
    """Where the work queue reports, if anywhere."""


class PodGroupController:
    """Runs until cancelled; see :meth:`run_in_thread`."""

    def __init__(
        self,
        client: Client,
        *,
        settings: PodGroupSettings | None = None,
        clock: Clock | None = None,
        recorder: Recorder | None = None,
        podgroups: Informer[PodGroup] | None = None,
    ) -> None:
        """*podgroups* holds all PodGroups; several controllers may share it, each running it."""
        self._client = client
        self._settings = settings or PodGroupSettings()
        self._recorder = recorder
        clock = clock if clock is not None else SystemClock()
        self._work = ShardedQueue(
            name="podgroup",
            shards=self._settings.workers,
            clock=clock,
            metrics=self._settings.work_metrics,
        )
        self._groups = Informer(client, PODGROUPS, PodGroup) if podgroups is None else podgroups
        self._queues = Informer(client, QUEUES, Queue)
        self._pods = [_pods(client, name) for name in dict.fromkeys(self._settings.scheduler_names)]
        # What was asked for and is not in the caches yet: PodGroups by name, bound pods by uid.
        self._making = Expectations(clock)
        self._binding = Expectations(clock)
        # PodGroups that were refused; a queue that opens may be what they wait for.
        self._refused: set[str] = set()

    async def run(
        self, *, ready: asyncio.Event | None = None, lead: asyncio.Event | None = None
    ) -> None:
        """Watch, then work (not before *lead*), until cancelled; *ready* is set in between.

        When cancelled, it finishes what is in hand and queued, and writes nothing after.
        """
        sources: list[Source] = [
            KindSource(self._groups, self._on_group),
            KindSource(self._queues, self._on_queue),
            *(KindSource(pods, self._on_pod) for pods in self._pods),
        ]
        await run_controller(
            sources,
            self._serve,
            ready=ready,
            elected=lead,
        )

    async def _serve(self) -> None:
        settings = WorkerSettings(timeout=self._settings.reconcile_timeout)
        await run_workers(self._work, self._reconcile, settings=settings)

    # What is seen

    def _on_pod(self, old: PodView | None, new: PodView | None) -> None:
        if old is not None and (new is None or new.bound_to):
            self._binding.observe(old.group_key, old.metadata.uid)
        either = new or old
        if either is None or not either.is_ours:
            return
        if old is None or new is None or old.bound_to != new.bound_to:
            self._work.add(either.group_key)

    def _on_group(self, old: PodGroup | None, new: PodGroup | None) -> None:
        if new is None and old is not None:
            self._work.add(old.metadata.key)
        elif old is None and new is not None:
            self._making.observe(new.metadata.key, new.metadata.name)
            if _is_scaled(new):  # perhaps to none, while nobody looked
                self._work.add(new.metadata.key)

    def _on_queue(self, old: Queue | None, new: Queue | None) -> None:
        opened = new is not None and new.status.state == QueueState.OPEN
        if opened and (old is None or old.status.state != QueueState.OPEN):
            refused, self._refused = self._refused, set()
            for key in refused:
                self._work.add(key)

    # What is done

    async def _reconcile(self, key: str) -> float | None:
        pods = [pod for cache in self._pods for pod in cache.by_index(_GROUP, key)]
        group = self._groups.get(key)
        if not pods:
            self._refused.discard(key)
            await self._remove_if_unwanted(group)
            return None
        alive = [pod for pod in pods if not pod.ended]
        if not alive:
            await self._remove_if_unwanted(group)
            return None
        if group is None and not self._making.pending(key):
            await self._make(key, alive)
        binding = self._binding.pending(key)
        free = [pod for pod in alive if not pod.bound_to and pod.metadata.uid not in binding]
        if group is not None and free:
            await self._refresh(group, free[0])
        outcome = await run_concurrently(free, self._bind)
        if outcome.first_error is not None:
            raise outcome.first_error
        waits = (self._making.expires_in(key), self._binding.expires_in(key))
        return min((wait for wait in waits if wait is not None), default=None)

    async def _make(self, key: str, pods: Sequence[PodView]) -> None:
        """Create the PodGroup after the first pod that is free.

        Raises:
            ApiError: it was refused, which the pods are told, or could not be made.
        """
        pod = min(pods, key=lambda pod: (bool(pod.bound_to), pod.metadata.name))
        inherited = await self._inherited(pod)
        group = build.build(pod, inherited)
        self._making.expect(key, [pod.group])
        try:
            await self._client.create(PODGROUPS, group, namespace=pod.metadata.namespace)
            log.info("podgroup created", extra={"podgroup": key})
        except AlreadyExistsError:
            log.debug("the PodGroup is there already", extra={"key": key})
        except BaseException as error:
            # Even after a timeout: the name is fixed, so trying again makes no second one.
            self._making.observe(key, pod.group)
            if isinstance(error, _REFUSALS):
                self._refused.add(key)
                for each in pods:
                    self._warn(each, "PodGroupRefused", f"no PodGroup: {error.message}")
            raise
        self._hint(pod, group.spec.min_member, inherited)

    def _hint(self, pod: PodView, size: int, inherited: Mapping[str, str]) -> None:
        """Say which annotations stand where they have no effect."""
        if asked := build.misplaced_size(pod, size):
            self._warn(
                pod,
                "GroupMinMemberIgnored",
                f"annotation {build.MIN_MEMBER}={asked} has no effect on a pod; "
                "put it on the pod's owner",
            )
        if asked := build.misplaced_queue(pod, inherited):
            self._warn(
                pod,
                "QueueNameIgnored",
                f"annotation {build.QUEUE}={asked} has no effect on the pod's owner; "
                "put it into the pod template",
            )

    async def _refresh(self, group: PodGroup, pod: PodView) -> None:
        """Let a PodGroup follow an owner whose annotations or template may have changed."""
        controller = pod.metadata.controller
        if controller is None or controller.kind not in _SCALED:
            return
        meta = group.metadata
        patch = build.changes(group, build.build(pod, await self._inherited(pod)))
        if not patch:
            return
        patch["metadata"]["resourceVersion"] = meta.resource_version
        try:
            await self._client.patch(PODGROUPS, meta.name, patch, namespace=meta.namespace)
        except ConflictError as error:
            raise RequeueError("the PodGroup has changed meanwhile") from error

    async def _bind(self, pod: PodView) -> None:
        """Write into the pod which PodGroup it belongs to, unless somebody else does just now."""
        meta = pod.metadata
        patch = {"metadata": {**preconditions(meta), "annotations": {GROUP_NAME: pod.group}}}
        self._binding.expect(pod.group_key, [meta.uid])
        try:
            await self._client.patch(
                PODS, meta.name, patch, namespace=meta.namespace, kind=PatchType.STRATEGIC
            )
        except BaseException as error:
            # Even if it is done: the pod has changed then, and a second patch meets a conflict.
            self._binding.observe(pod.group_key, meta.uid)
            if isinstance(error, ConflictError | InvalidError):
                # Most likely it has changed, or another pod has its name by now, which the cache
                # will say: a patch with the uid of the old one is then called invalid.
                raise RequeueError("the pod could not be bound to its PodGroup yet") from error
            if not isinstance(error, NotFoundError):
                raise  # otherwise the pod is gone

    async def _inherited(self, pod: PodView) -> dict[str, str]:
        """The annotations of the pod's owners."""
        if not self._settings.inherit_owner_annotations:
            return {}
        found = []
        for owner in pod.metadata.owner_references:
            seen = await self._owner(owner, pod.metadata.namespace)
            if seen is not None:
                found.append(seen.metadata.annotations)
        return build.merge_owners(found)

    async def _owner(self, owner: OwnerReference, namespace: str) -> OwnerView | None:
        """The owner as it is now; none if it is of no kind that we ask, gone, or forbidden."""
        resource = OWNERS.get((owner.api_version.partition("/")[0], owner.kind))
        if resource is None or dns1123_subdomain_error(
            owner.name
        ):  # nobody checks it in a reference
            return None
        try:
            return await self._client.get(resource, owner.name, namespace=namespace, view=OwnerView)
        except NotFoundError:
            return None
        except ForbiddenError as error:
            named = {"owner": f"{namespace}/{owner.name}", "kind": owner.kind}
            what = "owner may not be read, so its annotations do not count"
            log.warning(what, extra={**named, "error": str(error)})
            return None

    async def _remove_if_unwanted(self, group: PodGroup | None) -> None:
        """Delete a PodGroup without live pods whose owner was scaled to none."""
        controller = group.metadata.controller if group is not None else None
        if group is None or controller is None or not _is_scaled(group):
            return
        meta = group.metadata
        owner = await self._owner(controller, meta.namespace)
        if owner is None or owner.metadata.uid != controller.uid or owner.spec.replicas != 0:
            return
        try:
            await self._client.delete(
                PODGROUPS,
                meta.name,
                namespace=meta.namespace,
                uid=meta.uid,
                resource_version=meta.resource_version,
            )
        except NotFoundError:
            log.debug("the PodGroup is gone already", extra={"key": meta.key})
        except ConflictError as error:
            raise RequeueError("the PodGroup could not be deleted just now") from error

    def _warn(self, pod: PodView, reason: str, message: str) -> None:
        if self._recorder is not None:
            about = object_reference(PODS, pod.metadata)
            self._recorder.record(about, type="Warning", reason=reason, message=message)


def _is_scaled(group: PodGroup) -> bool:
    """Whether it was made for the pods of an owner that may want none."""
    owner = group.metadata.controller
    if owner is None or owner.kind not in _SCALED:
        return False
    return group.metadata.name == f"podgroup-{owner.uid}"


def _pods(client: Client, scheduler: str) -> Informer[PodView]:
    """The pods of *scheduler* that no Volcano job made.

    Those of jobs are told by a label that nobody gives to other pods, as people do with
    the job's name; one of theirs that lacks it has its group in an annotation.
    """
    return Informer(
        client,
        PODS,
        PodView,
        field_selector=f"spec.schedulerName={scheduler}",
        label_selector=f"!{TASK_INDEX}",
        indexes={_GROUP: by_group},
    )
