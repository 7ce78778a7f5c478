"""Executes effects: every write of the job controller is here.

Each effect updates the job's :class:`~batholith.job_ctrl.job_info.JobInfo` at once, so that the
next decision sees it before the informers do.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ..kube.client.client import Client
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
from ..machinery.change_rate import ChangeRate
from ..machinery.clock import Clock
from ..machinery.controller import RequeueError, ShardedQueue
from ..machinery.event_recorder import Recorder, object_reference
from ..machinery.expectations import Expectations
from ..machinery.priority_semaphore import PrioritySemaphore
from ..model import names
from ..model.job import Job, TaskSpec
from ..model.meta import ObjectMeta, preconditions
from ..model.podgroup import PodGroup
from . import effects as fx
from . import pod_tracker, podgroups, pods, status
from .core_types import Pod
from .defaults import DefaultedJob
from .job_info import UNOBSERVED_TIMEOUT, DesiredState, JobInfo
from .job_view import CommandRef
from .metrics import JobMetrics
from .plugin_objects import PluginObjects
from .plugins.errors import PluginError
from .pvcs import VolumeClaimNotFoundError, VolumeClaims
from .settings import JobSettings

log = logging.getLogger(__name__)

_PODS_PER_SECOND = 100.0
"""Pods a second by which a job's size counts for its place in line."""
_MAX_INITIAL_BATCH = 64
"""Pods that are tried together at most before one has been made."""
_PERSISTENT_ERRORS = (AlreadyExistsError, ForbiddenError, InvalidError)
"""Refusals that time alone does not cure."""


@dataclass(slots=True, kw_only=True)
class SyncContext:
    """One look at one job: what it is about, and what came of it."""

    key: str
    job: Job
    job_info: JobInfo
    desired_state: DesiredState
    command: CommandRef | None = None
    requeue: bool = False
    """Something was done that asks for another look at once."""
    requeue_after: float | None = None
    """Seconds until the next look, if nothing happens before."""

    @property
    def namespace(self) -> str:
        """The job's namespace."""
        return self.job.metadata.namespace

    def request_requeue(self, seconds: float) -> None:
        """Look again in *seconds*, or sooner if that was asked for already."""
        self.requeue_after = (
            seconds if self.requeue_after is None else min(seconds, self.requeue_after)
        )


@dataclass(slots=True, kw_only=True)
class ExecutorDeps:
    """What the executor works with."""

    client: Client
    clock: Clock
    workqueue: ShardedQueue
    expectations: Expectations
    recorder: Recorder | None
    metrics: JobMetrics
    settings: JobSettings
    change_rate: ChangeRate


