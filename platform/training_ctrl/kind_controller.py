"""The controller of the training jobs of one kind: event handlers, and what is known of a job.

:mod:`.decide` computes the effects, :mod:`.executor` executes them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ..kube.client.client import Client
from ..kube.informer.informer import Informer, KindSource
from ..machinery.change_rate import ChangeRate
from ..machinery.claim import Claim, Claimer
from ..machinery.clock import Clock
from ..machinery.event_recorder import Recorder, SharedRecorder
from ..machinery.lifecycle import Source
from ..machinery.pod_control import ApiObjectControl, Child
from ..machinery.rate_limiters import default_controller_rate_limiter
from ..machinery.reconcile.cache import T, WriteThroughCache
from ..machinery.reconcile.controller import Controller, Sync
from ..machinery.reconcile.events import Event, Events, Notices
from ..machinery.reconcile.state import CountThrottle, KeyStates
from ..machinery.result import Result
from ..model import names
from ..model.job_size import too_many_pods_error, training_pods
from ..model.meta import MetadataOnly, ObjectMeta
from ..model.names import Resource
from ..model.pod import PodPhase
from ..model.podgroup import PodGroup
from ..model.selectors import Operator, Requirement, Selector
from ..model.training.types import TrainingJob, TrainingSpec
from . import pods
from .core_types import DependentObject, Group, GroupStatus, Pod, PriorityClass, Service
from .decide import decide
from .effects import Effect, Reason
from .executor import ReplicaWriter, TrainingExecutor
from .frameworks.base import Framework
from .gangs import Gang, VolcanoGang
from .metrics import TrainingMetrics
from .replica_pods import abnormal_messages, exit_code
from .settings import TrainingSettings
from .status import is_finished
from .view import TrainingView

BY_JOB = "job"
"""Index of pods and Services by their controller's uid, and by the labels that select them."""

_BATCH_DELAY = 0.05
"""Seconds for which changes of a job's pods are collected under load."""

_MAX_BACKOFF = 60.0
"""Maximum seconds between retries: no event reports that quota or a name is available again."""

