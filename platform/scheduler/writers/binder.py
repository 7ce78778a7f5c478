"""Carries placements out: posts bindings, many at a time, and says which were refused.

A binding names the uid and the version of its pod, so it can neither hit a later pod of that name
nor one that has changed since the decision: a new leader may have decided otherwise. A refused pod
keeps its place for a moment that grows with every refusal, so that it is not tried over and over;
then its room is given back and it is placed anew. While the server is out of reach the same binding
is sent again: it may have been carried out, and to place the pod elsewhere would be a second
answer.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import msgspec

from ...kube.client.client import Client
from ...kube.client.events import EventType
from ...kube.errors import ApiError, ConflictError, NotFoundError, ServerError, TooManyRequestsError
from ...machinery.clock import Clock
from ...machinery.controller import ShardedQueue, WorkerSettings, run_workers
from ...machinery.event_recorder import Recorder
from ...machinery.rate_limiters import ExponentialFailureRateLimiter
from ...model import names
from ...model.meta import ObjectReference
from ..framework.session import Placement
from ..state.core_types import Pod
from .pod_versions import PodVersions

log = logging.getLogger(__name__)

INITIAL_BACKOFF, MAX_BACKOFF = 0.1, 60.0
"""Seconds that a refused pod keeps its place, at first and at most."""


@dataclass(slots=True)
class _BindRequest:
    placement: Placement
    rejected: bool = False


@dataclass(slots=True)
class _GangProgress:
    """How far the bindings of one gang are."""

    remaining: int = 0
    bound: int = 0


def _default_log_fields(gang: str) -> Mapping[str, str]:
    return {"podgroup": gang}


class Binder:
    """Posts bindings, in the order of the placements; never two at once for the same pod."""

    def __init__(
        self,
        client: Client,
        *,
        recorder: Recorder | None,
        clock: Clock,
        max_in_flight: int,
        forget: Callable[[str], object],
        log_fields: Callable[[str], Mapping[str, str]] = _default_log_fields,
        pod_versions: PodVersions | None = None,
    ) -> None:
        """Keep *at_once* bindings under way at most.

        *forget* is told the uid of a pod that has not got its place and shall be placed anew;
        *about* says how the log names a gang, and *standing* knows the version of a pod; it is
        bound in that one and in no other.
        """
        self._client = client
        self._recorder = recorder
        self._forget = forget
        self._gang_log_fields = log_fields
        self._pod_versions = pod_versions or PodVersions()
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

    def bind(self, placements: Iterable[Placement]) -> None:
        """Have *placements* carried out."""
        for placement in placements:
            before = self._requests.get(placement.uid)
            if placement.gang and (before is None or before.placement.gang != placement.gang):
                self._gang_progress.setdefault(placement.gang, _GangProgress()).remaining += 1
            self._requests[placement.uid] = _BindRequest(placement)
            self.queue.add(placement.uid)

    def forget_backoff(self, uid: str) -> None:
        """The pod runs or is gone: its refusals no longer count."""
        self._backoff.forget(uid)

    @property
    def idle(self) -> bool:
        """Whether nothing is left to carry out."""
        return not self._requests

    async def run(self) -> None:
        """Post bindings until cancelled; what is under way then is finished first."""
        await run_workers(self.queue, self._execute, settings=self._worker_settings)

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
        version = self._pod_versions.version(f"{placement.namespace}/{placement.name}", uid)
        try:
            await self._post_binding(placement, version)
        except (ServerError, TooManyRequestsError):
            raise
        except ApiError as error:
            current = await self._get_pod(placement) if isinstance(error, ConflictError) else None
            if current is not None and current.spec.node_name:
                self._complete(uid, bound=True)  # the watch will tell where
                return None
            request.rejected = True
            log_fields = {**self._log_fields(uid), "why": str(error)}
            if current is not None and version not in ("", current.metadata.resource_version):
                log.info("pod has just changed", extra=log_fields)
            else:
                log.warning("binding refused", extra=log_fields)
                self._record_event(
                    placement, "Warning", "FailedScheduling", f"binding was refused: {error}"
                )
            return self._backoff.when(uid)
        self._complete(uid, bound=True)
        pod = f"{placement.namespace}/{placement.name}"
        message = f"Successfully assigned {pod} to {placement.node}"
        self._record_event(placement, "Normal", "Scheduled", message)
        return None

    def _log_fields(self, uid: str) -> dict[str, str]:
        """How the log names a pod that is to be bound."""
        request = self._requests.get(uid)
        if request is None:
            return {"uid": uid}
        placement = request.placement
        pod = f"{placement.namespace}/{placement.name}"
        return {**(self._gang_log_fields(placement.gang) if placement.gang else {}), "pod": pod}

    def _complete(self, uid: str, *, bound: bool = False) -> None:
        """Forget an errand, and tell when it was the last of its gang."""
        gang = self._requests.pop(uid).placement.gang
        progress = self._gang_progress.get(gang)
        if progress is None:
            return
        progress.remaining -= 1
        progress.bound += bound
        if not progress.remaining:
            del self._gang_progress[gang]
            if progress.bound:
                log.info(
                    "gang bound", extra={**self._gang_log_fields(gang), "pods": progress.bound}
                )

    def _record_event(
        self, placement: Placement, kind: EventType, reason: str, message: str
    ) -> None:
        if self._recorder is not None:
            self._recorder.record(
                _pod_reference(placement), type=kind, reason=reason, message=message
            )

    async def _get_pod(self, placement: Placement) -> Pod | None:
        """The pod as it is now, if it is there.

        It may have a node after all, by an answer that was lost or by somebody else.
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


def _pod_reference(placement: Placement) -> ObjectReference:
    return ObjectReference(
        api_version="v1",
        kind="Pod",
        namespace=placement.namespace,
        name=placement.name,
        uid=placement.uid,
    )
