"""Views of pods and services for tests of the library, and builders of them."""

from typing import Any

import msgspec

from batholith.machinery.pod_control import Owner
from batholith.model.base import ApiStruct
from batholith.model.meta import Condition, ObjectMeta
from batholith.model.names import CONFIGMAPS

Json = dict[str, Any]


class Container(ApiStruct, frozen=True):
    name: str = ""
    restart_policy: str = ""


class ContainerStatus(ApiStruct, frozen=True):
    name: str = ""
    restart_count: int = 0


class PodSpec(ApiStruct, frozen=True):
    node_name: str = ""
    init_containers: tuple[Container, ...] = ()


class PodStatus(ApiStruct, frozen=True):
    phase: str = ""
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class Anything(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


OWNER = Owner(
    resource=CONFIGMAPS,
    metadata=ObjectMeta(name="web", namespace="default", uid="owner-uid", resource_version="1"),
)
LABELS = {"app": "web"}
POD_SPEC: Json = {"containers": [{"name": "main", "image": "busybox"}]}


def pod(**metadata: object) -> Pod:
    """Return a pod with this metadata."""
    return msgspec.convert({"metadata": {"namespace": "default", **metadata}}, Pod)
