"""Executes effects: every write of the job controller is here.

Each effect updates the job's :class:`~batholith.job_ctrl.job_info.Case` at once, so that the
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
from .defaults import FilledJob
from .job_info import UNSEEN_FOR, Case, Plan
from .job_view import Order
from .metrics import JobMetrics
from .plugin_objects import PluginObjects
from .plugins.errors import PluginError
from .pvcs import Claims, MissingClaimError
from .settings import JobSettings

log = logging.getLogger(__name__)

_PACE = 100.0
"""Pods a second by which a job's size counts for its place in line."""
_MOST_TRUST = 64
"""Pods that are tried together at most before one has been made."""
_INCURABLE = (AlreadyExistsError, ForbiddenError, InvalidError)
"""Refusals that time alone does not cure."""


@dataclass(slots=True, kw_only=True)
class Turn:
    """One look at one job: what it is about, and what came of it."""

    key: str
    job: Job
    case: Case
    plan: Plan
    order: Order | None = None
    changed: bool = False
    """Something was done that asks for another look at once."""
    again_in: float | None = None
    """Seconds until the next look, if nothing happens before."""

    @property
    def namespace(self) -> str:
        """The job's namespace."""
        return self.job.metadata.namespace

    def look_in(self, seconds: float) -> None:
        """Look again in *seconds*, or sooner if that was asked for already."""
        self.again_in = seconds if self.again_in is None else min(seconds, self.again_in)


@dataclass(slots=True, kw_only=True)
class Tools:
    """What the executor works with."""

    client: Client
    clock: Clock
    queue: ShardedQueue
    expected: Expectations
    recorder: Recorder | None
    metrics: JobMetrics
    settings: JobSettings
    bustle: ChangeRate


