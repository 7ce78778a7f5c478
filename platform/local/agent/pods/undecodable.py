"""Pods that the agent cannot decode: they fail, so that their users and controllers notice."""

import asyncio
import functools
import logging
from collections.abc import Callable, Container

from ....kube.client.client import Client, PatchType
from ....kube.errors import ApiError, NotFoundError
from ....machinery.clock import Clock
from ....model.base import ApiStruct
from ....model.log_fields import object_fields
from ....model.meta import ObjectMeta
from ....model.names import PODS
from ..retry import retry_until_done
from ..state.core_types import Pod
from ..status_writes import status_patch
from .status_manager import confirm_deletion

log = logging.getLogger(__name__)

_REASON = "InvalidPod"
_FINAL_PHASES = ("Failed", "Succeeded")


class _Status(ApiStruct, frozen=True):
    phase: str = ""


class _PodPhase(ApiStruct, frozen=True):
    """What is read of a pod that is not decoded as a whole."""

    metadata: ObjectMeta = ObjectMeta()
    status: _Status = _Status()


class UndecodablePods:
    """Fails such pods, as a kubelet fails those that it does not admit, and confirms deletions."""

    def __init__(
        self,
        client: Client,
        running: Container[str],
        record_warning: Callable[[Pod, str, str], None],
        *,
        clock: Clock,
    ) -> None:
        """Pods whose uid is in *running* run already: an update of them is undecodable."""
        self._client = client
        self._running = running
        self._record_warning = record_warning
        self._clock = clock
        self._pending: dict[str, tuple[ObjectMeta, str]] = {}
        self._changed = asyncio.Event()

    def add(self, meta: ObjectMeta, problem: str) -> None:
        """Handle a pod that the informer of the node cannot decode."""
        self._pending[meta.key] = meta, problem
        self._changed.set()

    async def run(self) -> None:
        """Handle the pods one after the other, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._pending:
                key = next(iter(self._pending))
                meta, problem = self._pending.pop(key)
                work = functools.partial(self._handle, meta, problem)
                try:
                    await retry_until_done(work, clock=self._clock)
                except NotFoundError:
                    pass
                except ApiError as error:
                    fields = {**object_fields("pod", meta), "error": str(error)}
                    log.warning("cannot fail undecodable pod", extra=fields)

    async def _handle(self, meta: ObjectMeta, problem: str) -> None:
        name, namespace = meta.name, meta.namespace
        pod = await self._client.get(PODS, name, namespace=namespace, view=_PodPhase)
        if pod.metadata.uid != meta.uid:
            return
        known = Pod(metadata=pod.metadata)
        if pod.metadata.deletion_timestamp is not None:
            await confirm_deletion(self._client, known, clock=self._clock)
            return
        if pod.status.phase in _FINAL_PHASES or meta.uid in self._running:
            return
        message = f"the node cannot decode the pod: {problem}"
        status = {
            "phase": "Failed",
            "reason": _REASON,
            "message": f"Pod was rejected: {message}",
        }
        body = status_patch(meta.uid, status)
        await self._client.patch(
            PODS,
            name,
            body,
            namespace=namespace,
            subresource="status",
            kind=PatchType.STRATEGIC,
            view=_PodPhase,
        )
        self._record_warning(known, _REASON, message)
