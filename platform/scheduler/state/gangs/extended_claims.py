"""Claims that the scheduler creates for the extended resources of pods."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..devices.requests import encode
from ..devices.types import ResourceClaim
from ..podinfo.device_requirements import PendingClaim
from ..podinfo.extended_resources import ANNOTATION, ContainerUse, claim_of
from .gang import Task

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class NewClaim:
    """A claim that is to be created before a pod is bound."""

    body: Json
    mappings: Sequence[Json]
    """Which container uses which of its requests, as in the status of the pod."""


class ExtendedClaims:
    """The pods that request extended resources, and the claim of each."""

    def __init__(self) -> None:
        """Start without pods."""
        self.uses: dict[str, tuple[ContainerUse, ...]] = {}
        """By uid: what pods that have not got a node yet request."""
        self.keys: dict[str, str] = {}
        """By uid: the claim that is allocated or assumed; empty if the pod needs none."""

    def pending(self, uid: str, classes: Mapping[str, str]) -> PendingClaim | None:
        """Return what is to be allocated for a pod, if it requests resources of *classes*."""
        uses = self.uses.get(uid)
        if not uses or uid in self.keys:
            return None
        found = claim_of(uses, classes)
        if not found.requests:
            return None
        devices = encode({"requests": found.requests})
        return PendingClaim(devices, extended=tuple(sorted(found.resources.items())))

    def new_claim(self, task: Task, allocation: Json, classes: Mapping[str, str]) -> NewClaim:
        """Return the claim of *task*, which gets *allocation*."""
        found = claim_of(self.uses.get(task.uid, ()), classes)
        names = {each["request"] for each in allocation["devices"]["results"]}
        owner = {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": task.name,
            "uid": task.uid,
            "controller": True,
        }
        metadata = {
            "namespace": task.namespace,
            "generateName": f"{task.name}-extended-resources-",
            "annotations": {ANNOTATION: "true"},
            "ownerReferences": [owner],
        }
        requests = [each for each in found.requests if each["name"] in names]
        body = {"metadata": metadata, "spec": {"devices": {"requests": requests}}}
        return NewClaim(body, [each for each in found.mappings if each["requestName"] in names])


def owner_of(claim: ResourceClaim) -> str:
    """Return the uid of the pod for whose extended resources *claim* is; empty for others."""
    owner = claim.metadata.controller
    is_extended = claim.metadata.annotations.get(ANNOTATION) == "true"
    return owner.uid if is_extended and owner is not None else ""
