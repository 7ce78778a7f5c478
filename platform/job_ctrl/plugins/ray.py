"""``ray``: start a Ray cluster on the head, join it on the workers, with a Service for the head."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ...model import names
from ...model.base import ApiStruct
from ...model.job import Job, TaskSpec
from ...model.names import Resource
from ..podgroups import owner_reference
from ..pods import Pod
from . import arguments
from .base import DesiredObject, JsonObject
from .pod_mutations import add_port, find_task, fqdn, task_name


class _Port(ApiStruct, frozen=True):
    name: str = ""
    container_port: int = 0


class _Container(ApiStruct, frozen=True):
    name: str = ""
    ports: tuple[_Port, ...] = ()


class _Spec(ApiStruct, frozen=True):
    containers: tuple[_Container, ...] = ()


class _Template(ApiStruct, frozen=True):
    spec: _Spec = _Spec()


class Ray:
    """Replaces the commands of head and workers, and provides the head's Service."""

    def __init__(self, args: Sequence[str]) -> None:
        read = arguments.parse(
            args,
            {
                "head": "head",
                "headContainer": "head",
                "worker": "worker",
                "workerContainer": "worker",
                "port": 6379,
                "dashboardPort": 8265,
                "clientPort": 10001,
                "clientServerPort": 0,  # as Volcano's own guide calls it
            },
        )
        self.warnings = read.warnings
        self._head = read.text("head")
        self._worker = read.text("worker")
        self._containers = {
            self._head: read.text("headContainer"),
            self._worker: read.text("workerContainer"),
        }
        self._ports: Mapping[str, int] = {
            "gcs": read.number("port"),
            "dashboard": read.number("dashboardPort"),
            "client-server": read.number("clientServerPort") or read.number("clientPort"),
        }

    def validate_job(self, job: Job) -> Sequence[str]:
        """Warn about a job without a head task, and tasks without the container for Ray."""
        found = []
        if find_task(job, self._head) is None:
            found.append(f"plugin ray changes no pod: no task is named {self._head!r}")
        for name, container in self._containers.items():
            task = find_task(job, name)
            if task is None:
                continue
            if all(one.name != container for one in _containers(task)):
                found.append(
                    f"plugin ray does not start Ray in task {name!r}:"
                    f" it has no container named {container!r}"
                )
        return found

    def on_pod_create(self, pod: Pod, job: Job) -> None:
        """Set the command of the configured container."""
        head = find_task(job, self._head)
        name = self._containers.get(task_name(pod))
        if head is None or name is None:
            return
        for container in pod["spec"]["containers"]:
            if container["name"] != name:
                continue
            if task_name(pod) == self._head:
                self._start_head(container)
            else:
                address = f"{fqdn(job, head)}:{self._ports['gcs']}"
                container["command"] = ["sh", "-c", f"ray start --block --address={address}"]

    def on_job_add(self, job: Job) -> Sequence[DesiredObject]:
        """Return the Service of the head."""
        name = _service_name(job)
        return [
            DesiredObject(
                resource=names.SERVICES, name=name, build=lambda: self._service(job, name)
            )
        ]

    def on_job_delete(self, job: Job) -> Sequence[tuple[Resource, str]]:
        """Return the Service of the head."""
        return [(names.SERVICES, _service_name(job))]

    def _start_head(self, container: dict[str, Any]) -> None:
        for name, number in self._ports.items():
            add_port(container, name, number)
        gcs, dashboard, client = self._ports.values()
        container["command"] = [
            "sh",
            "-c",
            f"ray start --head --block --dashboard-host=0.0.0.0 --port={gcs}"
            f" --dashboard-port={dashboard} --ray-client-server-port={client}",
        ]

    def _service(self, job: Job, name: str) -> JsonObject:
        head = find_task(job, self._head)
        declared = {
            declared
            for container in (_containers(head) if head else ())
            if container.name == self._containers[self._head]
            for port in container.ports
            for declared in (port.container_port, port.name)
        }
        return {
            "metadata": {
                "name": name,
                "namespace": job.metadata.namespace,
                "ownerReferences": [msgspec.to_builtins(owner_reference(job))],
            },
            "spec": {
                "selector": {
                    names.JOB_NAME: job.metadata.name,
                    names.JOB_NAMESPACE: job.metadata.namespace,
                    names.TASK_SPEC: self._head,
                },
                "ports": [
                    {
                        "name": port,
                        "protocol": "TCP",
                        "port": number,
                        # The template may declare it by another name, or this name for another.
                        "targetPort": port if declared.isdisjoint((number, port)) else number,
                    }
                    for port, number in self._ports.items()
                ],
            },
        }


def _containers(task: TaskSpec) -> tuple[_Container, ...]:
    return msgspec.json.decode(task.template, type=_Template).spec.containers


def _service_name(job: Job) -> str:
    return f"{job.metadata.name}-head-svc"
