"""Start-up check that no other controller or scheduler of the same objects runs in the cluster.

Those are Volcano's own, and Kubeflow's training operator: both would create the same pods, or bind
them. Volcano's Leases have the same names as ours, but its chart disables leader election, as
the operator does, so the check looks for Deployments. A Deployment of their manifests with
Batholith's image is Batholith's.
"""

import logging
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
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


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherComponent:
    """A component of another system that acts on the same objects."""

    system: str
    """Name of the system, as in its documentation."""

    program: str
    """Name of its program, and part of its image's name."""

    labels: Mapping[str, str]
    """Labels of its Deployment in the system's manifests, any of which suffices."""

    force_flag: str
    """Flag that disables the check."""

    page: str
    """Page of our documentation about the change from that system."""


def _volcano(program: str, app: str) -> OtherComponent:
    return OtherComponent(
        system="Volcano",
        program=program,
        labels={"app": app},
        force_flag="--force-beside-volcano",
        page="docs/migrate-from-volcano.md",
    )


CONTROLLERS = _volcano("vc-controller-manager", "volcano-controller")
SCHEDULER = _volcano("vc-scheduler", "volcano-scheduler")
VOLCANO_ADMISSION = _volcano("vc-webhook-manager", "volcano-admission")
TRAINING_OPERATOR = OtherComponent(
    system="Kubeflow's training operator",
    program="training-operator",
    labels={
        "control-plane": "kubeflow-training-operator",
        "app.kubernetes.io/name": "training-operator",
    },
    force_flag="--force-beside-training-operator",
    page="docs/training-jobs.md",
)


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


class OtherSystemRunningError(Exception):
    """A component that acts on the same objects is running in the cluster."""

    def __init__(self, component: OtherComponent, found: Sequence[str]) -> None:
        super().__init__(
            f"{component.system} is running in this cluster: {'; '.join(found)}. Both would act on "
            f"the same objects. Scale it to 0 first ({component.page}), or start with "
            f"{component.force_flag}."
        )


async def ensure_not_running(client: Client, component: OtherComponent) -> None:
    """Check that *component* is not deployed; wait while the API server is unavailable.

    If listing Deployments is forbidden, log a warning and return: a missing permission must not
    prevent the start.

    Raises:
        OtherSystemRunningError: it is deployed with at least one replica.
    """
    try:
        listing = await retry_while_unavailable(
            client, lambda: client.list(DEPLOYMENTS, view=Deployment)
        )
    except (ApiError, DecodeError) as error:
        log.warning(
            "cannot check whether another system is running",
            extra={"system": component.system, "program": component.program, "error": str(error)},
        )
        return
    found = running_deployments(listing.items, component, host=socket.gethostname())
    if found:
        raise OtherSystemRunningError(component, found)


def running_deployments(
    deployments: Iterable[Deployment], component: OtherComponent, *, host: str
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


def _evidence(deployment: Deployment, component: OtherComponent, host: str) -> str:
    """Return the evidence that *deployment* runs *component*, or ``""``."""
    containers = deployment.spec.template.spec.containers
    for each in containers:
        if component.program in _image_name(each.image):
            return f"image {each.image}"
        if any(arg.rpartition("/")[2] == component.program for arg in each.command + each.args):
            return f"runs {component.program}"
    if any("batholith" in _image_name(each.image) for each in containers):
        return ""
    if _is_pod_of(deployment.metadata.name, host):
        return ""
    labels = deployment.metadata.labels
    return next(
        (
            f"label {name}={value}"
            for name, value in component.labels.items()
            if labels.get(name) == value
        ),
        "",
    )


def _image_name(image: str) -> str:
    """Return the last path component of an image, without tag and digest."""
    return image.rpartition("/")[2].partition("@")[0].partition(":")[0]


def _is_pod_of(deployment: str, host: str) -> bool:
    return re.fullmatch(rf"{re.escape(deployment)}-[a-z0-9]+-[a-z0-9]{{5}}", host) is not None
