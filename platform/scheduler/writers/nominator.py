"""The nominator: writes ``status.nominatedNodeName`` of pods for which resources are held.

It is written before pods are evicted, and after a restart the reservations are restored from it. So
no other pod takes the resources that the evicted ones free.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ...kube.client.client import Client, PatchType
from ...kube.errors import UNAVAILABLE_ERRORS, ApiError, ConflictError, NotFoundError
from ...machinery.clock import Clock
from ...machinery.controller import RequeueError, ShardedQueue, WorkerSettings, run_workers
from ...machinery.rate_limiters import ExponentialFailureRateLimiter
from ...model import names
from ..framework.decision import Nomination
from ..state.core_types import Pod
from .pod_versions import PodVersions

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Batch:
    """Nominations after which something is done."""

    uids: set[str]
    then: Callable[[], object]


class Nominator:
    """Writes nominated nodes, never two at a time for one pod."""

    def __init__(
        self,
        client: Client,
        *,
        clock: Clock,
        max_in_flight: int,
        pod_versions: PodVersions | None = None,
    ) -> None:
        """Keep at most *max_in_flight* patches in flight."""
        self._client = client
        self._pod_versions = pod_versions or PodVersions()
        self._nominations: dict[str, Nomination] = {}
        self._batches: list[_Batch] = []
        self._worker_settings = WorkerSettings(workers_per_shard=max_in_flight)
        self.queue = ShardedQueue(
            name="nominations",
            limiter=ExponentialFailureRateLimiter(0.05, 30.0),
            clock=clock,
            log_fields=self._log_fields,
        )

    def nominate(self, nominations: Iterable[Nomination], then: Callable[[], object]) -> None:
        """Write *nominations*, and call *then* once all are written or obsolete."""
        uids = set()
        for nomination in nominations:
            uids.add(nomination.uid)
            self._nominations[nomination.uid] = nomination
            self.queue.add(nomination.uid)
        if uids:
            self._batches.append(_Batch(uids, then))
        else:
            then()

    @property
    def idle(self) -> bool:
        """Whether there is nothing to be written."""
        return not self._nominations

    async def run(self) -> None:
        """Write until cancelled; patches in flight are finished first."""
        await run_workers(self.queue, self._execute, settings=self._worker_settings)

    async def _execute(self, uid: str) -> None:
        nomination = self._nominations.get(uid)
        if nomination is None:
            return
        try:
            await self._write(nomination)
        except ConflictError as error:
            raise RequeueError("the pod has changed") from error
        except UNAVAILABLE_ERRORS:
            raise
        except ApiError as error:
            if not isinstance(error, NotFoundError):
                log_fields = {**self._log_fields(uid), "why": str(error)}
                log.warning("cannot nominate node", extra=log_fields)
        if self._nominations.get(uid) is nomination:
            del self._nominations[uid]
            self._complete(uid)

    async def _write(self, nomination: Nomination) -> None:
        await self._pod_versions.wait_idle(nomination.uid)
        pod = self._pod_versions.lister(nomination.key)
        version = self._pod_versions.version(nomination.key, nomination.uid)
        if pod is None or not version or pod.spec.node_name:
            return
        metadata = {"uid": nomination.uid, "resourceVersion": version}
        status = {"nominatedNodeName": nomination.node or None}
        with self._pod_versions.write_in_progress(nomination.uid):
            new = await self._client.patch(
                names.PODS,
                nomination.name,
                {"metadata": metadata, "status": status},
                namespace=nomination.namespace,
                subresource="status",
                kind=PatchType.STRATEGIC,
                view=Pod,
            )
            self._pod_versions.record_write(nomination.uid, new.metadata.resource_version)

    def _complete(self, uid: str) -> None:
        """Count a nomination in all batches; those without any left are done."""
        batches, self._batches = self._batches, []
        done: list[_Batch] = []
        for batch in batches:
            batch.uids.discard(uid)
            (self._batches if batch.uids else done).append(batch)
        for batch in done:
            batch.then()

    def _log_fields(self, uid: str) -> dict[str, str]:
        """Return the fields that name a pod in logs."""
        nomination = self._nominations.get(uid)
        return {"uid": uid} if nomination is None else {"pod": nomination.key}
