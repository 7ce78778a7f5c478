"""An owner and its children, for tests of the library."""

from typing import Any

import msgspec
from support.pod_view import Pod

from batholith.machinery.pod_control import Owner
from batholith.model.base import ApiStruct
from batholith.model.meta import ObjectMeta
from batholith.model.names import CONFIGMAPS

Json = dict[str, Any]

__all__ = ["LABELS", "OWNER", "POD_SPEC", "Anything", "Json", "Pod", "pod"]


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
