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
from .pod_versions import Standing

log = logging.getLogger(__name__)


class Usher:
    """Lifts gates, many at a time; never twice at once that of one pod."""

    def __init__(
        self, client: Client, *, clock: Clock, at_once: int, standing: Standing | None = None
    ) -> None:
        """Keep *at_once* patches under way at most; *standing* knows the versions of pods."""
        self._client = client
        self._standing = standing or Standing()
        self._pods: dict[str, str] = {}
        self._workers = WorkerSettings(workers_per_shard=at_once)
        self.queue = ShardedQueue(
            name="gates", limiter=ExponentialFailureRateLimiter(0.05, 60.0), clock=clock
        )

    def let_in(self, tasks: Iterable[Task]) -> None:
        """Have the gates of *tasks* lifted."""
        for task in tasks:
            self._pods[task.uid] = task.key
            self.queue.add(task.uid)

    async def run(self) -> None:
        """Lift gates until cancelled; what is under way then is finished first."""
        await run_workers(self.queue, self._lift, settings=self._workers)

    async def _lift(self, uid: str) -> float | None:
        key = self._pods.get(uid, "")
        await self._standing.settled(uid)
        seen, version = self._standing.seen(key), self._standing.version(key, uid)
        if seen is None or not version or not _is_gated(seen):
            self._pods.pop(uid, None)
            return None
        body = {
            "metadata": {"uid": uid, "resourceVersion": version},
            "spec": {"schedulingGates": [{"$patch": "delete", "name": names.QUEUE_GATE}]},
        }
        meta = seen.metadata
        try:
            with self._standing.writing(uid):
                new = await self._client.patch(
                    names.PODS,
                    meta.name,
                    body,
                    namespace=meta.namespace,
                    kind=PatchType.STRATEGIC,
                    view=Pod,
                )
                self._standing.written(uid, new.metadata.resource_version)
        except NotFoundError:
            pass
        except (ConflictError, ServerError):
            raise
        except ApiError as fault:
            log.warning("gate not lifted", extra={"pod": key, "why": str(fault)})
            raise
        self._pods.pop(uid, None)
        return None


def _is_gated(pod: Pod) -> bool:
    return any(gate.name == names.QUEUE_GATE for gate in pod.spec.scheduling_gates)
