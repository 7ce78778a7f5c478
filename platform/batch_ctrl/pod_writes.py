"""Creates and deletes the pods of a Job, and removes their finalizers.

Every accepted write is in the pod tracker before the call returns, so that the next sync does not
depend on the informer. A creation without a response is repeated with the same name: either request
may take effect, but not both.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Sequence
from typing import TypeVar

from ..kube.errors import AlreadyExistsError, NotFoundError, was_rejected
from ..kube.informer.informer import Informer
from ..machinery.batches import BatchResult, run_concurrently, slow_start
from ..machinery.clock import Clock
from ..machinery.pod_control import (
    NameGenerator,
    ObjectControl,
    Owner,
    finalizer_removal,
)
from ..model.meta import ObjectMeta
from ..model.names import BATCH_JOBS
from . import pods
from .batch_pod import BatchPod, parse_pod
from .core_types import TRACKING_FINALIZER, Pod
from .effects import Creation
from .state import BatchJobState, Unconfirmed

log = logging.getLogger(__name__)

T = TypeVar("T")


class PodWrites:
    """Writes pods of any Job."""

    def __init__(
        self,
        control: ObjectControl[Pod],
        informer: Informer[Pod],
        *,
        clock: Clock,
        max_in_flight: int,
        unconfirmed_timeout: float,
        names: NameGenerator | None = None,
    ) -> None:
        self._control = control
        self._informer = informer
        self._clock = clock
        self._slots = asyncio.Semaphore(max_in_flight)
        self._unconfirmed_timeout = unconfirmed_timeout
        self._names = names or NameGenerator()

    # Creation.

    async def create(self, state: BatchJobState, creations: Sequence[Creation]) -> BatchResult[str]:
        """Create pods with a slow start, which an error ends; return the results by name."""
        names: dict[str, Creation] = {}
        for creation in creations:
            names[self._choose_name(state, creation, names)] = creation
        owner = Owner(resource=BATCH_JOBS, metadata=state.job.metadata)

        async def create(name: str) -> None:
            body = pods.build(state.template(), owner, names[name], name=name)
            await self._create(owner, state, names[name], body)

        result = await self._batch(slow_start, list(names), create)
        if result.succeeded:
            fields = {"job": state.job.metadata.key, "pods": len(result.succeeded)}
            log.info("pods created", extra=fields)
        return result

    def _choose_name(
        self, state: BatchJobState, creation: Creation, chosen: dict[str, Creation]
    ) -> str:
        repeated = state.unconfirmed_name(creation, excluded=chosen.__contains__)
        if repeated is not None:
            return repeated
        meta = state.job.metadata
        prefix = pods.name_prefix(meta.name, creation.index)
        taken = _TakenNames(self._informer, meta.namespace, chosen, state.unconfirmed)
        return self._names.generate(prefix, taken=taken)

    async def _create(
        self, owner: Owner, state: BatchJobState, creation: Creation, body: pods.Json
    ) -> None:
        name = body["metadata"]["name"]
        repeated = name in state.unconfirmed
        try:
            created = await self._control.create(owner, body)
        except AlreadyExistsError:
            # Of a repeated request it is the pod of the first one, which the informer will report.
            # If another client has the name, a new one is generated.
            if not repeated or self._is_foreign(owner, name):
                state.unconfirmed.pop(name, None)
            raise
        except BaseException as error:
            if not was_rejected(error):
                until = self._clock.monotonic() + self._unconfirmed_timeout
                state.unconfirmed[name] = Unconfirmed(creation, until)
            raise
        state.unconfirmed.pop(name, None)
        state.pods.add_created(parse_pod(created.child, state.traits))

    def _is_foreign(self, owner: Owner, name: str) -> bool:
        found = self._informer.get(f"{owner.metadata.namespace}/{name}")
        return found is not None and not owner.controls(found)

    # Deletion.

    async def delete(
        self, state: BatchJobState, unwanted: Sequence[BatchPod], *, counted: bool
    ) -> BatchResult[BatchPod]:
        """Delete pods concurrently.

        Unless they are *counted* afterwards, each loses its finalizer first. That patch applies
        only to the observed version of the pod: its end must not be missed.
        """
        owner = Owner(resource=BATCH_JOBS, metadata=state.job.metadata)

        async def delete(pod: BatchPod) -> None:
            meta = _meta(state, pod)
            try:
                if pod.finalizer and not counted:
                    await self._remove_finalizer(state, meta, version=pod.resource_version)
                await self._control.delete(owner, meta)
            except NotFoundError:
                pass  # the informer will report it
            state.pods.mark_deleted(pod.uid)

        result = await self._batch(run_concurrently, unwanted, delete)
        if result.succeeded:
            fields = {"job": state.job.metadata.key, "pods": len(result.succeeded)}
            log.info("pods deleted", extra=fields)
        return result

    # Finalizers.

    async def remove_finalizers(
        self, state: BatchJobState, counted: Sequence[BatchPod]
    ) -> BatchResult[BatchPod]:
        """Remove the tracking finalizer of pods that the status includes."""

        async def remove(pod: BatchPod) -> None:
            await self._remove_finalizer(state, _meta(state, pod))

        return await self._batch(run_concurrently, counted, remove)

    async def _remove_finalizer(
        self, state: BatchJobState, meta: ObjectMeta, *, version: str = ""
    ) -> None:
        body = finalizer_removal(TRACKING_FINALIZER)
        if version:
            body["metadata"]["resourceVersion"] = version
        state.pods.expect_finalizer_removed(meta.uid)
        try:
            await self._control.patch(meta, body)
        except NotFoundError:
            if version:
                raise
        except BaseException:
            state.pods.restore_finalizer(meta.uid)
            raise

    async def _batch(
        self,
        run: Callable[[Sequence[T], Callable[[T], Awaitable[object]]], Awaitable[BatchResult[T]]],
        items: Sequence[T],
        call: Callable[[T], Awaitable[object]],
    ) -> BatchResult[T]:
        async def limited(item: T) -> None:
            async with self._slots:
                await call(item)

        return await run(items, limited)


class _TakenNames:
    """Names of pods in a namespace, and those chosen for pods to be created."""

    def __init__(self, informer: Informer[Pod], namespace: str, *chosen: Container[object]) -> None:
        self._informer = informer
        self._namespace = namespace
        self._chosen = chosen

    def __contains__(self, name: object) -> bool:
        """Whether the name is taken."""
        if any(name in names for names in self._chosen):
            return True
        return f"{self._namespace}/{name}" in self._informer


def _meta(state: BatchJobState, pod: BatchPod) -> ObjectMeta:
    return ObjectMeta(name=pod.name, namespace=state.job.metadata.namespace, uid=pod.uid)
