"""Defaults of ResourceClaims, ResourceClaimTemplates and ResourceSlices."""

from typing import Any

from ..current_time import now

Json = dict[str, Any]


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
    """Default a ResourceSlice: its taints begin now."""
    for device in obj.get("spec", {}).get("devices") or ():
        for taint in device.get("taints") or ():
            if not taint.get("timeAdded"):
                taint["timeAdded"] = now()
