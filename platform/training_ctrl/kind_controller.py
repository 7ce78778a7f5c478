"""The controller of one kind: informers, event handlers and the reconcile loop.

A reconcile waits until the informers have all earlier writes; then it computes a plan from their
state and executes it.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ..kube.client.client import Client
from ..kube.errors import NotFoundError
from ..kube.informer.informer import Informer, KindSource
from ..machinery.change_rate import ChangeRate
from ..machinery.claim import Claim, Claimer
from ..machinery.clock import Clock
from ..machinery.consistency import ConsistencyStore
from ..machinery.controller import ShardedQueue, WorkerSettings, run_workers
from ..machinery.event_recorder import SharedRecorder
from ..machinery.expectations import ControllerExpectations
from ..machinery.lifecycle import Source, run_controller
from ..machinery.pod_control import Child, ObjectControl, pod_control, service_control
from ..machinery.rate_limiters import default_controller_rate_limiter
from ..machinery.status_writer import ApiStatusWriter
from ..model import names
from ..model.job_size import too_many_pods_error, training_pods
from ..model.meta import ObjectMeta
from ..model.names import Resource
from ..model.pod import PodPhase
from ..model.podgroup import PodGroup
from ..model.selectors import Operator, Requirement, Selector
from ..model.training.types import TrainingJob, TrainingSpec
from . import conditions, pods
from .core_types import (
    DependentObject,
    Group,
    GroupStatus,
    MetadataOnly,
    Pod,
    PriorityClass,
    Service,
)
from .decide import plan
from .effects import Reason, Warn
from .execution import ExecutorDeps, JobMemory
from .executor import Executor
from .frameworks.base import Framework
from .gangs import Gang
from .metrics import TrainingMetrics
from .replica_pods import abnormal_messages, exit_code
from .settings import TrainingSettings
from .view import View

log = logging.getLogger(__name__)

BY_JOB = "job"
"""Index of pods and Services by their controller's uid, and by the labels that select them."""

_BATCH_DELAY = 0.05
"""Seconds for which changes of a job's pods are collected under load."""

_MAX_BACKOFF = 60.0
"""Maximum seconds between retries: no event reports that quota or a name is available again."""

_STALE_RECHECK = 3.0
"""Seconds until the next reconcile of a job whose writes the informers have not reported yet."""

