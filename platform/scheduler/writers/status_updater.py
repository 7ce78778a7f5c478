"""The status updater: writes the status of PodGroups, pods and queues.

Only the latest desired status of an object is kept. A new phase or a new condition is written at
once; an update of counts or of a message is delayed until some time after the last write, so that
a thousand pods that start one by one are not a thousand writes of their PodGroup. So is, in a burst
alone, the phase Running after Inqueue: its job has the same status. An unchanged status is not
written. Every write has the resourceVersion that it is based on as a precondition, so that a
delayed write of a former leader fails.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from ...kube.client.client import Client, PatchType
from ...kube.client.events import EventType
from ...kube.errors import ApiError, ConflictError, NotFoundError, ServerError, TooManyRequestsError
from ...machinery.change_rate import ChangeRate
from ...machinery.clock import Clock
from ...machinery.controller import RequeueError, ShardedQueue, WorkerSettings, run_workers
from ...machinery.event_recorder import Recorder, object_reference
from ...machinery.rate_limiters import BucketRateLimiter, ExponentialFailureRateLimiter
from ...model import names
from ...model.log_fields import object_fields
from ...model.meta import MetadataOnly, ObjectMeta, ObjectReference
from ...model.podgroup import PodGroup, PodGroupPhase, PodGroupStatus
from ...model.queue import Queue
from ..framework.completeness import SCHEDULED
from ..framework.explanations import GangExplanation
from ..framework.podgroup_status import (
    UNSCHEDULABLE,
    PodGroupReport,
    PodScheduledCondition,
    condition_key,
    is_equal_status,
    with_transition_times,
)
from ..state.planning.planned_gang import PlanNote
from ..state.resources import amounts, to_resource_list
from .native_conditions import NativeConditions
from .pod_versions import PodVersions, is_newer

log = logging.getLogger(__name__)

PLANNED = "Planned"
"""Reason of the event that a gang is planned."""

_PODGROUP_PREFIX, _POD_PREFIX, _QUEUE_PREFIX = "group:", "pod:", "queue:"
_NATIVE_PREFIX = "native:"


@dataclass(frozen=True, slots=True)
class WriteIntervals:
    """Minimum seconds between two writes of one object that are not significant."""

    podgroup: float = 1.0
    podgroup_max: float = 30.0
    """Maximum delay of such a write while the change rate is high."""
    pod: float = 10.0
    queue: float = 1.0
    burst_size: int = 32
    """Number of PodGroups whose phase Running is written at once while the change rate is high."""
    start_rate: float = 2.0
    """Number of further ones per second."""
    start_max: float = 120.0
    """Maximum delay of the phase Running while the change rate is high."""


@dataclass(slots=True)
class _PodGroupState:
    """Desired and observed status of a PodGroup."""

    report: PodGroupReport
    observed: PodGroupStatus
    version: str
    uid: str
    annotation: str | None = None
    """The explanation that the PodGroup has."""
    written_why: GangExplanation | None = None
    """The explanation that *annotation* was encoded from, if this process wrote it."""
    plan: str | None = None
    """The plan that the PodGroup has."""
    domain: str | None = None
    """The HyperNode that the PodGroup has in its annotation."""
    written_at: float = float("-inf")
    stale_since: float | None = None
    """Since when desired and observed status differ, if the write is delayed."""
    start_due: float | None = None
    """When the phase Running is written in spite of a burst, if that is what differs."""

    def is_current(self) -> bool:
        """Return whether nothing is to be written."""
        return (
            is_equal_status(self.report.status, self.observed)
            and self.is_explained()
            and not self.is_plan_due()
            and self.is_domain_written()
        )

    def changed_annotations(self) -> dict[str, str | None]:
        """Return the annotations to write; ``None`` for one to be removed."""
        changed: dict[str, str | None] = {}
        if not self.is_explained():
            changed[names.WHY] = self.report.why.encode() if self.report.why else None
        if self.report.plan is not None and not self.is_planned():
            changed[names.PLAN] = self.report.plan.text
        if not self.is_domain_written():
            changed[names.ALLOCATED_HYPERNODE] = self.report.domain
        return changed

    def is_domain_written(self) -> bool:
        """Return whether the PodGroup has the HyperNode of its pods, if there is one. It keeps that
        when its pods are deleted."""
        return not self.report.domain or self.report.domain == self.domain

    def is_planned(self) -> bool:
        """Return whether the PodGroup has the desired plan, or rightly none."""
        return self.report.plan is None or self.report.plan.text == self.plan

    def is_plan_due(self) -> bool:
        """Return whether another plan is to be written now."""
        note = self.report.plan
        return note is not None and note.is_due and not self.is_planned()

    def is_starting(self) -> bool:
        """Return whether the only significant change is that an admitted gang is Running."""
        desired = self.report.status
        if (self.observed.phase, desired.phase) != (PodGroupPhase.INQUEUE, PodGroupPhase.RUNNING):
            return False
        same_phase = msgspec.structs.replace(self.observed, phase=desired.phase)
        return not _is_significant(desired, same_phase)

    def is_explained(self) -> bool:
        """Return whether the PodGroup has the desired explanation, or rightly none."""
        desired = self.report.why
        if desired is None or self.annotation is None:
            return desired is None and self.annotation is None
        return desired.is_same_as(self.written_why) or desired.is_shown_by(self.annotation)


@dataclass(slots=True)
class _PodState:
    condition: PodScheduledCondition
    observed_condition: tuple[str, str] | None
    written_at: float = float("-inf")
    why: GangExplanation | None = None
    """The explanation to write into the pod: its PodGroup is not stored."""


@dataclass(slots=True)
class _QueueState:
    allocated: Mapping[str, int]
    observed: Mapping[str, str | int | float]
    version: str
    uid: str
    written_at: float = float("-inf")
    is_scheduled: bool = False
    """Whether a write is due already."""


class StatusUpdater:
    """The only writer of PodGroup status, PodScheduled conditions and queues' ``allocated``."""

    def __init__(
        self,
        client: Client,
        *,
        recorder: Recorder | None,
        clock: Clock,
        pod_versions: PodVersions | None = None,
        max_in_flight: int = 16,
        write_intervals: WriteIntervals | None = None,
        change_rate: ChangeRate | None = None,
    ) -> None:
        """Keep at most *max_in_flight* writes in flight.

        *change_rate* determines the delay of writes that are not significant.
        """
        self._client = client
        self._recorder = recorder
        self._clock = clock
        self._pod_versions = pod_versions or PodVersions()
        self._write_intervals = intervals = write_intervals or WriteIntervals()
        self._change_rate = change_rate or ChangeRate(clock)
        self._podgroups: dict[str, _PodGroupState] = {}
        self._pods: dict[str, _PodState] = {}
        self._queues: dict[str, _QueueState] = {}
        self._native = NativeConditions(client, clock)
        self._starts = BucketRateLimiter(intervals.start_rate, intervals.burst_size, clock)
        self._report_count = 0
        # One shard for all workers: a slow write must not delay the status of another object.
        self._worker_settings = WorkerSettings(workers_per_shard=max_in_flight)
        self.queue = ShardedQueue(
            name="statuses",
            limiter=ExponentialFailureRateLimiter(0.05, 30.0),
            clock=clock,
            log_fields=self._log_fields,
        )

    async def run(self) -> None:
        """Write until cancelled; writes that are due are finished first."""
        await run_workers(self.queue, self._write, settings=self._worker_settings)

    # -- desired state -------------------------------------------------------------------------

    def submit(self, report: PodGroupReport) -> None:
        """Write *report* when it is due."""
        self._report_count += 1
        podgroup = report.podgroup
        if podgroup is None or not podgroup.is_stored:
            self._podgroups.pop(report.key, None)
        else:
            self._submit_podgroup(report, podgroup)
        if (delay := self._native.submit(report, self._write_intervals.podgroup)) is not None:
            self.queue.add_after(_NATIVE_PREFIX + report.key, delay)
        for condition in report.pod_conditions:
            state = self._pods.get(condition.uid)
            if state is None:
                state = self._pods[condition.uid] = _PodState(condition, condition.observed)
            state.condition = condition
            state.why = report.why if podgroup is not None and not podgroup.is_stored else None
            if state.observed_condition != (condition.reason, condition.message):
                is_new = (
                    state.observed_condition is None
                    or state.observed_condition[0] != condition.reason
                )
                self._schedule(
                    _POD_PREFIX + condition.uid,
                    state.written_at,
                    0 if is_new else self._write_intervals.pod,
                )

    def set_allocated(self, queue: Queue, allocated: Mapping[str, int]) -> None:
        """Write *allocated* into the status of *queue* when it is due."""
        name = queue.metadata.name
        state = self._queues.get(name)
        if state is None:
            meta = queue.metadata
            state = self._queues[name] = _QueueState(
                allocated, queue.status.allocated, meta.resource_version, meta.uid
            )
        state.allocated = allocated
        self._schedule_queue(name, state)

    def observe_queue(self, queue: Queue) -> None:
        """Update the observed status: another client may have written ``allocated``."""
        meta = queue.metadata
        state = self._queues.get(meta.name)
        if state is None:
            return
        if meta.uid != state.uid or is_newer(meta.resource_version, state.version):
            state.version, state.uid = meta.resource_version, meta.uid
            state.observed = queue.status.allocated
            self._schedule_queue(meta.name, state)

    def _schedule_queue(self, name: str, state: _QueueState) -> None:
        if not state.is_scheduled and _desired(state) != state.observed:
            state.is_scheduled = True
            self._schedule(_QUEUE_PREFIX + name, state.written_at, self._write_intervals.queue)

    def forget_pod(self, uid: str) -> None:
        """Drop the condition of a pod that is scheduled or deleted."""
        self._pods.pop(uid, None)

    def forget_queue(self, name: str) -> None:
        """Forget a deleted queue."""
        self._queues.pop(name, None)

    def _submit_podgroup(self, report: PodGroupReport, podgroup: PodGroup) -> None:
        state = self._podgroups.get(report.key)
        if state is None or state.uid != podgroup.metadata.uid:
            state = self._podgroups[report.key] = _PodGroupState(
                report,
                podgroup.status,
                podgroup.metadata.resource_version,
                podgroup.metadata.uid,
                podgroup.metadata.annotations.get(names.WHY),
                plan=podgroup.metadata.annotations.get(names.PLAN),
                domain=podgroup.metadata.annotations.get(names.ALLOCATED_HYPERNODE),
            )
        version = podgroup.metadata.resource_version
        if state.report.podgroup is not podgroup and is_newer(version, state.version):
            # Another client may have written it.
            state.version, state.observed = version, podgroup.status
            state.plan = podgroup.metadata.annotations.get(names.PLAN)
            state.domain = podgroup.metadata.annotations.get(names.ALLOCATED_HYPERNODE)
            annotation = podgroup.metadata.annotations.get(names.WHY)
            if annotation != state.annotation:
                state.annotation, state.written_why = annotation, None
        state.report = report
        if not state.is_current():
            self.queue.add_after(_PODGROUP_PREFIX + report.key, self._remaining_delay(state))

    def _remaining_delay(self, state: _PodGroupState) -> float:
        """Return for how many seconds the write of a PodGroup status is delayed."""
        now, intervals = self._clock.monotonic(), self._write_intervals
        if state.is_plan_due():
            return 0.0
        if state.is_starting():
            if state.start_due is None:
                delay = self._starts.when(state.report.key, max_delay=intervals.start_max)
                state.start_due = now + delay
                # Now, since a short job may end before the phase is written.
                self._record_started(state.report.podgroup)
            left = max(state.start_due - now, 0.0)
            return self._change_rate.remaining_delay(now, min_delay=0.0, max_delay=left)
        if _is_significant(state.report.status, state.observed):
            return 0.0
        if state.stale_since is None:
            state.stale_since = now
        since = max(state.stale_since, state.written_at)
        return self._change_rate.remaining_delay(
            since, min_delay=intervals.podgroup, max_delay=intervals.podgroup_max
        )

    def _schedule(self, key: str, written_at: float, interval: float) -> None:
        left = written_at + interval - self._clock.monotonic()
        self.queue.add_after(key, max(left, 0.0))

    # -- writing -------------------------------------------------------------------------------

    async def _write(self, key: str) -> float | None:
        kind, _, rest = key.partition(":")
        try:
            if kind + ":" == _PODGROUP_PREFIX:
                return await self._write_podgroup(rest)
            if kind + ":" == _NATIVE_PREFIX:
                return await self._native.write(rest)
            if kind + ":" == _POD_PREFIX:
                await self._write_pod(rest)
            else:
                await self._write_queue(rest)
        except ConflictError as error:
            # The queue controller writes queues, too.
            raise RequeueError("the object has changed") from error
        except (ServerError, TooManyRequestsError):
            raise  # retried with the status that is desired then
        except ApiError as error:
            # The object is deleted or the status is invalid: its next event triggers a write.
            level = logging.DEBUG if isinstance(error, NotFoundError) else logging.INFO
            log_fields = {**self._log_fields(key), "why": str(error)}
            log.log(level, "cannot write status", extra=log_fields)
        return None

    def _log_fields(self, key: str) -> dict[str, str]:
        """Return the fields that name the object of *key* in logs."""
        kind, _, rest = key.partition(":")
        podgroup = self._podgroups.get(rest)
        if (
            kind + ":" == _PODGROUP_PREFIX
            and podgroup is not None
            and podgroup.report.podgroup is not None
        ):
            return object_fields("podgroup", podgroup.report.podgroup.metadata)
        pod = self._pods.get(rest)
        if kind + ":" == _POD_PREFIX and pod is not None:
            return {"pod": f"{pod.condition.namespace}/{pod.condition.name}"}
        return {kind: rest}

    async def _write_podgroup(self, key: str) -> float | None:
        """Write the status of a PodGroup; returns the seconds left if that is still delayed."""
        state = self._podgroups.get(key)
        if state is None or state.is_current():
            return None
        left = self._remaining_delay(state)
        if left > 0:
            return left
        desired, before = state.report.status, state.observed
        conditions = with_transition_times(
            desired,
            before,
            now=self._clock.now(),
            transition=f"{state.uid[:8]}-{self._report_count}",
        )
        status: dict[str, object] = {
            "phase": desired.phase,
            "running": desired.running or None,
            "succeeded": desired.succeeded or None,
            "failed": desired.failed or None,
        }
        if conditions:
            status["conditions"] = conditions
        metadata: dict[str, object] = {**_preconditions(state.uid, state.version)}
        annotations = state.changed_annotations()
        why, note = state.report.why, state.report.plan
        if annotations:
            metadata["annotations"] = annotations
        body = {"metadata": metadata, "status": status}
        namespace, _, name = key.rpartition("/")
        new = await self._client.patch(
            names.PODGROUPS, name, body, namespace=namespace, view=PodGroup
        )
        if is_newer(new.metadata.resource_version, state.version):
            state.version = new.metadata.resource_version
            state.annotation, state.written_why = annotations.get(names.WHY, state.annotation), why
            state.plan = annotations.get(names.PLAN, state.plan)
            state.domain = annotations.get(names.ALLOCATED_HYPERNODE, state.domain)
            state.observed = PodGroupStatus(
                phase=desired.phase,
                conditions=conditions,
                running=desired.running,
                succeeded=desired.succeeded,
                failed=desired.failed,
            )
        if note is not None and annotations.get(names.PLAN) == note.text:
            self._record_plan(new.metadata, note)
        if desired.phase != before.phase:
            phases = {"phase": desired.phase, "was": before.phase}
            log.info("gang phase", extra={**object_fields("podgroup", new.metadata), **phases})
        self._record_events(state, before)
        state.written_at = self._clock.monotonic()
        state.stale_since = state.start_due = None
        return None

    def _record_events(self, state: _PodGroupState, before: PodGroupStatus) -> None:
        """Record an event if the PodGroup is ready now, or has a new Unschedulable condition."""
        podgroup = state.report.podgroup
        if podgroup is None:
            return
        had = {condition_key(each) for each in before.conditions}
        for condition in state.observed.conditions:
            if condition.type == UNSCHEDULABLE and condition_key(condition) not in had:
                self._record(_reference(podgroup), "Warning", UNSCHEDULABLE, condition.message)
        started = (PodGroupPhase.RUNNING, PodGroupPhase.COMPLETED)
        is_recorded = state.start_due is not None
        if state.observed.phase in started and before.phase not in started and not is_recorded:
            self._record_started(podgroup)

    def _record_started(self, podgroup: PodGroup | None) -> None:
        """Record that the minimum of a PodGroup is bound."""
        if podgroup is not None:
            self._record(_reference(podgroup), "Normal", SCHEDULED, "pod group is ready")

    def _record_plan(self, meta: ObjectMeta, note: PlanNote) -> None:
        """Record one event for all pods that are created with their nodes."""
        if not note.pods:
            return
        pods = "1 pod is" if note.pods == 1 else f"{note.pods} pods are"
        nodes = "1 node" if note.nodes == 1 else f"{note.nodes} nodes"
        message = f"{pods} to be created on {nodes}"
        log.info("gang planned", extra={**object_fields("podgroup", meta), "pods": note.pods})
        self._record(object_reference(names.PODGROUPS, meta), "Normal", PLANNED, message)

    async def _write_pod(self, uid: str) -> None:
        state = self._pods.get(uid)
        if state is None or state.observed_condition == (
            state.condition.reason,
            state.condition.message,
        ):
            return
        await self._pod_versions.wait_idle(uid)
        desired = state.condition
        key = f"{desired.namespace}/{desired.name}"
        pod, version = self._pod_versions.lister(key), self._pod_versions.version(key, uid)
        if pod is None or not version or pod.spec.node_name:
            return
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": desired.reason,
            "message": desired.message,
            "lastTransitionTime": self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        metadata: dict[str, object] = {**_preconditions(uid, version)}
        if state.why is not None:
            metadata["annotations"] = {names.WHY: state.why.encode()}
        with self._pod_versions.write_in_progress(uid):
            new = await self._client.patch(
                names.PODS,
                desired.name,
                {"metadata": metadata, "status": {"conditions": [condition]}},
                namespace=desired.namespace,
                subresource="status",
                kind=PatchType.STRATEGIC,
                view=MetadataOnly,
            )
            self._pod_versions.record_write(uid, new.metadata.resource_version)
        state.observed_condition = (desired.reason, desired.message)
        state.written_at = self._clock.monotonic()
        regarding = ObjectReference(
            api_version="v1", kind="Pod", namespace=desired.namespace, name=desired.name, uid=uid
        )
        self._record(regarding, "Warning", "FailedScheduling", desired.message)

    async def _write_queue(self, name: str) -> None:
        state = self._queues.get(name)
        if state is None:
            return
        state.is_scheduled = False
        if _desired(state) == state.observed:
            return
        desired = _desired(state)
        allocated = dict.fromkeys(state.observed, None) | desired
        body = {
            "metadata": _preconditions(state.uid, state.version),
            "status": {"allocated": allocated},
        }
        new = await self._client.patch(
            names.QUEUES, name, body, subresource="status", view=MetadataOnly
        )
        state.written_at = self._clock.monotonic()
        if is_newer(new.metadata.resource_version, state.version):
            state.version, state.observed = new.metadata.resource_version, desired
        # Else another client has written since, and its watch event arrived before this response.

    def _record(
        self, regarding: ObjectReference, kind: EventType, reason: str, message: str
    ) -> None:
        if self._recorder is not None:
            self._recorder.record(regarding, type=kind, reason=reason, message=message)


