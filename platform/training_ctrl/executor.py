"""Executes plans: every write of the training controller is here.

After each write the version of the response is recorded, so that the next plan is based on
informers that have it. A write that ends without a response may have taken effect; all are repeated
safely, since objects have fixed names and writes have preconditions.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec

from ..kube.client.events import EventType
from ..kube.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    was_rejected,
)
from ..machinery.batches import run_concurrently, slow_start
from ..machinery.controller import RequeueError
from ..machinery.pod_control import Json, ObjectControl, Owner, is_namespace_terminating
from ..machinery.status_writer import merge_patch
from ..model import names
from ..model.meta import HasMeta, ObjectMeta, preconditions
from ..model.names import Resource
from ..model.training.types import JobStatus, TrainingJob
from . import effects as fx
from . import pods, restarts
from .core_types import DependentObject, Group
from .dependents import DesiredObject, differing
from .effects import Announcement, Plan, Reason
from .execution import Execution, ExecutorDeps, JobMemory
from .frameworks.base import Member
from .restarts import RestartRecord
from .view import View

log = logging.getLogger(__name__)

Job = TrainingJob[Any]


class Executor:
    """Executes the plans of the jobs of one kind."""

    def __init__(self, deps: ExecutorDeps) -> None:
        self._deps = deps
        self._client = deps.client
        self._handlers: Mapping[type, Callable[[Execution, Any], Awaitable[None]]] = {
            fx.DeletePods: self._delete_pods,
            fx.DeleteServices: self._delete_services,
            fx.CreatePods: self._create_pods,
            fx.CreateServices: self._create_services,
            fx.CreatePodGroup: self._create_podgroup,
            fx.UpdatePodGroup: self._update_podgroup,
            fx.DeletePodGroup: self._delete_podgroup,
            fx.CreateObject: self._create_object,
            fx.UpdateObject: self._update_object,
            fx.DeleteObject: self._delete_object,
            fx.ReportConflict: self._report_conflict,
            fx.Warn: self._warn,
            fx.DeleteJob: self._delete_job,
        }

    async def execute(self, key: str, view: View, memory: JobMemory, plan: Plan) -> float | None:
        """Execute *plan*: the record, the effects, then the status.

        Return the seconds until the status must be written, if that was delayed.

        An error of one effect does not prevent the others, nor the status unless it needs the
        effects; the first is raised at the end.

        Raises:
            RequeueError: a conflict, or a name is taken.
            ApiError, ConnectionLostError: a request was rejected or may not have arrived.
            ValueError: a pod or Service cannot be built.
        """
        run = Execution(key=key, view=view, memory=memory, job=view.job)
        if plan.record is not None:
            await self._write_record(run, plan.record)
            self.announce(run.job, view, plan.restarts)
        for effect in plan.effects:
            if run.blocked:
                break
            try:
                await self._handlers[type(effect)](run, effect)
            except Exception as error:
                run.errors.append(error)
        if not run.job_deleted and not (run.errors and plan.status_needs_effects):
            await self._write_status(run, plan)
        if run.errors:
            raise run.errors[0]
        return run.requeue_after

    def announce(self, job: Job, view: View, announcements: Iterable[Announcement]) -> None:
        """Record the events of transitions, and count them."""
        kind = view.framework.kind
        for each in announcements:
            if each.reason:
                event: EventType = "Warning" if each.warning else "Normal"
                self.record(pods.owner(kind, job), event, each.reason, each.message)
            if each.counted is not None:
                self._deps.metrics.count_job(
                    each.counted, namespace=job.metadata.namespace, framework=kind.framework
                )

    def record(self, owner: Owner, event: EventType, reason: str, message: str) -> None:
        """Record an event on a job."""
        if self._deps.recorder is not None:
            self._deps.recorder.record(
                owner.reference(), type=event, reason=reason, message=message
            )

    def warn_once(self, job: Job, owner: Owner, memory: JobMemory, warning: fx.Warn) -> None:
        """Record a warning, once per generation of the job."""
        seen = (job.metadata.generation, warning.reason, warning.message)
        if seen not in memory.warned:
            memory.warned.add(seen)
            self.record(owner, "Warning", warning.reason, warning.message)

    # The job.

    async def _write_record(self, run: Execution, record: RestartRecord) -> None:
        meta, kind = run.job.metadata, run.view.framework.kind
        patch = {
            "metadata": {
                **preconditions(meta),
                "annotations": {restarts.ANNOTATION: restarts.encode(record)},
            }
        }
        written = await self._write_job(
            run,
            self._client.patch(
                kind.resource,
                meta.name,
                patch,
                namespace=meta.namespace,
                view=self._deps.job_view,
            ),
        )
        run.job = msgspec.structs.replace(written, spec=run.job.spec)

    async def _write_status(self, run: Execution, plan: Plan) -> None:
        status = plan.status
        if run.errors and run.job.status.start_time is None:  # the first pass is not complete
            status = msgspec.structs.replace(status, start_time=None)
        patch = merge_patch(_encoded(run.job.status), _encoded(status))
        if not patch:
            return
        if patch.keys() == {"replicaStatuses"} and not run.errors:
            run.requeue_after = self._count_delay(run.memory)
            if run.requeue_after is not None:
                return
        try:
            await self._write_job(run, self._deps.status_writer.write(run.job.metadata, patch))
        except (ForbiddenError, InvalidError) as error:
            self.record(run.owner, "Warning", Reason.STATUS_REJECTED, error.message)
            raise
        run.memory.status_written_at = self._deps.clock.monotonic()
        if "conditions" in patch:
            kind, newest = run.view.framework.kind.name, status.conditions[-1]
            fields = {"job": run.key, "kind": kind, "condition": newest.type}
            log.info("job condition", extra={**fields, "reason": newest.reason})
        self.announce(run.job, run.view, plan.transitions)

    def _count_delay(self, memory: JobMemory) -> float | None:
        """Return for how many seconds a write of counts alone must be delayed, if any."""
        if memory.status_written_at is None:
            return None
        due = memory.status_written_at + self._deps.count_interval
        delay = due - self._deps.clock.monotonic()
        return delay if delay > 0 else None

    async def _write_job(self, run: Execution, write: Awaitable[Job]) -> Job:
        """Await a write of the job.

        Raises:
            RequeueError: the job was modified or deleted concurrently.
        """
        try:
            written = await write
        except ConflictError as error:
            raise RequeueError("job was modified concurrently") from error
        except NotFoundError as error:
            raise RequeueError("job not found") from error
        except BaseException as error:
            run.memory.unconfirmed = not was_rejected(error)
            raise
        self._wrote(run, run.view.framework.kind.resource, written)
        return written

    async def _delete_job(self, run: Execution, effect: fx.DeleteJob) -> None:
        meta, kind = run.job.metadata, run.view.framework.kind
        try:
            await self._client.delete(
                kind.resource,
                meta.name,
                namespace=meta.namespace,
                uid=meta.uid,
                resource_version=meta.resource_version,
                propagation="Background",
            )
        except NotFoundError:
            run.job_deleted = True
            return
        except ConflictError as error:
            raise RequeueError("job was modified concurrently") from error
        except ApiError as error:
            text = f"Error deleting: {error.message}"
            self.record(run.owner, "Warning", Reason.JOB_NOT_DELETED, text)
            raise
        run.job_deleted = True
        log.info("job deleted", extra={"job": run.key, "kind": kind.name})
        self.record(run.owner, "Normal", Reason.JOB_DELETED, f"Deleted job: {meta.name}")
        self._deps.metrics.count_deleted_job(namespace=meta.namespace, framework=kind.framework)

    # Pods and Services.

    async def _delete_pods(self, run: Execution, effect: fx.DeletePods) -> None:
        deleted = await self._delete_children(run, self._deps.pods, effect.pods)
        self._deps.metrics.deleted_pods.inc(deleted)

    async def _delete_services(self, run: Execution, effect: fx.DeleteServices) -> None:
        await self._delete_children(run, self._deps.services, effect.services)

    async def _delete_children(
        self, run: Execution, control: ObjectControl[Any], children: Iterable[HasMeta]
    ) -> int:
        """Delete children; return how many were deleted by this.

        Raises:
            Exception: the first error.
        """
        expectations, found = self._deps.expectations, 0

        async def delete(child: HasMeta) -> None:
            nonlocal found
            uid = child.metadata.uid
            expectations.expect_deletions(run.key, [uid])
            try:
                await control.delete(run.owner, child.metadata)
            except NotFoundError:
                expectations.lower_expectations(run.key, deletions=[uid])
            except BaseException:
                # Even if it took effect: a second deletion of this uid changes nothing.
                expectations.lower_expectations(run.key, deletions=[uid])
                raise
            else:
                found += 1

        result = await run_concurrently(tuple(children), delete)
        if result.first_error is not None:
            run.errors += [error for _, error in result.failed]
        return found

    async def _create_pods(self, run: Execution, effect: fx.CreatePods) -> None:
        view = run.view

        async def create(index: int) -> None:
            member = Member(view.job, effect.replica_type, index, view.settings)
            try:
                body = pods.build_pod(view.framework, member, gang=view.gang)
            except ValueError as error:
                text = f"Error creating: {error}"
                self.record(run.owner, "Warning", Reason.POD_NOT_CREATED, text)
                raise
            if await self._create_child(run, names.PODS, self._deps.pods, body):
                self._deps.metrics.created_pods.inc()

        await self._create_all(run, effect.indices, create)

    async def _create_services(self, run: Execution, effect: fx.CreateServices) -> None:
        view = run.view

        async def create(index: int) -> None:
            try:
                body = pods.build_service(view.framework, view.job, effect.replica_type, index)
                if await self._create_child(run, names.SERVICES, self._deps.services, body):
                    self._deps.metrics.created_services.inc()
            except Exception:
                self._deps.metrics.failed_services.inc()
                raise

        await self._create_all(run, effect.indices, create)

    async def _create_all(
        self, run: Execution, indices: tuple[int, ...], create: Callable[[int], Awaitable[None]]
    ) -> None:
        result = await slow_start(indices, create)
        run.errors += [error for _, error in result.failed if not is_namespace_terminating(error)]

    async def _create_child(
        self, run: Execution, resource: Resource, control: ObjectControl[Any], body: Json
    ) -> bool:
        """Create a pod or Service; return whether this created it.

        Raises:
            RequeueError: the job's own child of this name is hidden from its selector.
            ApiError, ConnectionLostError: the child was not created, or may have been.
        """
        created = await control.create(run.owner, body)
        meta: ObjectMeta = created.child.metadata
        if created.existed and not _is_selected(meta, body):
            # The informer does not report it: it is no child any more, and blocks the name.
            await self._release(run, control, meta)
            raise RequeueError(f'{resource.kind} "{meta.name}" is not selected by this job')
        self._wrote(run, resource, created.child)
        return not created.existed

    async def _release(self, run: Execution, control: ObjectControl[Any], meta: ObjectMeta) -> None:
        removed = {"$patch": "delete", "uid": run.job.metadata.uid}
        await control.patch(meta, {"metadata": {"ownerReferences": [removed]}})
        log.warning(
            "released object with other labels", extra={"job": run.key, "object": meta.name}
        )

    # The PodGroup.

    async def _create_podgroup(self, run: Execution, effect: fx.CreatePodGroup) -> None:
        gang = run.view.gang
        if gang is None:
            return
        meta = run.job.metadata
        annotations = {
            name: value
            for name, value in meta.annotations.items()
            if name not in (restarts.ANNOTATION, _LAST_APPLIED)
        }
        body = {
            "metadata": {
                "name": meta.name,
                "namespace": meta.namespace,
                "annotations": annotations,
                "ownerReferences": [msgspec.to_builtins(run.owner.controller_reference())],
            },
            "spec": {name: value for name, value in effect.spec.items() if value not in ("", {})},
        }
        run.blocked = gang.delays("")
        try:
            created = await self._client.create(
                gang.resource, body, namespace=meta.namespace, view=Group
            )
        except AlreadyExistsError:
            existing = await self._client.get(
                gang.resource, meta.name, namespace=meta.namespace, view=Group
            )
            self._check_controlled(run, gang.resource, existing.metadata)
            self._wrote(run, gang.resource, existing)
        except ApiError as error:
            run.blocked = True
            text = f"Error creating: {error.message}"
            self.record(run.owner, "Warning", Reason.POD_GROUP_NOT_CREATED, text)
            raise
        except BaseException:
            run.blocked = True
            raise
        else:
            log.info("podgroup created", extra={"job": run.key})
            self._deps.metrics.created_podgroups.inc()
            self._wrote(run, gang.resource, created)

    async def _update_podgroup(self, run: Execution, effect: fx.UpdatePodGroup) -> None:
        gang = run.view.gang
        if gang is None:
            return
        try:
            written = await self._client.patch(
                gang.resource,
                effect.observed.name,
                {"metadata": preconditions(effect.observed), "spec": effect.spec},
                namespace=run.namespace,
                view=Group,
            )
        except (ConflictError, NotFoundError) as error:
            raise RequeueError("PodGroup was modified concurrently") from error
        self._wrote(run, gang.resource, written)

    async def _delete_podgroup(self, run: Execution, effect: fx.DeletePodGroup) -> None:
        gang = run.view.gang
        if gang is None:
            return
        try:
            deleted = await self._delete(run, gang.resource, effect.observed)
        except ApiError as error:
            text = f"Error deleting: {error.message}"
            self.record(run.owner, "Warning", Reason.POD_GROUP_NOT_DELETED, text)
            raise
        if deleted:
            text = "Job has been terminated. Deleting PodGroup"
            self.record(run.owner, "Normal", Reason.JOB_TERMINATED, text)
            text = f"Deleted PodGroup: {effect.observed.name}"
            self.record(run.owner, "Normal", Reason.POD_GROUP_DELETED, text)
            self._deps.metrics.deleted_podgroups.inc()

    # Objects of the framework.

    async def _create_object(self, run: Execution, effect: fx.CreateObject) -> None:
        desired = effect.desired
        run.blocked = True  # until it exists
        body = {
            "metadata": {
                "name": desired.name,
                "namespace": run.namespace,
                "labels": self._labels(run, desired),
                "ownerReferences": [msgspec.to_builtins(run.owner.controller_reference())],
            },
            **desired.content,
        }
        try:
            created = await self._client.create(
                desired.resource, body, namespace=run.namespace, view=DependentObject
            )
        except AlreadyExistsError:
            created = await self._adopt_object(run, desired)
        self._wrote(run, desired.resource, created)
        run.blocked = False

    async def _adopt_object(self, run: Execution, desired: DesiredObject) -> DependentObject:
        """Return the job's object, which the informer did not report.

        Raises:
            RequeueError: it is not the job's.
        """
        existing = await self._client.get(
            desired.resource, desired.name, namespace=run.namespace, view=DependentObject
        )
        self._check_controlled(run, desired.resource, existing.metadata)
        labels = self._labels(run, desired)
        fields = differing(desired, existing)
        if labels.items() <= existing.metadata.labels.items() and not fields:
            return existing
        patch = {"metadata": {**preconditions(existing.metadata), "labels": labels}, **fields}
        return await self._client.patch(
            desired.resource, desired.name, patch, namespace=run.namespace, view=DependentObject
        )

    async def _update_object(self, run: Execution, effect: fx.UpdateObject) -> None:
        observed = msgspec.to_builtins(effect.observed)
        fields = {
            name: _with_removed(value, observed.get(name)) for name, value in effect.fields.items()
        }
        patch = {"metadata": preconditions(effect.observed.metadata), **fields}
        try:
            written = await self._client.patch(
                effect.desired.resource,
                effect.desired.name,
                patch,
                namespace=run.namespace,
                view=DependentObject,
            )
        except (ConflictError, NotFoundError) as error:
            raise RequeueError(f"{effect.desired.name} was modified concurrently") from error
        self._wrote(run, effect.desired.resource, written)

    async def _delete_object(self, run: Execution, effect: fx.DeleteObject) -> None:
        await self._delete(run, effect.desired.resource, effect.observed)

    async def _report_conflict(self, run: Execution, effect: fx.ReportConflict) -> None:
        run.blocked = True
        if effect.reason:
            self.record(run.owner, "Warning", effect.reason, effect.message)
        raise RequeueError(effect.message)

    async def _warn(self, run: Execution, effect: fx.Warn) -> None:
        self.warn_once(run.job, run.owner, run.memory, effect)

    # Helpers.

    async def _delete(self, run: Execution, resource: Resource, meta: ObjectMeta) -> bool:
        """Delete an object; return whether this deleted it.

        Raises:
            RequeueError: another object has its name.
        """
        expectations = self._deps.expectations
        expectations.expect_deletions(run.key, [meta.uid])
        try:
            await self._client.delete(resource, meta.name, namespace=meta.namespace, uid=meta.uid)
        except BaseException as error:
            expectations.lower_expectations(run.key, deletions=[meta.uid])
            if isinstance(error, NotFoundError):
                return False
            if isinstance(error, ConflictError):
                raise RequeueError(f"cannot delete {meta.name}: conflict") from error
            raise
        return True

    def _check_controlled(self, run: Execution, resource: Resource, meta: ObjectMeta) -> None:
        """Check that the job controls an object.

        Raises:
            RequeueError: it does not; an event is recorded.
        """
        kind = run.view.framework.kind.name
        if not run.view.controls(meta):
            run.blocked = True
            text = (
                f'Resource "{meta.name}" of {kind}Kind "{resource.kind}" already exists '
                f"and is not managed by {kind}"
            )
            self.record(run.owner, "Warning", Reason.RESOURCE_EXISTS, text)
            raise RequeueError(text)
        if meta.deletion_timestamp:
            run.blocked = True
            raise RequeueError(f"{resource.kind} {meta.name} is terminating")

    def _labels(self, run: Execution, desired: DesiredObject) -> dict[str, str]:
        labels = pods.job_labels(run.view.framework.kind, run.job.metadata.name)
        return {**desired.labels, **labels}

    def _wrote(self, run: Execution, resource: Resource, written: HasMeta) -> None:
        self._deps.versions.wrote(run.key, resource, written.metadata.resource_version)


_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def _encoded(status: JobStatus) -> dict[str, Any]:
    encoded: dict[str, Any] = msgspec.to_builtins(status)
    return encoded


def _is_selected(meta: ObjectMeta, body: Json) -> bool:
    """Whether an existing child has the labels by which it is found."""
    labels = body["metadata"]["labels"]
    found = (names.TRAINING_OPERATOR_NAME, names.TRAINING_JOB_NAME)
    return all(meta.labels.get(name) == labels[name] for name in found)


def _with_removed(desired: Any, observed: Any) -> Any:
    """Return the merge patch from *observed* to *desired*."""
    if isinstance(desired, dict) and isinstance(observed, dict):
        return merge_patch(observed, desired)
    return desired
