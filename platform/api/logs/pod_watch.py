"""The pods of one job while a request lasts: listed and watched with the rights of its caller.

An informer does not replace this: a list that fails is the response to the request, and a watch
that the caller may not open any more ends it, whereas an informer retries both.
"""

import asyncio
import logging
from collections.abc import Callable

from ...kube.client.client import WatchEvent
from ...kube.errors import UNAVAILABLE_ERRORS, DecodeError, GoneError
from ...model.names import PODS
from ..jobs.pod_views import JobPod
from ..jobs.pods import JobPods

log = logging.getLogger(__name__)

INITIAL_BACKOFF, MAX_BACKOFF = 0.5, 10.0
"""Seconds before a watch is opened again after an error; doubled each time."""

PodHandler = Callable[[JobPod, bool], None]
"""Called with each new state of a pod, and whether the pod was deleted."""


class PodWatch:
    """Reports each pod of a job, and each of its changes, to a handler."""

    def __init__(self, pods: JobPods, handler: PodHandler) -> None:
        self._pods = pods
        self._handler = handler
        self._known: dict[str, JobPod] = {}
        """By uid."""
        self._version = ""

    @property
    def known(self) -> list[JobPod]:
        """The pods that exist, as far as they were observed."""
        return list(self._known.values())

    async def list(self) -> None:
        """List the pods, in the order of the job, and report differences.

        Raises:
            ApiError, ConnectionLostError: they cannot be listed.
        """
        found = await self._pods.read()
        self._version = found.resource_version
        listed = {pod.metadata.uid for pod in found.pods}
        for uid in self._known.keys() - listed:
            self._handler(self._known.pop(uid), True)
        for pod in self._pods.in_order(found.pods):
            self._known[pod.metadata.uid] = pod
            self._handler(pod, False)

    async def run(self) -> None:
        """Watch until cancelled, after `list`.

        Raises:
            ApiError: the caller may not watch pods any more.
        """
        backoff = INITIAL_BACKOFF
        while True:
            try:
                if not self._version:
                    await self.list()
                await self._watch()
                backoff = INITIAL_BACKOFF
            except GoneError:
                self._version = ""
            except (*UNAVAILABLE_ERRORS, DecodeError) as error:
                log.info("cannot watch pods, will retry", extra={"error": str(error)})
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, MAX_BACKOFF)

    async def _watch(self) -> None:
        """Watch until the server ends it."""
        async for event in self._pods.client.watch(
            PODS,
            namespace=self._pods.meta.namespace,
            view=JobPod,
            label_selector=self._pods.selector,
            resource_version=self._version,
        ):
            self._version = event.object.metadata.resource_version
            self._observe(event)

    def _observe(self, event: WatchEvent[JobPod]) -> None:
        pod = event.object
        if not self._pods.owns(pod):
            return
        deleted = event.type == "DELETED"
        if deleted:
            self._known.pop(pod.metadata.uid, None)
        else:
            self._known[pod.metadata.uid] = pod
        self._handler(pod, deleted)
