"""The scheduling gate manager: removes the queue gate from pods.

Like a binding, the patch has the uid and resourceVersion of its pod as preconditions. It is retried
with backoff: until the gate is removed the pod counts as allocated in its queue.
"""

import logging
from collections.abc import Iterable

from ...kube.client.client import Client, PatchType
from ...kube.errors import ApiError, ConflictError, NotFoundError, ServerError
from ...machinery.clock import Clock
from ...machinery.controller import ShardedQueue, WorkerSettings, run_workers
from ...machinery.rate_limiters import ExponentialFailureRateLimiter
from ...model import names
from ..framework.decision import UngatedPod
from ..state.core_types import Pod
from .pod_versions import PodVersions

log = logging.getLogger(__name__)


class SchedulingGateManager:
    """Removes queue gates, never two at a time for one pod."""

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
        self._pod_keys: dict[str, str] = {}
        self._worker_settings = WorkerSettings(workers_per_shard=max_in_flight)
        self.queue = ShardedQueue(
            name="gates", limiter=ExponentialFailureRateLimiter(0.05, 60.0), clock=clock
        )

    def remove_gates(self, pods: Iterable[UngatedPod]) -> None:
        """Remove the queue gates of *pods*."""
        for pod in pods:
            self._pod_keys[pod.uid] = pod.key
            self.queue.add(pod.uid)

    async def run(self) -> None:
        """Remove gates until cancelled; patches in flight are finished first."""
        await run_workers(self.queue, self._remove_gate, settings=self._worker_settings)

    async def _remove_gate(self, uid: str) -> float | None:
        key = self._pod_keys.get(uid, "")
        await self._pod_versions.wait_idle(uid)
        pod, version = self._pod_versions.lister(key), self._pod_versions.version(key, uid)
        if pod is None or not version or not _has_queue_gate(pod):
            self._pod_keys.pop(uid, None)
            return None
        body = {
            "metadata": {"uid": uid, "resourceVersion": version},
            "spec": {"schedulingGates": [{"$patch": "delete", "name": names.QUEUE_GATE}]},
        }
        meta = pod.metadata
        try:
            with self._pod_versions.write_in_progress(uid):
                new = await self._client.patch(
                    names.PODS,
                    meta.name,
                    body,
                    namespace=meta.namespace,
                    kind=PatchType.STRATEGIC,
                    view=Pod,
                )
                self._pod_versions.record_write(uid, new.metadata.resource_version)
        except NotFoundError:
            pass
        except (ConflictError, ServerError):
            raise
        except ApiError as error:
            log.warning("cannot remove queue gate", extra={"pod": key, "why": str(error)})
            raise
        self._pod_keys.pop(uid, None)
        return None


def _has_queue_gate(pod: Pod) -> bool:
    return any(gate.name == names.QUEUE_GATE for gate in pod.spec.scheduling_gates)
