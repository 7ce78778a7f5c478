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
from .core_types import Owner, Pod, index_by_podgroup

log = logging.getLogger(__name__)

_PODGROUP_INDEX = "group"
OWNERS = {
    ("apps", "ReplicaSet"): Resource("apps", "v1", "replicasets", "ReplicaSet"),
    ("apps", "DaemonSet"): Resource("apps", "v1", "daemonsets", "DaemonSet"),
    ("apps", "StatefulSet"): Resource("apps", "v1", "statefulsets", "StatefulSet"),
    ("batch", "Job"): Resource("batch", "v1", "jobs", "Job"),
}
"""Owners whose annotations say something about the gang."""
_SCALABLE_KINDS = ("ReplicaSet", "StatefulSet")
"""Owners that stay when they want no pods; their PodGroup then goes."""
_REJECTIONS = (BadRequestError, ForbiddenError, InvalidError)


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
        self._workqueue = ShardedQueue(
            name="podgroup",
            shards=self._settings.workers,
            clock=clock,
            metrics=self._settings.work_metrics,
        )
        self._podgroups = Informer(client, PODGROUPS, PodGroup) if podgroups is None else podgroups
        self._queues = Informer(client, QUEUES, Queue)
        self._pods = [
            _pod_informer(client, name) for name in dict.fromkeys(self._settings.scheduler_names)
        ]
        # What was asked for and is not in the caches yet: PodGroups by name, bound pods by uid.
        self._creating = Expectations(clock)
        self._annotating = Expectations(clock)
        # PodGroups that were refused; a queue that opens may be what they wait for.
        self._rejected: set[str] = set()

    async def run(
        self, *, ready: asyncio.Event | None = None, elected: asyncio.Event | None = None
    ) -> None:
        """Watch, then work (not before *lead*), until cancelled; *ready* is set in between.

        When cancelled, it finishes what is in hand and queued, and writes nothing after.
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

    # What is seen

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
            if _has_scalable_owner(new):  # perhaps to none, while nobody looked
                self._workqueue.add(new.metadata.key)

    def _on_queue(self, old: Queue | None, new: Queue | None) -> None:
        opened = new is not None and new.status.state == QueueState.OPEN
        if opened and (old is None or old.status.state != QueueState.OPEN):
            refused, self._rejected = self._rejected, set()
            for key in refused:
                self._workqueue.add(key)

    # What is done

    async def _reconcile(self, key: str) -> float | None:
        pods = [pod for cache in self._pods for pod in cache.by_index(_PODGROUP_INDEX, key)]
        group = self._podgroups.get(key)
        if not pods:
            self._rejected.discard(key)
            await self._delete_if_scaled_down(group)
            return None
        alive = [pod for pod in pods if not pod.is_finished]
        if not alive:
            await self._delete_if_scaled_down(group)
            return None
        if group is None and not self._creating.pending(key):
            await self._create(key, alive)
        binding = self._annotating.pending(key)
        free = [pod for pod in alive if not pod.podgroup_name and pod.metadata.uid not in binding]
        if group is not None and free:
            await self._update_podgroup(group, free[0])
        outcome = await run_concurrently(free, self._annotate_pod)
        if outcome.first_error is not None:
            raise outcome.first_error
        waits = (self._creating.expires_in(key), self._annotating.expires_in(key))
        return min((wait for wait in waits if wait is not None), default=None)

    async def _create(self, key: str, pods: Sequence[Pod]) -> None:
        """Create the PodGroup after the first pod that is free.

        Raises:
            ApiError: it was refused, which the pods are told, or could not be made.
        """
        pod = min(pods, key=lambda pod: (bool(pod.podgroup_name), pod.metadata.name))
        inherited = await self._owner_annotations(pod)
        group = build.build(pod, inherited)
        self._creating.expect(key, [pod.generated_podgroup_name])
        try:
            await self._client.create(PODGROUPS, group, namespace=pod.metadata.namespace)
            log.info("podgroup created", extra={"podgroup": key})
        except AlreadyExistsError:
            log.debug("the PodGroup is there already", extra={"key": key})
        except BaseException as error:
            # Even after a timeout: the name is fixed, so trying again makes no second one.
            self._creating.observe(key, pod.generated_podgroup_name)
            if isinstance(error, _REJECTIONS):
                self._rejected.add(key)
                for each in pods:
                    self._warn(each, "PodGroupRefused", f"no PodGroup: {error.message}")
            raise
        self._warn_misplaced_annotations(pod, group.spec.min_member, inherited)

    def _warn_misplaced_annotations(
        self, pod: Pod, size: int, inherited: Mapping[str, str]
    ) -> None:
        """Say which annotations stand where they have no effect."""
        if asked := build.ineffective_size(pod, size):
            self._warn(
                pod,
                "GroupMinMemberIgnored",
                f"annotation {build.MIN_MEMBER}={asked} has no effect on a pod; "
                "put it on the pod's owner",
            )
        if asked := build.ineffective_queue(pod, inherited):
            self._warn(
                pod,
                "QueueNameIgnored",
                f"annotation {build.QUEUE}={asked} has no effect on the pod's owner; "
                "put it into the pod template",
            )

    async def _update_podgroup(self, podgroup: PodGroup, pod: Pod) -> None:
        """Let a PodGroup follow an owner whose annotations or template may have changed."""
        controller = pod.metadata.controller
        if controller is None or controller.kind not in _SCALABLE_KINDS:
            return
        meta = podgroup.metadata
        patch = build.merge_patch(podgroup, build.build(pod, await self._owner_annotations(pod)))
        if not patch:
            return
        patch["metadata"]["resourceVersion"] = meta.resource_version
        try:
            await self._client.patch(PODGROUPS, meta.name, patch, namespace=meta.namespace)
        except ConflictError as error:
            raise RequeueError("the PodGroup has changed meanwhile") from error

    async def _annotate_pod(self, pod: Pod) -> None:
        """Write into the pod which PodGroup it belongs to, unless somebody else does just now."""
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
            # Even if it is done: the pod has changed then, and a second patch meets a conflict.
            self._annotating.observe(pod.generated_podgroup_key, meta.uid)
            if isinstance(error, ConflictError | InvalidError):
                # Most likely it has changed, or another pod has its name by now, which the cache
                # will say: a patch with the uid of the old one is then called invalid.
                raise RequeueError("the pod could not be bound to its PodGroup yet") from error
            if not isinstance(error, NotFoundError):
                raise  # otherwise the pod is gone

    async def _owner_annotations(self, pod: Pod) -> dict[str, str]:
        """The annotations of the pod's owners."""
        if not self._settings.inherit_owner_annotations:
            return {}
        found = []
        for owner in pod.metadata.owner_references:
            seen = await self._owner(owner, pod.metadata.namespace)
            if seen is not None:
                found.append(seen.metadata.annotations)
        return build.merge_owners(found)

    async def _owner(self, owner: OwnerReference, namespace: str) -> Owner | None:
        """The owner as it is now; none if it is of no kind that we ask, gone, or forbidden."""
        resource = OWNERS.get((owner.api_version.partition("/")[0], owner.kind))
        if resource is None or dns1123_subdomain_error(
            owner.name
        ):  # nobody checks it in a reference
            return None
        try:
            return await self._client.get(resource, owner.name, namespace=namespace, view=Owner)
        except NotFoundError:
            return None
        except ForbiddenError as error:
            named = {"owner": f"{namespace}/{owner.name}", "kind": owner.kind}
            what = "owner may not be read, so its annotations do not count"
            log.warning(what, extra={**named, "error": str(error)})
            return None

    async def _delete_if_scaled_down(self, podgroup: PodGroup | None) -> None:
        """Delete a PodGroup without live pods whose owner was scaled to none."""
        controller = podgroup.metadata.controller if podgroup is not None else None
        if podgroup is None or controller is None or not _has_scalable_owner(podgroup):
            return
        meta = podgroup.metadata
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

    def _warn(self, pod: Pod, reason: str, message: str) -> None:
        if self._recorder is not None:
            about = object_reference(PODS, pod.metadata)
            self._recorder.record(about, type="Warning", reason=reason, message=message)


def _has_scalable_owner(podgroup: PodGroup) -> bool:
    """Whether it was made for the pods of an owner that may want none."""
    owner = podgroup.metadata.controller
    if owner is None or owner.kind not in _SCALABLE_KINDS:
        return False
    return podgroup.metadata.name == f"podgroup-{owner.uid}"


def _pod_informer(client: Client, scheduler: str) -> Informer[Pod]:
    """The pods of *scheduler* that no Volcano job made.

    Those of jobs are told by a label that nobody gives to other pods, as people do with
    the job's name; one of theirs that lacks it has its group in an annotation.
    """
    return Informer(
        client,
        PODS,
        Pod,
        field_selector=f"spec.schedulerName={scheduler}",
        label_selector=f"!{TASK_INDEX}",
        indexes={_PODGROUP_INDEX: index_by_podgroup},
    )