class Executor:
    """Does what decisions ask for, in their order."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._client = tools.client
        self._objects = PluginObjects(tools.client)
        self._claims = Claims(tools.client)
        self._turns = PrioritySemaphore(tools.settings.calls_in_flight)
        # Pods that may be made together at first, by namespace: a power of two.
        self._trust: dict[str, int] = {}
        self._by_kind: Mapping[type, Callable[[Turn, Any], Awaitable[None]]] = {
            fx.SetStatus: self._set_status,
            fx.CreatePodGroup: self._create_podgroup,
            fx.UpdatePodGroup: self._update_podgroup,
            fx.DeletePodGroup: self._delete_podgroup,
            fx.CreatePods: self._create_pods,
            fx.DeletePods: self._delete_pods,
            fx.EnsureClaims: self._ensure_claims,
            fx.EnsureObjects: self._ensure_objects,
            fx.RemoveObjects: self._remove_objects,
            fx.DeleteJob: self._delete_job,
            fx.DeleteCommand: self._delete_command,
            fx.Forget: self._forget,
            fx.PutOff: self._put_off,
            fx.RecordEvent: self._record_event,
            fx.LookAgain: self._look_again,
        }

    async def carry_out(self, turn: Turn, effects: list[fx.Effect]) -> None:
        """Do *effects* one after the other; the first error leaves the rest undone.

        Raises:
            TryAgainError: somebody else was faster, or the caches are behind.
            ApiError, ConnectionLostError: the server could not be asked, or refused.
            PluginError: a plugin of the job's failed, which the job has been told.
        """
        for effect in effects:
            try:
                await self._by_kind[type(effect)](turn, effect)
            except PluginError as error:
                self._hinder(turn, fx.Reason.PLUGIN_ERROR, str(error))
                raise

    async def drop_command(self, turn_key: str, order: Order) -> None:
        """Delete a Command that is carried out or void, then take it from the mailbox."""
        namespace = turn_key.partition("/")[0]
        await self._delete(names.COMMANDS, order.name, namespace=namespace, uid=order.uid)
        self._tools.queue.pop_item(turn_key)
        log.info("command done", extra={"job": turn_key, "action": order.action})

    def complain_of(self, command: ObjectMeta, problem: str) -> None:
        """Say on a Command why it cannot be obeyed."""
        log.warning("command cannot be obeyed", extra={"command": command.key, "why": problem})
        if self._tools.recorder is not None:
            self._tools.recorder.record(
                object_reference(names.COMMANDS, command),
                type="Warning",
                reason=fx.Reason.INVALID_TARGET,
                message=problem,
            )

    async def refuse_command(self, key: str, order: Order, problem: str) -> None:
        """Say on a Command why it can never be obeyed, and delete it."""
        namespace = key.partition("/")[0]
        self.complain_of(ObjectMeta(name=order.name, namespace=namespace, uid=order.uid), problem)
        await self.drop_command(key, order)

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

    def say(self, job: Job, reason: fx.Reason, message: str, *, warning: bool = False) -> None:
        """Record an event on *job*."""
        if self._tools.recorder is not None:
            self._tools.recorder.record(
                object_reference(names.JOBS, job.metadata),
                type="Warning" if warning else "Normal",
                reason=reason,
                message=message,
            )

    def _hinder(self, turn: Turn, reason: fx.Reason, error: ApiError | str) -> None:
        """Tell of an *error*; what time alone does not cure shall stand in the status, too."""
        message = error if isinstance(error, str) else error.message
        self.say(turn.job, reason, message, warning=True)
        if isinstance(error, (str, *_INCURABLE)):
            turn.case.obstacles[reason] = message

    # The job itself.

    async def _set_status(self, turn: Turn, effect: fx.SetStatus) -> None:
        job, case = turn.job, turn.case
        if not effect.urgent:
            if case.numbers_since is None:
                case.numbers_since = self._tools.clock.monotonic()
            left = self._patience(case.numbers_since)
            if left > 0:
                turn.look_in(left)
                return
        case.numbers_since = None
        patch = status.difference(
            msgspec.to_builtins(job.status), msgspec.to_builtins(effect.status)
        )
        if not patch:
            return
        was, phase = job.status.state.phase, effect.status.state.phase
        try:
            case.written = await self._patch_status(job, patch)
        except BaseException as error:
            if phase != was and not _refused(error):
                case.leaves = (was, phase)
            raise
        if phase != was:
            self._entered(turn.key, job, case, was=was, phase=phase)
        turn.changed = True

    async def _patch_status(self, job: Job, patch: Mapping[str, object]) -> Job:
        version = {"resourceVersion": job.metadata.resource_version}
        try:
            return await self._client.patch(
                names.JOBS,
                job.metadata.name,
                {"metadata": version, "status": patch},
                namespace=job.metadata.namespace,
                subresource="status",
                view=FilledJob,
            )
        except ConflictError as error:
            raise RequeueError("the job has changed meanwhile") from error
        except NotFoundError as error:
            raise RequeueError("the job is gone") from error
        except (ForbiddenError, InvalidError) as error:
            self.say(job, fx.Reason.STATUS_ERROR, error.message, warning=True)
            raise

    def arrived(self, key: str, job: Job, case: Case) -> None:
        """Take note of a phase whose write was carried out though no answer came."""
        if case.leaves is None or job.status.state.phase == case.leaves[0]:
            return
        was, phase = case.leaves
        case.leaves = None
        if job.status.state.phase == phase:
            self._entered(key, job, case, was=was, phase=phase)

    def _entered(self, key: str, job: Job, case: Case, *, was: str, phase: str) -> None:
        self._tools.metrics.entered(job, phase)
        case.leaves = None
        case.obstacles.clear()  # the next phase finds out for itself
        log.info("job phase", extra={"job": key, "phase": phase, "was": was})

    def _patience(self, since: float) -> float:
        """Seconds that numbers may still wait that are wrong *since*."""
        settings = self._tools.settings
        return self._tools.bustle.remaining_delay(
            since, min_delay=settings.count_delay, max_delay=settings.busy_count_delay
        )

    async def _delete_job(self, turn: Turn, effect: fx.DeleteJob) -> None:
        meta = turn.job.metadata
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

    async def _create_podgroup(self, turn: Turn, effect: fx.CreatePodGroup) -> None:
        body = podgroups.build(turn.job, effect.spec)
        try:
            made = await self._client.create(
                names.PODGROUPS, body, namespace=turn.namespace, view=PodGroup
            )
        except AlreadyExistsError:  # its name holds the job's uid, so it is ours
            made = await self._client.get(
                names.PODGROUPS, body.metadata.name, namespace=turn.namespace, view=PodGroup
            )
        except ApiError as error:
            self._hinder(turn, fx.Reason.PODGROUP_ERROR, error)
            raise
        log.info("podgroup created", extra={"job": turn.key, "podgroup": made.metadata.key})
        self._note_podgroup(turn, made)

    async def _update_podgroup(self, turn: Turn, effect: fx.UpdatePodGroup) -> None:
        try:
            changed = await self._client.patch(
                names.PODGROUPS,
                podgroups.name_of(turn.job),
                {"metadata": preconditions(effect.of), "spec": effect.spec},
                namespace=turn.namespace,
                view=PodGroup,
            )
        except NotFoundError as error:
            raise RequeueError("the PodGroup is gone") from error
        except ConflictError as error:
            raise RequeueError("the PodGroup has changed meanwhile") from error
        except ApiError as error:
            self._hinder(turn, fx.Reason.PODGROUP_ERROR, error)
            raise
        self._note_podgroup(turn, changed)

    def _note_podgroup(self, turn: Turn, podgroup: PodGroup) -> None:
        turn.case.obstacles.pop(fx.Reason.PODGROUP_ERROR, None)
        turn.case.podgroup = podgroup
        turn.case.podgroup_since = self._tools.clock.monotonic()
        turn.changed = True

    async def _delete_podgroup(self, turn: Turn, effect: fx.DeletePodGroup) -> None:
        name = podgroups.name_of(turn.job)
        await self._delete(names.PODGROUPS, name, namespace=turn.namespace, uid=effect.uid)
        turn.case.podgroup_doomed = effect.uid
        log.info("podgroup deleted", extra={"job": turn.key})
        turn.changed = True

    # Its pods.

    async def _create_pods(self, turn: Turn, effect: fx.CreatePods) -> None:
        """Create pods with a slow start; what was made stands in the ledger at once."""
        expected = self._tools.expected
        by_name = {task.name: task for task in turn.job.spec.tasks}
        wanted = [
            (by_name[task], index) for task, indices in effect.indices.items() for index in indices
        ]

        rank, taken = self._rank(len(wanted)), list[AlreadyExistsError]()
        found: list[tuple[TaskSpec, int]] = []

        async def create(pod: tuple[TaskSpec, int]) -> None:
            async with self._turns.slot(rank):
                if turn.case.ledger.holds(pod[0].name, pod[1]):
                    # A former leader's, that came meanwhile: it will not be shown once more.
                    found.append(pod)
                    return
                try:
                    await self._create_pod(turn, *pod)
                except AlreadyExistsError as error:  # which says nothing about the other pods
                    taken.append(error)
                    expected.observe(turn.key, _name(turn, *pod))

        first = self._trust.get(turn.namespace, 1)
        outcome = await slow_start(wanted, create, initial=first)
        made = len(outcome.succeeded) - len(taken) - len(found)
        self._learn(turn.namespace, made, failed=bool(outcome.failed))
        turn.changed = turn.changed or bool(made or found)
        if made:
            log.info("pods created", extra={"job": turn.key, "pods": made})
        for pod, failure in outcome.failed:
            if _refused(failure):  # else it may have been made all the same
                expected.observe(turn.key, _name(turn, *pod))
        error = outcome.first_error or next(iter(taken), None)
        if error is None:
            for reason in (fx.Reason.FAILED_CREATE, fx.Reason.PLUGIN_ERROR):
                turn.case.obstacles.pop(reason, None)
            return
        if isinstance(error, ApiError):
            self._hinder(turn, fx.Reason.FAILED_CREATE, error)
        raise error

    def _learn(self, namespace: str, done: int, *, failed: bool) -> None:
        """Where pods have been taken, the next job need not begin with a single one."""
        if failed:
            self._trust.pop(namespace, None)
        elif done:
            well = min(1 << (done.bit_length() - 1), _MOST_TRUST)
            self._trust[namespace] = max(well, self._trust.get(namespace, 1))

    async def _create_pod(self, turn: Turn, task: TaskSpec, index: int) -> None:
        expected, name = self._tools.expected, _name(turn, task, index)
        body = pods.build(turn.job, task, index)
        turn.plan.team.shape(body, turn.job)
        expected.expect(turn.key, (name,))
        turn.case.ledger.expect(name)
        try:
            made = await self._client.create(names.PODS, body, namespace=turn.namespace, view=Pod)
            self._tools.metrics.pod_created(turn.job, made.metadata.creation_timestamp)
        except AlreadyExistsError as error:
            made = await self._claim(turn, name, error)
        entry = pod_tracker.read(made)
        if entry is not None:
            turn.case.ledger.put_unseen(entry)

    async def _claim(self, turn: Turn, name: str, error: AlreadyExistsError) -> Pod:
        """The pod that has the name already, if it is the one that we meant to make."""
        found = await self._client.get(names.PODS, name, namespace=turn.namespace, view=Pod)
        entry = pod_tracker.read(found)
        if entry is None or entry.owner != turn.job.metadata.uid:
            text = f"Pod {name} is there and does not belong to the job"
            raise AlreadyExistsError(text, status=409, reason="AlreadyExists") from error
        if names.JOB_NAME not in found.metadata.labels:
            raise error  # no watch will ever show it
        if entry.version != turn.job.status.version or entry.leaving:
            raise RequeueError(f"an older pod {name} is still there") from error
        return found

    async def _delete_pods(self, turn: Turn, effect: fx.DeletePods) -> None:
        """Ask pods to go; from before the call on, their end is our doing and no eviction.

        So it is as long as the request may have been carried out, whatever was answered.
        """
        books, rank = turn.case.ledger, self._rank(len(effect.pods))
        books.doom(pod.uid for pod in effect.pods)

        async def delete(pod: pod_tracker.Entry) -> None:
            revision = ""
            try:
                async with self._turns.slot(rank):
                    seen = books.entry(pod.uid)
                    if seen is None:
                        return
                    if seen != pod:
                        raise RequeueError(f"pod {pod.name} has changed meanwhile")
                    revision = seen.revision
                    await self._delete(
                        names.PODS,
                        pod.name,
                        namespace=turn.namespace,
                        uid=pod.uid,
                        version=revision,
                    )
            except BaseException as error:
                if not revision or _refused(error):
                    books.reprieve((pod.uid,))
                else:
                    until = self._tools.clock.monotonic() + UNSEEN_FOR
                    books.doubt(pod.uid, revision=revision, until=until)
                raise

        outcome = await run_concurrently(effect.pods, delete)
        turn.changed = turn.changed or bool(outcome.succeeded)
        if outcome.succeeded:
            log.info("pods deleted", extra={"job": turn.key, "pods": len(outcome.succeeded)})
        error = outcome.first_error
        if error is not None:
            if isinstance(error, ApiError):
                self.say(turn.job, fx.Reason.FAILED_DELETE, error.message, warning=True)
            raise error

    def _rank(self, pods: int) -> float:
        """Where a job that makes or removes so many *pods* stands in line for places.

        One after the other in the order in which they came, so that a gang is complete soon; but
        small ones before the rest of a large one that came a little earlier.
        """
        return self._tools.clock.monotonic() + pods / _PACE

    # Its volumes and its plugins' objects.

    async def _ensure_claims(self, turn: Turn, effect: fx.EnsureClaims) -> None:
        try:
            job = await self._claims.ensure(turn.job)
        except MissingClaimError as error:
            said = fx.RecordEvent(fx.Reason.CLAIM_ERROR, str(error), warning=True)
            await self._record_event(turn, said)
            turn.changed = turn.case.obstacles.get(said.reason) != said.message
            turn.case.obstacles[said.reason] = said.message
            turn.look_in(self._tools.settings.claim_interval)
            return
        except ApiError as error:
            self._hinder(turn, fx.Reason.CLAIM_ERROR, error)
            raise
        turn.case.obstacles.pop(fx.Reason.CLAIM_ERROR, None)
        if job is turn.job:
            turn.case.claims_of = turn.plan.of
        else:  # the names are in its spec now, which the next look must see
            turn.case.written = job
        turn.changed = True

    async def _ensure_objects(self, turn: Turn, effect: fx.EnsureObjects) -> None:
        wanted = turn.case.objects_wanted(turn.plan)  # one may be lost meanwhile
        try:
            await self._objects.ensure(turn.job, turn.plan.team, turn.case.objects)
        except ApiError as error:
            self._hinder(turn, fx.Reason.PLUGIN_ERROR, error)
            raise
        turn.case.obstacles.pop(fx.Reason.PLUGIN_ERROR, None)
        for complaint in turn.plan.team.complaints(turn.job):
            self.say(turn.job, fx.Reason.PLUGIN_ERROR, complaint, warning=True)
        turn.case.objects_of, turn.case.objects_removed = wanted, False
        turn.changed = True

    async def _remove_objects(self, turn: Turn, effect: fx.RemoveObjects) -> None:
        if not turn.case.objects_removed:  # the mark in the status may go later
            try:
                await self._objects.remove(turn.job, turn.plan.team, turn.case.objects)
            except PluginError as error:  # what it does not name goes with the job
                self.say(turn.job, fx.Reason.PLUGIN_ERROR, str(error), warning=True)
            turn.case.objects_of, turn.case.objects_removed = None, True

    # Words and times.

    async def _delete_command(self, turn: Turn, effect: fx.DeleteCommand) -> None:
        if turn.order is not None:
            await self.drop_command(turn.key, turn.order)
        turn.changed = True

    async def _forget(self, turn: Turn, effect: fx.Forget) -> None:
        turn.case.ledger.forget(effect.happenings)

    async def _put_off(self, turn: Turn, effect: fx.PutOff) -> None:
        turn.case.ledger.put_off(effect.waits, terms=effect.terms)

    async def _record_event(self, turn: Turn, effect: fx.RecordEvent) -> None:
        if effect.warning:
            if effect.message == turn.case.said.get(effect.reason):
                return
            turn.case.said[effect.reason] = effect.message
        self.say(turn.job, effect.reason, effect.message, warning=effect.warning)

    async def _look_again(self, turn: Turn, effect: fx.LookAgain) -> None:
        turn.look_in(effect.seconds)


def _refused(error: BaseException) -> bool:
    """Whether a write that failed so has had no effect, and will have none."""
    return isinstance(error, RequeueError) or was_rejected(error)


def _name(turn: Turn, task: TaskSpec, index: int) -> str:
    return pods.name_of(turn.job, task.name, index)
