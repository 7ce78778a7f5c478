"""Executes effects: every write of the job controller is here.

Each effect updates what the next decision is based on at once, so that this does not depend on the
informers: the own writes in the caches, the job's pod tracker, its
:class:`~batholith.job_ctrl.job_info.JobInfo`.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, assert_never

import msgspec

from ..kube.client.client import Client, WriteLimit
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
from ..machinery.change_rate import ChangeRate
from ..machinery.clock import Clock
from ..machinery.controller import RequeueError, requeue_on_conflict
from ..machinery.expectations import TTL, Expectations
from ..machinery.merge_patch import merge_patch
from ..machinery.priority_semaphore import PrioritySemaphore
from ..machinery.reconcile.cache import WriteThroughCache
from ..machinery.reconcile.commands import Commands
from ..machinery.reconcile.controller import RequeueAfter, Sync
from ..machinery.reconcile.events import Event, Events, Notices
from ..model import names
from ..model.job import JobPhase, TaskSpec
from ..model.job_defaults import DefaultedJob
from ..model.job_reasons import Reason
from ..model.meta import HasMeta, ObjectMeta
from ..model.placement import REQUEST_SECONDS
from ..model.podgroup import PodGroup, PodGroupSpec
from . import effects as fx
from . import native_podgroups, podgroups, pods
from .creation.placement import Unplaced
from .creation.planned_creation import PlannedCreation
from .creation.plugin_objects import PluginObjects
from .creation.pvcs import VolumeClaimNotFoundError, VolumeClaims
from .job_info import JobSync
from .metrics import JobMetrics
from .plugins.errors import PluginError
from .settings import JobSettings
from .tracker.core_types import Pod
from .tracker.pod_info import PodInfo, parse_pod

log = logging.getLogger(__name__)

_PODS_PER_SECOND = 100.0
"""Pods that delay the priority of a job by one second."""
_Member = tuple[TaskSpec, int]
_PERSISTENT_ERRORS = (AlreadyExistsError, ForbiddenError, InvalidError)
"""Errors that persist until the job or its namespace changes."""


@dataclass(kw_only=True)
class JobExecutor:
    """Executes the effects on one job in their order."""

    client: Client
    clock: Clock
    settings: JobSettings
    jobs: WriteThroughCache[DefaultedJob]
    podgroups: WriteThroughCache[PodGroup]
    commands: Commands
    expectations: Expectations
    events: Events
    notices: Notices
    metrics: JobMetrics
    change_rate: ChangeRate
    planned: PlannedCreation
    recheck: Callable[[str], None]
    """Called with the key of a job for which something was written that informers report."""

    def __post_init__(self) -> None:
        """Create what the executor alone uses."""
        self._plugin_objects = PluginObjects(self.client)
        self._volume_claims = VolumeClaims(self.client)
        self._write_slots = PrioritySemaphore(self.settings.max_writes_in_flight)
        self._initial_batches = InitialBatches()
        """By namespace."""
        self._keeps_groups = False
        """Whether the API server has kept the PodGroup of Kubernetes itself that a pod names."""

    @property
    def waiting_writes(self) -> int:
        """Number of pods that wait to be created or deleted."""
        return self._write_slots.waiting

    async def execute(self, sync: Sync, seen: JobSync, effect: fx.Effect) -> None:
        """Execute one effect.

        Raises:
            RequeueError: a conflict, or the informers are stale.
            ApiError, ConnectionLostError: the API server is unavailable or rejected a request.
            PluginError: a plugin of the job failed; an event is recorded on the job.
        """
        try:
            await self._execute(sync, seen, effect)
        except PluginError as error:
            self._record_error(seen, Reason.PLUGIN_ERROR, str(error))
            raise

    async def _execute(  # noqa: C901, PLR0912 - one branch per effect
        self, sync: Sync, seen: JobSync, effect: fx.Effect
    ) -> None:
        match effect:
            case fx.SetStatus():
                await self._set_status(sync, seen, effect)
            case fx.CreatePodGroup():
                await self._create_podgroup(sync, seen, effect)
            case fx.CreatePods():
                await self._create_pods(sync, seen, effect)
            case Event():
                self._record_event(seen, effect)
            case fx.DropLifecycleEvents(events):
                seen.tracker.drop_events(events)
            case fx.DeferLifecycleEvents(due_at, inputs):
                seen.tracker.defer_events(due_at, inputs=inputs)
            case RequeueAfter(seconds):
                sync.after(seconds)
            case fx.UpdatePodGroup():
                await self._update_podgroup(sync, seen, effect)
            case fx.DeletePodGroup():
                await self._delete_podgroup(sync, seen, effect)
            case fx.DeletePods():
                await self._delete_pods(sync, seen, effect)
            case fx.RemoveLostPods():
                await self._remove_lost_pods(sync, seen, effect)
            case fx.EnsureVolumeClaims():
                await self._ensure_volume_claims(sync, seen)
            case fx.EnsurePluginObjects():
                await self._ensure_plugin_objects(sync, seen)
            case fx.DeletePluginObjects():
                await self._delete_plugin_objects(seen)
            case fx.DeleteCommand():
                if seen.command is not None:
                    await self.commands.delete(sync.key, seen.command)
                sync.again = True
            case fx.DeleteJob():
                await self.jobs.delete(seen.job.metadata, unmodified=True, propagation="Foreground")
            case _:
                assert_never(effect)

    def _record_event(self, seen: JobSync, event: Event) -> None:
        """Record an event; a warning only if it is not the last one with its reason."""
        record = self.notices.replace if event.warning else self.events.record
        record(seen.job.metadata, event)

    def _record_error(self, seen: JobSync, reason: Reason, error: ApiError | str) -> None:
        """Record an event for *error*; keep a persistent error for the status of the job."""
        message = error if isinstance(error, str) else error.message
        self.events.warning(seen.job.metadata, reason, message)
        if isinstance(error, (str, *_PERSISTENT_ERRORS)):
            seen.info.last_errors[reason] = message

    # The status.

    async def _set_status(self, sync: Sync, seen: JobSync, effect: fx.SetStatus) -> None:
        job, info = seen.job, seen.info
        if not effect.immediate and self._delay_status(sync, seen):
            return
        info.counts_stale_since = None
        patch = merge_patch(msgspec.to_builtins(job.status), msgspec.to_builtins(effect.status))
        if not patch:
            return
        try:
            await self.jobs.patch_status(job.metadata, patch)
        except (ForbiddenError, InvalidError) as error:
            self.events.warning(job.metadata, Reason.STATUS_ERROR, error.message)
            raise
        sync.again = True

    def _delay_status(self, sync: Sync, seen: JobSync) -> bool:
        """Have outdated counts, or a first status, written later if that may still be delayed.

        The kernel's ``CountThrottle`` writes the first change at once and delays the next ones.
        Here the first one waits too, the longer the more jobs change: most jobs of a burst reach
        their next phase, which writes the counts, before that.
        """
        info, settings = seen.info, self.settings
        if info.counts_stale_since is None:
            info.counts_stale_since = self.clock.monotonic()
        remaining = self.change_rate.remaining_delay(
            info.counts_stale_since,
            min_delay=settings.status_delay,
            max_delay=settings.max_status_delay,
        )
        if remaining > 0:
            sync.after(remaining)
            info.status_delayed = True
        return remaining > 0

    # The PodGroup.

    async def _create_podgroup(self, sync: Sync, seen: JobSync, effect: fx.CreatePodGroup) -> None:
        plugins, use = seen.desired_state.plugins, seen.info.plan_use
        body: HasMeta
        try:
            if self.settings.native_podgroups is not None:
                body = self._native_podgroup(seen, effect.spec)
            else:
                members = self.planned.description_of(seen.job, plugins, use)
                body = podgroups.build(seen.job, effect.spec, members=members)
            # If it exists, it is this job's: the name contains the job's uid.
            created = await self.podgroups.create_or_get(body)
        except ApiError as error:
            self._record_error(seen, Reason.PODGROUP_ERROR, error)
            raise
        log.info("podgroup created", extra={"job": sync.key, "podgroup": created.metadata.key})
        self._podgroup_written(sync, seen)
        # A job that has no pods and no errors does not change until the scheduler acts.
        is_waiting = podgroups.is_waiting(created) and not podgroups.spec_patch(
            created.spec, effect.spec
        )
        is_idle = is_waiting and not len(seen.tracker) and not seen.info.last_errors
        sync.again = sync.again or not is_idle

    def _native_podgroup(self, seen: JobSync, spec: PodGroupSpec) -> HasMeta:
        """Return the PodGroup of Kubernetes itself to create, and warn of what it cannot express.

        Raises:
            InvalidError: the job may not run without that.
        """
        if problem := native_podgroups.impossible(seen.job):
            text = f"not supported by the gang provider native: {problem}"
            raise InvalidError(text, status=422, reason="Invalid")
        if lost := native_podgroups.without_effect(seen.job, spec):
            text = f"without effect with the gang provider native: {'; '.join(lost)}"
            self._record_event(seen, Event(Reason.GANG_LIMITS, text, warning=True))
        return native_podgroups.build(seen.job, spec)

    async def _update_podgroup(self, sync: Sync, seen: JobSync, effect: fx.UpdatePodGroup) -> None:
        body: Mapping[str, Any] = {"spec": effect.spec}
        native, current = (
            self.settings.native_podgroups,
            self.podgroups.get(podgroups.key_of(seen.job)),
        )
        if native is not None and current is not None:
            desired = seen.desired_state.podgroup_spec
            body = native_podgroups.patch(current, desired, native)
            if limits := native_podgroups.unchangeable(current, desired, native):
                self._record_event(seen, Event(Reason.GANG_LIMITS, limits, warning=True))
        try:
            await self.podgroups.patch(effect.observed, body)
        except ApiError as error:
            self._record_error(seen, Reason.PODGROUP_ERROR, error)
            raise
        self._podgroup_written(sync, seen)
        sync.again = True

    def _podgroup_written(self, sync: Sync, seen: JobSync) -> None:
        seen.info.last_errors.pop(Reason.PODGROUP_ERROR, None)
        self.recheck(sync.key)

    async def _delete_podgroup(self, sync: Sync, seen: JobSync, effect: fx.DeletePodGroup) -> None:
        name, namespace = podgroups.name_of(seen.job), seen.job.metadata.namespace
        meta = ObjectMeta(name=name, namespace=namespace, uid=effect.uid)
        await self.podgroups.delete(meta)
        log.info("podgroup deleted", extra={"job": sync.key})
        sync.again = True

    # Pods.

    async def _create_pods(self, sync: Sync, seen: JobSync, effect: fx.CreatePods) -> None:
        """Create pods with a slow start; the tracker holds each one as soon as it is created."""
        expectations = self.expectations
        by_name = {task.name: task for task in seen.job.spec.tasks}
        desired = [
            (by_name[task], index) for task, indices in effect.indices.items() for index in indices
        ]
        priority, conflicts = self._priority(len(desired)), list[AlreadyExistsError]()
        existing: list[_Member] = []

        async def create(pod: _Member) -> None:
            await self._write_slots.acquire(priority)
            try:
                if seen.tracker.has_index(pod[0].name, pod[1]):
                    # Created by a former leader and observed while this batch was being created:
                    # no further event would end the expectation.
                    existing.append(pod)
                    return
                await self._create_pod(sync, seen, pod, effect.description)
            except AlreadyExistsError as error:  # does not affect the other pods
                conflicts.append(error)
                expectations.observe(sync.key, _pod_name(seen, *pod))
            finally:
                self._write_slots.release()

        namespace = seen.job.metadata.namespace
        initial = self._initial_batches[namespace]
        self.recheck(sync.key)
        outcome = await slow_start(desired, create, initial=initial)
        created = len(outcome.succeeded) - len(conflicts) - len(existing)
        self._initial_batches.update(namespace, created, failed=bool(outcome.failed))
        written = bool(created or existing)
        sync.again |= written and not self._only_counts_differ(sync, seen, effect, created)
        if created:
            log.info("pods created", extra={"job": sync.key, "pods": created})
        for pod, failure in outcome.failed:
            if _was_rejected(failure):  # otherwise the pod may exist
                expectations.observe(sync.key, _pod_name(seen, *pod))
        error = outcome.first_error or next(iter(conflicts), None)
        if error is None:
            for reason in (Reason.FAILED_CREATE, Reason.PLUGIN_ERROR):
                seen.info.last_errors.pop(reason, None)
            return
        if isinstance(error, ApiError):
            self._record_error(seen, Reason.FAILED_CREATE, error)
        raise error

    def _only_counts_differ(
        self, sync: Sync, seen: JobSync, effect: fx.CreatePods, created: int
    ) -> bool:
        """Whether nothing but counts, which are written later, follows from *created* pods.

        That is mostly so in phase Pending, until one of them starts.
        """
        job, tracker = seen.job, seen.tracker
        return (
            job.status.state.phase in ("", JobPhase.PENDING)
            and job.spec.min_available > 0
            and created == sum(map(len, effect.indices.values()))
            and not (effect.description or seen.info.last_errors)
            and tracker.all_pending
            and not tracker.has_events
            and self._delay_status(sync, seen)
        )

    async def _create_pod(self, sync: Sync, seen: JobSync, pod: _Member, description: str) -> None:
        expectations, name = self.expectations, _pod_name(seen, *pod)
        body = pods.build(seen.job, *pod)
        seen.desired_state.plugins.mutate_pod(body, seen.job)
        pods.set_description(body, description)
        if self.settings.native_podgroups is not None:
            native_podgroups.set_group(body, seen.job, tuple(self.settings.scheduler_names))
        expectations.expect(sync.key, (name,))
        try:
            if self.settings.native_podgroups is not None:
                await self._require_groups(seen, body)
            created = await self._post_pod(seen, body, *pod)
            if self.settings.native_podgroups is not None and not created.spec.scheduling_group:
                await self._reject_ungrouped(seen, created)
            self.metrics.pod_created(seen.job, created.metadata.creation_timestamp)
        except AlreadyExistsError as error:
            created = await self._adopt_pod(seen, name, error)
        if self.settings.plans_creation:
            seen.info.plan_use.observe_created(pod[0].name, pod[1])
        # If the informer was faster, the tracker holds the pod, or has removed it, already.
        if expectations.set_created(sync.key, name, created.metadata.uid):
            info = parse_pod(created)
            if info is not None:
                seen.tracker.add_created(info)

    async def _post_pod(self, seen: JobSync, body: pods.Pod, task: TaskSpec, index: int) -> Pod:
        """Create a pod: with a node if the plan that is valid now has one for it."""
        info, planned = seen.info, self.planned
        use, podgroup = info.plan_use, self.podgroups.get(podgroups.key_of(seen.job))
        plan = planned.plan_for(seen.job, podgroup, seen.desired_state.plugins, use)
        node = planned.node_for(use, plan, task.name, index, body=body)
        if plan is not None and node:
            body["spec"]["nodeName"] = node
            limit = WriteLimit(int(REQUEST_SECONDS), guard=lambda: planned.require_valid(plan))
            try:
                created = await self.client.create(
                    names.PODS, body, namespace=seen.job.metadata.namespace, view=Pod, limit=limit
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
        return await self.client.create(
            names.PODS, body, namespace=seen.job.metadata.namespace, view=Pod
        )

    async def _require_groups(self, seen: JobSync, body: pods.Pod) -> None:
        """Check by a dry run that the API server keeps the PodGroup that the pod *body* names,
        until it has done so once: a pod that was created without could start before it is deleted.

        Raises:
            InvalidError: it does not.
        """
        if self._keeps_groups:
            return
        namespace = seen.job.metadata.namespace
        found = await self.client.create(
            names.PODS, body, namespace=namespace, view=Pod, dry_run=True
        )
        if not found.spec.scheduling_group:
            raise InvalidError(native_podgroups.GATE_OFF, status=422, reason="Invalid")
        self._keeps_groups = True

    async def _reject_ungrouped(self, seen: JobSync, pod: Pod) -> None:
        """Delete a pod that would start without its gang: the API server was started again with
        other feature gates.

        Raises:
            InvalidError: it does not exist any more.
        """
        self._keeps_groups = False
        meta = pod.metadata
        await self.client.delete(
            names.PODS, meta.name, namespace=meta.namespace, uid=meta.uid, grace_period=0
        )
        raise InvalidError(native_podgroups.GATE_OFF, status=422, reason="Invalid")

    async def _adopt_pod(self, seen: JobSync, name: str, error: AlreadyExistsError) -> Pod:
        """Return the existing pod of this name if it is the one that was to be created."""
        found = await self.client.get(
            names.PODS, name, namespace=seen.job.metadata.namespace, view=Pod
        )
        pod = parse_pod(found)
        if pod is None or pod.owner != seen.job.metadata.uid:
            text = f'pod "{name}" already exists and is not controlled by this job'
            raise AlreadyExistsError(text, status=409, reason="AlreadyExists") from error
        if names.JOB_NAME not in found.metadata.labels:
            raise error  # the informer selects by this label and never reports the pod
        if pod.version != seen.job.status.version or pod.terminating:
            raise RequeueError(f'older pod "{name}" still exists') from error
        return found

    async def _delete_pods(self, sync: Sync, seen: JobSync, effect: fx.DeletePods) -> None:
        """Delete pods; policies must not take that for an eviction.

        It is none as soon as the request may have been sent, and as long as a request that got no
        response may still take effect.
        """
        tracker, priority = seen.tracker, self._priority(len(effect.pods))
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
                    await self._delete_pod(seen, pod, version, effect.extra_grace)
                finally:
                    self._write_slots.release()
            except BaseException as error:
                if not version or _was_rejected(error):
                    tracker.unmark_deleting((pod.uid,))
                else:
                    until = self.clock.monotonic() + TTL
                    tracker.mark_unconfirmed_deletion(
                        pod.uid, resource_version=version, until=until
                    )
                raise

        outcome = await run_concurrently(effect.pods, delete)
        sync.again = sync.again or bool(outcome.succeeded)
        if outcome.succeeded:
            log.info("pods deleted", extra={"job": sync.key, "pods": len(outcome.succeeded)})
        error = outcome.first_error
        if error is not None:
            if isinstance(error, ApiError):
                self.events.warning(seen.job.metadata, Reason.FAILED_DELETE, error.message)
            raise error

    async def _delete_pod(
        self, seen: JobSync, pod: PodInfo, version: str, extra_grace: int
    ) -> None:
        """Delete a pod that has this version, unless it is deleted already.

        Raises:
            RequeueError: it was modified, or another one has its name, which the informer will
                report; but it may still exist.
        """
        try:
            with requeue_on_conflict(pod.name):
                await self.client.delete(
                    names.PODS,
                    pod.name,
                    namespace=seen.job.metadata.namespace,
                    uid=pod.uid,
                    resource_version=version,
                    grace_period=pod.grace_period + extra_grace if extra_grace else None,
                )
        except NotFoundError:
            log.debug("pod already deleted", extra={"job": seen.job.metadata.key, "pod": pod.name})

    async def _remove_lost_pods(self, sync: Sync, seen: JobSync, effect: fx.RemoveLostPods) -> None:
        """Remove pods that their kubelets do not; they are terminating, so it is no eviction."""
        priority = self._priority(len(effect.pods))

        async def remove(pod: PodInfo) -> None:
            seen.tracker.mark_removed(pod.uid)
            try:
                await self._write_slots.acquire(priority)
                try:
                    await self.client.delete(
                        names.PODS,
                        pod.name,
                        namespace=seen.job.metadata.namespace,
                        uid=pod.uid,
                        grace_period=0,
                    )
                finally:
                    self._write_slots.release()
            except NotFoundError:
                log.debug("pod already deleted", extra={"job": sync.key, "pod": pod.name})
            except BaseException:
                seen.tracker.unmark_removed(pod.uid)
                raise

        outcome = await run_concurrently(effect.pods, remove)
        if outcome.first_error is not None:
            raise outcome.first_error

    def _priority(self, pods: int) -> float:
        """Return the priority of a job that creates or deletes this number of *pods*.

        Jobs write in the order of their arrival, so that a gang is complete soon; but a small job
        overtakes the rest of a large one that arrived a little earlier.
        """
        return self.clock.monotonic() + pods / _PODS_PER_SECOND

    # Volumes and plugins' objects.

    async def _ensure_volume_claims(self, sync: Sync, seen: JobSync) -> None:
        try:
            written = await self._volume_claims.ensure(seen.job)
        except VolumeClaimNotFoundError as error:
            message, errors = str(error), seen.info.last_errors
            self._record_event(seen, Event(Reason.PVC_ERROR, message, warning=True))
            sync.again = errors.get(Reason.PVC_ERROR) != message
            errors[Reason.PVC_ERROR] = message
            sync.after(self.settings.pvc_recheck_interval)
            return
        except ApiError as error:
            self._record_error(seen, Reason.PVC_ERROR, error)
            raise
        seen.info.last_errors.pop(Reason.PVC_ERROR, None)
        if written is None:
            seen.info.pvcs_synced_for = seen.desired_state.spec_key
        else:  # the claim names are in its spec now; the next sync needs them
            self.jobs.wrote(written)
        sync.again = True

    async def _ensure_plugin_objects(self, sync: Sync, seen: JobSync) -> None:
        # Before the writes, because an object may be deleted during them.
        synced_for = seen.info.plugin_objects_key(seen.desired_state)
        try:
            await self._plugin_objects.ensure(
                seen.job, seen.desired_state.plugins, seen.info.plugin_object_uids
            )
        except ApiError as error:
            self._record_error(seen, Reason.PLUGIN_ERROR, error)
            raise
        if seen.info.last_errors.pop(Reason.PLUGIN_ERROR, None):
            sync.again = True  # the status shows the error
        for warning in seen.desired_state.plugins.warnings(seen.job):
            self.events.warning(seen.job.metadata, Reason.PLUGIN_ERROR, warning)
        seen.info.plugin_objects_synced_for = synced_for
        seen.info.plugin_objects_deleted = False

    async def _delete_plugin_objects(self, seen: JobSync) -> None:
        # The write that removes the marks from the status may be delayed.
        if not seen.info.plugin_objects_deleted:
            try:
                await self._plugin_objects.delete(
                    seen.job, seen.desired_state.plugins, seen.info.plugin_object_uids
                )
            except PluginError as error:  # the garbage collector deletes the other objects
                self.events.warning(seen.job.metadata, Reason.PLUGIN_ERROR, str(error))
            seen.info.plugin_objects_synced_for = None
            seen.info.plugin_objects_deleted = True


def _was_rejected(error: BaseException) -> bool:
    """Whether a write that failed with *error* had and will have no effect."""
    return isinstance(error, RequeueError) or was_rejected(error)


def _pod_name(seen: JobSync, task: TaskSpec, index: int) -> str:
    return pods.name_of(seen.job, task.name, index)
