"""The evictor: evicts pods that cycles have chosen as victims.

1. The pod gets the condition DisruptionTarget, so that its controller does not count a failure,
   and, if it is to be created again as if it had not existed, a condition of our own: API servers
   replace the reason of DisruptionTarget at the eviction.
2. It is evicted by its Eviction subresource, with the uid of the pod and its resourceVersion after
   step 1 as preconditions: a pod that has finished since is not deleted.

An eviction that is rejected, by a disruption budget or by an unavailable server, is retried with
backoff and never replaced by a delete. If it is dropped, the condition is set to False. A request
whose response is lost is repeated: both steps are idempotent. After a restart nothing is left of
the requests; a condition that was written without an eviction is reset after a delay.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from ...kube.client.client import Client, PatchType
from ...kube.client.events import EventType
from ...kube.errors import (
    UNAVAILABLE_ERRORS,
    ApiError,
    ConflictError,
    NotFoundError,
    TooManyRequestsError,
)
from ...machinery.clock import Clock
from ...machinery.controller import ShardedQueue, WorkerSettings, run_workers
from ...machinery.event_recorder import Recorder, object_reference
from ...machinery.rate_limiters import ExponentialFailureRateLimiter
from ...model import names
from ...model.meta import ObjectReference
from ...model.pod import DISRUPTION_TARGET, FINISHED
from ..framework.decision import Eviction
from ..state.core_types import Pod

log = logging.getLogger(__name__)


EVICTED, EVICTION_BLOCKED = "Evict", "EvictionBlocked"
"""Reasons of events; the first is Volcano's."""

INITIAL_BACKOFF, MAX_BACKOFF = 0.5, 15.0
"""Seconds between two attempts to evict one pod."""

STALE_AFTER = 120.0
"""Seconds after which the condition of a pod without an eviction is reset: those of
kube-controller-manager."""


@dataclass(slots=True)
class _EvictionRequest:
    eviction: Eviction
    since: float
    """When it was first requested, by a monotonic clock."""

    version: str = ""
    """The resourceVersion of the pod with the condition; empty if that is not written yet."""

    rejected: bool = False
    """Whether an event about a rejection is recorded."""


