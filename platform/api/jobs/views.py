"""Jobs of all kinds as the REST API caches them: without pod templates."""

from typing import Any, TypeVar

import msgspec

from ...model.base import ApiStruct
from ...model.job import JobStatus
from ...model.meta import Condition, LabelSelector, ObjectMeta
from ...model.training.kinds import TrainingKind
from ...model.training.types import JobStatus as TrainingStatus


class CachedTask(ApiStruct, frozen=True):
    """A task without its pod template."""

    name: str = ""
    replicas: int = 0
    min_available: int | None = None


class CachedJobSpec(ApiStruct, frozen=True):
    """The spec of a Volcano job."""

    queue: str = ""
    min_available: int = 0
    priority_class_name: str = ""
    scheduler_name: str = ""
    suspend: bool = False
    ttl_seconds_after_finished: int | None = None
    tasks: tuple[CachedTask, ...] = ()


class CachedJob(ApiStruct, frozen=True):
    """A Volcano job as it is cached."""

    metadata: ObjectMeta = ObjectMeta()
    spec: CachedJobSpec = CachedJobSpec()
    status: JobStatus = JobStatus()


class CachedPodMeta(ApiStruct, frozen=True):
    """The metadata of a pod template."""

    annotations: dict[str, str] = {}


class CachedPodSpec(ApiStruct, frozen=True):
    """The spec of a pod template."""

    scheduler_name: str = ""
    priority_class_name: str = ""


class CachedTemplate(ApiStruct, frozen=True):
    """A pod template without containers and volumes."""

    metadata: CachedPodMeta = CachedPodMeta()
    spec: CachedPodSpec = CachedPodSpec()


class CachedBatchSpec(ApiStruct, frozen=True):
    """The spec of a Job of batch/v1."""

    parallelism: int = 1
    completions: int | None = None
    suspend: bool = False
    selector: LabelSelector | None = None
    ttl_seconds_after_finished: int | None = None
    template: CachedTemplate = CachedTemplate()


class CachedBatchStatus(ApiStruct, frozen=True):
    """The status of a Job of batch/v1."""

    conditions: tuple[Condition, ...] = ()
    start_time: str | None = None
    completion_time: str | None = None
    active: int = 0
    ready: int | None = None
    terminating: int | None = None
    succeeded: int = 0
    failed: int = 0


class CachedBatchJob(ApiStruct, frozen=True):
    """A Job of batch/v1 as it is cached."""

    metadata: ObjectMeta = ObjectMeta()
    spec: CachedBatchSpec = CachedBatchSpec()
    status: CachedBatchStatus = CachedBatchStatus()


class CachedSchedulingPolicy(ApiStruct, frozen=True):
    """The gang of a training job."""

    min_available: int | None = None
    queue: str = ""
    priority_class: str = ""


class CachedRunPolicy(ApiStruct, frozen=True):
    """``runPolicy`` of a training job."""

    scheduling_policy: CachedSchedulingPolicy | None = None
    suspend: bool = False
    ttl_seconds_after_finished: int | None = None


class CachedReplicas(ApiStruct, frozen=True):
    """One replica type of a training job."""

    replicas: int | None = None
    template: CachedTemplate = CachedTemplate()


class CachedTrainingSpec(ApiStruct, frozen=True):
    """The spec of a training job; each kind renames the field of the replica types."""

    run_policy: CachedRunPolicy = CachedRunPolicy()
    replica_specs: dict[str, CachedReplicas] = {}


class CachedTrainingJob(ApiStruct, frozen=True):
    """A training job as it is cached; :func:`training_view` returns the struct of one kind."""

    metadata: ObjectMeta = ObjectMeta()
    spec: CachedTrainingSpec = CachedTrainingSpec()
    status: TrainingStatus = TrainingStatus()


LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
"""Annotation with the whole manifest."""

CachedObject = CachedJob | CachedBatchJob | CachedTrainingJob
"""A job of any kind."""


Cached = TypeVar("Cached", bound=CachedObject)


def training_view(kind: TrainingKind) -> type[CachedTrainingJob]:
    """Return the struct that objects of *kind* are decoded as."""
    replicas: Any = msgspec.field(default={}, name=kind.replica_field)
    spec = msgspec.defstruct(
        f"Cached{kind.name}Spec",
        [("replica_specs", dict[str, CachedReplicas], replicas)],
        bases=(CachedTrainingSpec,),
        module=__name__,
        frozen=True,
        kw_only=True,
    )
    view = msgspec.defstruct(
        f"Cached{kind.name}",
        [("spec", spec, msgspec.field(default=spec()))],
        bases=(CachedTrainingJob,),
        module=__name__,
        frozen=True,
        kw_only=True,
    )
    if not issubclass(view, CachedTrainingJob):
        raise TypeError(f"{view} is not a training job")
    return view


def without_manifest(job: Cached) -> Cached:
    """Return *job* without kubectl's copy of its manifest, which would be most of its memory."""
    meta = job.metadata
    if LAST_APPLIED not in meta.annotations:
        return job
    annotations = {key: value for key, value in meta.annotations.items() if key != LAST_APPLIED}
    return msgspec.structs.replace(
        job, metadata=msgspec.structs.replace(meta, annotations=annotations)
    )