Job = TrainingJob[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedParts:
    """What the controllers of all kinds have in common."""

    client: Client
    settings: TrainingSettings
    clock: Clock
    recorder: SharedRecorder | None
    """Each kind's controller is the source of its events."""
    metrics: TrainingMetrics
    pods: Informer[Pod]
    services: Informer[Service]
    gang: Gang | None
    podgroups: Informer[PodGroup] | Informer[Group] | None
    """PodGroups of the gang's scheduler, if there is a gang."""
    priority_classes: Informer[PriorityClass] | None


@dataclass(frozen=True, slots=True)
class _Prepared:
    """The spec of a job after validation and defaults; computed once per generation."""

    uid: str
    generation: str | int
    spec: TrainingSpec
    errors: Sequence[str] = ()


class KindController:
    """Reconciles the jobs of one kind; runs once."""

    def __init__(
        self, framework: Framework[Any], shared: SharedParts, *, watched: Sequence[Resource] = ()
    ) -> None:
        """*watched* are those of the framework's resources that the API server has."""
        self._framework = framework
        self._kind = framework.kind
        self._shared = shared
        self._clock = shared.clock
        self._started = self._ended = False
        settings = shared.settings
        self._workqueue = ShardedQueue(
            name=self._kind.controller_name,
            shards=settings.workers,
            limiter=default_controller_rate_limiter(self._clock, max_delay=_MAX_BACKOFF),
            clock=self._clock,
            metrics=settings.work_metrics,
            log_fields=lambda key: {"job": key, "kind": self._kind.name},
        )
        self._change_rate = ChangeRate(self._clock)
        self._memories: dict[str, JobMemory] = {}
        self._prepared: dict[str, _Prepared] = {}
        self._jobs: Informer[Job] = Informer(
            shared.client, self._kind.resource, framework.job_type, namespace=settings.namespace
        )
        self._objects = {
            resource: Informer(
                shared.client,
                resource,
                DependentObject,
                namespace=settings.namespace,
                label_selector=f"{names.TRAINING_OPERATOR_NAME}={self._kind.controller_name}",
            )
            for resource in watched
        }
        self._expectations = ControllerExpectations(self._clock)
        self._versions = ConsistencyStore(self._clock, self._watched_versions())
        self._create_executor()

    def _watched_versions(self) -> Mapping[Resource, Any]:
        informers: dict[Resource, Informer[Any]] = {
            self._kind.resource: self._jobs,
            names.PODS: self._shared.pods,
            names.SERVICES: self._shared.services,
            **self._objects,
        }
        if self._shared.gang is not None and self._shared.podgroups is not None:
            informers[self._shared.gang.resource] = self._shared.podgroups
        return {
            resource: lambda informer=informer: informer.resource_version
            for resource, informer in informers.items()
        }

    def _create_executor(self) -> None:
        client, shared = self._shared.client, self._shared.recorder
        recorder = shared and shared.with_component(self._kind.controller_name)
        self._pod_control: ObjectControl[Pod] = pod_control(
            client, Pod, recorder=recorder, reason_suffix="Pod"
        )
        self._service_control: ObjectControl[Service] = service_control(
            client, Service, recorder=recorder, reason_suffix="Service"
        )
        job_view = self._framework.job_type
        self._executor = Executor(
            ExecutorDeps(
                client=client,
                pods=self._pod_control,
                services=self._service_control,
                status_writer=ApiStatusWriter(client, self._kind.resource, job_view),
                job_view=job_view,
                recorder=recorder,
                metrics=self._shared.metrics,
                expectations=self._expectations,
                versions=self._versions,
                clock=self._clock,
                count_interval=self._shared.settings.count_interval,
            )
        )

    async def run(
        self, *, ready: asyncio.Event | None = None, elected: asyncio.Event | None = None
    ) -> None:
        """Sync the informers, set *ready*, and reconcile after *elected* until cancelled.

        When cancelled, it finishes the keys that are processed or queued, then writes nothing.
        """
        shared = self._shared
        sources: list[Source] = [
            KindSource(self._jobs, self._on_job),
            KindSource(shared.pods, self._on_pod),
            KindSource(shared.services, self._on_child),
            *(KindSource(informer, self._on_child) for informer in self._objects.values()),
        ]
        if shared.podgroups is not None:
            podgroups: Informer[Any] = shared.podgroups
            sources.append(KindSource(podgroups, self._on_child))
        if shared.priority_classes is not None:
            sources.append(KindSource(shared.priority_classes, _ignore))
        try:
            await run_controller(
                sources,
                self._run_workers,
                on_synced=self._on_synced,
                ready=ready,
                elected=elected,
            )
        finally:
            self._ended = True  # its handlers stay with the shared informers

    async def _run_workers(self) -> None:
        settings = WorkerSettings(timeout=self._shared.settings.reconcile_timeout)
        await run_workers(self._workqueue, self._reconcile, settings=settings)

    def _on_synced(self) -> None:
        self._started = True

    # Event handlers.

    def _on_job(self, old: Job | None, new: Job | None) -> None:
        job = new or old
        if job is None:
            return
        key = job.metadata.key
        if new is None:
            self._forget(key)
        self._workqueue.add(key)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        self._on_child(old, new)
        if self._started and not self._ended and new is not None:
            self._report(old, new)

    def _on_child(self, old: Any | None, new: Any | None) -> None:
        """Enqueue the jobs of a changed object; observe its deletion."""
        if self._ended:
            return
        metas = [each.metadata for each in (old, new) if each is not None]
        for key in dict.fromkeys(key for meta in metas for key in self._job_keys(meta)):
            if new is None or new.metadata.deletion_timestamp is not None:
                self._expectations.deletion_observed(key, metas[0].uid)
            self._change_rate.observe()
            if self._change_rate.quiet_in():
                self._workqueue.add_after(key, _BATCH_DELAY)
            else:
                self._workqueue.add(key)

    def _job_keys(self, meta: ObjectMeta) -> Iterator[str]:
        """Yield the key of the job that controls an object, or may adopt it."""
        owner = meta.controller
        if owner is None:
            if meta.labels.get(names.TRAINING_OPERATOR_NAME) == self._kind.controller_name:
                yield f"{meta.namespace}/{meta.labels.get(names.TRAINING_JOB_NAME, '')}"
        elif self._is_of_kind(owner.api_version, owner.kind):
            yield f"{meta.namespace}/{owner.name}"

    def _is_of_kind(self, api_version: str, kind: str) -> bool:
        group = api_version.partition("/")[0]
        return (group, kind) == (self._kind.resource.group, self._kind.name)

    def _report(self, old: Pod | None, new: Pod) -> None:
        """Record events and metrics of what happened to a pod of an unfinished job."""
        owner = new.metadata.controller
        if owner is None or not self._is_of_kind(owner.api_version, owner.kind):
            return
        job = self._jobs.get(f"{new.metadata.namespace}/{owner.name}")
        if job is None or not job.metadata.controls(new.metadata) or not self._is_ours(job):
            return
        if conditions.is_finished(job.status.conditions):
            return
        if new.phase == PodPhase.FAILED and (old is None or old.phase != PodPhase.FAILED):
            self._shared.metrics.failed_pods.inc()
        owning = pods.owner(self._kind, job)
        container = self._kind.main_container
        code = exit_code(new, container)
        if code is not None and (old is None or exit_code(old, container) is None):
            text = f"Pod: {new.metadata.namespace}.{new.metadata.name} exited with code {code}"
            self._executor.record(owning, "Normal", Reason.EXITED_WITH_CODE, text)
        known = abnormal_messages(old) if old is not None else ()
        for reason, message in abnormal_messages(new):
            if (reason, message) not in known:
                self._executor.record(owning, "Warning", reason or "Unknown", message)

    # Reconcile.

    async def _reconcile(self, key: str) -> float | None:
        memory = self._memories.get(key)
        if memory is not None and memory.unconfirmed:
            await self._confirm(key, memory)
        if self._versions.stale_resources(key) or not self._expectations.satisfied(key):
            return _STALE_RECHECK
        job = self._jobs.get(key)
        if job is None:
            self._forget(key)
            return None
        if not self._is_ours(job) or job.metadata.deletion_timestamp is not None:
            return None
        memory = self._memory(key, job)
        prepared = self._prepare(key, job)
        if prepared.errors:
            self._reject(job, memory, prepared.errors)
            return None
        job = msgspec.structs.replace(job, spec=prepared.spec)
        claimed_pods = await self._claim(job, self._shared.pods, self._pod_control)
        claimed_services = await self._claim(job, self._shared.services, self._service_control)
        view = self._view(job, claimed_pods.children, claimed_services.children)
        planned = plan(view)
        try:
            delayed_for = await self._executor.execute(key, view, memory, planned)
        except Exception:
            if planned.requeue_after is not None:  # must not wait for the retry
                self._workqueue.add_after(key, planned.requeue_after)
            raise
        claimed_pods.raise_for_errors()
        claimed_services.raise_for_errors()
        times = (delayed_for, planned.requeue_after)
        return min((each for each in times if each is not None), default=None)

    async def _confirm(self, key: str, memory: JobMemory) -> None:
        """Read a job whose last write had no response; the informer must have that version."""
        namespace, _, name = key.partition("/")
        try:
            job = await self._shared.client.get(
                self._kind.resource, name, namespace=namespace, view=MetadataOnly
            )
        except NotFoundError:
            pass  # the informer reports it
        else:
            self._versions.wrote(key, self._kind.resource, job.metadata.resource_version)
        memory.unconfirmed = False

    def _is_ours(self, job: Job) -> bool:
        return (job.spec.run_policy.managed_by or "") in self._shared.settings.managed_by

    def _memory(self, key: str, job: Job) -> JobMemory:
        memory = self._memories.get(key)
        if memory is None or memory.uid != job.metadata.uid:
            memory = self._memories[key] = JobMemory(uid=job.metadata.uid)
        return memory

    def _prepare(self, key: str, job: Job) -> _Prepared:
        """Validate the job and set its defaults."""
        meta = job.metadata
        generation = meta.generation or meta.resource_version
        known = self._prepared.get(key)
        if known is not None and (known.uid, known.generation) == (meta.uid, generation):
            return known
        spec: TrainingSpec = job.spec
        errors: tuple[str, ...] = ()
        try:
            errors = tuple(self._framework.validate(job))
            if not errors:
                spec = self._framework.default(job).spec
        except (msgspec.MsgspecError, ValueError) as error:
            errors = (str(error),)
        self._prepared[key] = _Prepared(meta.uid, generation, spec, errors)
        return self._prepared[key]

    def _reject(self, job: Job, memory: JobMemory, errors: Sequence[str]) -> None:
        reason = f"{self._kind.name}{Reason.FAILED_VALIDATION}"
        message = f"{self._kind.name} failed validation because {'; '.join(errors)}"
        owner = pods.owner(self._kind, job)
        self._executor.warn_once(job, owner, memory, Warn(reason, message))

    async def _claim(
        self, job: Job, informer: Informer[Child], control: ObjectControl[Child]
    ) -> Claim[Child]:
        meta = job.metadata
        labels = pods.job_labels(self._kind, meta.name)
        candidates = {
            child.metadata.uid: child
            for value in (meta.identity, _label_value(meta.namespace, labels))
            for child in informer.by_index(BY_JOB, value)
        }
        requirements = tuple(
            Requirement(name, Operator.IN, frozenset((value,))) for name, value in labels.items()
        )
        claimer = Claimer(
            control=control,
            owner=pods.owner(self._kind, job),
            selector=Selector(requirements),
            read_owner=lambda: self._shared.client.get(
                self._kind.resource, meta.name, namespace=meta.namespace, view=MetadataOnly
            ),
        )
        return await claimer.claim(candidates.values())

    def _view(
        self, job: Job, claimed_pods: tuple[Pod, ...], claimed_services: tuple[Service, ...]
    ) -> View:
        shared, namespace = self._shared, job.metadata.namespace

        def find(resource: Resource, name: str) -> DependentObject | None:
            informer = self._objects.get(resource)
            return informer.get(f"{namespace}/{name}") if informer is not None else None

        return View(
            framework=self._framework,
            job=job,
            now=self._clock.now(),
            pods=claimed_pods,
            services=claimed_services,
            gang=shared.gang,
            podgroup=self._podgroup(job),
            find_object=find,
            served=self._objects.__contains__,
            priorities={each.metadata.name: each.value for each in shared.priority_classes or ()},
            settings=shared.settings.pods,
            size_error=too_many_pods_error(
                training_pods(job.spec.replica_specs.values()), shared.settings.max_pods_per_job
            ),
            ttl_waits_for_history=shared.settings.ttl_waits_for_history,
        )

    def _podgroup(self, job: Job) -> Group | None:
        if self._shared.podgroups is None:
            return None
        found = self._shared.podgroups.get(job.metadata.key)
        if not isinstance(found, PodGroup):
            return found
        spec = msgspec.to_builtins(found.spec)
        status = GroupStatus(phase=found.status.phase)
        return Group(metadata=found.metadata, spec=spec, status=status)

    def _forget(self, key: str) -> None:
        self._memories.pop(key, None)
        self._prepared.pop(key, None)
        self._expectations.delete(key)
        self._versions.delete(key)

    def statistics(self) -> dict[str, int]:
        """Return the number of jobs in memory and of queued keys."""
        return {"jobs": len(self._memories), "queued": self._workqueue.depth()}


def index_by_job(child: Pod | Service) -> Iterator[str]:
    """Index of pods and Services by controller, and by the labels that select them."""
    meta = child.metadata
    if meta.controller is not None:
        yield meta.owner_identity(meta.controller)
    yield _label_value(meta.namespace, meta.labels)


def _label_value(namespace: str, labels: Mapping[str, str]) -> str:
    operator = labels.get(names.TRAINING_OPERATOR_NAME, "")
    return f"{operator}/{namespace}/{labels.get(names.TRAINING_JOB_NAME, '')}"


def _ignore(old: object, new: object) -> None:
    """Handle no event: the next reconcile of a job reads what has changed."""
