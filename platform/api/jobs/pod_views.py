"""Pods of jobs as the REST API reads them: without their containers' specs."""

from collections.abc import Iterator

import msgspec

from ...model.base import ApiStruct
from ...model.meta import Condition, ObjectMeta
from ...model.native_podgroup import PodSchedulingGroup
from ...model.pod import FINISHED
from ...model.pod_failure import pod_failure

_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"


class Waiting(ApiStruct, frozen=True):
    """Why a container does not run yet."""

    reason: str = ""
    message: str = ""


class Running(ApiStruct, frozen=True):
    """A container that runs."""

    started_at: str | None = None


class Terminated(ApiStruct, frozen=True):
    """How a container has ended."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None


class ContainerState(ApiStruct, frozen=True):
    """State of a container; one of the fields is set."""

    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(ApiStruct, frozen=True):
    """A container in the status of a pod."""

    name: str = ""
    ready: bool = False
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()

    @property
    def has_started(self) -> bool:
        """Whether the container has, or had, a log."""
        states = (self.state.running, self.state.terminated, self.last_state.terminated)
        return self.restart_count > 0 or any(states)


class PodContainer(ApiStruct, frozen=True):
    """A container in the spec of a pod."""

    name: str = ""


class JobPodSpec(ApiStruct, frozen=True):
    """``spec`` of a pod."""

    node_name: str = ""
    scheduling_group: PodSchedulingGroup | None = None
    containers: tuple[PodContainer, ...] = ()
    init_containers: tuple[PodContainer, ...] = ()


class JobPodStatus(ApiStruct, frozen=True):
    """``status`` of a pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    start_time: str | None = None
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class JobPod(ApiStruct, frozen=True):
    """A pod, without the specs of its containers and volumes."""

    metadata: ObjectMeta = ObjectMeta()
    spec: JobPodSpec = JobPodSpec()
    status: JobPodStatus = JobPodStatus()

    @property
    def is_finished(self) -> bool:
        """Whether no container of the pod will run again."""
        return self.status.phase in FINISHED

    @property
    def failure(self) -> str:
        """Why the failed pod failed, as a text; empty if its status has no reason."""
        ended = [(each.name, each.state.terminated) for each in self.all_statuses()]
        return pod_failure(self.status.reason, self.status.message, ended)

    @property
    def is_ready(self) -> bool:
        """Whether the pod has the condition Ready."""
        return any(
            each.type == "Ready" and each.status == "True" for each in self.status.conditions
        )

    def container_status(self, name: str) -> ContainerStatus:
        """Return the status of a container; an empty one if there is none yet."""
        for each in self.all_statuses():
            if each.name == name:
                return each
        return ContainerStatus(name=name)

    def all_statuses(self) -> Iterator[ContainerStatus]:
        """Yield the status of each container, init containers first."""
        yield from self.status.init_container_statuses
        yield from self.status.container_statuses

    def log_containers(self, requested: str) -> tuple[str, ...]:
        """Return the containers whose logs are read: the *requested* one, else the default one or
        all but the init containers; empty if the pod has no such container."""
        regular = tuple(each.name for each in self.spec.containers)
        if requested:
            initial = (each.name for each in self.spec.init_containers)
            return (requested,) if requested in (*regular, *initial) else ()
        default = self.metadata.annotations.get(_DEFAULT_CONTAINER, "")
        return (default,) if default in regular else regular
