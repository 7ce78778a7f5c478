"""JobSets, and what creates them: TrainJobs of Kubeflow Trainer."""

from collections.abc import Iterable, Sequence

from ...model.base import ApiStruct
from ...model.names import Resource
from ..core_types import Pod
from .base import (
    Described,
    Gang,
    Grouper,
    Membership,
    Role,
    RoleTemplate,
    owner_reference,
    podgroup_name,
)

JOBSETS = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
_PREFIX = "jobset.sigs.k8s.io"
_NAME, _UID = f"{_PREFIX}/jobset-name", f"{_PREFIX}/jobset-uid"
_ROLE, _INDEX = f"{_PREFIX}/replicatedjob-name", f"{_PREFIX}/job-index"


class JobSpec(ApiStruct, frozen=True):
    """Fields of the spec of a Job of batch/v1."""

    parallelism: int | None = None
    completions: int | None = None
    suspend: bool = False
    template: RoleTemplate = RoleTemplate()

    @property
    def pods(self) -> int:
        """How many pods run at a time."""
        parallelism = 1 if self.parallelism is None else self.parallelism
        return parallelism if self.completions is None else min(parallelism, self.completions)


class _JobTemplate(ApiStruct, frozen=True):
    spec: JobSpec = JobSpec()


class _DependsOn(ApiStruct, frozen=True):
    name: str = ""


class _ReplicatedJob(ApiStruct, frozen=True):
    name: str = ""
    replicas: int | None = None
    template: _JobTemplate = _JobTemplate()
    depends_on: tuple[_DependsOn, ...] = ()


class _StartupPolicy(ApiStruct, frozen=True):
    startup_policy_order: str = ""


class _Spec(ApiStruct, frozen=True):
    suspend: bool = False
    replicated_jobs: tuple[_ReplicatedJob, ...] = ()
    startup_policy: _StartupPolicy = _StartupPolicy()


class JobSet(Described, frozen=True):
    """A JobSet."""

    spec: _Spec = _Spec()


def podgroup_of(name: str) -> str:
    """Return the name of the PodGroup of the JobSet *name*; empty if that is no name."""
    return podgroup_name("jobset", name)


def _membership(pod: Pod) -> Membership | None:
    labels = pod.metadata.labels
    name = labels.get(_NAME, "")
    group = podgroup_of(name)
    # The controller adds the uid from version 0.9 on, so it cannot be part of the name.
    uid = labels.get(_UID, "")
    return Membership(podgroup=group, owner=name, owner_uid=uid) if group else None


def gang_of(jobset: JobSet, pods: Sequence[Pod]) -> Gang:
    """Return the gang of a JobSet of which *pods* exist."""
    return Gang(
        owner=owner_reference(jobset, JOBSETS),
        roles=[_role(each) for each in _started(jobset, pods)],
        annotations=jobset.metadata.annotations,
    )


def _started(jobset: JobSet, pods: Sequence[Pod]) -> Iterable[_ReplicatedJob]:
    """Return the jobs whose pods exist now or are about to: others may wait for their end.

    Jobs that depend on others are created after these are ready or complete. While any of them
    runs, a job without pods has completed, or is not started yet.
    """
    jobs = jobset.spec.replicated_jobs
    in_order = jobset.spec.startup_policy.startup_policy_order == "InOrder"
    first = [
        job for number, job in enumerate(jobs) if not job.depends_on and not (in_order and number)
    ]
    present = {pod.metadata.labels.get(_ROLE) for pod in pods}
    if present <= {job.name for job in first}:
        return first
    return [job for job in jobs if job.name in present]


def _role(job: _ReplicatedJob) -> Role:
    spec, pods = job.template.spec, job.template.spec.pods
    replicas = 1 if job.replicas is None else job.replicas
    return Role(
        name=job.name,
        count=pods * replicas,
        spec=spec.template.spec,
        labels={_ROLE: job.name},
        unit=pods,
        unit_labels=(_INDEX,),
    )


GROUPER = Grouper(
    name="jobset", resource=JOBSETS, view=JobSet, membership=_membership, gang=gang_of
)
