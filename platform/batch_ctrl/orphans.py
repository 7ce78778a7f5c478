"""Removes the tracking finalizer of pods whose Job will not: it is deleted or has finished.

The worker gets pods that are terminating or have no owner. It asks the API server before it takes a
Job that the informer does not have for a deleted one.
"""

import logging
from collections.abc import Callable, Collection

from ..kube.client.client import Client
from ..kube.errors import NotFoundError
from ..kube.informer.informer import Informer
from ..machinery.pod_control import ObjectControl, finalizer_removal
from ..model.names import BATCH_JOBS
from .conditions import is_finished
from .core_types import CONTROLLER_UID_LABELS, TRACKING_FINALIZER, Job, Pod, owning_job
from .known_jobs import RecentUids

log = logging.getLogger(__name__)


class OrphanPods:
    """Processes the keys of orphaned pods."""

    def __init__(
        self,
        client: Client,
        control: ObjectControl[Pod],
        *,
        jobs: Informer[Job],
        pods: Informer[Pod],
        is_ours: Callable[[Job], bool],
        adopters: Callable[[Pod], Collection[Job]],
        deleted_jobs: RecentUids,
        manages_default: bool,
    ) -> None:
        """*adopters* returns the Jobs that adopt a pod without controller.

        Pods of a deleted Job are released if it is one of *deleted_jobs*, or *manages_default*.
        """
        self._client = client
        self._control = control
        self._jobs = jobs
        self._pods = pods
        self._is_ours = is_ours
        self._adopters = adopters
        self._deleted_jobs = deleted_jobs
        self._manages_default = manages_default

    async def reconcile(self, key: str) -> None:
        """Remove the finalizer of the pod *key*, unless a Job still needs it.

        Raises:
            ApiError, ConnectionLostError: a request failed.
        """
        pod = self._pods.get(key)
        if pod is None or TRACKING_FINALIZER not in pod.metadata.finalizers:
            return
        if not await self._is_orphan(pod):
            return
        try:
            await self._control.patch(pod.metadata, finalizer_removal(TRACKING_FINALIZER))
        except NotFoundError:
            return
        log.info("orphaned pod released", extra={"pod": key})

    async def _is_orphan(self, pod: Pod) -> bool:
        """Whether no Job counts *pod*, and its finalizer is this controller's to remove."""
        if pod.metadata.controller is None:
            if self._adopters(pod):
                return False
            uids = [pod.metadata.labels.get(label, "") for label in CONTROLLER_UID_LABELS]
            return any(map(self._was_ours, uids))
        owner = owning_job(pod.metadata)
        if owner is None:
            return False
        name, uid = owner
        job = self._jobs.get(f"{pod.metadata.namespace}/{name}")
        if job is not None and job.metadata.uid == uid:
            return self._is_ours(job) and is_finished(job.status.conditions)
        return self._was_ours(uid) and await self._is_deleted(pod.metadata.namespace, name, uid)

    def _was_ours(self, uid: str) -> bool:
        """Whether the Job with this uid is or was one of this controller."""
        if self._manages_default or uid in self._deleted_jobs:
            return True
        return any(map(self._is_ours, self._jobs.by_index("uid", uid)))

    async def _is_deleted(self, namespace: str, name: str, uid: str) -> bool:
        """Whether the Job, which the informer lacks, does not exist."""
        if uid in self._deleted_jobs:
            return True
        try:
            job = await self._client.get(BATCH_JOBS, name, namespace=namespace, view=Job)
        except NotFoundError:
            return True
        return job.metadata.uid != uid
