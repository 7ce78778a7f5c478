"""The kinds whose objects may wait suspended for their queue, as a table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from ..model.base import ApiStruct
from ..model.meta import ObjectMeta
from ..model.names import BATCH_JOBS, GROUP_NAME, Resource
from ..model.podgroup import min_member
from ..model.run_times import deadline_annotation
from .groupers import jobset, ray
from .groupers.base import (
    Described,
    Gang,
    Role,
    RoleTemplate,
    owner_reference,
    podgroup_name,
)
from .groupers.jobset import JobSet, JobSpec
from .groupers.ray import RayCluster

TRAINJOBS = Resource("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob")
RAYJOBS = Resource("ray.io", "v1", "rayjobs", "RayJob")


class _BatchSpec(JobSpec, frozen=True):
    active_deadline_seconds: int | None = None


class BatchJob(Described, frozen=True):
    """A Job of batch/v1."""

    spec: _BatchSpec = _BatchSpec()


class _TrainSpec(ApiStruct, frozen=True):
    suspend: bool = False


class TrainJob(Described, frozen=True):
    """A TrainJob of Kubeflow Trainer."""

    spec: _TrainSpec = _TrainSpec()


class _RayJobSpec(ApiStruct, frozen=True):
    suspend: bool = False
    ray_cluster_spec: dict[str, Any] = {}
    """As it is stored, because resuming replaces its list of worker groups."""


class _RayJobStatus(ApiStruct, frozen=True):
    job_deployment_status: str = ""


class RayJob(Described, frozen=True):
    """A RayJob."""

    spec: _RayJobSpec = _RayJobSpec()
    status: _RayJobStatus = _RayJobStatus()


Suspendable = BatchJob | JobSet | TrainJob | RayJob
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendableKind:
    """A kind with ``spec.suspend``.

    The functions take the object that describes the gang, and raise msgspec.ValidationError if
    its fields have other types than in its CRD.
    """

    controller: str
    """Name of its controller."""
    resource: Resource
    view: type[Any]
    gang: Callable[[Any], Gang]
    templates: Callable[[Any], Sequence[RoleTemplate]]
    """Returns the templates of the pods; the first one has the scheduler and the queue."""
    described_by: tuple[Resource, type[Any]] | None = None
    """Kind of the object that describes the gang, if it is another one: the controller of the
    suspended object creates it, suspended as well, with the same name."""
    managed_by: str = ""
    """Kind of a controlling owner whose own controller writes ``spec.suspend``."""
    podgroup_of: Callable[[ObjectMeta], str] = lambda meta: podgroup_name(meta.uid)
    """Returns the name of the PodGroup of the pods, by the object that describes the gang."""
    resumed_spec: Callable[[Any, str], Json] = lambda job, podgroup: {"suspend": False}
    """Returns the merge patch of the spec that resumes the job, whose pods are of the PodGroup."""
    has_ended: Callable[[Any], bool] = lambda job: False
    """Whether the job has no pods any more, and its PodGroup must be deleted because of that."""

    @property
    def owner(self) -> Resource:
        """Kind of the owner of the PodGroup."""
        return self.resource if self.described_by is None else self.described_by[0]


def _batch_gang(job: BatchJob) -> Gang:
    annotations = job.metadata.annotations
    role = Role(name="job", count=job.spec.pods, spec=job.spec.template.spec, labels={})
    return Gang(
        owner=owner_reference(job, BATCH_JOBS),
        roles=[role],
        min_member=min_member(annotations),
        annotations=annotations | deadline_annotation(job.spec.active_deadline_seconds),
    )


def _jobset_gang(found: JobSet) -> Gang:
    return jobset.gang_of(found, ())


def _jobset_templates(found: JobSet) -> Sequence[RoleTemplate]:
    return [each.template.spec.template for each in found.spec.replicated_jobs]


def _jobset_podgroup(meta: ObjectMeta) -> str:
    return jobset.podgroup_of(meta.name)


def _cluster_of(job: RayJob) -> RayCluster:
    """Return the cluster that KubeRay will create for *job*, with its labels and annotations."""
    spec = msgspec.convert(job.spec.ray_cluster_spec, ray.Spec)
    return RayCluster(metadata=job.metadata, spec=spec)


def _rayjob_gang(job: RayJob) -> Gang:
    gang = ray.gang_of(_cluster_of(job), ())
    owner = owner_reference(job, RAYJOBS)
    return Gang(
        owner=owner,
        roles=gang.roles,
        queue=gang.queue,
        priority_class_name=gang.priority_class_name,
        annotations=gang.annotations,
    )


def _rayjob_templates(job: RayJob) -> Sequence[RoleTemplate]:
    spec = _cluster_of(job).spec
    return [spec.head_group_spec.template, *(each.template for each in spec.worker_group_specs)]


def _resumed_rayjob(job: RayJob, podgroup: str) -> Json:
    """Resume *job*, with pods that name *podgroup*: the uid of their cluster is not known yet."""
    stored = job.spec.ray_cluster_spec
    named = {"metadata": {"annotations": {GROUP_NAME: podgroup}}}
    cluster: Json = {"headGroupSpec": {"template": named}}
    if workers := stored.get("workerGroupSpecs"):
        cluster["workerGroupSpecs"] = [_with_annotation(each, podgroup) for each in workers]
    return {"suspend": False, "rayClusterSpec": cluster}


def _with_annotation(group: Mapping[str, Any], podgroup: str) -> Json:
    template = group.get("template") or {}
    meta = template.get("metadata") or {}
    annotations = {**(meta.get("annotations") or {}), GROUP_NAME: podgroup}
    return {**group, "template": {**template, "metadata": {**meta, "annotations": annotations}}}


KINDS = (
    SuspendableKind(
        controller="job-suspension-controller",
        resource=BATCH_JOBS,
        view=BatchJob,
        gang=_batch_gang,
        templates=lambda job: [job.spec.template],
    ),
    SuspendableKind(
        controller="jobset-suspension-controller",
        resource=jobset.JOBSETS,
        view=JobSet,
        gang=_jobset_gang,
        templates=_jobset_templates,
        podgroup_of=_jobset_podgroup,
        managed_by=TRAINJOBS.kind,
    ),
    SuspendableKind(
        controller="trainjob-suspension-controller",
        resource=TRAINJOBS,
        view=TrainJob,
        gang=_jobset_gang,
        templates=_jobset_templates,
        podgroup_of=_jobset_podgroup,
        described_by=(jobset.JOBSETS, JobSet),
    ),
    SuspendableKind(
        controller="rayjob-suspension-controller",
        resource=RAYJOBS,
        view=RayJob,
        gang=_rayjob_gang,
        templates=_rayjob_templates,
        resumed_spec=_resumed_rayjob,
        has_ended=lambda job: job.status.job_deployment_status in ("Complete", "Failed"),
    ),
)
