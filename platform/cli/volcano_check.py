"""Refuses to start beside Volcano's own controllers or scheduler.

Both would act upon the same objects: pods made twice, gangs placed twice. Their Leases have the
same names, but Volcano's chart runs without leader election, so its Deployments are looked for.
A Deployment of Volcano whose image was replaced by ours is ours.
"""

import asyncio
import logging
import re
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from ..kube.client.client import Client
from ..kube.errors import (
    UNAVAILABLE_ERRORS,
    ApiError,
    DecodeError,
    UnauthorizedError,
)
from ..kube.informer.failure_log import FailureLog
from ..model.base import ApiStruct
from ..model.meta import ObjectMeta
from ..model.names import Resource

log = logging.getLogger(__name__)

DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
FORCE_FLAG = "--force-beside-volcano"
RETRY_INTERVAL = 1.0

_RETRIABLE_ERRORS = (*UNAVAILABLE_ERRORS, UnauthorizedError)
"""Answers that are none. A server that does not know us may do so once our token is renewed."""


@dataclass(frozen=True, slots=True)
class VolcanoComponent:
    """What of Volcano does the work of one of our parts."""

    program: str
    """In the name of its image, or what its container runs."""

    label: str
    """``app`` of its Deployment, in Volcano's chart."""


CONTROLLERS = VolcanoComponent("vc-controller-manager", "volcano-controller")
SCHEDULER = VolcanoComponent("vc-scheduler", "volcano-scheduler")


class Container(ApiStruct, frozen=True):
    """What is run."""

    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()


class _PodSpec(ApiStruct, frozen=True):
    containers: tuple[Container, ...] = ()


class _Template(ApiStruct, frozen=True):
    spec: _PodSpec = _PodSpec()


class DeploymentSpec(ApiStruct, frozen=True):
    """How many of which pods."""

    replicas: int = 1
    template: _Template = msgspec.field(default=_Template())


class Deployment(ApiStruct, frozen=True):
    """A Deployment, as far as it tells what it runs."""

    metadata: ObjectMeta = ObjectMeta()
    spec: DeploymentSpec = DeploymentSpec()


class VolcanoRunningError(Exception):
    """Volcano's counterpart of this process is at work in the cluster."""

    def __init__(self, found: Sequence[str]) -> None:
        super().__init__(
            f"Volcano is at work here: {'; '.join(found)}. Both would act upon the same objects. "
            f"Scale it to 0 first (docs/migrate-from-volcano.md), or start with {FORCE_FLAG}."
        )


async def ensure_not_running(client: Client, component: VolcanoComponent) -> None:
    """Return if *counterpart* is not deployed; wait for as long as the server gives no answer.

    Where Deployments may not be listed it says so in the log, and returns: to be kept from
    starting by a missing right, perhaps after years, would be worse than to rely on whoever
    installed both.

    Raises:
        BesideVolcanoError: it is deployed, with more than no replicas.
    """
    complaints = FailureLog(client.timing)
    while True:
        try:
            listing = await client.list(DEPLOYMENTS, view=Deployment)
        except _RETRIABLE_ERRORS as error:
            level = complaints.level(str(error))
            log.log(level, "waiting for the API server", extra={"error": str(error)})
            await asyncio.sleep(RETRY_INTERVAL)
        except (ApiError, DecodeError) as error:
            log.warning(
                "cannot tell whether Volcano is at work beside us; see to it that it is not",
                extra={"looked_for": component.program, "error": str(error)},
            )
            return
        else:
            found = running_deployments(listing.items, component, host=socket.gethostname())
            if found:
                raise VolcanoRunningError(found)
            return


def running_deployments(
    deployments: Iterable[Deployment], component: VolcanoComponent, *, host: str
) -> Sequence[str]:
    """Those of *deployments* that run *counterpart*, told in words; *host* is our own pod."""
    found = []
    for each in deployments:
        why = _evidence(each, component, host)
        if why and each.spec.replicas > 0:
            meta = each.metadata
            count = f"{each.spec.replicas} replica{'s' * (each.spec.replicas > 1)}"
            found.append(f"Deployment {meta.name} in {meta.namespace} ({why}, {count})")
    return found


def _evidence(deployment: Deployment, component: VolcanoComponent, host: str) -> str:
    """By what *deployment* shows that it runs *counterpart*; empty if nothing does."""
    containers = deployment.spec.template.spec.containers
    for each in containers:
        if component.program in _image_name(each.image):
            return f"image {each.image}"
        if any(word.rpartition("/")[2] == component.program for word in each.command + each.args):
            return f"runs {component.program}"
    ours = any("batholith" in _image_name(each.image) for each in containers)
    if deployment.metadata.labels.get("app") != component.label or ours:
        return ""
    return "" if _is_pod_of(deployment.metadata.name, host) else f"label app={component.label}"


def _image_name(image: str) -> str:
    """The last word of an image's name, without tag and digest."""
    return image.rpartition("/")[2].partition("@")[0].partition(":")[0]


def _is_pod_of(deployment: str, host: str) -> bool:
    return re.fullmatch(rf"{re.escape(deployment)}-[a-z0-9]+-[a-z0-9]{{5}}", host) is not None
