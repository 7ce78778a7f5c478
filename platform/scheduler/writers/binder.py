"""The binder: binds pods to the nodes that cycles have chosen.

Before a binding is sent, its placement is checked against the newest objects. If it does not hold
any more, because its node is deleted, for example, it is forgotten with all placements of its gang
that were not sent: the next cycle allocates them at once, as far as possible.

A binding has the uid and resourceVersion of its pod as preconditions, so that it fails for a later
pod of that name, and for a pod that has changed since the cycle: a new leader may have chosen
another node. A pod whose binding is rejected keeps its assumed placement for a backoff, then the
placement is forgotten and the pod is scheduled again. While the API server is unavailable the same
binding is retried: it may have taken effect, and another node would conflict with it.

Plugins may prepare the placements of a gang first (``pre_bind``), and devices are allocated and
volumes bound before its pods. No worker waits for that, so it delays no other gang.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from ...kube.client.client import Client
from ...kube.client.events import EventType
from ...kube.errors import ApiError, ConflictError, NotFoundError, ServerError, TooManyRequestsError
from ...machinery.clock import Clock
from ...machinery.controller import ShardedQueue, WorkerSettings, run_workers
from ...machinery.event_recorder import Recorder, object_reference
from ...machinery.rate_limiters import ExponentialFailureRateLimiter
from ...model import names
from ...model.meta import ObjectReference
from ..framework.reserved_placements import ReservedPlacements
from ..plugins.placement import Placement
from ..state.core_types import Pod
from .claim_binder import ClaimBinder
from .placement_check import PODGROUP_DELETED, StalePlacement
from .pod_versions import PodVersions
from .pre_binder import PreBinder
from .volume_binder import VolumeBinder

log = logging.getLogger(__name__)

INITIAL_BACKOFF, MAX_BACKOFF = 0.1, 60.0
"""Seconds for which a pod with a rejected binding keeps its assumed placement."""


@dataclass(slots=True)
class _BindRequest:
    placement: Placement
    rejected: bool = False
    sent: bool = False
    """Whether it may have reached the API server."""
    is_in_pre_bind: bool = False
    """Whether it is being prepared: until then it is neither sent nor forgotten."""


@dataclass(slots=True)
class _GangProgress:
    """Bindings of one gang."""

    uids: dict[str, None] = field(default_factory=dict)
    """Of those that are not complete."""
    bound: int = 0


def _no_check(placement: Placement) -> StalePlacement | None:
    return None


def _no_count(reason: str, count: int) -> None:
    return None


class Binder:
    """Creates bindings in the order of the placements, never two at a time for one pod."""

    def __init__(
        self,
        client: Client,
        *,
        recorder: Recorder | None,
        clock: Clock,
        max_in_flight: int,
        forget: Callable[[str], object],
        pod_versions: PodVersions | None = None,
        check: Callable[[Placement], StalePlacement | None] = _no_check,
        count_stale: Callable[[str, int], object] = _no_count,
        reserved: ReservedPlacements | None = None,
        pre_binder: PreBinder | None = None,
        volume_binder: VolumeBinder | None = None,
        claim_binder: ClaimBinder | None = None,
    ) -> None:
        """Keep at most *max_in_flight* bindings in flight.

        *forget* is called with the uid of a pod that could not be bound and is to be scheduled
        again. *pod_versions* gives the resourceVersion that a binding has as its precondition.
        *check* returns why a placement does not hold any more; *count_stale* is then called with
        the reason and the number of placements that are forgotten. *pre_binder* calls plugins
        before bindings are sent, *claim_binder* allocates devices, and *volume_binder* binds
        volumes; *reserved* gets the outcome of each.
        """
        self._client = client
        self._recorder = recorder
        self._forget = forget
        self._pod_versions = pod_versions or PodVersions()
        self._check = check
        self._clock = clock
        self._reserved = reserved
        self._pre_binder = pre_binder
        self._volume_binder = volume_binder
        self._claim_binder = claim_binder
        self._pre_binds: dict[str, asyncio.Task[bool]] = {}
        """The last one of each gang; it returns whether it was prepared."""
        self._count_stale = count_stale
        self._requests: dict[str, _BindRequest] = {}
        self._gang_progress: dict[str, _GangProgress] = {}
        self._backoff = ExponentialFailureRateLimiter(INITIAL_BACKOFF, MAX_BACKOFF)
        self._worker_settings = WorkerSettings(workers_per_shard=max_in_flight)
        self.queue = ShardedQueue(
            name="bindings",
            limiter=ExponentialFailureRateLimiter(0.05, 5.0),
            clock=clock,
            log_fields=self._log_fields,
        )

    def bind(self, placements: Sequence[Placement]) -> None:
        """Bind the pods of *placements*."""
        by_gang: dict[str, list[_BindRequest]] = {}
        pre_binder = self._pre_binder
        prepared = {
            each.group_key
            for each in placements
            if each.volumes
            or each.devices
            or (pre_binder is not None and pre_binder.is_needed(each))
        }
        for placement in placements:
            if key := _gang_key(placement):
                self._gang_progress.setdefault(key, _GangProgress()).uids[placement.uid] = None
            request = self._requests[placement.uid] = _BindRequest(placement)
            if prepared and placement.group_key in prepared:
                by_gang.setdefault(placement.group_key, []).append(request)
            else:
                self.queue.add(placement.uid)
        for key, requests in by_gang.items():
            self._start_pre_bind(key, requests)

    def forget_backoff(self, uid: str) -> None:
        """Forget the rejections of a pod that is bound or deleted."""
        self._backoff.forget(uid)

    @property
    def idle(self) -> bool:
        """Whether there are no bind requests."""
        return not self._requests

    async def run(self) -> None:
        """Create bindings until cancelled; those in flight are finished first."""
        try:
            await run_workers(self.queue, self._execute, settings=self._worker_settings)
        finally:
            for task in self._pre_binds.values():
                task.cancel()
            if self._pre_binder is not None:
                self._pre_binder.close()
            if self._claim_binder is not None:
                self._claim_binder.close()

    def _start_pre_bind(self, key: str, requests: list[_BindRequest]) -> None:
        """Let *requests*, of the gang *key*, be prepared, without waiting for that."""
        for each in requests:
            each.is_in_pre_bind = True
        task = asyncio.create_task(self._pre_bind(requests, self._pre_binds.get(key)))
        self._pre_binds[key] = task

        def forget(_: object) -> None:
            if self._pre_binds.get(key) is task:
                del self._pre_binds[key]

        task.add_done_callback(forget)

    async def _pre_bind(
        self, requests: list[_BindRequest], before: asyncio.Task[bool] | None
    ) -> bool:
        """Send the bindings of *requests* after they were prepared, or forget all of them.

        The pods of an earlier cycle are first (*before*): they may be the minimum of the gang.
        """
        succeeded = before is None or await before
        problem = ""
        if succeeded:
            problem = await self._prepare([each.placement for each in requests])
            succeeded = not problem
        if problem:
            first = requests[0].placement
            log.warning("cannot bind gang", extra={**self._log_fields(first.uid), "why": problem})
            self._record_pre_bind_failure(first, f"{problem}; pods: {len(requests)}")
            # Until then the nodes are kept, as for a binding that is rejected.
            await self._clock.sleep(
                max(self._backoff.when(each.placement.uid) for each in requests)
            )
        for each in requests:
            each.is_in_pre_bind = False
            if succeeded:
                self.queue.add(each.placement.uid)
            else:
                self._complete(each.placement.uid)
                self._forget(each.placement.uid)
        return succeeded

    async def _prepare(self, placements: Sequence[Placement]) -> str:
        """Let plugins prepare *placements*, of one gang, and bind what they claim; returns why that
        failed, or an empty text."""
        problem = ""
        if self._pre_binder is not None and self._pre_binder.is_needed(placements[0]):
            problem = await self._pre_binder.run(placements)
        with_devices = [each for each in placements if each.devices]
        if not problem and with_devices and self._claim_binder is not None:
            problem = await self._claim_binder.bind(
                with_devices, on_wait=self._record_binding_conditions
            )
        with_volumes = [each for each in placements if each.volumes]
        if not problem and with_volumes and self._volume_binder is not None:
            problem = await self._volume_binder.bind(with_volumes)
        return problem

    def _record_binding_conditions(self, placement: Placement) -> None:
        message = f"waiting for binding conditions for device on node {placement.node}"
        self._record_event(placement, "Normal", "BindingConditionsPending", message)

    def _record_pre_bind_failure(self, placement: Placement, message: str) -> None:
        podgroup = placement.gang.podgroup if placement.gang is not None else None
        if self._recorder is None or podgroup is None or not podgroup.is_stored:
            self._record_event(placement, "Warning", "FailedScheduling", message)
            return
        self._recorder.record(
            object_reference(names.PODGROUPS, podgroup.metadata),
            type="Warning",
            reason="FailedScheduling",
            message=message,
        )

    async def _execute(self, uid: str) -> float | None:
        request = self._requests.get(uid)
        if request is None:
            return None
        placement = request.placement
        if request.rejected:
            self._complete(uid)
            self._forget(uid)
            return None
        await self._pod_versions.wait_idle(uid)
        if self._requests.get(uid) is not request:
            return None  # forgotten with its gang, and maybe allocated again
        if not request.sent and (stale := self._check(placement)) is not None:
            self._forget_stale(request, stale)
            return None
        request.sent = True
        version = self._pod_versions.version(f"{placement.namespace}/{placement.name}", uid)
        try:
            await self._post_binding(placement, version)
        except (ServerError, TooManyRequestsError):
            raise
        except ApiError as error:
            current = await self._get_pod(placement) if isinstance(error, ConflictError) else None
            if current is not None and current.spec.node_name:
                self._complete(uid, bound=True)  # the pod informer delivers its node
                return None
            request.rejected = True
            log_fields = {**self._log_fields(uid), "why": str(error)}
            if current is not None and version not in ("", current.metadata.resource_version):
                log.info("cannot bind pod: it has changed", extra=log_fields)
            else:
                log.warning("cannot bind pod", extra=log_fields)
                self._record_event(
                    placement, "Warning", "FailedScheduling", f"binding rejected: {error}"
                )
            return self._backoff.when(uid)
        self._complete(uid, bound=True, confirmed=True)
        pod = f"{placement.namespace}/{placement.name}"
        message = f"Successfully assigned {pod} to {placement.node}"
        self._record_event(placement, "Normal", "Scheduled", message)
        return None

    def _forget_stale(self, request: _BindRequest, stale: StalePlacement) -> None:
        """Forget a placement, and those of its gang that were not sent."""
        placement = request.placement
        progress = self._gang_progress.get(_gang_key(placement))
        uids = list(progress.uids) if progress is not None else [placement.uid]
        requests = [self._requests[uid] for uid in uids]
        unsent = [
            each.placement.uid for each in requests if not each.sent and not each.is_in_pre_bind
        ]
        log_fields = {**self._log_fields(placement.uid), "why": stale.message}
        log.info("placement does not hold any more", extra={**log_fields, "pods": len(unsent)})
        self._count_stale(stale.reason, len(unsent))
        message = f"{stale.message} before the pod was bound to it"
        if stale.reason == PODGROUP_DELETED:
            message = f"{stale.message} before the pod was bound"
        self._record_event(placement, "Warning", "FailedScheduling", message)
        for uid in unsent:
            self._complete(uid)
            self._forget(uid)

    def _log_fields(self, uid: str) -> dict[str, str]:
        """Return the fields that name a pod in logs."""
        request = self._requests.get(uid)
        if request is None:
            return {"uid": uid}
        placement = request.placement
        pod = f"{placement.namespace}/{placement.name}"
        return {**(placement.gang.log_fields() if placement.gang else {}), "pod": pod}

    def _complete(self, uid: str, *, bound: bool = False, confirmed: bool = False) -> None:
        """Remove a bind request, and log if it was the last of its gang.

        A pod that is *bound* has the node of this request only if that was *confirmed*.
        """
        if self._reserved is not None:
            self._reserved.finish(uid, bound=confirmed)
        gang = self._requests.pop(uid).placement.gang
        progress = self._gang_progress.get(gang.key) if gang else None
        if gang is None or progress is None:
            return
        progress.uids.pop(uid, None)
        progress.bound += bound
        if not progress.uids:
            del self._gang_progress[gang.key]
            if progress.bound:
                log.info("gang bound", extra={**gang.log_fields(), "pods": progress.bound})

    def _record_event(
        self, placement: Placement, kind: EventType, reason: str, message: str
    ) -> None:
        if self._recorder is not None:
            self._recorder.record(
                _pod_reference(placement), type=kind, reason=reason, message=message
            )

    async def _get_pod(self, placement: Placement) -> Pod | None:
        """Return the pod from the API server, or ``None`` if it is deleted.

        It may be bound: by a request whose response was lost, or by another scheduler.
        """
        try:
            pod = await self._client.get(
                names.PODS, placement.name, namespace=placement.namespace, view=Pod
            )
        except NotFoundError:
            return None
        return pod if pod.metadata.uid == placement.uid else None

    async def _post_binding(self, placement: Placement, version: str) -> None:
        path = names.PODS.path(placement.namespace, placement.name, "binding")
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": placement.name,
                "namespace": placement.namespace,
                "uid": placement.uid,
                "resourceVersion": version,
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": placement.node},
        }
        await self._client.post(path, body, view=msgspec.Raw)


def _gang_key(placement: Placement) -> str:
    return placement.gang.key if placement.gang else ""


def _pod_reference(placement: Placement) -> ObjectReference:
    return ObjectReference(
        api_version="v1",
        kind="Pod",
        namespace=placement.namespace,
        name=placement.name,
        uid=placement.uid,
    )
