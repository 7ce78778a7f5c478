"""Fields that the job controller reads of objects of Kubernetes."""

from ...model.base import ApiStruct
from ...model.meta import ObjectMeta
from ...model.native_podgroup import PodSchedulingGroup


class Terminated(ApiStruct, frozen=True):
    """Terminated state of a container."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    finished_at: str | None = None


class ContainerState(ApiStruct, frozen=True):
    """State of a container, as far as policies need it."""

    terminated: Terminated | None = None


class ContainerStatus(ApiStruct, frozen=True):
    """One container of a pod."""

    name: str = ""
    ready: bool = False
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class PodCondition(ApiStruct, frozen=True):
    """A condition of a pod, as far as it is read; without times most are equal."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class PodStatus(ApiStruct, frozen=True):
    """``status`` of a Pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[PodCondition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class PodSpec(ApiStruct, frozen=True):
    """``spec`` of a Pod."""

    termination_grace_period_seconds: int = 30
    scheduling_group: PodSchedulingGroup | None = None


class Pod(ApiStruct, frozen=True):
    """Fields of a pod that the job controller reads."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class PriorityClass(ApiStruct, frozen=True):
    """A PriorityClass."""

    metadata: ObjectMeta = ObjectMeta()
    value: int = 0
    global_default: bool = False


class DataObject(ApiStruct, frozen=True):
    """A ConfigMap or a Secret (whose values are base64), or any object without data."""

    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] = {}
