"""PodGroup controller: creates a PodGroup for pods that have none.

Its keys are PodGroups, so that all pods of one owner are reconciled together by one worker.
Selectors exclude the pods of other schedulers and those of Volcano jobs, whose PodGroups the job
controller creates.
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
from ..kube.informer.factory import InformerFactory, NewInformers
from ..kube.informer.informer import Informer, KindSource
from ..machinery.batches import run_concurrently
from ..machinery.clock import Clock, SystemClock
from ..machinery.controller import (
    RECONCILE_TIMEOUT,
    RequeueError,
    ShardedQueue,
    WorkerSettings,
    requeue_on_conflict,
    run_workers,
)
from ..machinery.event_recorder import Recorder, object_reference
from ..machinery.expectations import Expectations
from ..machinery.lifecycle import Source, run_controller
from ..machinery.metrics import WorkQueueMetrics
from ..machinery.shards import WHOLE, Shard
from ..model.meta import OwnerReference, preconditions
from ..model.names import (
    GROUP_NAME,
    PODGROUP_MIN_MEMBER,
    PODGROUP_QUEUE,
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
from .core_types import Owner, Pod, index_by_podgroup

log = logging.getLogger(__name__)

_PODGROUP_INDEX = "group"
OWNERS = {
    ("apps", "ReplicaSet"): Resource("apps", "v1", "replicasets", "ReplicaSet"),
    ("apps", "DaemonSet"): Resource("apps", "v1", "daemonsets", "DaemonSet"),
    ("apps", "StatefulSet"): Resource("apps", "v1", "statefulsets", "StatefulSet"),
    ("batch", "Job"): Resource("batch", "v1", "jobs", "Job"),
}
"""Owners whose annotations are inherited."""
_SCALABLE_KINDS = ("ReplicaSet", "StatefulSet")
"""Owners that may be scaled to zero, when their PodGroup is deleted."""
_REJECTIONS = (BadRequestError, ForbiddenError, InvalidError)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGroupSettings:
    """Options of the PodGroup controller."""

    workers: int = 5
    """Concurrent reconciles."""

    reconcile_timeout: float = RECONCILE_TIMEOUT
    """Timeout of one reconcile in seconds."""

    scheduler_names: Sequence[str] = (SCHEDULER_NAME,)
    """Schedulers whose pods get PodGroups."""

    inherit_owner_annotations: bool = True
    """Whether a PodGroup inherits size and ``volcano.sh/`` annotations from the pod's owners."""

    work_metrics: WorkQueueMetrics | None = None
    """Metrics of the work queue, if any."""


