"""Suspension controllers: Jobs that have no pods until their queue has admitted them.

Their users create them suspended, with a label. The controller creates the PodGroup that their pods
will have, and resumes them once the scheduler has admitted it. It writes ``spec.suspend`` once, and
never suspends anything: a job that its user suspends later stays so.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

import msgspec

from ..kube.client.client import Client
from ..kube.errors import BadRequestError, ForbiddenError, InvalidError
from ..kube.informer.informer import Informer, KindSource
from ..machinery.clock import Clock
from ..machinery.event_recorder import Recorder
from ..machinery.reconcile.cache import WriteThroughCache
from ..machinery.reconcile.controller import Controller, ControllerSettings, Sync
from ..machinery.reconcile.events import Event, Events
from ..model.meta import ObjectMeta
from ..model.names import (
    ADMITTED,
    BATCH_JOBS,
    PODGROUPS,
    SCHEDULER_NAME,
    SUSPEND_BY,
    Resource,
)
from ..model.podgroup import PodGroup, PodGroupPhase, min_member
from ..model.quantity import QuantityError
from ..model.run_times import deadline_annotation
from . import build
from .core_types import Pod, PodSpec
from .groupers import jobset
from .groupers.base import Described, Gang, Role, RoleTemplate, owner_reference
from .groupers.jobset import JobSet, JobSpec

log = logging.getLogger(__name__)

BY_QUEUE = "queue"
"""Value of the label."""


class _BatchSpec(JobSpec, frozen=True):
    active_deadline_seconds: int | None = None


class BatchJob(Described, frozen=True):
    """A Job of batch/v1."""

    spec: _BatchSpec = _BatchSpec()


Suspendable = BatchJob | JobSet


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendableKind:
    """A kind with ``spec.suspend``."""

    controller: str
    """Name of its controller."""
    resource: Resource
    view: type[Any]
    gang: Callable[[Any], Gang]
    template: Callable[[Any], RoleTemplate]
    """Returns the template of the pods that have the scheduler and the queue."""


def _batch_gang(job: BatchJob) -> Gang:
    annotations = job.metadata.annotations
    role = Role(name="job", count=job.spec.pods, spec=job.spec.template.spec, labels={})
    return Gang(
        owner=owner_reference(job, BATCH_JOBS),
        roles=[role],
        min_member=min_member(annotations),
        annotations=annotations | deadline_annotation(job.spec.active_deadline_seconds),
    )


def _jobset_template(found: JobSet) -> RoleTemplate:
    jobs = found.spec.replicated_jobs
    return jobs[0].template.spec.template if jobs else RoleTemplate()


KINDS = (
    SuspendableKind(
        controller="job-suspension-controller",
        resource=BATCH_JOBS,
        view=BatchJob,
        gang=_batch_gang,
        template=lambda job: job.spec.template,
    ),
    SuspendableKind(
        controller="jobset-suspension-controller",
        resource=jobset.JOBSETS,
        view=JobSet,
        gang=lambda found: jobset.gang_of(found, ()),
        template=_jobset_template,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspensionView:
    """A job with the label, and its PodGroup."""

    job: Suspendable
    podgroup: PodGroup | None
    desired: PodGroup | None
    """``None`` if it needs none, or cannot have one."""
    problem: str = ""
    """Why it cannot."""


@dataclass(frozen=True, slots=True)
class CreatePodGroup:
    """Create the PodGroup."""

    podgroup: PodGroup


@dataclass(frozen=True, slots=True)
class UpdatePodGroup:
    """Update the PodGroup by a merge patch: the job was changed while it waits."""

    podgroup: PodGroup
    patch: dict[str, dict[str, object]]


@dataclass(frozen=True, slots=True)
class Resume:
    """Resume the job."""

    podgroup: PodGroup


@dataclass(frozen=True, slots=True)
class Warn:
    """Record an event."""

    event: Event


Effect = CreatePodGroup | UpdatePodGroup | Resume | Warn


def _awaits_queue(job: Suspendable) -> bool:
    """Whether *job* does not run, and its user has not suspended it after it was admitted."""
    return job.spec.suspend and ADMITTED not in job.metadata.annotations


def decide(view: SuspensionView) -> list[Effect]:
    """Return what a job needs until it is resumed."""
    job, podgroup = view.job, view.podgroup
    if not _awaits_queue(job):
        return []
    if view.desired is None:
        return [Warn(Event("SuspensionIgnored", view.problem, warning=True))]
    if podgroup is None:
        return [CreatePodGroup(view.desired)]
    if podgroup.status.phase in ("", PodGroupPhase.PENDING):
        patch = build.gang_patch(podgroup, view.desired)
        return [UpdatePodGroup(podgroup, patch)] if patch else []
    return [Resume(podgroup)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspensionSettings(ControllerSettings):
    """Options of a suspension controller."""

    scheduler_names: Sequence[str] = (SCHEDULER_NAME,)
    """Schedulers that admit PodGroups to queues."""


class SuspensionController(Controller[SuspensionView, Effect]):
    """Controller of the jobs of one kind; see :meth:`run`."""

    def __init__(
        self,
        client: Client,
        kind: SuspendableKind,
        *,
        settings: SuspensionSettings | None = None,
        clock: Clock | None = None,
        recorder: Recorder | None = None,
        podgroups: Informer[PodGroup] | None = None,
    ) -> None:
        """*podgroups*: informer of all PodGroups; may be used and run by several controllers."""
        self._settings = settings or SuspensionSettings()
        super().__init__(kind.controller.removesuffix("-controller"), self._settings, clock=clock)
        self._kind = kind
        self._events = Events(recorder, kind.resource)
        if podgroups is None:
            podgroups = Informer(client, PODGROUPS, PodGroup)
        selector = f"{SUSPEND_BY}={BY_QUEUE}"
        jobs: Informer[Any] = Informer(client, kind.resource, kind.view, label_selector=selector)
        self._jobs = WriteThroughCache(client, kind.resource, kind.view, jobs, clock=self.clock)
        self._podgroups = WriteThroughCache(
            client, PODGROUPS, PodGroup, podgroups, clock=self.clock
        )
        self.keep(self._jobs)
        self.sources = [
            KindSource(jobs, self._on_job),
            KindSource(podgroups, self._on_podgroup),
        ]

    def _on_job(self, old: Suspendable | None, new: Suspendable | None) -> None:
        if new is not None and new.spec.suspend:
            self.queue.add(new.metadata.key)

    def _on_podgroup(self, old: PodGroup | None, new: PodGroup | None) -> None:
        either = new or old
        owner = None if either is None else either.metadata.controller
        if either is None or owner is None or owner.kind != self._kind.resource.kind:
            return
        if owner.api_version != self._kind.resource.api_version:
            return
        if old is None or new is None or old.status.phase != new.status.phase:
            self.queue.add(f"{either.metadata.namespace}/{owner.name}")

    async def observe(self, sync: Sync) -> SuspensionView | None:
        """Return the job and its PodGroup; None if it does not exist, or is being deleted."""
        job = self._jobs.get(sync.key)
        if job is None or job.metadata.deletion_timestamp is not None:
            return None
        if not _awaits_queue(job):
            return SuspensionView(job=job, podgroup=None, desired=None)
        name = f"podgroup-{job.metadata.uid}"
        podgroup = self._podgroups.get(f"{job.metadata.namespace}/{name}")
        template = self._kind.template(job)
        if template.spec.scheduler_name not in self._settings.scheduler_names:
            problem = (
                f"its pods have schedulerName {template.spec.scheduler_name!r}, which admits"
                " nothing to queues: the job stays suspended"
            )
            return SuspensionView(job=job, podgroup=podgroup, desired=None, problem=problem)
        gang = self._kind.gang(job)
        try:
            desired = build.build(
                _future_pod(job, template), gang.annotations, name=name, gang=gang
            )
        except QuantityError as error:
            return SuspensionView(job=job, podgroup=podgroup, desired=None, problem=str(error))
        return SuspensionView(job=job, podgroup=podgroup, desired=desired)

    def decide(self, view: SuspensionView) -> list[Effect]:
        """Return what the job needs; see :func:`decide`."""
        return decide(view)

    async def execute(self, sync: Sync, view: SuspensionView, effect: Effect) -> None:
        """Execute one effect.

        Raises:
            RequeueError: an object was modified concurrently.
            ApiError, ConnectionLostError: a write was rejected, or may not have arrived.
        """
        meta = view.job.metadata
        match effect:
            case CreatePodGroup(podgroup):
                await self._create(meta, podgroup)
            case UpdatePodGroup(podgroup, patch):
                await self._podgroups.patch(podgroup.metadata, patch)
            case Resume(podgroup):
                annotations = {ADMITTED: podgroup.metadata.uid}
                patch = {"metadata": {"annotations": annotations}, "spec": {"suspend": False}}
                await self._jobs.patch(meta, patch)
                log.info("job resumed", extra={"kind": self._kind.resource.kind, "job": meta.key})
                self._events.normal(meta, "AdmittedByQueue", "resumed: its queue has admitted it")
            case Warn(event):
                self._events.record(meta, event)
            case _:
                assert_never(effect)

    async def _create(self, meta: ObjectMeta, podgroup: PodGroup) -> None:
        """Create the PodGroup, or find that it exists; a rejection is recorded on the job."""
        try:
            await self._podgroups.create_or_get(podgroup)
        except (BadRequestError, ForbiddenError, InvalidError) as error:
            text = f"cannot create PodGroup: {error.message}"
            self._events.warning(meta, "PodGroupRefused", text)
            raise


def _future_pod(job: Suspendable, template: RoleTemplate) -> Pod:
    """Return what is known of a pod that does not exist yet."""
    meta = msgspec.structs.replace(template.metadata, namespace=job.metadata.namespace)
    spec = template.spec
    return Pod(
        metadata=meta,
        spec=PodSpec(
            containers=spec.containers,
            init_containers=spec.init_containers,
            overhead=spec.overhead,
            resources=spec.resources,
            scheduler_name=spec.scheduler_name,
            priority_class_name=spec.priority_class_name,
        ),
    )
