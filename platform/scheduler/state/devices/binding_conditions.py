"""Conditions of allocated devices that have to be true before a pod is bound."""

from dataclasses import dataclass

from .types import AllocatedDevice, DeviceCondition, Json, ResourceClaim


@dataclass(frozen=True, slots=True)
class BindingProblem:
    """Why pods with a claim are not to be bound."""

    message: str
    is_final: bool = False
    """Whether the driver reports that it has failed."""


def has_binding_conditions(allocation: Json) -> bool:
    """Return whether a device of *allocation*, ``status.allocation`` of a claim, has some."""
    return any(each.get("bindingConditions") for each in allocation["devices"]["results"])


def binding_problem(claim: ResourceClaim) -> BindingProblem | None:
    """Return why pods with *claim*, which is allocated, are not to be bound, if that is so."""
    pending: BindingProblem | None = None
    results = claim.status.allocation.devices.results if claim.status.allocation else ()
    for device in results:
        if not device.binding_conditions:
            continue
        conditions = _conditions(claim, device)
        name = f"{device.driver}/{device.pool}/{device.device}"
        for failure in device.binding_failure_conditions:
            found = conditions.get(failure)
            if found is not None and found.status == "True":
                text = f"device {name} has the condition {failure}: {found.reason}: {found.message}"
                return BindingProblem(text, is_final=True)
        for wanted in device.binding_conditions:
            found = conditions.get(wanted)
            if found is None or found.status != "True":
                pending = pending or BindingProblem(f"the condition {wanted} of device {name}")
    return pending


def _conditions(claim: ResourceClaim, device: AllocatedDevice) -> dict[str, DeviceCondition]:
    """Return what the driver reports of *device*, by type."""
    for status in claim.status.devices:
        key = (status.driver, status.pool, status.device, status.share_id)
        if key == (device.driver, device.pool, device.device, device.share_id):
            return {each.type: each for each in status.conditions}
    return {}