Job = TrainingJob[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedDependencies:
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
    podgroups: Informer[Any] | None
    """PodGroups of the gang's scheduler, if there is a gang."""
    priority_classes: Informer[PriorityClass] | None


@dataclass(slots=True)
class _Prepared:
    """The spec of a job after validation and defaults; computed once per generation."""

    generation: str | int | None = None
    spec: TrainingSpec = field(default_factory=TrainingSpec)
    error: str = ""


class KindController(Controller[TrainingView, Effect]):
    """Reconciles the jobs of one kind; runs once."""

    def __init__(
        self,
        framework: Framework[Any],
        shared: SharedDependencies,
        *,
        watched: Sequence[Resource] = (),
    ) -> None:
        """*watched* are those of the framework's resources that the API server has."""
        self._kind = kind = framework.kind
        super().__init__(
            kind.controller_name,
            shared.settings,
            clock=shared.clock,
            limiter=default_controller_rate_limiter(shared.clock, max_delay=_MAX_BACKOFF),
            log_fields=lambda key: {"job": key, "kind": kind.name},
        )
        self._framework = framework
        self._shared = shared
        self._reports = False
        self._change_rate = ChangeRate(self.clock)
        recorder = shared.recorder and shared.recorder.with_component(kind.controller_name)
        self._events = Events(recorder, kind.resource)
        self._notices = Notices(self._events)
        self._prepared = KeyStates(_Prepared)
        self._create_caches(watched)
        throttle = CountThrottle(self.clock)
        self.keep(self._jobs, self._prepared, self._notices, throttle)
        self._pod_writer = self._replica_writer(names.PODS, Pod, shared.pods, recorder)
        self._service_writer = self._replica_writer(
            names.SERVICES, Service, shared.services, recorder
        )
        self._executor = TrainingExecutor(
            jobs=self._jobs,
            pods=self._pod_writer,
            services=self._service_writer,
            objects=self._objects,
            events=self._events,
            notices=self._notices,
            throttle=throttle,
            count_interval=shared.settings.count_interval,
            metrics=shared.metrics,
        )

    def _create_caches(self, watched: Sequence[Resource]) -> None:
        shared, kind = self._shared, self._kind
        namespace = shared.settings.namespace
        job_type = self._framework.job_type
        jobs: Informer[Job] = Informer(shared.client, kind.resource, job_type, namespace=namespace)
        self._jobs = self._cache(kind.resource, job_type, jobs)
        label = f"{names.TRAINING_OPERATOR_NAME}={kind.controller_name}"
        self._objects: dict[Resource, WriteThroughCache[Any]] = {
            resource: self._cache(
                resource,
                DependentObject,
                Informer(
                    shared.client,
                    resource,
                    DependentObject,
                    namespace=namespace,
                    label_selector=label,
                ),
            )
            for resource in watched
        }
        sources: list[Source] = [
            KindSource(jobs, self._on_job),
            KindSource(shared.pods, self._on_pod),
            KindSource(shared.services, self._on_child),
            *(KindSource(cache.informer, self._on_child) for cache in self._objects.values()),
        ]
        self._podgroups: WriteThroughCache[Any] | None = None
        if shared.gang is not None and shared.podgroups is not None:
            view = PodGroup if isinstance(shared.gang, VolcanoGang) else Group
            self._podgroups = self._cache(shared.gang.resource, view, shared.podgroups)
            self._objects[shared.gang.resource] = self._podgroups
            self.keep(self._podgroups)
            sources.append(KindSource(shared.podgroups, self._on_child))
        if shared.priority_classes is not None:
            sources.append(KindSource(shared.priority_classes, _ignore))
        self.sources = sources

    def _cache(
        self, resource: Resource, view: type[T], informer: Informer[T]
    ) -> WriteThroughCache[T]:
        return WriteThroughCache(self._shared.client, resource, view, informer, clock=self.clock)

    def _replica_writer(
        self,
        resource: Resource,
        view: type[Child],
        informer: Informer[Child],
        recorder: Recorder | None,
    ) -> ReplicaWriter[Child]:
        control = ApiObjectControl(
            self._shared.client, resource, view, recorder=recorder, reason_suffix=resource.kind
        )
        return ReplicaWriter(
            resource=resource, control=control, cache=self._cache(resource, view, informer)
        )

    def on_synced(self) -> None:
        """Start to record events of pods; those of the initial lists are not new."""
        self._reports = True

    # Event handlers.

    def _on_job(self, old: Job | None, new: Job | None) -> None:
        job = new or old
        if job is not None:
            self.queue.add(job.metadata.key)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        self._on_child(old, new)
        if self._reports and new is not None:
            self._report(old, new)

    def _on_child(self, old: Any | None, new: Any | None) -> None:
        """Add the jobs of a changed object."""
        metas = [each.metadata for each in (old, new) if each is not None]
        for key in dict.fromkeys(key for meta in metas for key in self._job_keys(meta)):
            self._change_rate.observe()
            if self._change_rate.quiet_in():
                self.queue.add_after(key, _BATCH_DELAY)
            else:
                self.queue.add(key)

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
        if is_finished(job.status.conditions):
            return
        if new.phase == PodPhase.FAILED and (old is None or old.phase != PodPhase.FAILED):
            self._shared.metrics.failed_pods.inc()
        container = self._kind.main_container
        code = exit_code(new, container)
        if code is not None and (old is None or exit_code(old, container) is None):
            text = f"Pod: {new.metadata.namespace}.{new.metadata.name} exited with code {code}"
            self._events.normal(job.metadata, Reason.EXITED_WITH_CODE, text)
        known = abnormal_messages(old) if old is not None else ()
        for reason, message in abnormal_messages(new):
            if (reason, message) not in known:
                self._events.warning(job.metadata, reason or "Unknown", message)

    # Reconcile.

    async def observe(self, sync: Sync) -> TrainingView | Result | None:
        """Return the job with what belongs to it, after adoption and release of its children."""
        key = sync.key
        await self._jobs.confirm(key)
        job = self._jobs.get(key)
        if job is None:
            return None
        if not self._is_ours(job) or job.metadata.deletion_timestamp is not None:
            return Result.DONE
        prepared = self._prepare(job)
        if prepared.error:
            reason = f"{self._kind.name}{Reason.FAILED_VALIDATION}"
            message = f"{self._kind.name} failed validation because {prepared.error}"
            self._notices.add(job.metadata, Event(reason, message, warning=True))
            return Result.DONE
        if self._podgroups is not None:
            await self._podgroups.confirm(key)
        job = msgspec.structs.replace(job, spec=prepared.spec)
        claimed_pods = await self._claim(job, self._pod_writer)
        claimed_services = await self._claim(job, self._service_writer)
        return self._view(job, claimed_pods, claimed_services)

    def _is_ours(self, job: Job) -> bool:
        return (job.spec.run_policy.managed_by or "") in self._shared.settings.managed_by

    def _prepare(self, job: Job) -> _Prepared:
        """Validate the job and set its defaults."""
        meta = job.metadata
        generation = meta.generation or meta.resource_version
        prepared = self._prepared.of(meta)
        if prepared.generation == generation:
            return prepared
        self._notices.forget(meta.key)
        prepared.generation, prepared.spec, prepared.error = generation, job.spec, ""
        try:
            prepared.error = "; ".join(self._framework.validate(job))
            if not prepared.error:
                prepared.spec = self._framework.default(job).spec
        except (msgspec.MsgspecError, ValueError) as error:
            prepared.error = str(error)
        return prepared

    async def _claim(self, job: Job, writer: ReplicaWriter[Child]) -> Claim[Child]:
        meta = job.metadata
        labels = pods.job_labels(self._kind, meta.name)
        candidates = {
            child.metadata.uid: child
            for value in (meta.identity, _label_value(meta.namespace, labels))
            for child in writer.cache.by_index(BY_JOB, value)
        }
        requirements = tuple(
            Requirement(name, Operator.IN, frozenset((value,))) for name, value in labels.items()
        )
        claimer = Claimer(
            control=writer.control,
            owner=pods.owner(self._kind, job),
            selector=Selector(requirements),
            read_owner=lambda: self._shared.client.get(
                self._kind.resource, meta.name, namespace=meta.namespace, view=MetadataOnly
            ),
        )
        return await claimer.claim(candidates.values())

    def _view(
        self, job: Job, claimed_pods: Claim[Pod], claimed_services: Claim[Service]
    ) -> TrainingView:
        shared, namespace = self._shared, job.metadata.namespace

        def find(resource: Resource, name: str) -> DependentObject | None:
            cache = self._objects.get(resource)
            return cache.get(f"{namespace}/{name}") if cache is not None else None

        return TrainingView(
            framework=self._framework,
            job=job,
            now=self.clock.now(),
            pods=claimed_pods.children,
            services=claimed_services.children,
            observed_pods=frozenset(
                pod.metadata.uid for pod in shared.pods.by_index(BY_JOB, job.metadata.identity)
            ),
            claim_errors=(*claimed_pods.errors, *claimed_services.errors),
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
        found = self._podgroups.get(job.metadata.key) if self._podgroups is not None else None
        if not isinstance(found, PodGroup):
            return found
        spec = msgspec.to_builtins(found.spec)
        status = GroupStatus(phase=found.status.phase)
        return Group(metadata=found.metadata, spec=spec, status=status)

    def decide(self, view: TrainingView) -> Iterable[Effect]:
        """Return what the job needs; see :func:`.decide.decide`."""
        return decide(view)

    async def execute(self, sync: Sync, view: TrainingView, effect: Effect) -> None:
        """Execute one effect; see :class:`.executor.TrainingExecutor`."""
        await self._executor.execute(sync, view, effect)


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
    """Ignore the event: the next reconcile of a job reads the object."""
