"""Whether Kubeflow's training-operator runs in a cluster: then this controller must not.

Jobs without ``managedBy`` would have two controllers. Its Deployment is found by its image, its
program or the labels of its manifests, so that a renamed one is found, too.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

import msgspec

from ..model import times
from ..model.base import ApiStruct
from ..model.meta import ObjectMeta
from ..model.names import Resource

DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")

LEASE_NAME = "1ca428e5.training-operator.kubeflow.org"
"""Default of the operator's ``--leader-election-id``."""

_PROGRAM = "training-operator"
_LABELS = ("app.kubernetes.io/name", "control-plane", "app")


class _Container(ApiStruct, frozen=True):
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()


class _PodSpec(ApiStruct, frozen=True):
    containers: tuple[_Container, ...] = ()


class _Template(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: _PodSpec = _PodSpec()


class _DeploymentSpec(ApiStruct, frozen=True):
    replicas: int = 1
    template: _Template = msgspec.field(default=_Template())


class Deployment(ApiStruct, frozen=True):
    """Fields of a Deployment that the check reads."""

    metadata: ObjectMeta = ObjectMeta()
    spec: _DeploymentSpec = _DeploymentSpec()


class LeaseSpec(ApiStruct, frozen=True):
    """Holder of a Lease, and how long it is valid."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None


class Lease(ApiStruct, frozen=True):
    """Fields of a Lease that the check reads."""

    metadata: ObjectMeta = ObjectMeta()
    spec: LeaseSpec = LeaseSpec()


def running_operators(
    deployments: Iterable[Deployment], leases: Iterable[Lease] = (), *, now: datetime
) -> Sequence[str]:
    """Describe the training-operators among *deployments* and *leases*; empty if there are none.

    A Deployment without replicas does not run, and a Lease that has expired does not count.
    """
    found = []
    for each in deployments:
        evidence = _evidence(each)
        if evidence and each.spec.replicas > 0:
            meta = each.metadata
            found.append(f"Deployment {meta.name} in {meta.namespace} ({evidence})")
    for lease in leases:
        if lease.metadata.name == LEASE_NAME and _is_valid(lease.spec, now):
            holder = lease.spec.holder_identity
            found.append(f"Lease {lease.metadata.name} in {lease.metadata.namespace} ({holder})")
    return found


def _is_valid(spec: LeaseSpec, now: datetime) -> bool:
    """Whether the Lease is held; one with a malformed time counts as held."""
    if not spec.holder_identity or spec.renew_time is None:
        return False
    try:
        renewed = times.parse(spec.renew_time)
    except times.TimeError:
        return True
    return now <= renewed + timedelta(seconds=spec.lease_duration_seconds or 0)


def _evidence(deployment: Deployment) -> str:
    """Return the evidence that *deployment* runs the operator, or an empty text."""
    containers = deployment.spec.template.spec.containers
    for each in containers:
        if _PROGRAM in _image_name(each.image):
            return f"image {each.image}"
        if any(arg.rpartition("/")[2] == _PROGRAM for arg in each.command + each.args):
            return f"runs {_PROGRAM}"
    if any("batholith" in _image_name(each.image) for each in containers):
        return ""
    for labels in (deployment.metadata.labels, deployment.spec.template.metadata.labels):
        for name in _LABELS:
            if labels.get(name, "").endswith(_PROGRAM):
                return f"label {name}={labels[name]}"
    return ""


def _image_name(image: str) -> str:
    """Return the last path component of an image, without tag and digest."""
    return image.rpartition("/")[2].partition("@")[0].partition(":")[0]