class PodGroupController:
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
        self._client = client
        self._settings = settings or PodGroupSettings()
        self._recorder = recorder
        clock = clock if clock is not None else SystemClock()
        self._workqueue = ShardedQueue(
            name="podgroup",
            shards=self._settings.workers,
            clock=clock,
            metrics=self._settings.work_metrics,
            owned=shard,
        )
        factory = informers or NewInformers(client)
        if podgroups is None:
            podgroups = factory.informer(PODGROUPS, PodGroup, owner_key=_own_key)
        self._podgroups = podgroups
        self._queues = factory.informer(QUEUES, Queue)
        self._pods = [
            _pod_informer(factory, name) for name in dict.fromkeys(self._settings.scheduler_names)
        ]
        # Writes not in the informers yet: created PodGroups by name, annotated pods by uid.
        self._creating = Expectations(clock)
        self._annotating = Expectations(clock)
        # PodGroups that the server rejected, perhaps because their queue is not open.
        self._rejected: set[str] = set()

    async def run(
        self, *, ready: asyncio.Event | None = None, elected: asyncio.Event | None = None
    ) -> None:
        """Sync the informers and run the workers until cancelled, as `run_controller` does.

        When cancelled, it finishes keys in processing and queued, and writes nothing after that.
        """
        sources: list[Source] = [
            KindSource(self._podgroups, self._on_podgroup),
            KindSource(self._queues, self._on_queue),
            *(KindSource(pods, self._on_pod) for pods in self._pods),
        ]
        await run_controller(
            sources,
            self._run_workers,
            ready=ready,
            elected=elected,
        )

    async def _run_workers(self) -> None:
        settings = WorkerSettings(timeout=self._settings.reconcile_timeout)
        await run_workers(self._workqueue, self._reconcile, settings=settings)

    # Event handlers

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        if old is not None and (new is None or new.podgroup_name):
            self._annotating.observe(old.generated_podgroup_key, old.metadata.uid)
        either = new or old
        if either is None or not either.is_managed:
            return
        if old is None or new is None or old.podgroup_name != new.podgroup_name:
            self._workqueue.add(either.generated_podgroup_key)

    def _on_podgroup(self, old: PodGroup | None, new: PodGroup | None) -> None:
        if new is None and old is not None:
            self._workqueue.add(old.metadata.key)
        elif old is None and new is not None:
            self._creating.observe(new.metadata.key, new.metadata.name)
            if _has_scalable_owner(new):  # perhaps scaled to zero before this start
                self._workqueue.add(new.metadata.key)

    def _on_queue(self, old: Queue | None, new: Queue | None) -> None:
        opened = new is not None and new.status.state == QueueState.OPEN
        if opened and (old is None or old.status.state != QueueState.OPEN):
            rejected, self._rejected = self._rejected, set()
            for key in rejected:
                self._workqueue.add(key)

    # Reconciling

    async def _reconcile(self, key: str) -> float | None:
        pods = [pod for informer in self._pods for pod in informer.by_index(_PODGROUP_INDEX, key)]
        group = self._podgroups.get(key)
        if not pods:
            self._rejected.discard(key)
            await self._delete_if_scaled_down(group)
            return None
        active = [pod for pod in pods if not pod.is_finished]
        if not active:
            await self._delete_if_scaled_down(group)
            return None
        if group is None and not self._creating.pending(key):
            await self._create(key, active)
        annotating = self._annotating.pending(key)
        unannotated = [
            pod for pod in active if not pod.podgroup_name and pod.metadata.uid not in annotating
        ]
        if group is not None and unannotated:
            await self._update_podgroup(group, unannotated[0])
        result = await run_concurrently(unannotated, self._annotate_pod)
        if result.first_error is not None:
            raise result.first_error
        expirations = (self._creating.expires_in(key), self._annotating.expires_in(key))
        return min((seconds for seconds in expirations if seconds is not None), default=None)

    async def _create(self, key: str, pods: Sequence[Pod]) -> None:
        """Create the PodGroup from the first pod without one.

        Raises:
            ApiError: the PodGroup was not created; a rejection is recorded on the pods.
        """
        pod = min(pods, key=lambda pod: (bool(pod.podgroup_name), pod.metadata.name))
        inherited = await self._owner_annotations(pod)
        group = build.build(pod, inherited)
        self._creating.expect(key, [pod.generated_podgroup_name])
        try:
            await self._client.create(PODGROUPS, group, namespace=pod.metadata.namespace)
            log.info("podgroup created", extra={"podgroup": key})
        except AlreadyExistsError:
            log.debug("PodGroup already exists", extra={"key": key})
        except BaseException as error:
            # Even after a timeout: the name is fixed, so a retry cannot create a second one.
            self._creating.observe(key, pod.generated_podgroup_name)
            if isinstance(error, _REJECTIONS):
                self._rejected.add(key)
                for each in pods:
                    self._warn(each, "PodGroupRefused", f"cannot create PodGroup: {error.message}")
            raise
        self._warn_misplaced_annotations(pod, group.spec.min_member, inherited)

    def _warn_misplaced_annotations(
        self, pod: Pod, size: int, inherited: Mapping[str, str]
    ) -> None:
        """Record events on annotations that have no effect."""
        if value := build.ineffective_size(pod, size):
            self._warn(
                pod,
                "GroupMinMemberIgnored",
                f"annotation {PODGROUP_MIN_MEMBER}={value} has no effect on a pod; "
                "put it on the pod's owner",
            )
        if value := build.ineffective_queue(pod, inherited):
            self._warn(
                pod,
                "QueueNameIgnored",
                f"annotation {PODGROUP_QUEUE}={value} has no effect on the pod's owner; "
                "put it into the pod template",
            )

    async def _update_podgroup(self, podgroup: PodGroup, pod: Pod) -> None:
        """Update a PodGroup whose owner's annotations or pod template may have changed."""
        controller = pod.metadata.controller
        if controller is None or controller.kind not in _SCALABLE_KINDS:
            return
        meta = podgroup.metadata
        patch = build.merge_patch(podgroup, build.build(pod, await self._owner_annotations(pod)))
        if not patch:
            return
        patch["metadata"]["resourceVersion"] = meta.resource_version
        with requeue_on_conflict("PodGroup"):
            await self._client.patch(PODGROUPS, meta.name, patch, namespace=meta.namespace)

    async def _annotate_pod(self, pod: Pod) -> None:
        """Write the PodGroup annotation of a pod if the pod is unmodified."""
        meta = pod.metadata
        patch = {
            "metadata": {
                **preconditions(meta),
                "annotations": {GROUP_NAME: pod.generated_podgroup_name},
            }
        }
        self._annotating.expect(pod.generated_podgroup_key, [meta.uid])
        try:
            await self._client.patch(
                PODS, meta.name, patch, namespace=meta.namespace, kind=PatchType.STRATEGIC
            )
        except BaseException as error:
            # Even if it took effect: then the pod is modified, and a second patch is a conflict.
            self._annotating.observe(pod.generated_podgroup_key, meta.uid)
            if isinstance(error, ConflictError | InvalidError):
                # The pod was modified or re-created; a patch with the old uid is Invalid.
                raise RequeueError("pod was modified concurrently") from error
            if not isinstance(error, NotFoundError):
                raise  # NotFound: the pod was deleted

    async def _owner_annotations(self, pod: Pod) -> dict[str, str]:
        """Return the merged annotations of the pod's owners."""
        if not self._settings.inherit_owner_annotations:
            return {}
        annotations = []
        for owner in pod.metadata.owner_references:
            found = await self._owner(owner, pod.metadata.namespace)
            if found is not None:
                annotations.append(found.metadata.annotations)
        return build.merge_owners(annotations)

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

    async def _delete_if_scaled_down(self, podgroup: PodGroup | None) -> None:
        """Delete a PodGroup without active pods whose owner is scaled to zero."""
        controller = podgroup.metadata.controller if podgroup is not None else None
        if podgroup is None or controller is None or not _has_scalable_owner(podgroup):
            return
        meta = podgroup.metadata
        owner = await self._owner(controller, meta.namespace)
        if owner is None or owner.metadata.uid != controller.uid or owner.spec.replicas != 0:
            return
        try:
            with requeue_on_conflict("PodGroup"):
                await self._client.delete(
                    PODGROUPS,
                    meta.name,
                    namespace=meta.namespace,
                    uid=meta.uid,
                    resource_version=meta.resource_version,
                )
        except NotFoundError:
            log.debug("PodGroup already deleted", extra={"key": meta.key})

    def _warn(self, pod: Pod, reason: str, message: str) -> None:
        if self._recorder is not None:
            regarding = object_reference(PODS, pod.metadata)
            self._recorder.record(regarding, type="Warning", reason=reason, message=message)


def _has_scalable_owner(podgroup: PodGroup) -> bool:
    """Return whether the PodGroup was generated for an owner that may be scaled to zero."""
    owner = podgroup.metadata.controller
    if owner is None or owner.kind not in _SCALABLE_KINDS:
        return False
    return podgroup.metadata.name == f"podgroup-{owner.uid}"


def _own_key(podgroup: PodGroup) -> str:
    return podgroup.metadata.key


def _podgroup_of(pod: Pod) -> str:
    return pod.generated_podgroup_key


def _pod_informer(factory: InformerFactory, scheduler: str) -> Informer[Pod]:
    """Return the informer of the pods of *scheduler* that are not part of a Volcano job.

    Pods of jobs are recognised by the task index label: users set the job name label on other
    pods, too. A job's pod without it has its PodGroup in an annotation.
    """
    return factory.informer(
        PODS,
        Pod,
        owner_key=_podgroup_of,
        field_selector=f"spec.schedulerName={scheduler}",
        label_selector=f"!{TASK_INDEX}",
        indexes={_PODGROUP_INDEX: index_by_podgroup},
    )
