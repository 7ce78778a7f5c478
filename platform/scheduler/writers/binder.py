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
from .pod_versions import Standing

log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 60.0
"""Seconds that a refused pod keeps its place, at first and at most."""


@dataclass(slots=True)
class _Errand:
    placement: Placement
    refused: bool = False


@dataclass(slots=True)
class _Progress:
    """How far the bindings of one gang are."""

    left: int = 0
    bound: int = 0


def _by_key(gang: str) -> Mapping[str, str]:
    return {"podgroup": gang}


class Binder:
    """Posts bindings, in the order of the placements; never two at once for the same pod."""

    def __init__(
        self,
        client: Client,
        *,
        recorder: Recorder | None,
        clock: Clock,
        at_once: int,
        forget: Callable[[str], object],
        about: Callable[[str], Mapping[str, str]] = _by_key,
        standing: Standing | None = None,
    ) -> None:
        """Keep *at_once* bindings under way at most.

        *forget* is told the uid of a pod that has not got its place and shall be placed anew;
        *about* says how the log names a gang, and *standing* knows the version of a pod; it is
        bound in that one and in no other.
        """
        self._client = client
        self._recorder = recorder
        self._forget = forget
        self._about = about
        self._standing = standing or Standing()
        self._errands: dict[str, _Errand] = {}
        self._gangs: dict[str, _Progress] = {}
        self._pauses = ExponentialFailureRateLimiter(FIRST_PAUSE, LONGEST_PAUSE)
        self._workers = WorkerSettings(workers_per_shard=at_once)
        self.queue = ShardedQueue(
            name="bindings",
            limiter=ExponentialFailureRateLimiter(0.05, 5.0),
            clock=clock,
            log_fields=self._named,
        )

    def bind(self, placements: Iterable[Placement]) -> None:
        """Have *placements* carried out."""
        for placement in placements:
            before = self._errands.get(placement.uid)
            if placement.gang and (before is None or before.placement.gang != placement.gang):
                self._gangs.setdefault(placement.gang, _Progress()).left += 1
            self._errands[placement.uid] = _Errand(placement)
            self.queue.add(placement.uid)

    def settled(self, uid: str) -> None:
        """The pod runs or is gone: its refusals no longer count."""
        self._pauses.forget(uid)

    @property
    def idle(self) -> bool:
        """Whether nothing is left to carry out."""
        return not self._errands

    async def run(self) -> None:
        """Post bindings until cancelled; what is under way then is finished first."""
        await run_workers(self.queue, self._carry_out, settings=self._workers)

    async def _carry_out(self, uid: str) -> float | None:
        errand = self._errands.get(uid)
        if errand is None:
            return None
        placement = errand.placement
        if errand.refused:
            self._end(uid)
            self._forget(uid)
            return None
        await self._standing.settled(uid)
        version = self._standing.version(f"{placement.namespace}/{placement.name}", uid)
        try:
            await self._post(placement, version)
        except (ServerError, TooManyRequestsError):
            raise
        except ApiError as fault:
            seen = await self._look(placement) if isinstance(fault, ConflictError) else None
            if seen is not None and seen.spec.node_name:
                self._end(uid, bound=True)  # the watch will tell where
                return None
            errand.refused = True
            note = {**self._named(uid), "why": str(fault)}
            if seen is not None and version not in ("", seen.metadata.resource_version):
                log.info("pod has just changed", extra=note)
            else:
                log.warning("binding refused", extra=note)
                self._say(placement, "Warning", "FailedScheduling", f"binding was refused: {fault}")
            return self._pauses.when(uid)
        self._end(uid, bound=True)
        pod = f"{placement.namespace}/{placement.name}"
        message = f"Successfully assigned {pod} to {placement.node}"
        self._say(placement, "Normal", "Scheduled", message)
        return None

    def _named(self, uid: str) -> dict[str, str]:
        """How the log names a pod that is to be bound."""
        errand = self._errands.get(uid)
        if errand is None:
            return {"uid": uid}
        placement = errand.placement
        pod = f"{placement.namespace}/{placement.name}"
        return {**(self._about(placement.gang) if placement.gang else {}), "pod": pod}

    def _end(self, uid: str, *, bound: bool = False) -> None:
        """Forget an errand, and tell when it was the last of its gang."""
        gang = self._errands.pop(uid).placement.gang
        progress = self._gangs.get(gang)
        if progress is None:
            return
        progress.left -= 1
        progress.bound += bound
        if not progress.left:
            del self._gangs[gang]
            if progress.bound:
                log.info("gang bound", extra={**self._about(gang), "pods": progress.bound})

    def _say(self, placement: Placement, kind: EventType, reason: str, message: str) -> None:
        if self._recorder is not None:
            self._recorder.record(_about(placement), type=kind, reason=reason, message=message)

    async def _look(self, placement: Placement) -> Pod | None:
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

    async def _post(self, placement: Placement, version: str) -> None:
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


def _about(placement: Placement) -> ObjectReference:
    return ObjectReference(
        api_version="v1",
        kind="Pod",
        namespace=placement.namespace,
        name=placement.name,
        uid=placement.uid,
    )
