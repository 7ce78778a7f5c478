"""Suspension controllers: jobs that have no pods until their queue has admitted them.

Their users create them suspended, with a label. The controller creates the PodGroup that their pods
will have, and resumes them once the scheduler has admitted it. It writes ``spec.suspend`` once, and
never suspends anything: a job that its user suspends later stays so.
"""

import logging
from collections.abc import Sequence
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
    GROUP_NAME,
    PODGROUPS,
    SCHEDULER_NAME,
    SUSPEND_BY,
)
from ..model.podgroup import PodGroup, PodGroupPhase
from ..model.quantity import QuantityError
from . import build
from .core_types import Pod, PodSpec
from .groupers.base import Described, RoleTemplate
from .suspendable_kinds import Suspendable, SuspendableKind

log = logging.getLogger(__name__)

BY_QUEUE = "queue"
"""Value of the label."""
_WITHOUT_PODS = ("", PodGroupPhase.PENDING, PodGroupPhase.INQUEUE)
"""Phases of a PodGroup that has no pods, or too few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspensionView:
    """A job with the label, and its PodGroup."""

    job: Suspendable
    podgroup: PodGroup | None
    desired: PodGroup | None
    """``None`` if it needs none, or cannot have one."""
    problem: str = ""
    """Why it cannot; empty also while nothing describes its gang yet."""
    has_ended: bool = False
    """Whether it has no pods any more, and needs no PodGroup."""


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
class DeletePodGroup:
    """Delete the PodGroup, with its reservation in the queue."""

    podgroup: PodGroup


@dataclass(frozen=True, slots=True)
class Resume:
    """Resume the job."""

    podgroup: PodGroup


@dataclass(frozen=True, slots=True)
class Warn:
    """Record an event."""

    event: Event


Effect = CreatePodGroup | UpdatePodGroup | DeletePodGroup | Resume | Warn


def _awaits_queue(job: Suspendable) -> bool:
    """Whether *job* does not run, and its user has not suspended it after it was admitted."""
    return job.spec.suspend and ADMITTED not in job.metadata.annotations


def decide(view: SuspensionView) -> list[Effect]:
    """Return what a job needs until it is resumed, and when it has ended."""
    job, podgroup = view.job, view.podgroup
    if view.has_ended:
        is_empty = podgroup is not None and podgroup.status.phase in _WITHOUT_PODS
        return [DeletePodGroup(podgroup)] if podgroup is not None and is_empty else []
    if not _awaits_queue(job):
        return []
    if view.desired is None:
        problem = view.problem
        return [Warn(Event("SuspensionIgnored", problem, warning=True))] if problem else []
    if podgroup is None:
        return [CreatePodGroup(view.desired)]
    if build.is_of_predecessor(podgroup, view.desired.metadata.controller):
        return [DeletePodGroup(podgroup)]  # its queue has admitted another job
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
        self._descriptions: Informer[Any] | None = None
        if kind.described_by is not None:
            resource, view = kind.described_by
            self._descriptions = Informer(client, resource, view)
            self.sources.append(KindSource(self._descriptions, self._on_description))

    def _on_job(self, old: Suspendable | None, new: Suspendable | None) -> None:
        if new is not None and (new.spec.suspend or self._kind.has_ended(new)):
            self.queue.add(new.metadata.key)

    def _on_description(self, old: Described | None, new: Described | None) -> None:
        owner = None if new is None else new.metadata.controller
        if new is not None and owner is not None and owner.kind == self._kind.resource.kind:
            self.queue.add(f"{new.metadata.namespace}/{owner.name}")

    def _on_podgroup(self, old: PodGroup | None, new: PodGroup | None) -> None:
        either = new or old
        owner = None if either is None else either.metadata.controller
        if either is None or owner is None or owner.kind != self._kind.owner.kind:
            return
        if owner.api_version != self._kind.owner.api_version:
            return
        if old is None or new is None or old.status.phase != new.status.phase:
            self.queue.add(f"{either.metadata.namespace}/{owner.name}")

    async def observe(self, sync: Sync) -> SuspensionView | None:
        """Return the job and its PodGroup; None if it does not exist, or is being deleted."""
        job = self._jobs.get(sync.key)
        if job is None or job.metadata.deletion_timestamp is not None:
            return None
        owner = job.metadata.controller
        if owner is not None and owner.kind == self._kind.managed_by:
            return None
        described = self._described(job)
        if described is None:
            return SuspensionView(job=job, podgroup=None, desired=None)
        name = self._kind.podgroup_of(described.metadata)
        podgroup = self._podgroups.get(f"{job.metadata.namespace}/{name}")
        if self._kind.has_ended(job):
            return SuspensionView(job=job, podgroup=podgroup, desired=None, has_ended=True)
        if not _awaits_queue(job):
            return SuspensionView(job=job, podgroup=podgroup, desired=None)
        try:
            return self._waiting(job, described, podgroup, name)
        except (QuantityError, msgspec.ValidationError) as error:
            return SuspensionView(job=job, podgroup=podgroup, desired=None, problem=str(error))

    def _described(self, job: Suspendable) -> Described | None:
        """Return the object that describes the gang of *job*; ``None`` if it does not exist yet."""
        if self._descriptions is None:
            return job
        found: Described | None = self._descriptions.get(job.metadata.key)
        owner = None if found is None else found.metadata.controller
        return found if owner is not None and owner.uid == job.metadata.uid else None

    def _waiting(
        self, job: Suspendable, described: Described, podgroup: PodGroup | None, name: str
    ) -> SuspensionView:
        templates = [*self._kind.templates(described)] or [RoleTemplate()]
        template, problem = templates[0], ""
        if template.spec.scheduler_name not in self._settings.scheduler_names:
            problem = (
                f"its pods have schedulerName {template.spec.scheduler_name!r}, which admits"
                " nothing to queues: the job stays suspended"
            )
        for each in templates:
            if (named := each.metadata.annotations.get(GROUP_NAME, name)) != name:
                problem = f"its pods name the PodGroup {named!r}, which no queue admits for the job"
        if problem:
            return SuspensionView(job=job, podgroup=podgroup, desired=None, problem=problem)
        gang = self._kind.gang(described)
        pod = _future_pod(job, template)
        desired = build.build(pod, gang.annotations, name=name, gang=gang)
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
            case DeletePodGroup(podgroup):
                await self._podgroups.delete(podgroup.metadata, unmodified=True)
            case Resume(podgroup):
                annotations = {ADMITTED: podgroup.metadata.uid}
                spec = self._kind.resumed_spec(view.job, podgroup.metadata.name)
                patch = {"metadata": {"annotations": annotations}, "spec": spec}
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
