"""Creates and deletes the pods of a Job, and removes their finalizers.

Every accepted write is in the pod tracker before the call returns, so that the next sync does not
depend on the informer. A creation without a response is repeated with the same name: either request
may take effect, but not both.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
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
    is_namespace_terminating,
)
from ..model.meta import ObjectMeta
from ..model.names import BATCH_JOBS
from . import pods
from .batch_pod import BatchPod, parse_pod
from .core_types import TRACKING_FINALIZER, Job, Pod
from .evaluation import Creation, Plan
from .state import BatchJobState, Unconfirmed

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteResult:
    """Result of the writes of one sync."""

    succeeded: int = 0
    failed: int = 0
    error: Exception | None = None
    """The first error, for which to retry."""


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

    async def create(
        self, job: Job, info: BatchJobState, creations: Sequence[Creation]
    ) -> WriteResult:
        """Create pods with a slow start; an error ends it.

        The error of a namespace that is being deleted is dropped: no retry can succeed.
        """
        names: dict[str, Creation] = {}
        for creation in creations:
            names[self._choose_name(job, info, creation, names)] = creation
        owner = Owner(resource=BATCH_JOBS, metadata=job.metadata)
        template = info.template(job)

        async def create(name: str) -> None:
            body = pods.build(template, owner, names[name], name=name)
            await self._create(owner, info, names[name], body)

        result = await self._batch(slow_start, list(names), create)
        if result.succeeded:
            fields = {"job": job.metadata.key, "pods": len(result.succeeded)}
            log.info("pods created", extra=fields)
        errors = [error for _, error in result.failed if not is_namespace_terminating(error)]
        return WriteResult(
            succeeded=len(result.succeeded),
            failed=len(result.failed),
            error=errors[0] if errors else None,
        )

    def _choose_name(
        self, job: Job, info: BatchJobState, creation: Creation, chosen: dict[str, Creation]
    ) -> str:
        repeated = info.unconfirmed_name(creation, excluded=chosen.__contains__)
        if repeated is not None:
            return repeated
        prefix = pods.name_prefix(job.metadata.name, creation.index)
        return self._names.generate(prefix, taken=_TakenNames(self._informer, job, info, chosen))

    async def _create(
        self, owner: Owner, info: BatchJobState, creation: Creation, body: pods.Json
    ) -> None:
        name = body["metadata"]["name"]
        repeated = name in info.unconfirmed
        try:
            created = await self._control.create(owner, body)
        except AlreadyExistsError:
            # Of a repeated request it is the pod of the first one, which the informer will report.
            # If another client has the name, a new one is generated.
            if not repeated or self._is_foreign(owner, name):
                info.unconfirmed.pop(name, None)
            raise
        except BaseException as error:
            if not was_rejected(error):
                until = self._clock.monotonic() + self._unconfirmed_timeout
                info.unconfirmed[name] = Unconfirmed(creation, until)
            raise
        info.unconfirmed.pop(name, None)
        info.pods.add_created(parse_pod(created.child, info.traits))

    def _is_foreign(self, owner: Owner, name: str) -> bool:
        found = self._informer.get(f"{owner.metadata.namespace}/{name}")
        return found is not None and not owner.controls(found)

    # Deletion.

    async def delete(self, job: Job, info: BatchJobState, plan: Plan) -> WriteResult:
        """Delete the pods of *plan* concurrently.

        Unless deleted pods count, each loses its finalizer first. That patch applies only to the
        observed version of the pod: its end must not be missed.
        """
        owner = Owner(resource=BATCH_JOBS, metadata=job.metadata)

        async def delete(pod: BatchPod) -> None:
            meta = _meta(job, pod)
            try:
                if pod.finalizer and not plan.counts_deleted:
                    await self._remove_finalizer(info, pod, meta, version=pod.resource_version)
                await self._control.delete(owner, meta)
            except NotFoundError:
                pass  # the informer will report it
            info.pods.mark_deleted(pod.uid)

        result = _result(await self._batch(run_concurrently, plan.delete, delete))
        if result.succeeded:
            fields = {"job": job.metadata.key, "pods": result.succeeded}
            log.info("pods deleted", extra=fields)
        return result

    # Finalizers.

    async def remove_finalizers(
        self, job: Job, info: BatchJobState, ended: Sequence[BatchPod]
    ) -> WriteResult:
        """Remove the tracking finalizer of pods that are accounted for."""

        async def remove(pod: BatchPod) -> None:
            await self._remove_finalizer(info, pod, _meta(job, pod))

        return _result(await self._batch(run_concurrently, ended, remove))

    async def _remove_finalizer(
        self, info: BatchJobState, pod: BatchPod, meta: ObjectMeta, *, version: str = ""
    ) -> None:
        body = finalizer_removal(TRACKING_FINALIZER)
        if version:
            body["metadata"]["resourceVersion"] = version
        info.pods.expect_finalizer_removed(pod.uid)
        try:
            await self._control.patch(meta, body)
        except NotFoundError:
            if version:
                raise
        except BaseException:
            info.pods.restore_finalizer(pod.uid)
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
    """Names of pods in the Job's namespace, and those chosen for pods to be created."""

    def __init__(
        self, informer: Informer[Pod], job: Job, info: BatchJobState, chosen: dict[str, Creation]
    ) -> None:
        self._informer = informer
        self._namespace = job.metadata.namespace
        self._chosen = (chosen, info.unconfirmed)

    def __contains__(self, name: object) -> bool:
        """Whether the name is taken."""
        if any(name in names for names in self._chosen):
            return True
        return f"{self._namespace}/{name}" in self._informer


def _meta(job: Job, pod: BatchPod) -> ObjectMeta:
    return ObjectMeta(name=pod.name, namespace=job.metadata.namespace, uid=pod.uid)


def _result(batch: BatchResult[T]) -> WriteResult:
    return WriteResult(
        succeeded=len(batch.succeeded), failed=len(batch.failed), error=batch.first_error
    )
