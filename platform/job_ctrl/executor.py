"""Executes effects: every write of the job controller is here.

Each effect updates the job's :class:`~batholith.job_ctrl.job_info.JobInfo` at once, so that the
next decision does not depend on the informers.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from ..kube.client.client import WriteLimit
from ..kube.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    NotSentError,
    ServerError,
    TooManyRequestsError,
    was_rejected,
)
from ..machinery.batches import InitialBatches, run_concurrently, slow_start
from ..machinery.controller import RequeueError, requeue_on_conflict
from ..machinery.event_recorder import object_reference
from ..machinery.priority_semaphore import PrioritySemaphore
from ..machinery.status_writer import merge_patch
from ..model import names
from ..model.job import Job, JobPhase, TaskSpec
from ..model.job_defaults import DefaultedJob
from ..model.job_reasons import Reason
from ..model.meta import ObjectMeta, preconditions
from ..model.placement import REQUEST_SECONDS
from ..model.podgroup import PodGroup
from . import effects as fx
from . import podgroups, pods
from .creation.placement import Unplaced
from .creation.plugin_objects import PluginObjects
from .creation.pvcs import VolumeClaimNotFoundError, VolumeClaims
from .execution import ExecutorDeps, SyncContext
from .job_info import UNOBSERVED_TIMEOUT, JobInfo
from .plugins.errors import PluginError
from .status.job_view import CommandRef
from .tracker.core_types import Pod
from .tracker.pod_info import PodInfo, parse_pod

log = logging.getLogger(__name__)

_PODS_PER_SECOND = 100.0
"""Pods that delay the priority of a job by one second."""
_Member = tuple[TaskSpec, int]
_PERSISTENT_ERRORS = (AlreadyExistsError, ForbiddenError, InvalidError)
"""Errors that persist until the job or its namespace changes."""


class Executor:
    """Executes the effects of decisions in their order."""

    def __init__(self, deps: ExecutorDeps) -> None:
        self._deps = deps
        self._client = deps.client
        self._plugin_objects = PluginObjects(deps.client)
        self._volume_claims = VolumeClaims(deps.client)
        self._write_slots = PrioritySemaphore(deps.settings.max_writes_in_flight)
        self._initial_batches = InitialBatches()
        """By namespace."""
        self._handlers: Mapping[type, Callable[[SyncContext, Any], Awaitable[None]]] = {
            fx.SetStatus: self._set_status,
            fx.CreatePodGroup: self._create_podgroup,
            fx.UpdatePodGroup: self._update_podgroup,
            fx.DeletePodGroup: self._delete_podgroup,
            fx.CreatePods: self._create_pods,
            fx.DeletePods: self._delete_pods,
            fx.EnsureVolumeClaims: self._ensure_volume_claims,
            fx.EnsurePluginObjects: self._ensure_plugin_objects,
            fx.DeletePluginObjects: self._delete_plugin_objects,
            fx.DeleteJob: self._delete_job,
            fx.DeleteCommand: self._delete_command,
            fx.DropLifecycleEvents: self._drop_events,
            fx.DeferLifecycleEvents: self._defer_events,
            fx.RecordEvent: self._record_event,
            fx.RequeueAfter: self._requeue_after,
        }

    async def execute(self, context: SyncContext, effects: list[fx.Effect]) -> None:
        """Execute *effects* one after the other; an error skips the rest.

        Raises:
            RequeueError: a conflict, or the informers are stale.
            ApiError, ConnectionLostError: the API server is unavailable or rejected a request.
            PluginError: a plugin of the job failed; an event is recorded on the job.
        """
        for effect in effects:
            try:
                await self._handlers[type(effect)](context, effect)
            except PluginError as error:
                self._record_error(context, Reason.PLUGIN_ERROR, str(error))
                raise

    async def delete_command(self, key: str, command: CommandRef) -> None:
        """Delete a Command that was executed or ignored, then its pending item."""
        namespace = key.partition("/")[0]
        await self._delete(names.COMMANDS, command.name, namespace=namespace, uid=command.uid)
        self._deps.workqueue.pop_item(key)
        log.info("command done", extra={"job": key, "action": command.action})

    def record_invalid_command(self, command: ObjectMeta, problem: str) -> None:
        """Record an event on a Command that cannot be executed."""
        log.warning("cannot execute command", extra={"command": command.key, "reason": problem})
        if self._deps.recorder is not None:
            self._deps.recorder.record(
                object_reference(names.COMMANDS, command),
                type="Warning",
                reason=Reason.INVALID_TARGET,
                message=problem,
            )

    async def reject_command(self, key: str, command: CommandRef, problem: str) -> None:
        """Record an event on a Command that can never be executed, and delete it."""
        namespace = key.partition("/")[0]
        self.record_invalid_command(
            ObjectMeta(name=command.name, namespace=namespace, uid=command.uid), problem
        )
        await self.delete_command(key, command)

    async def _delete(
        self, resource: names.Resource, name: str, *, namespace: str, uid: str, version: str = ""
    ) -> None:
        """Delete an object, unless it is deleted already.

        Raises:
            RequeueError: a conflict. Most likely the object was modified, or another one has its
                name, which the informer will report; but the object may still exist.
        """
        try:
            await self._client.delete(
                resource, name, namespace=namespace, uid=uid, resource_version=version
            )
        except NotFoundError:
            pass  # the DELETED event triggers the next sync
        except ConflictError as error:
            raise RequeueError(f"cannot delete {name}: conflict") from error

    def record_event(
        self, job: Job, reason: Reason, message: str, *, warning: bool = False
    ) -> None:
        """Record an event on *job*."""
        if self._deps.recorder is not None:
            self._deps.recorder.record(
                object_reference(names.JOBS, job.metadata),
                type="Warning" if warning else "Normal",
                reason=reason,
                message=message,
            )

    def _record_error(self, context: SyncContext, reason: Reason, error: ApiError | str) -> None:
        """Record an event for *error*; keep a persistent error for the status of the job."""
        message = error if isinstance(error, str) else error.message
        self.record_event(context.job, reason, message, warning=True)
        if isinstance(error, (str, *_PERSISTENT_ERRORS)):
            context.job_info.last_errors[reason] = message

    # The job.

    async def _set_status(self, context: SyncContext, effect: fx.SetStatus) -> None:
        job, info = context.job, context.job_info
        if not effect.immediate and self._delay_status(context):
            return
        info.counts_stale_since = None
        patch = merge_patch(msgspec.to_builtins(job.status), msgspec.to_builtins(effect.status))
        if not patch:
            return
        before, phase = job.status.state.phase, effect.status.state.phase
        try:
            info.last_written_job = await self._patch_status(job, patch)
        except BaseException as error:
            if phase != before and not _was_rejected(error):
                info.unconfirmed_transition = (before, phase)
            raise
        if phase != before:
            self._phase_entered(context.key, job, info, before=before, phase=phase)
        context.requeue = True

    async def _patch_status(self, job: Job, patch: Mapping[str, object]) -> Job:
        version = {"resourceVersion": job.metadata.resource_version}
        try:
            with requeue_on_conflict("job"):
                return await self._client.patch(
                    names.JOBS,
                    job.metadata.name,
                    {"metadata": version, "status": patch},
                    namespace=job.metadata.namespace,
                    subresource="status",
                    view=DefaultedJob,
                )
        except NotFoundError as error:
            raise RequeueError("job not found") from error
        except (ForbiddenError, InvalidError) as error:
            self.record_event(job, Reason.STATUS_ERROR, error.message, warning=True)
            raise

    def confirm_transition(self, key: str, job: Job, job_info: JobInfo) -> None:
        """Account for a transition whose write took effect without a response."""
        if (
            job_info.unconfirmed_transition is None
            or job.status.state.phase == job_info.unconfirmed_transition[0]
        ):
            return
        before, phase = job_info.unconfirmed_transition
        job_info.unconfirmed_transition = None
        if job.status.state.phase == phase:
            self._phase_entered(key, job, job_info, before=before, phase=phase)

    def _phase_entered(
        self, key: str, job: Job, job_info: JobInfo, *, before: str, phase: str
    ) -> None:
        self._deps.metrics.phase_entered(job, phase)
        job_info.unconfirmed_transition = None
        job_info.last_errors.clear()  # the next phase collects its own errors
        log.info("job phase", extra={"job": key, "phase": phase, "from": before})

    def _delay_status(self, context: SyncContext) -> bool:
        """Have outdated counts, or a first status, written later if that may still be delayed."""
        info, settings = context.job_info, self._deps.settings
        if info.counts_stale_since is None:
            info.counts_stale_since = self._deps.clock.monotonic()
        remaining = self._deps.change_rate.remaining_delay(
            info.counts_stale_since,
            min_delay=settings.status_delay,
            max_delay=settings.max_status_delay,
        )
        if remaining > 0:
            context.request_requeue(remaining)
            context.status_delayed = True
        return remaining > 0

    async def _delete_job(self, context: SyncContext, effect: fx.DeleteJob) -> None:
        meta = context.job.metadata
        # NotFound: deleted by another client.
        with suppress(NotFoundError), requeue_on_conflict("job"):
            await self._client.delete(
                names.JOBS,
                meta.name,
                namespace=meta.namespace,
                uid=meta.uid,
                resource_version=meta.resource_version,
                propagation="Foreground",
            )

    # The PodGroup.

    async def _create_podgroup(self, context: SyncContext, effect: fx.CreatePodGroup) -> None:
        plugins, use = context.desired_state.plugins, context.job_info.plan_use
        members = self._deps.planned.description_of(context.job, plugins, use)
        body = podgroups.build(context.job, effect.spec, members=members)
        info = context.job_info
        info.creating_podgroup = True
        try:
            created = await self._client.create(
                names.PODGROUPS, body, namespace=context.namespace, view=PodGroup
            )
            is_waiting = podgroups.is_waiting(created)
            is_waiting &= not podgroups.spec_patch(created.spec, effect.spec)
        except AlreadyExistsError:  # the name contains the job's uid, so it is this job's
            is_waiting = False
            created = await self._client.get(
                names.PODGROUPS, body.metadata.name, namespace=context.namespace, view=PodGroup
            )
        except ApiError as error:
            self._record_error(context, Reason.PODGROUP_ERROR, error)
            raise
        finally:
            info.creating_podgroup = False
        log.info("podgroup created", extra={"job": context.key, "podgroup": created.metadata.key})
        # A job that has no pods and no errors does not change until the scheduler acts.
        is_idle = is_waiting and not len(info.pod_tracker) and not info.last_errors
        self._podgroup_written(context, created, requeue=not is_idle)

    async def _update_podgroup(self, context: SyncContext, effect: fx.UpdatePodGroup) -> None:
        try:
            with requeue_on_conflict("PodGroup"):
                changed = await self._client.patch(
                    names.PODGROUPS,
                    podgroups.name_of(context.job),
                    {"metadata": preconditions(effect.observed), "spec": effect.spec},
                    namespace=context.namespace,
                    view=PodGroup,
                )
        except NotFoundError as error:
            raise RequeueError("PodGroup not found") from error
        except ApiError as error:
            self._record_error(context, Reason.PODGROUP_ERROR, error)
            raise
        self._podgroup_written(context, changed)

    def _podgroup_written(
        self, context: SyncContext, podgroup: PodGroup, *, requeue: bool = True
    ) -> None:
        context.job_info.last_errors.pop(Reason.PODGROUP_ERROR, None)
        context.job_info.last_written_podgroup = podgroup
        context.job_info.podgroup_written_at = self._deps.clock.monotonic()
        context.requeue = context.requeue or requeue

    async def _delete_podgroup(self, context: SyncContext, effect: fx.DeletePodGroup) -> None:
        name = podgroups.name_of(context.job)
        await self._delete(names.PODGROUPS, name, namespace=context.namespace, uid=effect.uid)
        context.job_info.deleting_podgroup_uid = effect.uid
        log.info("podgroup deleted", extra={"job": context.key})
        context.requeue = True

    # Pods.

    async def _create_pods(self, context: SyncContext, effect: fx.CreatePods) -> None:
        """Create pods with a slow start; the tracker holds each one as soon as it is created."""
        expectations = self._deps.expectations
        by_name = {task.name: task for task in context.job.spec.tasks}
        desired = [
            (by_name[task], index) for task, indices in effect.indices.items() for index in indices
        ]
        priority, conflicts = self._priority(len(desired)), list[AlreadyExistsError]()
        existing: list[_Member] = []

        async def create(pod: _Member) -> None:
            await self._write_slots.acquire(priority)
            try:
                if context.job_info.pod_tracker.has_index(pod[0].name, pod[1]):
                    # Created by a former leader and observed while this batch was being created:
                    # no further event would end the expectation.
                    existing.append(pod)
                    return
                await self._create_pod(context, pod, effect.description)
            except AlreadyExistsError as error:  # does not affect the other pods
                conflicts.append(error)
                expectations.observe(context.key, _pod_name(context, *pod))
            finally:
                self._write_slots.release()

        initial = self._initial_batches[context.namespace]
        outcome = await slow_start(desired, create, initial=initial)
        created = len(outcome.succeeded) - len(conflicts) - len(existing)
        self._initial_batches.update(context.namespace, created, failed=bool(outcome.failed))
        written = bool(created or existing)
        context.requeue |= written and not self._only_counts_differ(context, effect, created)
        if created:
            log.info("pods created", extra={"job": context.key, "pods": created})
        for pod, failure in outcome.failed:
            if _was_rejected(failure):  # otherwise the pod may exist
                expectations.observe(context.key, _pod_name(context, *pod))
        error = outcome.first_error or next(iter(conflicts), None)
        if error is None:
            for reason in (Reason.FAILED_CREATE, Reason.PLUGIN_ERROR):
                context.job_info.last_errors.pop(reason, None)
            return
        if isinstance(error, ApiError):
            self._record_error(context, Reason.FAILED_CREATE, error)
        raise error

    def _only_counts_differ(
        self, context: SyncContext, effect: fx.CreatePods, created: int
    ) -> bool:
        """Whether nothing but counts, which are written later, follows from *created* pods.

        That is mostly so in phase Pending, until one of them starts.
        """
        job, tracker = context.job, context.job_info.pod_tracker
        return (
            job.status.state.phase in ("", JobPhase.PENDING)
            and job.spec.min_available > 0
            and created == sum(map(len, effect.indices.values()))
            and not (effect.description or context.job_info.last_errors)
            and tracker.all_pending
            and not tracker.has_events
            and self._delay_status(context)
        )

    async def _create_pod(self, context: SyncContext, pod: _Member, description: str) -> None:
        expectations, name = self._deps.expectations, _pod_name(context, *pod)
        body = pods.build(context.job, *pod)
        context.desired_state.plugins.mutate_pod(body, context.job)
        pods.set_description(body, description)
        expectations.expect(context.key, (name,))
        try:
            created = await self._post_pod(context, body, *pod)
            self._deps.metrics.pod_created(context.job, created.metadata.creation_timestamp)
        except AlreadyExistsError as error:
            created = await self._adopt_pod(context, name, error)
        if self._deps.settings.place_at_creation:
            context.job_info.plan_use.observe_created(pod[0].name, pod[1])
        # If the informer was faster, the tracker holds the pod, or has removed it, already.
        if expectations.set_created(context.key, name, created.metadata.uid):
            info = parse_pod(created)
            if info is not None:
                context.job_info.pod_tracker.add_created(info)

    async def _post_pod(
        self, context: SyncContext, body: pods.Pod, task: TaskSpec, index: int
    ) -> Pod:
        """Create a pod: with a node if the plan that is valid now has one for it."""
        info, planned = context.job_info, self._deps.planned
        use, podgroup = info.plan_use, self._deps.podgroup_of(context.job, info)
        plan = planned.plan_for(context.job, podgroup, context.desired_state.plugins, use)
        node = planned.node_for(use, plan, task.name, index, body=body)
        if plan is not None and node:
            body["spec"]["nodeName"] = node
            limit = WriteLimit(int(REQUEST_SECONDS), guard=lambda: planned.require_valid(plan))
            try:
                created = await self._client.create(
                    names.PODS, body, namespace=context.namespace, view=Pod, limit=limit
                )
            except NotSentError:
                planned.note(use, Unplaced.EXPIRED)
                del body["spec"]["nodeName"]
            except (AlreadyExistsError, ConflictError, TooManyRequestsError, ServerError):
                raise  # not because of the pod
            except ApiError:
                planned.end(use, plan, Unplaced.REJECTED)
                raise
            else:
                return created
        return await self._client.create(names.PODS, body, namespace=context.namespace, view=Pod)

    async def _adopt_pod(self, context: SyncContext, name: str, error: AlreadyExistsError) -> Pod:
        """Return the existing pod of this name if it is the one that was to be created."""
        found = await self._client.get(names.PODS, name, namespace=context.namespace, view=Pod)
        pod = parse_pod(found)
        if pod is None or pod.owner != context.job.metadata.uid:
            text = f'pod "{name}" already exists and is not controlled by this job'
            raise AlreadyExistsError(text, status=409, reason="AlreadyExists") from error
        if names.JOB_NAME not in found.metadata.labels:
            raise error  # the informer selects by this label and never reports the pod
        if pod.version != context.job.status.version or pod.terminating:
            raise RequeueError(f'older pod "{name}" still exists') from error
        return found

    async def _delete_pods(self, context: SyncContext, effect: fx.DeletePods) -> None:
        """Delete pods; from before the call on, their end is no eviction.

        The same holds as long as a request without a response may take effect.
        """
        tracker, priority = context.job_info.pod_tracker, self._priority(len(effect.pods))
        tracker.mark_deleting(pod.uid for pod in effect.pods)

        async def delete(pod: PodInfo) -> None:
            version = ""
            try:
                await self._write_slots.acquire(priority)
                try:
                    current = tracker.get(pod.uid)
                    if current is None:
                        return
                    if current != pod:
                        raise RequeueError(f'pod "{pod.name}" was modified concurrently')
                    version = current.resource_version
                    await self._delete(
                        names.PODS,
                        pod.name,
                        namespace=context.namespace,
                        uid=pod.uid,
                        version=version,
                    )
                finally:
                    self._write_slots.release()
            except BaseException as error:
                if not version or _was_rejected(error):
                    tracker.unmark_deleting((pod.uid,))
                else:
                    until = self._deps.clock.monotonic() + UNOBSERVED_TIMEOUT
                    tracker.mark_unconfirmed_deletion(
                        pod.uid, resource_version=version, until=until
                    )
                raise

        outcome = await run_concurrently(effect.pods, delete)
        context.requeue = context.requeue or bool(outcome.succeeded)
        if outcome.succeeded:
            log.info("pods deleted", extra={"job": context.key, "pods": len(outcome.succeeded)})
        error = outcome.first_error
        if error is not None:
            if isinstance(error, ApiError):
                self.record_event(context.job, Reason.FAILED_DELETE, error.message, warning=True)
            raise error

    def _priority(self, pods: int) -> float:
        """Return the priority of a job that creates or deletes this number of *pods*.

        Jobs write in the order of their arrival, so that a gang is complete soon; but a small job
        overtakes the rest of a large one that arrived a little earlier.
        """
        return self._deps.clock.monotonic() + pods / _PODS_PER_SECOND

    # Volumes and plugins' objects.

    async def _ensure_volume_claims(
        self, context: SyncContext, effect: fx.EnsureVolumeClaims
    ) -> None:
        try:
            job = await self._volume_claims.ensure(context.job)
        except VolumeClaimNotFoundError as error:
            event = fx.RecordEvent(Reason.PVC_ERROR, str(error), warning=True)
            await self._record_event(context, event)
            context.requeue = context.job_info.last_errors.get(event.reason) != event.message
            context.job_info.last_errors[event.reason] = event.message
            context.request_requeue(self._deps.settings.pvc_recheck_interval)
            return
        except ApiError as error:
            self._record_error(context, Reason.PVC_ERROR, error)
            raise
        context.job_info.last_errors.pop(Reason.PVC_ERROR, None)
        if job is context.job:
            context.job_info.pvcs_synced_for = context.desired_state.spec_key
        else:  # the claim names are in its spec now; the next sync needs them
            context.job_info.last_written_job = job
        context.requeue = True

    async def _ensure_plugin_objects(
        self, context: SyncContext, effect: fx.EnsurePluginObjects
    ) -> None:
        # Before the writes, because an object may be deleted during them.
        synced_for = context.job_info.plugin_objects_key(context.desired_state)
        try:
            await self._plugin_objects.ensure(
                context.job, context.desired_state.plugins, context.job_info.plugin_object_uids
            )
        except ApiError as error:
            self._record_error(context, Reason.PLUGIN_ERROR, error)
            raise
        if context.job_info.last_errors.pop(Reason.PLUGIN_ERROR, None):
            context.requeue = True  # the status shows the error
        for warning in context.desired_state.plugins.warnings(context.job):
            self.record_event(context.job, Reason.PLUGIN_ERROR, warning, warning=True)
        context.job_info.plugin_objects_synced_for = synced_for
        context.job_info.plugin_objects_deleted = False

    async def _delete_plugin_objects(
        self, context: SyncContext, effect: fx.DeletePluginObjects
    ) -> None:
        # The write that removes the marks from the status may be delayed.
        if not context.job_info.plugin_objects_deleted:
            try:
                await self._plugin_objects.delete(
                    context.job, context.desired_state.plugins, context.job_info.plugin_object_uids
                )
            except PluginError as error:  # the garbage collector deletes the other objects
                self.record_event(context.job, Reason.PLUGIN_ERROR, str(error), warning=True)
            context.job_info.plugin_objects_synced_for = None
            context.job_info.plugin_objects_deleted = True

    # Commands, events and time.

    async def _delete_command(self, context: SyncContext, effect: fx.DeleteCommand) -> None:
        if context.command is not None:
            await self.delete_command(context.key, context.command)
        context.requeue = True

    async def _drop_events(self, context: SyncContext, effect: fx.DropLifecycleEvents) -> None:
        context.job_info.pod_tracker.drop_events(effect.events)

    async def _defer_events(self, context: SyncContext, effect: fx.DeferLifecycleEvents) -> None:
        context.job_info.pod_tracker.defer_events(effect.due_at, inputs=effect.inputs)

    async def _record_event(self, context: SyncContext, effect: fx.RecordEvent) -> None:
        if effect.warning:
            if effect.message == context.job_info.last_warnings.get(effect.reason):
                return
            context.job_info.last_warnings[effect.reason] = effect.message
        self.record_event(context.job, effect.reason, effect.message, warning=effect.warning)

    async def _requeue_after(self, context: SyncContext, effect: fx.RequeueAfter) -> None:
        context.request_requeue(effect.seconds)


def _was_rejected(error: BaseException) -> bool:
    """Whether a write that failed with *error* had and will have no effect."""
    return isinstance(error, RequeueError) or was_rejected(error)


def _pod_name(context: SyncContext, task: TaskSpec, index: int) -> str:
    return pods.name_of(context.job, task.name, index)
