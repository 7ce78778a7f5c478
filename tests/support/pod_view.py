"""View of a Pod with all fields that functions of the machinery require."""

from batholith.model.base import ApiStruct
from batholith.model.meta import Condition, ObjectMeta


class Container(ApiStruct, frozen=True):
    """A container in a pod's spec."""

    name: str = ""
    restart_policy: str = ""
    """``Always`` for a sidecar."""


class ContainerStatus(ApiStruct, frozen=True):
    """A container in a pod's status."""

    name: str = ""
    ready: bool = False
    restart_count: int = 0


class PodSpec(ApiStruct, frozen=True):
    """``spec`` of a Pod."""

    node_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()


class PodStatus(ApiStruct, frozen=True):
    """``status`` of a Pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    start_time: str | None = None
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(ApiStruct, frozen=True):
    """A Pod."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()
