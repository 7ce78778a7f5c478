"""Decide which volume a claim is bound to, or why it stays pending. Pure functions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ....model import quantity
from ....model.meta import LabelSelector
from ....model.names import DIR_PROVISIONER
from ....model.selectors import from_label_selector

Json = dict[str, Any]

BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
HOSTNAME = "kubernetes.io/hostname"
WAIT_FOR_FIRST_CONSUMER = "WaitForFirstConsumer"


@dataclass(frozen=True, slots=True)
class Bind:
    """Bind the claim to this volume."""

    volume: Json


@dataclass(frozen=True, slots=True)
class Provision:
    """Provision a directory volume for the claim."""

    reclaim_policy: str = "Delete"
    node: str = ""
    """The node on which alone it can be used; empty for all nodes."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Leave the claim pending with this reason."""

    reason: str
    message: str


def claim_ref(volume: Json) -> Json:
    """Return the claimRef of a volume; empty if it has none."""
    return volume["spec"].get("claimRef") or {}


def is_bound_to(volume: Json, claim: Json) -> bool:
    """Return whether a volume is bound to a claim, or reserved for it by name."""
    meta, about = claim["metadata"], claim_ref(volume)
    if (about.get("namespace"), about.get("name")) != (meta["namespace"], meta["name"]):
        return False
    return about.get("uid", "") in ("", meta["uid"])


def decide(
    claim: Json, volumes: Mapping[str, Json], classes: Mapping[str, Json]
) -> Bind | Provision | Wait:
    """Decide on an unbound claim, whose class is set already."""
    spec = claim["spec"]
    if spec.get("volumeMode") == "Block":
        return Wait(
            "ProvisioningFailed", "block devices are not supported: a volume is a directory"
        )
    requested = spec.get("volumeName")
    if requested:
        return _decide_for_named_volume(claim, requested, volumes.get(requested))
    fitting = [each for each in volumes.values() if _mismatch_reason(claim, each) is None]
    kept = [each for each in fitting if is_bound_to(each, claim)]
    if not kept and _is_delayed(spec, classes):
        # The scheduler chooses a volume, or the node for which one is provisioned.
        node = (claim["metadata"].get("annotations") or {}).get(SELECTED_NODE, "")
        if not node:
            text = "waiting for first consumer to be created before binding"
            return Wait(WAIT_FOR_FIRST_CONSUMER, text)
        return _decide_provisioning(spec, classes, node)
    free = [each for each in fitting if not claim_ref(each) and _matches_selector(spec, each)]
    if found := kept or free:
        return Bind(min(found, key=lambda each: (_size(each), each["metadata"]["name"])))
    return _decide_provisioning(spec, classes)


def _decide_for_named_volume(claim: Json, requested: str, volume: Json | None) -> Bind | Wait:
    if volume is None:
        return Wait("FailedBinding", f'volume "{requested}" not found')
    if claim_ref(volume) and not is_bound_to(volume, claim):
        return Wait("FailedBinding", f'volume "{requested}" already bound to a different claim.')
    problem = _mismatch_reason(claim, volume)
    if problem is not None:
        text = f'Cannot bind to requested volume "{requested}": {problem}'
        return Wait("VolumeMismatch", text)
    return Bind(volume)


def _is_delayed(spec: Json, classes: Mapping[str, Json]) -> bool:
    chosen = classes.get(spec.get("storageClassName", "")) or {}
    return bool(chosen.get("volumeBindingMode") == WAIT_FOR_FIRST_CONSUMER)


def _decide_provisioning(
    spec: Json, classes: Mapping[str, Json], node: str = ""
) -> Provision | Wait:
    name = spec.get("storageClassName", "")
    if not name:
        text = "no persistent volumes available for this claim and no storage class is set"
        return Wait("FailedBinding", text)
    chosen = classes.get(name)
    if chosen is None:
        return Wait("ProvisioningFailed", f'storageclass.storage.k8s.io "{name}" not found')
    provisioner = chosen.get("provisioner", "")
    if provisioner != DIR_PROVISIONER:
        text = (
            "Waiting for a volume to be created either by the external provisioner "
            f'"{provisioner}" or manually by the system administrator'
        )
        return Wait("ExternalProvisioning", text)
    problem = _unsupported_class(chosen) or _unsupported_claim(spec)
    if problem:
        return Wait("ProvisioningFailed", problem)
    return Provision(chosen.get("reclaimPolicy", "Delete"), node)


def _unsupported_class(chosen: Json) -> str:
    """Return which parameter of a class a directory volume does not support."""
    name = chosen["metadata"]["name"]
    # The topology of a class that binds late is the scheduler's to follow.
    is_delayed = chosen.get("volumeBindingMode") == WAIT_FOR_FIRST_CONSUMER
    for key in ("parameters", "mountOptions", "allowedTopologies"):
        if chosen.get(key) and not (is_delayed and key == "allowedTopologies"):
            return f'storage class "{name}" has {key}, which directory volumes do not support'
    return ""


def _unsupported_claim(spec: Json) -> str:
    """Return which field of a claim a directory volume does not support."""
    for key in ("selector", "dataSource", "dataSourceRef", "volumeAttributesClassName"):
        if spec.get(key):
            return f"spec.{key} is not supported for a new directory volume"
    if "ReadWriteOncePod" in spec.get("accessModes", ()):
        return (
            "the access mode ReadWriteOncePod is not supported: a directory has any number of users"
        )
    return ""


def _mismatch_reason(claim: Json, volume: Json) -> str | None:
    """Return why a volume does not match a claim, if it does not."""
    requested, offered = claim["spec"], volume["spec"]
    if "deletionTimestamp" in volume["metadata"]:
        return "it is being deleted"
    request = requested["resources"]["requests"]["storage"]
    if _size(volume) < quantity.parse(request):
        return "requested PV is too small"
    if requested.get("storageClassName", "") != offered.get("storageClassName", ""):
        return "storageClassName does not match"
    if requested.get("volumeMode") != offered.get("volumeMode"):
        return "incompatible volumeMode"
    if not set(requested["accessModes"]) <= set(offered["accessModes"]):
        return "incompatible accessMode"
    key = "volumeAttributesClassName"
    return None if requested.get(key) == offered.get(key) else f"{key} does not match"


def _size(volume: Json) -> quantity.Quantity:
    return quantity.parse(volume["spec"]["capacity"]["storage"])


def _matches_selector(spec: Json, volume: Json) -> bool:
    if spec.get("selector") is None:
        return True
    selector = from_label_selector(msgspec.convert(spec["selector"], LabelSelector))
    return selector.matches(volume["metadata"].get("labels") or {})
