"""Build the pods and Services of a job. Pure."""

from typing import Any

import msgspec

from ..machinery.pod_control import Owner, from_template
from ..model import names
from ..model.training.kinds import TrainingKind
from ..model.training.templates import Container, main_container
from ..model.training.types import TrainingJob
from .frameworks.base import Framework, Json, Member
from .gangs import Gang
from .replica_pods import pod_restart_policy

Job = TrainingJob[Any]

MASTER_ROLE = "master"
"""Value of the role label of the master pod."""


def job_labels(kind: TrainingKind, job: str) -> dict[str, str]:
    """Return the labels that select all objects of the job named *job*."""
    return {
        names.TRAINING_OPERATOR_NAME: kind.controller_name,
        names.TRAINING_JOB_NAME: job.replace("/", "-"),
    }


def type_labels(kind: TrainingKind, job: str, replica_type: str) -> dict[str, str]:
    """Return the labels that select all objects of a replica type."""
    return {**job_labels(kind, job), names.TRAINING_REPLICA_TYPE: replica_type.lower()}


def selector_text(labels: dict[str, str]) -> str:
    """Return the label selector of *labels* as text."""
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))


def build_pod(framework: Framework[Any], member: Member[Any], *, gang: Gang | None) -> Json:
    """Return the pod to create for *member*.

    Raises:
        PortNotFoundError: a template lacks the port that the pods need.
        msgspec.DecodeError: the template is no JSON object.
    """
    job, replica_type, index = member.job, member.replica_type, member.index
    spec = job.spec.replica_specs[replica_type]
    pod = from_template(
        msgspec.json.decode(spec.template, type=dict[str, Any]),
        owner(framework.kind, job),
        name=framework.pod_name(job.metadata.name, replica_type, index),
    )
    del pod["metadata"]["finalizers"]
    pod["metadata"]["labels"] |= replica_labels(framework, job, replica_type, index)
    if framework.is_master(job, replica_type, index):
        pod["metadata"]["labels"][names.TRAINING_JOB_ROLE] = MASTER_ROLE
    pod["spec"]["restartPolicy"] = pod_restart_policy(spec.restart_policy)
    framework.shape_pod(pod, member)
    if gang is not None:
        gang.decorate(pod, job, replica_type)
    return pod


def build_service(framework: Framework[Any], job: Job, replica_type: str, index: int) -> Json:
    """Return the headless Service of one pod.

    Raises:
        ServiceError: the template has no main container.
    """
    kind = framework.kind
    container = main_container(job.spec.replica_specs[replica_type].template, kind.main_container)
    if container is None:
        raise ServiceError("failed to find the port")
    labels = replica_labels(framework, job, replica_type, index)
    template = {
        "metadata": {"labels": labels},
        "spec": {"clusterIP": "None", "selector": labels, "ports": _service_ports(container)},
    }
    name = framework.pod_name(job.metadata.name, replica_type, index)
    service = from_template(template, owner(kind, job), name=name)
    del service["metadata"]["finalizers"], service["metadata"]["annotations"]
    return service


class ServiceError(ValueError):
    """The Service of a pod cannot be built."""


def replica_labels(
    framework: Framework[Any], job: Job, replica_type: str, index: int
) -> dict[str, str]:
    """Return the labels of a pod and its Service."""
    labels = type_labels(framework.kind, job.metadata.name, replica_type)
    if framework.has_index(replica_type):
        labels[names.TRAINING_REPLICA_INDEX] = str(index)
    return labels


def owner(kind: TrainingKind, job: Job) -> Owner:
    """Return *job* as the owner of what is created for it."""
    return Owner(resource=kind.resource, metadata=job.metadata)


def _service_ports(container: Container) -> list[Json]:
    """Return the ports of a Service; if there are several, each needs a name.

    A container may declare a number several times, which a Service must not: the first one counts.
    """
    ports: dict[int, str] = {}
    for number, port in enumerate(container.ports):
        ports.setdefault(port.container_port, port.name or f"port-{number}")
    if len(container.ports) == 1 and not container.ports[0].name:
        return [{"port": port} for port in ports]
    return [{"name": name, "port": port} for port, name in ports.items()]


def sets_restart_policy(job: Job, replica_type: str) -> bool:
    """Whether the template sets a ``restartPolicy``, which has no effect."""
    template = msgspec.json.decode(
        job.spec.replica_specs[replica_type].template, type=dict[str, Any]
    )
    return bool((template.get("spec") or {}).get("restartPolicy"))
