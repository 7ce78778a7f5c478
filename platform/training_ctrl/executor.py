"""Executes effects: every write of the training controller is here.

What was written is visible in the caches at once. A write that ends without a response may have
taken effect; all are repeated safely, since objects have fixed names and writes have preconditions.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, assert_never

import msgspec

from ..kube.errors import AlreadyExistsError, ApiError, ForbiddenError, InvalidError
from ..machinery.batches import run_concurrently, slow_start
from ..machinery.controller import RequeueError
from ..machinery.merge_patch import merge_patch
from ..machinery.pod_control import Child, Json, ObjectControl, is_namespace_terminating
from ..machinery.reconcile.cache import WriteThroughCache
from ..machinery.reconcile.controller import RequeueAfter, Sync
from ..machinery.reconcile.events import Event, Events, Notices
from ..machinery.reconcile.state import CountThrottle
from ..model.meta import ObjectMeta
from ..model.names import TRAINING_JOB_NAME, TRAINING_OPERATOR_NAME, Resource
from ..model.run_times import deadline_annotation
from ..model.training.types import TrainingJob
from . import pods, restarts
from .core_types import Pod, Service
from .dependents import DesiredObject, changes
from .effects import (
    Announcement,
    CreateObject,
    CreatePodGroup,
    CreatePods,
    CreateServices,
    DeleteJob,
    DeleteObject,
    DeletePodGroup,
    DeletePods,
    DeleteServices,
    Effect,
    Reason,
    RemoveLostPods,
    ReportConflict,
    ReportErrors,
    UpdateObject,
    Write,
    WriteObjects,
    WriteRecord,
    WriteStatus,
)
from .frameworks.base import Member
from .metrics import TrainingMetrics
from .view import TrainingView

log = logging.getLogger(__name__)

_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaWriter(Generic[Child]):
    """Writes the pods or the Services of jobs."""

    resource: Resource
    control: ObjectControl[Child]
    cache: WriteThroughCache[Child]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingExecutor:
    """Executes the effects on the jobs of one kind and their objects."""

    jobs: WriteThroughCache[TrainingJob[Any]]
    pods: ReplicaWriter[Pod]
    services: ReplicaWriter[Service]
    objects: Mapping[Resource, WriteThroughCache[Any]]
    """PodGroups, if there are gangs, and the objects that the framework needs."""
    events: Events
    """Events on jobs."""
    notices: Notices
    throttle: CountThrottle
    count_interval: float
    """Minimum seconds between two writes of a job's counts alone."""
    metrics: TrainingMetrics

    async def execute(self, sync: Sync, view: TrainingView, effect: Effect) -> None:
        """Execute one effect; errors of single objects are added to those of *sync*.

        Raises:
            RequeueError: the job was modified concurrently.
            ApiError, ConnectionLostError: a write was rejected, or may not have arrived.
        """
        match effect:
            case RequeueAfter(seconds):
                sync.after(seconds)
            case WriteRecord(record, announcements):
                annotations = {restarts.ANNOTATION: restarts.encode(record)}
                patch = {"metadata": {"annotations": annotations}}
                await self.jobs.patch(view.job.metadata, patch)
                self._announce(view, announcements)
                sync.again = True
            case WriteObjects(writes):
                await self._write_objects(sync, view, writes)
            case WriteStatus():
                await self._write_status(sync, view, effect)
            case ReportErrors(errors):
                sync.errors += errors
            case _:
                assert_never(effect)

    def _announce(self, view: TrainingView, announcements: Iterable[Announcement]) -> None:
        """Record the events of *announcements*, and count them."""
        for each in announcements:
            if each.event is not None:
                self.events.record(view.job.metadata, each.event)
            if each.counted is not None:
                self.metrics.count_job(
                    each.counted,
                    namespace=view.job.metadata.namespace,
                    framework=view.framework.kind.framework,
                )

    async def _write_status(self, sync: Sync, view: TrainingView, effect: WriteStatus) -> None:
        latest, status = self.jobs.get(sync.key), effect.status
        if latest is None or latest.metadata.deletion_timestamp is not None:
            return
        if sync.errors:
            if effect.needs_writes:
                return
            if view.job.status.start_time is None:  # not all of the first writes succeeded
                status = msgspec.structs.replace(status, start_time=None)
        patch = merge_patch(msgspec.to_builtins(view.job.status), msgspec.to_builtins(status))
        if not patch:
            return
        if patch.keys() == {"replicaStatuses"} and not sync.errors:
            delay = self.throttle.delay(sync.key, self.count_interval)
            if delay is not None:
                sync.after(delay)
                return
        try:
            await self.jobs.patch_status(view.job.metadata, patch)
        except (ForbiddenError, InvalidError) as error:
            self.events.warning(view.job.metadata, Reason.STATUS_REJECTED, error.message)
            raise
        self.throttle.wrote(sync.key)
        if "conditions" in patch:
            kind, newest = view.framework.kind.name, status.conditions[-1]
            fields = {"job": sync.key, "kind": kind, "condition": newest.type}
            log.info("job condition", extra={**fields, "reason": newest.reason})
        self._announce(view, effect.announcements)

    async def _write_objects(self, sync: Sync, view: TrainingView, writes: Iterable[Write]) -> None:
        for each in writes:
            try:
                await self._write(sync, view, each)
            except Exception as error:
                sync.errors.append(error)
                if isinstance(each, CreatePodGroup | CreateObject | ReportConflict):
                    return  # the pods need these objects

    async def _write(  # noqa: C901, PLR0912 - one branch per write
        self, sync: Sync, view: TrainingView, write: Write
    ) -> None:
        match write:
            case DeletePods():
                deleted = await self._delete_children(sync, view, self.pods, write.pods)
                self.metrics.deleted_pods.inc(deleted)
            case RemoveLostPods():
                await self._delete_children(sync, view, self.pods, write.pods, grace_period=0)
            case DeleteServices():
                await self._delete_children(sync, view, self.services, write.services)
            case CreatePods():
                await self._create_pods(sync, view, write)
            case CreateServices():
                await self._create_services(sync, view, write)
            case CreatePodGroup(resource, spec):
                await self._create_podgroup(view, resource, spec)
            case DeletePodGroup(resource, observed):
                await self._delete_podgroup(view, resource, observed)
            case CreateObject(desired):
                await self._create_object(view, desired)
            case UpdateObject(resource, observed, patch):
                await self.objects[resource].patch(observed, patch)
            case DeleteObject(resource, observed):
                await self.objects[resource].delete(observed)
            case ReportConflict(message, reason):
                if reason:
                    self.events.warning(view.job.metadata, reason, message)
                raise RequeueError(message)
            case DeleteJob():
                await self._delete_job(view)
            case Event():
                self.notices.add(view.job.metadata, write)
            case _:
                assert_never(write)

    # Deletions.

    async def _delete_children(
        self,
        sync: Sync,
        view: TrainingView,
        writer: ReplicaWriter[Child],
        children: Iterable[Child],
        **options: Any,
    ) -> int:
        """Delete children; return how many were deleted by this."""
        kind, deleted = writer.resource.kind, 0

        async def delete(child: Child) -> None:
            nonlocal deleted
            name = kind.lower()
            if await self._delete(view, writer.cache, child.metadata, kind, name, **options):
                deleted += 1

        result = await run_concurrently(tuple(children), delete)
        sync.errors += [error for _, error in result.failed]
        return deleted

    async def _delete(
        self,
        view: TrainingView,
        cache: WriteThroughCache[Any],
        meta: ObjectMeta,
        kind: str,
        name: str,
        **options: Any,
    ) -> bool:
        """Delete an object and record an event; return whether this deleted it.

        *kind* ends the reason of the event, *name* is that of the kind in the message.
        """
        job = view.job.metadata
        try:
            deleted = await cache.delete(meta, **options)
        except ApiError as error:
            self.events.warning(job, f"FailedDelete{kind}", f"Error deleting: {error.message}")
            raise
        if deleted:
            self.events.normal(job, f"SuccessfulDelete{kind}", f"Deleted {name}: {meta.name}")
        return deleted

    async def _delete_podgroup(
        self, view: TrainingView, resource: Resource, observed: ObjectMeta
    ) -> None:
        if await self._delete(view, self.objects[resource], observed, "PodGroup", "PodGroup"):
            text = "Job has been terminated. Deleting PodGroup"
            self.events.normal(view.job.metadata, Reason.JOB_TERMINATED, text)
            self.metrics.deleted_podgroups.inc()

    async def _delete_job(self, view: TrainingView) -> None:
        meta, kind = view.job.metadata, view.framework.kind
        if await self._delete(
            view, self.jobs, meta, "Job", "job", unmodified=True, propagation="Background"
        ):
            log.info("job deleted", extra={"job": meta.key, "kind": kind.name})
            self.metrics.count_deleted_job(namespace=meta.namespace, framework=kind.framework)

    # Pods and Services.

    async def _create_pods(self, sync: Sync, view: TrainingView, effect: CreatePods) -> None:
        async def create(index: int) -> None:
            member = Member(view.job, effect.replica_type, index, view.settings)
            try:
                body = pods.build_pod(view.framework, member, gang=view.gang)
            except ValueError as error:
                text = f"Error creating: {error}"
                self.events.warning(view.job.metadata, Reason.POD_NOT_CREATED, text)
                raise
            if await self._create_child(view, self.pods, body):
                self.metrics.created_pods.inc()

        await _create_all(sync, effect.indices, create)

    async def _create_services(
        self, sync: Sync, view: TrainingView, effect: CreateServices
    ) -> None:
        async def create(index: int) -> None:
            try:
                body = pods.build_service(view.framework, view.job, effect.replica_type, index)
                if await self._create_child(view, self.services, body):
                    self.metrics.created_services.inc()
            except Exception:
                self.metrics.failed_services.inc()
                raise

        await _create_all(sync, effect.indices, create)

    async def _create_child(
        self, view: TrainingView, writer: ReplicaWriter[Child], body: Json
    ) -> bool:
        """Create a pod or Service; return whether this created it.

        Raises:
            RequeueError: the job's own child of this name is hidden from its selector.
            ApiError, ConnectionLostError: the child was not created, or may have been.
        """
        created = await writer.control.create(view.owner, body)
        meta = created.child.metadata
        if created.existed and not _is_selected(meta, body):
            # The informer does not report it: it is no child any more, and blocks the name.
            removed = {"$patch": "delete", "uid": view.job.metadata.uid}
            await writer.control.patch(meta, {"metadata": {"ownerReferences": [removed]}})
            fields = {"job": view.job.metadata.key, "object": meta.name}
            log.warning("released object with other labels", extra=fields)
            kind = writer.resource.kind
            raise RequeueError(f'{kind} "{meta.name}" is not selected by this job')
        writer.cache.wrote(created.child)
        return not created.existed

    # The PodGroup and the objects of the framework.

    async def _create_podgroup(
        self, view: TrainingView, resource: Resource, spec: Mapping[str, Any]
    ) -> None:
        meta, cache = view.job.metadata, self.objects[resource]
        annotations = {
            name: value
            for name, value in meta.annotations.items()
            if name not in (restarts.ANNOTATION, _LAST_APPLIED)
        }
        annotations |= deadline_annotation(view.job.spec.run_policy.active_deadline_seconds)
        body = _object(
            view,
            {"name": meta.name, "annotations": annotations},
            {"spec": {name: value for name, value in spec.items() if value not in ("", {})}},
        )
        try:
            await cache.create(body, namespace=meta.namespace)
        except AlreadyExistsError:
            await self._read_existing(view, cache, resource, meta.name)
        except ApiError as error:
            text = f"Error creating: {error.message}"
            self.events.warning(meta, Reason.POD_GROUP_NOT_CREATED, text)
            raise
        else:
            log.info("podgroup created", extra={"job": meta.key})
            self.metrics.created_podgroups.inc()

    async def _create_object(self, view: TrainingView, desired: DesiredObject) -> None:
        namespace, cache = view.job.metadata.namespace, self.objects[desired.resource]
        labels = {**desired.labels, **pods.job_labels(view.framework.kind, view.job.metadata.name)}
        body = _object(view, {"name": desired.name, "labels": labels}, desired.content)
        try:
            await cache.create(body, namespace=namespace)
        except AlreadyExistsError:
            existing = await self._read_existing(view, cache, desired.resource, desired.name)
            fields = changes(existing, desired)
            if fields or not labels.items() <= existing.metadata.labels.items():
                await cache.patch(existing.metadata, {"metadata": {"labels": labels}, **fields})

    async def _read_existing(
        self, view: TrainingView, cache: WriteThroughCache[Child], resource: Resource, name: str
    ) -> Child:
        """Return the job's object, which the informer did not report.

        Raises:
            RequeueError: it is terminating or, which is recorded, not the job's.
            ApiError, ConnectionLostError: it cannot be read.
        """
        existing = await cache.read(f"{view.job.metadata.namespace}/{name}")
        if existing is None:
            raise RequeueError(f"{resource.kind} {name} was deleted concurrently")
        if not view.controls(existing.metadata):
            text = view.conflict_message(resource, name)
            self.events.warning(view.job.metadata, Reason.RESOURCE_EXISTS, text)
            raise RequeueError(text)
        if existing.metadata.deletion_timestamp:
            raise RequeueError(f"{resource.kind} {name} is terminating")
        return existing


async def _create_all(
    sync: Sync, indices: tuple[int, ...], create: Callable[[int], Awaitable[None]]
) -> None:
    result = await slow_start(indices, create)
    sync.errors += [error for _, error in result.failed if not is_namespace_terminating(error)]


def _object(view: TrainingView, metadata: Json, content: Mapping[str, Any]) -> Json:
    """Return an object that the job controls."""
    fixed = {
        "namespace": view.job.metadata.namespace,
        "ownerReferences": [msgspec.to_builtins(view.owner.controller_reference())],
    }
    return {"metadata": {**metadata, **fixed}, **content}


def _is_selected(meta: ObjectMeta, body: Json) -> bool:
    """Whether an existing child has the labels by which it is found."""
    labels = body["metadata"]["labels"]
    found = (TRAINING_OPERATOR_NAME, TRAINING_JOB_NAME)
    return all(meta.labels.get(name) == labels[name] for name in found)
