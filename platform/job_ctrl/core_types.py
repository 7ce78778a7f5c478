"""What the job controller reads of objects that are not Volcano's own."""

from ..model.base import ApiStruct
from ..model.meta import ObjectMeta


class Terminated(ApiStruct, frozen=True):
    """How a container ended."""

    exit_code: int = 0
    finished_at: str | None = None


class ContainerState(ApiStruct, frozen=True):
    """The part of a container's state that policies ask for."""

    terminated: Terminated | None = None


class ContainerStatus(ApiStruct, frozen=True):
    """One container of a pod."""

    ready: bool = False
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class PodStatus(ApiStruct, frozen=True):
    """``status`` of a Pod."""

    phase: str = ""
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(ApiStruct, frozen=True):
    """A pod, as far as a job must know it."""

    metadata: ObjectMeta = ObjectMeta()
    status: PodStatus = PodStatus()


class PriorityClass(ApiStruct, frozen=True):
    """A priority by name."""

    metadata: ObjectMeta = ObjectMeta()
    value: int = 0


class MetadataOnly(ApiStruct, frozen=True):
    """Any object, without what is in it."""

    metadata: ObjectMeta = ObjectMeta()


class DataObject(ApiStruct, frozen=True):
    """A ConfigMap or a Secret (whose values are base64), or any object without data."""

    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] = {}
