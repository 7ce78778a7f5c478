"""MPIJobs of the MPI operator (v2beta1): the launcher and its workers."""

from collections.abc import Mapping, Sequence

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

MPIJOBS = Resource("kubeflow.org", "v2beta1", "mpijobs", "MPIJob")
_PREFIX = "training.kubeflow.org"
_OPERATOR, _NAME, _ROLE = f"{_PREFIX}/operator-name", f"{_PREFIX}/job-name", f"{_PREFIX}/job-role"


class _Replicas(ApiStruct, frozen=True):
    replicas: int | None = None
    template: RoleTemplate = RoleTemplate()


class _SchedulingPolicy(ApiStruct, frozen=True):
    min_available: int | None = None
    queue: str = ""
    priority_class: str = ""


class _RunPolicy(ApiStruct, frozen=True):
    scheduling_policy: _SchedulingPolicy = _SchedulingPolicy()


class _Spec(ApiStruct, frozen=True):
    launcher_creation_policy: str = ""
    run_policy: _RunPolicy = _RunPolicy()
    mpi_replica_specs: dict[str, _Replicas] = {}


class MPIJob(Described, frozen=True):
    """An MPIJob."""

    spec: _Spec = _Spec()


def _membership(pod: Pod) -> Membership | None:
    labels = pod.metadata.labels
    if labels.get(_OPERATOR) != "mpi-operator" or _ROLE not in labels:
        return None
    name = labels.get(_NAME, "")
    group = podgroup_name("mpijob", name)
    return Membership(podgroup=group, owner=name) if group else None


def _gang(job: MPIJob, _: Sequence[Pod]) -> Gang:
    spec, policy = job.spec, job.spec.run_policy.scheduling_policy
    # A launcher that is created once the workers are ready cannot start together with them.
    late = spec.launcher_creation_policy == "WaitForWorkersReady"
    roles = [
        *([] if late else _role(spec.mpi_replica_specs, "Launcher")),
        *_role(spec.mpi_replica_specs, "Worker"),
    ]
    return Gang(
        owner=owner_reference(job, MPIJOBS),
        roles=roles,
        min_member=policy.min_available,
        queue=policy.queue,
        priority_class_name=policy.priority_class,
        annotations=job.metadata.annotations,
    )


def _role(replicas: Mapping[str, _Replicas], name: str) -> Sequence[Role]:
    found = replicas.get(name)
    if found is None:
        return ()
    role = name.lower()
    count = 1 if found.replicas is None else found.replicas
    return (Role(name=role, count=count, spec=found.template.spec, labels={_ROLE: role}),)


GROUPER = Grouper(name="mpijob", resource=MPIJOBS, view=MPIJob, membership=_membership, gang=_gang)
