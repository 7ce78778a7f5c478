"""Mutations of pods that several plugins use, and the host names of pods."""

from typing import Any

import msgspec

from ...model import names
from ...model.base import ApiStruct
from ...model.job import Job, TaskSpec
from ..pods import Pod, name_of


class _HostSpec(ApiStruct, frozen=True):
    hostname: str = ""
    subdomain: str = ""


class _HostTemplate(ApiStruct, frozen=True):
    spec: _HostSpec = _HostSpec()


def containers(pod: Pod) -> list[dict[str, Any]]:
    """Return all containers of *pod*, main containers first."""
    return [*pod["spec"].get("containers", ()), *pod["spec"].get("initContainers", ())]


def add_env(pod: Pod, variables: list[dict[str, Any]]) -> None:
    """Append *variables* to every container; the last variable of a name counts."""
    for container in containers(pod):
        append_env(container, variables)


def add_mount(pod: Pod, volume: dict[str, Any], mount: dict[str, Any]) -> None:
    """Add *volume* to the pod and its *mount* to every container."""
    spec = pod["spec"]
    spec["volumes"] = [*(spec.get("volumes") or ()), volume]
    for container in containers(pod):
        mounts = container.get("volumeMounts") or ()
        container["volumeMounts"] = [*mounts, {"name": volume["name"], **mount}]


def task_name(pod: Pod) -> str:
    """Return the name of the pod's task."""
    return str(pod["metadata"]["annotations"][names.TASK_SPEC])


def task_index(pod: Pod) -> int:
    """Return the index of the pod within its task."""
    return int(pod["metadata"]["annotations"][names.TASK_INDEX])


def find_task(job: Job, name: str) -> TaskSpec | None:
    """Return the task of this name, if any."""
    return next((task for task in job.spec.tasks if task.name == name), None)


def add_port(container: dict[str, Any], name: str, number: int) -> None:
    """Declare a port of *container*, unless it has a port of this number, or of this name.

    The API server rejects pods with two ports of one name.
    """
    ports = container.get("ports") or []
    if all(port.get("containerPort") != number and port.get("name") != name for port in ports):
        container["ports"] = [*ports, {"name": name, "containerPort": number}]


def append_env(container: dict[str, Any], variables: list[dict[str, Any]]) -> None:
    """Append *variables* to *container*; the last variable of a name counts."""
    container["env"] = [*(container.get("env") or ()), *variables]


def fqdn(job: Job, task: TaskSpec, number: int = 0) -> str:
    """Return the domain name of one pod of *task*."""
    host, subdomain = _host_and_subdomain(job, task)
    return f"{host or name_of(job, task.name, number)}.{subdomain}"


def subdomain(job: Job, task: TaskSpec) -> str:
    """Return the subdomain of the pods of *task*."""
    return _host_and_subdomain(job, task)[1]


def hostnames(job: Job, task: TaskSpec) -> list[tuple[str, str]]:
    """Return host and domain name of each pod of *task*; one pair for a common hostname."""
    host, _ = _host_and_subdomain(job, task)
    listed = range(min(task.replicas, 1) if host else task.replicas)
    return [(host or name_of(job, task.name, number), fqdn(job, task, number)) for number in listed]


def _host_and_subdomain(job: Job, task: TaskSpec) -> tuple[str, str]:
    """Return the hostname of the template, empty if it has none, and the subdomain."""
    spec = msgspec.json.decode(task.template, type=_HostTemplate).spec
    return spec.hostname, spec.subdomain or job.metadata.name
