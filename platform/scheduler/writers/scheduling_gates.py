"""Takes the gate of their queue from pods that have been let in.

Like a binding, the patch names uid and version of its pod. One that is refused is sent again after
a pause that grows: until the gate is gone the pod counts as let in, and its queue keeps its room.
"""

import logging
from collections.abc import Iterable

from ...kube.client.client import Client, PatchType
from ...kube.errors import ApiError, ConflictError, NotFoundError, ServerError
from ...machinery.clock import Clock
from ...machinery.controller import ShardedQueue, WorkerSettings, run_workers
from ...machinery.rate_limiters import ExponentialFailureRateLimiter
from ...model import names
from ..state.core_types import Pod
from ..state.gangs import Task
from .pod_versions import PodVersions

log = logging.getLogger(__name__)


class SchedulingGateManager:
    """Lifts gates, many at a time; never twice at once that of one pod."""

    def __init__(
        self,
        client: Client,
        *,
        clock: Clock,
        max_in_flight: int,
        pod_versions: PodVersions | None = None,
    ) -> None:
        """Keep *at_once* patches under way at most; *standing* knows the versions of pods."""
        self._client = client
        self._pod_versions = pod_versions or PodVersions()
        self._pod_keys: dict[str, str] = {}
        self._worker_settings = WorkerSettings(workers_per_shard=max_in_flight)
        self.queue = ShardedQueue(
            name="gates", limiter=ExponentialFailureRateLimiter(0.05, 60.0), clock=clock
        )

    def remove_gates(self, tasks: Iterable[Task]) -> None:
        """Have the gates of *tasks* lifted."""
        for task in tasks:
            self._pod_keys[task.uid] = task.key
            self.queue.add(task.uid)

    async def run(self) -> None:
        """Lift gates until cancelled; what is under way then is finished first."""
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
            log.warning("gate not lifted", extra={"pod": key, "why": str(error)})
            raise
        self._pod_keys.pop(uid, None)
        return None


def _has_queue_gate(pod: Pod) -> bool:
    return any(gate.name == names.QUEUE_GATE for gate in pod.spec.scheduling_gates)