class Executor:
    """Does what decisions ask for, in their order."""

    def __init__(self, deps: ExecutorDeps) -> None:
        self._deps = deps
        self._client = deps.client
        self._plugin_objects = PluginObjects(deps.client)
        self._volume_claims = VolumeClaims(deps.client)
        self._write_slots = PrioritySemaphore(deps.settings.max_writes_in_flight)
        # Pods that may be made together at first, by namespace: a power of two.
        self._initial_batch: dict[str, int] = {}
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
        """Do *effects* one after the other; the first error leaves the rest undone.

        Raises:
            TryAgainError: somebody else was faster, or the caches are behind.
            ApiError, ConnectionLostError: the server could not be asked, or refused.
            PluginError: a plugin of the job's failed, which the job has been told.
        """
        for effect in effects:
            try:
                await self._handlers[type(effect)](context, effect)
            except PluginError as error:
                self._record_error(context, fx.Reason.PLUGIN_ERROR, str(error))
                raise

    async def delete_command(self, key: str, command: CommandRef) -> None:
        """Delete a Command that is carried out or void, then take it from the mailbox."""
        namespace = key.partition("/")[0]
        await self._delete(names.COMMANDS, command.name, namespace=namespace, uid=command.uid)
        self._deps.workqueue.pop_item(key)
        log.info("command done", extra={"job": key, "action": command.action})

    def record_invalid_command(self, command: ObjectMeta, problem: str) -> None:
        """Say on a Command why it cannot be obeyed."""
        log.warning("command cannot be obeyed", extra={"command": command.key, "why": problem})
        if self._deps.recorder is not None:
            self._deps.recorder.record(
                object_reference(names.COMMANDS, command),
                type="Warning",
                reason=fx.Reason.INVALID_TARGET,
                message=problem,
            )

    async def reject_command(self, key: str, command: CommandRef, problem: str) -> None:
        """Say on a Command why it can never be obeyed, and delete it."""
        namespace = key.partition("/")[0]
        self.record_invalid_command(
            ObjectMeta(name=command.name, namespace=namespace, uid=command.uid), problem
        )
        await self.delete_command(key, command)

    async def _delete(
        self, resource: names.Resource, name: str, *, namespace: str, uid: str, version: str = ""
    ) -> None:
        """Delete an object, unless it is gone already.

        Raises:
            TryAgainError: a conflict. Most likely it has changed, or another object has the name
                by now, which the cache will say; but the object may be there still.
        """
        try:
            await self._client.delete(
                resource, name, namespace=namespace, uid=uid, resource_version=version
            )
        except NotFoundError:
            pass  # the cache will say so
        except ConflictError as error:
            raise RequeueError(f"{name} could not be deleted just now") from error

    def record_event(
        self, job: Job, reason: fx.Reason, message: str, *, warning: bool = False
    ) -> None:
        """Record an event on *job*."""
        if self._deps.recorder is not None:
            self._deps.recorder.record(
                object_reference(names.JOBS, job.metadata),
                type="Warning" if warning else "Normal",
                reason=reason,
                message=message,
            )

    def _record_error(self, context: SyncContext, reason: fx.Reason, error: ApiError | str) -> None:
        """Tell of an *error*; what time alone does not cure shall stand in the status, too."""
        message = error if isinstance(error, str) else error.message
        self.record_event(context.job, reason, message, warning=True)
        if isinstance(error, (str, *_PERSISTENT_ERRORS)):
            context.job_info.last_errors[reason] = message

    # The job itself.

    async def _set_status(self, context: SyncContext, effect: fx.SetStatus) -> None:
        job, case = context.job, context.job_info
        if not effect.immediate:
            if case.counts_stale_since is None:
                case.counts_stale_since = self._deps.clock.monotonic()
            left = self._remaining_delay(case.counts_stale_since)
            if left > 0:
                context.request_requeue(left)
                return
        case.counts_stale_since = None
        patch = status.merge_patch(
            msgspec.to_builtins(job.status), msgspec.to_builtins(effect.status)
        )
        if not patch:
            return
        was, phase = job.status.state.phase, effect.status.state.phase
        try:
            case.last_written_job = await self._patch_status(job, patch)
        except BaseException as error:
            if phase != was and not _was_rejected(error):
                case.unconfirmed_transition = (was, phase)
            raise
        if phase != was:
            self._phase_entered(context.key, job, case, was=was, phase=phase)
        context.requeue = True

    async def _patch_status(self, job: Job, patch: Mapping[str, object]) -> Job:
        version = {"resourceVersion": job.metadata.resource_version}
        try:
            return await self._client.patch(
                names.JOBS,
                job.metadata.name,
                {"metadata": version, "status": patch},
                namespace=job.metadata.namespace,
                subresource="status",
                view=DefaultedJob,
            )
        except ConflictError as error:
            raise RequeueError("the job has changed meanwhile") from error
        except NotFoundError as error:
            raise RequeueError("the job is gone") from error
        except (ForbiddenError, InvalidError) as error:
            self.record_event(job, fx.Reason.STATUS_ERROR, error.message, warning=True)
            raise

    def confirm_transition(self, key: str, job: Job, job_info: JobInfo) -> None:
        """Take note of a phase whose write was carried out though no answer came."""
        if (
            job_info.unconfirmed_transition is None
            or job.status.state.phase == job_info.unconfirmed_transition[0]
        ):
            return
        was, phase = job_info.unconfirmed_transition
        job_info.unconfirmed_transition = None
        if job.status.state.phase == phase:
            self._phase_entered(key, job, job_info, was=was, phase=phase)

    def _phase_entered(
        self, key: str, job: Job, job_info: JobInfo, *, was: str, phase: str
    ) -> None:
        self._deps.metrics.phase_entered(job, phase)
        job_info.unconfirmed_transition = None
        job_info.last_errors.clear()  # the next phase finds out for itself
        log.info("job phase", extra={"job": key, "phase": phase, "was": was})

    def _remaining_delay(self, stale_since: float) -> float:
        """Seconds that numbers may still wait that are wrong *since*."""
        settings = self._deps.settings
        return self._deps.change_rate.remaining_delay(
            stale_since, min_delay=settings.status_delay, max_delay=settings.max_status_delay
        )

    async def _delete_job(self, context: SyncContext, effect: fx.DeleteJob) -> None:
        meta = context.job.metadata
        try:
            await self._client.delete(
                names.JOBS,
                meta.name,
                namespace=meta.namespace,
                uid=meta.uid,
                resource_version=meta.resource_version,
                propagation="Foreground",
            )
        except ConflictError as error:
            raise RequeueError("the job has changed meanwhile") from error
        except NotFoundError:
            pass  # somebody else had the same thought

    # Its PodGroup.

    async def _create_podgroup(self, context: SyncContext, effect: fx.CreatePodGroup) -> None:
        body = podgroups.build(context.job, effect.spec)
        try:
            made = await self._client.create(
                names.PODGROUPS, body, namespace=context.namespace, view=PodGroup
            )
        except AlreadyExistsError:  # its name holds the job's uid, so it is ours
            made = await self._client.get(
                names.PODGROUPS, body.metadata.name, namespace=context.namespace, view=PodGroup
            )
        except ApiError as error:
            self._record_error(context, fx.Reason.PODGROUP_ERROR, error)
            raise
        log.info("podgroup created", extra={"job": context.key, "podgroup": made.metadata.key})
        self._podgroup_written(context, made)

    async def _update_podgroup(self, context: SyncContext, effect: fx.UpdatePodGroup) -> None:
        try:
            changed = await self._client.patch(
                names.PODGROUPS,
                podgroups.name_of(context.job),
                {"metadata": preconditions(effect.observed), "spec": effect.spec},
                namespace=context.namespace,
                view=PodGroup,
            )
        except NotFoundError as error:
            raise RequeueError("the PodGroup is gone") from error
        except ConflictError as error:
            raise RequeueError("the PodGroup has changed meanwhile") from error
        except ApiError as error:
            self._record_error(context, fx.Reason.PODGROUP_ERROR, error)
            raise
        self._podgroup_written(context, changed)

    def _podgroup_written(self, context: SyncContext, podgroup: PodGroup) -> None:
        context.job_info.last_errors.pop(fx.Reason.PODGROUP_ERROR, None)
        context.job_info.last_written_podgroup = podgroup
        context.job_info.podgroup_written_at = self._deps.clock.monotonic()
        context.requeue = True

    async def _delete_podgroup(self, context: SyncContext, effect: fx.DeletePodGroup) -> None:
        name = podgroups.name_of(context.job)
        await self._delete(names.PODGROUPS, name, namespace=context.namespace, uid=effect.uid)
        context.job_info.deleting_podgroup_uid = effect.uid
        log.info("podgroup deleted", extra={"job": context.key})
        context.requeue = True

    # Its pods.

    async def _create_pods(self, context: SyncContext, effect: fx.CreatePods) -> None:
        """Create pods with a slow start; what was made stands in the ledger at once."""
        expected = self._deps.expectations
        by_name = {task.name: task for task in context.job.spec.tasks}
        wanted = [
            (by_name[task], index) for task, indices in effect.indices.items() for index in indices
        ]

        rank, taken = self._priority(len(wanted)), list[AlreadyExistsError]()
        found: list[tuple[TaskSpec, int]] = []

        async def create(pod: tuple[TaskSpec, int]) -> None:
            async with self._write_slots.slot(rank):
                if context.job_info.pod_tracker.has_index(pod[0].name, pod[1]):
                    # A former leader's, that came meanwhile: it will not be shown once more.
                    found.append(pod)
                    return
                try:
                    await self._create_pod(context, *pod)
                except AlreadyExistsError as error:  # which says nothing about the other pods
                    taken.append(error)
                    expected.observe(context.key, _pod_name(context, *pod))

        first = self._initial_batch.get(context.namespace, 1)
        outcome = await slow_start(wanted, create, initial=first)
        made = len(outcome.succeeded) - len(taken) - len(found)
        self._adjust_slow_start(context.namespace, made, failed=bool(outcome.failed))
        context.requeue = context.requeue or bool(made or found)
        if made:
            log.info("pods created", extra={"job": context.key, "pods": made})
        for pod, failure in outcome.failed:
            if _was_rejected(failure):  # else it may have been made all the same
                expected.observe(context.key, _pod_name(context, *pod))
        error = outcome.first_error or next(iter(taken), None)
        if error is None:
            for reason in (fx.Reason.FAILED_CREATE, fx.Reason.PLUGIN_ERROR):
                context.job_info.last_errors.pop(reason, None)
            return
        if isinstance(error, ApiError):
            self._record_error(context, fx.Reason.FAILED_CREATE, error)
        raise error

    def _adjust_slow_start(self, namespace: str, created: int, *, failed: bool) -> None:
        """Where pods have been taken, the next job need not begin with a single one."""
        if failed:
            self._initial_batch.pop(namespace, None)
        elif created:
            well = min(1 << (created.bit_length() - 1), _MAX_INITIAL_BATCH)
            self._initial_batch[namespace] = max(well, self._initial_batch.get(namespace, 1))

    async def _create_pod(self, context: SyncContext, task: TaskSpec, index: int) -> None:
        expected, name = self._deps.expectations, _pod_name(context, task, index)
        body = pods.build(context.job, task, index)
        context.desired_state.plugins.mutate_pod(body, context.job)
        expected.expect(context.key, (name,))
        context.job_info.pod_tracker.expect(name)
        try:
            made = await self._client.create(
                names.PODS, body, namespace=context.namespace, view=Pod
            )
            self._deps.metrics.pod_created(context.job, made.metadata.creation_timestamp)
        except AlreadyExistsError as error:
            made = await self._adopt_pod(context, name, error)
        entry = pod_tracker.parse_pod(made)
        if entry is not None:
            context.job_info.pod_tracker.add_unobserved(entry)

    async def _adopt_pod(self, context: SyncContext, name: str, error: AlreadyExistsError) -> Pod:
        """The pod that has the name already, if it is the one that we meant to make."""
        found = await self._client.get(names.PODS, name, namespace=context.namespace, view=Pod)
        entry = pod_tracker.parse_pod(found)
        if entry is None or entry.owner != context.job.metadata.uid:
            text = f"Pod {name} is there and does not belong to the job"
            raise AlreadyExistsError(text, status=409, reason="AlreadyExists") from error
        if names.JOB_NAME not in found.metadata.labels:
            raise error  # no watch will ever show it
        if entry.version != context.job.status.version or entry.terminating:
            raise RequeueError(f"an older pod {name} is still there") from error
        return found

    async def _delete_pods(self, context: SyncContext, effect: fx.DeletePods) -> None:
        """Ask pods to go; from before the call on, their end is our doing and no eviction.

        So it is as long as the request may have been carried out, whatever was answered.
        """
        books, rank = context.job_info.pod_tracker, self._priority(len(effect.pods))
        books.mark_deleting(pod.uid for pod in effect.pods)

        async def delete(pod: pod_tracker.PodInfo) -> None:
            revision = ""
            try:
                async with self._write_slots.slot(rank):
                    seen = books.get(pod.uid)
                    if seen is None:
                        return
                    if seen != pod:
                        raise RequeueError(f"pod {pod.name} has changed meanwhile")
                    revision = seen.resource_version
                    await self._delete(
                        names.PODS,
                        pod.name,
                        namespace=context.namespace,
                        uid=pod.uid,
                        version=revision,
                    )
            except BaseException as error:
                if not revision or _was_rejected(error):
                    books.unmark_deleting((pod.uid,))
                else:
                    until = self._deps.clock.monotonic() + UNOBSERVED_TIMEOUT
                    books.mark_unconfirmed_deletion(pod.uid, resource_version=revision, until=until)
                raise

        outcome = await run_concurrently(effect.pods, delete)
        context.requeue = context.requeue or bool(outcome.succeeded)
        if outcome.succeeded:
            log.info("pods deleted", extra={"job": context.key, "pods": len(outcome.succeeded)})
        error = outcome.first_error
        if error is not None:
            if isinstance(error, ApiError):
                self.record_event(context.job, fx.Reason.FAILED_DELETE, error.message, warning=True)
            raise error

    def _priority(self, pods: int) -> float:
        """Where a job that makes or removes so many *pods* stands in line for places.

        One after the other in the order in which they came, so that a gang is complete soon; but
        small ones before the rest of a large one that came a little earlier.
        """
        return self._deps.clock.monotonic() + pods / _PODS_PER_SECOND

    # Its volumes and its plugins' objects.

    async def _ensure_volume_claims(
        self, context: SyncContext, effect: fx.EnsureVolumeClaims
    ) -> None:
        try:
            job = await self._volume_claims.ensure(context.job)
        except VolumeClaimNotFoundError as error:
            said = fx.RecordEvent(fx.Reason.PVC_ERROR, str(error), warning=True)
            await self._record_event(context, said)
            context.requeue = context.job_info.last_errors.get(said.reason) != said.message
            context.job_info.last_errors[said.reason] = said.message
            context.request_requeue(self._deps.settings.pvc_recheck_interval)
            return
        except ApiError as error:
            self._record_error(context, fx.Reason.PVC_ERROR, error)
            raise
        context.job_info.last_errors.pop(fx.Reason.PVC_ERROR, None)
        if job is context.job:
            context.job_info.pvcs_synced_for = context.desired_state.spec_key
        else:  # the names are in its spec now, which the next look must see
            context.job_info.last_written_job = job
        context.requeue = True

    async def _ensure_plugin_objects(
        self, context: SyncContext, effect: fx.EnsurePluginObjects
    ) -> None:
        wanted = context.job_info.plugin_objects_key(
            context.desired_state
        )  # one may be lost meanwhile
        try:
            await self._plugin_objects.ensure(
                context.job, context.desired_state.plugins, context.job_info.plugin_object_uids
            )
        except ApiError as error:
            self._record_error(context, fx.Reason.PLUGIN_ERROR, error)
            raise
        context.job_info.last_errors.pop(fx.Reason.PLUGIN_ERROR, None)
        for complaint in context.desired_state.plugins.warnings(context.job):
            self.record_event(context.job, fx.Reason.PLUGIN_ERROR, complaint, warning=True)
        context.job_info.plugin_objects_synced_for, context.job_info.plugin_objects_deleted = (
            wanted,
            False,
        )
        context.requeue = True

    async def _delete_plugin_objects(
        self, context: SyncContext, effect: fx.DeletePluginObjects
    ) -> None:
        if not context.job_info.plugin_objects_deleted:  # the mark in the status may go later
            try:
                await self._plugin_objects.delete(
                    context.job, context.desired_state.plugins, context.job_info.plugin_object_uids
                )
            except PluginError as error:  # what it does not name goes with the job
                self.record_event(context.job, fx.Reason.PLUGIN_ERROR, str(error), warning=True)
            context.job_info.plugin_objects_synced_for, context.job_info.plugin_objects_deleted = (
                None,
                True,
            )

    # Words and times.

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
    """Whether a write that failed so has had no effect, and will have none."""
    return isinstance(error, RequeueError) or was_rejected(error)


def _pod_name(context: SyncContext, task: TaskSpec, index: int) -> str:
    return pods.name_of(context.job, task.name, index)
