"""Start-up check that Volcano's own controllers or scheduler are not running in the cluster.

Both would act on the same objects: duplicate pods, conflicting bindings. Their Leases have the same
names, but Volcano's chart disables leader election, so the check looks for its Deployments. A
Deployment of Volcano's chart with Batholith's image is Batholith's.
"""

import logging
import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from ..kube.client.client import Client
from ..kube.errors import ApiError, DecodeError
from ..model.base import ApiStruct
from ..model.meta import ObjectMeta
from ..model.names import Resource
from .start_check import retry_while_unavailable

log = logging.getLogger(__name__)

DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
FORCE_FLAG = "--force-beside-volcano"


@dataclass(frozen=True, slots=True)
class VolcanoComponent:
    """Volcano's counterpart of a component."""

    program: str
    """Name of its program, and part of its image's name."""

    label: str
    """Label ``app`` of its Deployment in Volcano's chart."""


CONTROLLERS = VolcanoComponent("vc-controller-manager", "volcano-controller")
SCHEDULER = VolcanoComponent("vc-scheduler", "volcano-scheduler")


class Container(ApiStruct, frozen=True):
    """Image and command of a container."""

    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()


class _PodSpec(ApiStruct, frozen=True):
    containers: tuple[Container, ...] = ()


class _Template(ApiStruct, frozen=True):
    spec: _PodSpec = _PodSpec()


class DeploymentSpec(ApiStruct, frozen=True):
    """Replicas and pod template."""

    replicas: int = 1
    template: _Template = msgspec.field(default=_Template())


class Deployment(ApiStruct, frozen=True):
    """Fields of a Deployment that the check reads."""

    metadata: ObjectMeta = ObjectMeta()
    spec: DeploymentSpec = DeploymentSpec()


class VolcanoRunningError(Exception):
    """Volcano's counterpart of this process is running in the cluster."""

    def __init__(self, found: Sequence[str]) -> None:
        super().__init__(
            f"Volcano is running in this cluster: {'; '.join(found)}. Both would act on the same "
            "objects. Scale it to 0 first (docs/migrate-from-volcano.md), or start with "
            f"{FORCE_FLAG}."
        )


async def ensure_not_running(client: Client, component: VolcanoComponent) -> None:
    """Check that *component* is not deployed; wait while the API server is unavailable.

    If listing Deployments is forbidden, log a warning and return: a missing permission must not
    prevent the start.

    Raises:
        VolcanoRunningError: it is deployed with at least one replica.
    """
    try:
        listing = await retry_while_unavailable(
            client, lambda: client.list(DEPLOYMENTS, view=Deployment)
        )
    except (ApiError, DecodeError) as error:
        log.warning(
            "cannot check whether Volcano is running",
            extra={"program": component.program, "error": str(error)},
        )
        return
    found = running_deployments(listing.items, component, host=socket.gethostname())
    if found:
        raise VolcanoRunningError(found)


def running_deployments(
    deployments: Iterable[Deployment], component: VolcanoComponent, *, host: str
) -> Sequence[str]:
    """Describe those *deployments* that run *component*; *host* is this pod's name."""
    found = []
    for each in deployments:
        evidence = _evidence(each, component, host)
        if evidence and each.spec.replicas > 0:
            meta = each.metadata
            count = f"{each.spec.replicas} replica{'s' * (each.spec.replicas > 1)}"
            found.append(f"Deployment {meta.name} in {meta.namespace} ({evidence}, {count})")
    return found


def _evidence(deployment: Deployment, component: VolcanoComponent, host: str) -> str:
    """Return the evidence that *deployment* runs *component*, or ``""``."""
    containers = deployment.spec.template.spec.containers
    for each in containers:
        if component.program in _image_name(each.image):
            return f"image {each.image}"
        if any(arg.rpartition("/")[2] == component.program for arg in each.command + each.args):
            return f"runs {component.program}"
    is_batholith = any("batholith" in _image_name(each.image) for each in containers)
    if deployment.metadata.labels.get("app") != component.label or is_batholith:
        return ""
    return "" if _is_pod_of(deployment.metadata.name, host) else f"label app={component.label}"


def _image_name(image: str) -> str:
    """Return the last path component of an image, without tag and digest."""
    return image.rpartition("/")[2].partition("@")[0].partition(":")[0]


def _is_pod_of(deployment: str, host: str) -> bool:
    return re.fullmatch(rf"{re.escape(deployment)}-[a-z0-9]+-[a-z0-9]{{5}}", host) is not None
