"""Defaults of ResourceClaims, ResourceClaimTemplates, ResourceSlices and DeviceTaintRules."""

from typing import Any

from ..current_time import now

Json = dict[str, Any]


_LISTS = ("bools", "ints", "strings", "versions")
"""Lists of values of attributes."""


def default_resource_claim(obj: Json) -> None:
    """Default a ResourceClaim."""
    _default_devices(obj.get("spec", {}))


def default_resource_claim_template(obj: Json) -> None:
    """Default a ResourceClaimTemplate."""
    _default_devices(obj.get("spec", {}).get("spec", {}))


def _default_devices(spec: Json) -> None:
    for request in spec.get("devices", {}).get("requests") or ():
        choices = [request["exactly"]] if "exactly" in request else []
        for choice in (*choices, *request.get("firstAvailable", ())):
            if choice.setdefault("allocationMode", "ExactCount") == "ExactCount":
                choice.setdefault("count", 1)
            for toleration in choice.get("tolerations", ()):
                toleration.setdefault("operator", "Equal")


def default_slice(obj: Json) -> None:
    """Default a ResourceSlice, and remove the fields of alpha features, as Kubernetes does."""
    for device in obj.get("spec", {}).get("devices") or ():
        device.pop("nodeAllocatableResourceMappings", None)
        for attribute in (device.get("attributes") or {}).values():
            for each in _LISTS:
                attribute.pop(each, None)
        for taint in device.get("taints") or ():
            _default_taint(taint)


def default_taint_rule(obj: Json) -> None:
    """Default a DeviceTaintRule."""
    _default_taint(obj.setdefault("spec", {}).setdefault("taint", {}))


def _default_taint(taint: Json) -> None:
    """A taint begins now."""
    if not taint.get("timeAdded"):
        taint["timeAdded"] = now()


def prepare_taint_rule_for_update(obj: Json, old: Json) -> None:
    """Let the taint begin now if its effect has changed."""
    taint, before = obj["spec"]["taint"], old["spec"]["taint"]
    if taint.get("effect") != before.get("effect") and taint["timeAdded"] == before["timeAdded"]:
        taint["timeAdded"] = now()