class Evictor:
    """Evicts pods, never two requests at a time for one pod."""

    def __init__(
        self,
        client: Client,
        *,
        recorder: Recorder | None,
        clock: Clock,
        max_in_flight: int,
        forget: Callable[[str], object],
    ) -> None:
        """Keep at most *max_in_flight* evictions in flight.

        *forget* is called with the uid of a pod that is not evicted after all.
        """
        self._client = client
        self._recorder = recorder
        self._clock = clock
        self._forget = forget
        self._requests: dict[str, _EvictionRequest] = {}
        self._resets: dict[str, tuple[str, str, bool]] = {}
        """Pods whose condition is to be reset, by uid: namespace, name, and whether that of pods
        that are replaced is, too."""
        self._backoff = ExponentialFailureRateLimiter(INITIAL_BACKOFF, MAX_BACKOFF)
        self._worker_settings = WorkerSettings(workers_per_shard=max_in_flight)
        self.queue = ShardedQueue(
            name="evictions",
            limiter=ExponentialFailureRateLimiter(0.05, 5.0),
            clock=clock,
            log_fields=self._log_fields,
        )

    def evict(self, evictions: Iterable[Eviction]) -> None:
        """Evict the pods of *evictions*; a later eviction of a pod replaces an earlier one."""
        for eviction in evictions:
            before = self._requests.get(eviction.uid)
            since = before.since if before else self._clock.monotonic()
            self._requests[eviction.uid] = _EvictionRequest(eviction, since)
            self._resets.pop(eviction.uid, None)
            self.queue.add(eviction.uid)

    def cancel(self, uids: Iterable[str]) -> None:
        """Drop the evictions of pods that did not succeed yet."""
        for uid in uids:
            if uid in self._requests:
                self._drop(uid)

    def observe(self, pod: Pod) -> None:
        """Drop the request of a pod that terminates; reset a condition without an eviction.

        To be called with the pods of this scheduler.
        """
        uid = pod.metadata.uid
        if not _is_evictable(pod):
            self.discard(uid)
        elif uid in self._requests or not _has_condition(pod):
            return
        elif uid not in self._resets:
            replaced = _has_condition(pod, names.REPLACED_BY_SCHEDULER)
            self._resets[uid] = pod.metadata.namespace, pod.metadata.name, replaced
            self.queue.add_after(uid, STALE_AFTER)

    def discard(self, uid: str) -> None:
        """Drop all that is kept about a pod that is deleted."""
        self._requests.pop(uid, None)
        self._resets.pop(uid, None)
        self._backoff.forget(uid)

    @property
    def idle(self) -> bool:
        """Whether there are no requests."""
        return not self._requests and not self._resets

    async def run(self) -> None:
        """Evict until cancelled; requests in flight are finished first."""
        await run_workers(self.queue, self._execute, settings=self._worker_settings)

    async def _execute(self, uid: str) -> float | None:
        request = self._requests.get(uid)
        if request is None:
            await self._reset_condition(uid)
            return None
        try:
            if not request.version and not await self._write_condition(request):
                self._finish(uid, request)
                return None
            await self._post_eviction(request)
        except NotFoundError:
            self._finish(uid, request)
        except ConflictError as error:
            return await self._resolve_conflict(uid, request, error)
        except UNAVAILABLE_ERRORS as error:
            return self._retry_later(uid, request, error)
        except ApiError as error:
            log_fields = {**self._log_fields(uid), "why": str(error)}
            log.warning("cannot evict pod", extra=log_fields)
            self._record_blocked(request, error)
            if self._is_current(uid, request):
                self._drop(uid)
        else:
            self._record_evicted(request)
            self._finish(uid, request)
        return None

    async def _write_condition(self, request: _EvictionRequest) -> bool:
        """Write the condition; returns whether the pod is still to be evicted."""
        eviction = request.eviction
        pod = await self._patch_condition(
            eviction.namespace,
            eviction.name,
            eviction.uid,
            status="True",
            reason=eviction.reason,
            message=eviction.message,
            replaced=eviction.replaced,
        )
        request.version = pod.metadata.resource_version
        return _is_evictable(pod)

    async def _post_eviction(self, request: _EvictionRequest) -> None:
        eviction = request.eviction
        options: dict[str, object] = {
            "preconditions": {"uid": eviction.uid, "resourceVersion": request.version}
        }
        if eviction.grace is not None:
            options["gracePeriodSeconds"] = eviction.grace
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": eviction.namespace, "name": eviction.name},
            "deleteOptions": options,
        }
        path = names.PODS.path(eviction.namespace, eviction.name, "eviction")
        await self._client.post(path, body, view=msgspec.Raw)

    async def _resolve_conflict(
        self, uid: str, request: _EvictionRequest, error: ConflictError
    ) -> float | None:
        """Handle a pod that has changed: it may be another pod, or be evicted already."""
        eviction = request.eviction
        try:
            pod = await self._client.get(
                names.PODS, eviction.name, namespace=eviction.namespace, view=Pod
            )
        except NotFoundError:
            pod = Pod()
        except UNAVAILABLE_ERRORS as unavailable:
            return self._retry_later(uid, request, unavailable)
        if pod.metadata.uid != uid:
            self._finish(uid, request)
            return None
        if pod.metadata.deletion_timestamp:
            # Evicted by a request whose response was lost, or deleted by another client.
            self._record_evicted(request)
        if not _is_evictable(pod):
            self._finish(uid, request)
            return None
        request.version = pod.metadata.resource_version if _has_condition(pod) else ""
        return self._retry_later(uid, request, error)

    def _retry_later(self, uid: str, request: _EvictionRequest, error: Exception) -> float | None:
        """Return the seconds until the next attempt, or drop the request after the timeout."""
        timeout = request.eviction.timeout
        if timeout is not None and self._clock.monotonic() - request.since >= timeout:
            log_fields = {**self._log_fields(uid), "why": str(error)}
            log.info("eviction dropped", extra=log_fields)
            if self._is_current(uid, request):
                self._drop(uid)
            return None
        if isinstance(error, TooManyRequestsError):
            self._record_blocked(request, error)
        delay = self._backoff.when(uid)
        asked = error.retry_after if isinstance(error, ApiError) else None
        return max(delay, asked or 0.0)

    def _is_current(self, uid: str, request: _EvictionRequest) -> bool:
        """Return whether no later request has replaced *request* while it was in flight."""
        return self._requests.get(uid) is request

    def _finish(self, uid: str, request: _EvictionRequest) -> None:
        if self._is_current(uid, request):
            self.discard(uid)

    def _drop(self, uid: str) -> None:
        """Drop a request, and reset the condition that it may have written."""
        eviction = self._requests.pop(uid).eviction
        self._backoff.forget(uid)
        self._resets[uid] = eviction.namespace, eviction.name, eviction.replaced
        self.queue.add(uid)
        self._forget(uid)

    async def _reset_condition(self, uid: str) -> None:
        target = self._resets.get(uid)
        if target is None:
            return
        try:
            namespace, name, replaced = target
            await self._patch_condition(
                namespace, name, uid, status="False", reason="", message="", replaced=replaced
            )
        except UNAVAILABLE_ERRORS:
            raise
        except ApiError as error:
            if not isinstance(error, NotFoundError | ConflictError):
                log_fields = {**self._log_fields(uid), "why": str(error)}
                log.warning("cannot reset pod condition", extra=log_fields)
        if self._resets.get(uid) == target:
            del self._resets[uid]

    async def _patch_condition(
        self,
        namespace: str,
        name: str,
        uid: str,
        *,
        status: str,
        reason: str,
        message: str,
        replaced: bool,
    ) -> Pod:
        fields = {
            "status": status,
            "reason": reason or None,
            "message": message or None,
            "lastTransitionTime": self._clock.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        types = (DISRUPTION_TARGET, *((names.REPLACED_BY_SCHEDULER,) if replaced else ()))
        conditions = [{"type": each, **fields} for each in types]
        return await self._client.patch(
            names.PODS,
            name,
            {"metadata": {"uid": uid}, "status": {"conditions": conditions}},
            namespace=namespace,
            subresource="status",
            kind=PatchType.STRATEGIC,
            view=Pod,
        )

    def _log_fields(self, uid: str) -> dict[str, str]:
        """Return the fields that name a pod in logs."""
        request = self._requests.get(uid)
        if request is not None:
            gang = request.eviction.gang
            return {**(gang.log_fields() if gang else {}), "pod": request.eviction.key}
        if uid in self._resets:
            return {"pod": "/".join(self._resets[uid][:2])}
        return {"uid": uid}

    def _record_evicted(self, request: _EvictionRequest) -> None:
        log_fields = {**self._log_fields(request.eviction.uid), "why": request.eviction.message}
        log.info("pod evicted", extra=log_fields)
        self._record_event(request.eviction, "Warning", EVICTED, request.eviction.message)
        gang = request.eviction.gang
        podgroup = gang.podgroup if gang is not None else None
        if self._recorder is not None and podgroup is not None and podgroup.is_stored:
            regarding = object_reference(names.PODGROUPS, podgroup.metadata)
            message = f"pod {request.eviction.name}: {request.eviction.message}"
            self._recorder.record(regarding, type="Normal", reason=EVICTED, message=message)

    def _record_blocked(self, request: _EvictionRequest, error: ApiError) -> None:
        """Record an event about the first rejection of a request."""
        if not request.rejected:
            request.rejected = True
            causes = error.details.get("causes") or ()
            details = [str(each.get("message", "")) for each in causes if isinstance(each, dict)]
            message = f"cannot evict pod: {'; '.join(filter(None, details)) or error.message}"
            self._record_event(request.eviction, "Warning", EVICTION_BLOCKED, message)

    def _record_event(self, eviction: Eviction, kind: EventType, reason: str, message: str) -> None:
        if self._recorder is not None:
            regarding = ObjectReference(
                api_version="v1",
                kind="Pod",
                namespace=eviction.namespace,
                name=eviction.name,
                uid=eviction.uid,
            )
            self._recorder.record(regarding, type=kind, reason=reason, message=message)


def _is_evictable(pod: Pod) -> bool:
    """Return whether *pod* is neither terminating nor finished."""
    return not pod.metadata.deletion_timestamp and pod.status.phase not in FINISHED


def _has_condition(pod: Pod, kind: str = DISRUPTION_TARGET) -> bool:
    return any(each.type == kind and each.status == "True" for each in pod.status.conditions)
