"""Removes the tracking finalizer from pods whose Job cannot do so: it was deleted or has finished.

The keys are pods that are terminating or have no owner. If the informer does not have the Job, the
API server is asked whether it was deleted.
"""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass

from ..kube.client.client import Client
from ..kube.errors import NotFoundError
from ..kube.informer.informer import Informer
from ..machinery.clock import Clock
from ..machinery.pod_control import ObjectControl, finalizer_removal
from ..machinery.rate_limiters import job_rate_limiter
from ..machinery.reconcile.controller import Controller, ControllerSettings, Sync
from ..model.meta import ObjectMeta
from ..model.names import BATCH_JOBS
from .conditions import is_finished
from .core_types import CONTROLLER_UID_LABELS, TRACKING_FINALIZER, Job, Pod, owning_job

log = logging.getLogger(__name__)

_MAX_UIDS = 10_000


class RecentUids:
    """The uids that were added last, up to a limit."""

    def __init__(self, limit: int = _MAX_UIDS) -> None:
        self._limit = limit
        self._uids: dict[str, None] = {}

    def add(self, uid: str) -> None:
        """Add *uid*; forget the oldest beyond the limit."""
        self._uids.pop(uid, None)
        self._uids[uid] = None
        if len(self._uids) > self._limit:
            del self._uids[next(iter(self._uids))]

    def __contains__(self, uid: str) -> bool:
        """Whether *uid* was added recently."""
        return uid in self._uids


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanDeps:
    """What decides whether a pod is an orphan."""

    client: Client
    control: ObjectControl[Pod]
    jobs: Informer[Job]
    pods: Informer[Pod]
    is_ours: Callable[[Job], bool]
    adopters: Callable[[Pod], Collection[Job]]
    """Returns the Jobs that adopt a pod without controller."""
    deleted_jobs: RecentUids
    """Deleted Jobs that were this controller's."""
    manages_default: bool
    """Whether pods of unknown deleted Jobs are released, too."""


class OrphanController(Controller[ObjectMeta, ObjectMeta]):
    """Releases orphaned pods, which the event handlers of the Job controller add."""

    sources = ()

    def __init__(self, deps: OrphanDeps, settings: ControllerSettings, *, clock: Clock) -> None:
        super().__init__(
            "job_orphan_pod",
            settings,
            clock=clock,
            limiter=job_rate_limiter(),
            log_fields=lambda key: {"pod": key},
        )
        self._deps = deps

    def add(self, pod: Pod) -> None:
        """Enqueue a pod if it has the finalizer."""
        if TRACKING_FINALIZER in pod.metadata.finalizers:
            self.queue.add(pod.metadata.key)

    async def observe(self, sync: Sync) -> ObjectMeta | None:
        """Return the metadata of the pod if no Job needs its finalizer."""
        pod = self._deps.pods.get(sync.key)
        if pod is None or TRACKING_FINALIZER not in pod.metadata.finalizers:
            return None
        return pod.metadata if await self._is_orphan(pod) else None

    def decide(self, view: ObjectMeta) -> list[ObjectMeta]:
        """Release the pod."""
        return [view]

    async def execute(self, sync: Sync, view: ObjectMeta, effect: ObjectMeta) -> None:
        """Remove the finalizer."""
        try:
            await self._deps.control.patch(effect, finalizer_removal(TRACKING_FINALIZER))
        except NotFoundError:
            return
        log.info("orphaned pod released", extra={"pod": sync.key})

    async def _is_orphan(self, pod: Pod) -> bool:
        """Whether no Job counts *pod*, and its finalizer is this controller's to remove."""
        if pod.metadata.controller is None:
            if self._deps.adopters(pod):
                return False
            uids = [pod.metadata.labels.get(label, "") for label in CONTROLLER_UID_LABELS]
            return any(map(self._was_ours, uids))
        owner = owning_job(pod.metadata)
        if owner is None:
            return False
        name, uid = owner
        job = self._deps.jobs.get(f"{pod.metadata.namespace}/{name}")
        if job is not None and job.metadata.uid == uid:
            return self._deps.is_ours(job) and is_finished(job.status.conditions)
        return self._was_ours(uid) and await self._is_deleted(pod.metadata.namespace, name, uid)

    def _was_ours(self, uid: str) -> bool:
        """Whether the Job with this uid is or was one of this controller."""
        if self._deps.manages_default or uid in self._deps.deleted_jobs:
            return True
        return any(map(self._deps.is_ours, self._deps.jobs.by_index("uid", uid)))

    async def _is_deleted(self, namespace: str, name: str, uid: str) -> bool:
        """Whether the Job, which the informer lacks, does not exist."""
        if uid in self._deps.deleted_jobs:
            return True
        try:
            job = await self._deps.client.get(BATCH_JOBS, name, namespace=namespace, view=Job)
        except NotFoundError:
            return True
        return job.metadata.uid != uid
