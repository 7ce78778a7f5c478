"""Fields that the training controller reads of objects of Kubernetes."""

from typing import Any

from ..model.base import ApiStruct
from ..model.meta import Condition, ObjectMeta
from ..model.pod import FINISHED, PodPhase, is_rejection
from ..model.pod_failure import pod_failure


class Terminated(ApiStruct, frozen=True):
    """Terminated state of a container."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""


class Waiting(ApiStruct, frozen=True):
    """Waiting state of a container."""

    reason: str = ""
    message: str = ""


class ContainerState(ApiStruct, frozen=True):
    """State of a container."""

    terminated: Terminated | None = None
    waiting: Waiting | None = None


class ContainerStatus(ApiStruct, frozen=True):
    """One container of a pod."""

    name: str = ""
    restart_count: int = 0
    state: ContainerState = ContainerState()


class InitContainer(ApiStruct, frozen=True):
    """An init container; with ``restartPolicy: Always`` a sidecar."""

    name: str = ""
    restart_policy: str = ""


class PodSpec(ApiStruct, frozen=True):
    """``spec`` of a Pod."""

    node_name: str = ""
    init_containers: tuple[InitContainer, ...] = ()


class PodStatus(ApiStruct, frozen=True):
    """``status`` of a Pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(ApiStruct, frozen=True):
    """Fields of a pod that the training controller reads."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def phase(self) -> str:
        """The pod's phase; a new pod is Pending."""
        return self.status.phase or PodPhase.PENDING

    @property
    def failure(self) -> str:
        """Why the failed pod failed, as a text; empty if its status has no reason."""
        status = self.status
        containers = (*status.init_container_statuses, *status.container_statuses)
        ended = [(each.name, each.state.terminated) for each in containers]
        return pod_failure(status.reason, status.message, ended)

    @property
    def is_rejected(self) -> bool:
        """Whether the kubelet has rejected the pod before a container started."""
        statuses = (*self.status.container_statuses, *self.status.init_container_statuses)
        return is_rejection(self.phase, self.status.reason) and not any(
            each.state.terminated for each in statuses
        )

    @property
    def is_terminating(self) -> bool:
        """Whether the pod has a deletion timestamp."""
        return self.metadata.deletion_timestamp is not None

    @property
    def is_active(self) -> bool:
        """Whether the pod is neither finished nor terminating."""
        return self.phase not in FINISHED and not self.is_terminating


class Service(ApiStruct, frozen=True):
    """A Service."""

    metadata: ObjectMeta = ObjectMeta()


class GroupStatus(ApiStruct, frozen=True):
    """``status`` of a PodGroup."""

    phase: str = ""


class Group(ApiStruct, frozen=True):
    """A PodGroup of any scheduler."""

    metadata: ObjectMeta = ObjectMeta()
    spec: dict[str, Any] = {}
    status: GroupStatus = GroupStatus()


class PriorityClass(ApiStruct, frozen=True):
    """A PriorityClass."""

    metadata: ObjectMeta = ObjectMeta()
    value: int = 0


class DependentObject(ApiStruct, frozen=True):
    """An object that a framework creates for a job: ConfigMap, Role, autoscaler, …"""

    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, Any] = {}
    rules: list[Any] = []
    role_ref: dict[str, Any] = {}
    subjects: list[Any] = []
    spec: dict[str, Any] = {}