def _reference(podgroup: PodGroup) -> ObjectReference:
    """Return a reference to all versions of *podgroup*."""
    return ObjectReference(
        api_version=names.PODGROUPS.api_version,
        kind=names.PODGROUPS.kind,
        namespace=podgroup.metadata.namespace,
        name=podgroup.metadata.name,
        uid=podgroup.metadata.uid,
    )


def _desired(state: _QueueState) -> dict[str, str | int | float]:
    """Return the desired resource list; equal amounts in another format are kept."""
    if state.observed and amounts(state.observed) == {"cpu": 0, "memory": 0, **state.allocated}:
        return dict(state.observed)
    return dict(to_resource_list({"cpu": 0, "memory": 0, **state.allocated}))


def _is_significant(desired: PodGroupStatus, observed: PodGroupStatus) -> bool:
    """Return whether *desired* has a new phase or a new condition.

    A new Scheduled condition does not count: the phase changes once the pods are bound.
    """
    kinds = {(each.type, each.reason) for each in desired.conditions if each.type != SCHEDULED}
    had = {(each.type, each.reason) for each in observed.conditions}
    return desired.phase != observed.phase or not kinds <= had


def _preconditions(uid: str, version: str) -> dict[str, str]:
    """Return the metadata of a patch that applies to this version of the object only."""
    return {"uid": uid, "resourceVersion": version}
