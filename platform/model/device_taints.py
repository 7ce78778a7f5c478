"""Taints of devices: which devices a rule taints, and which tolerations suffice."""

from collections.abc import Mapping, Sequence
from typing import Any

from .base import ApiStruct

NO_SCHEDULE, NO_EXECUTE, NO_EFFECT = "NoSchedule", "NoExecute", "None"


class TaintedDevices(ApiStruct, frozen=True):
    """Which devices a rule taints: those of which all given names are equal."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None

    def has(self, names: Sequence[str]) -> bool:
        """Return whether it selects the device with *names*: those of its driver, its pool and the
        device."""
        given = (self.driver, self.pool, self.device)
        return all(name in (None, own) for name, own in zip(given, names, strict=True))


class TaintRuleSpec(ApiStruct, frozen=True):
    """``spec`` of a DeviceTaintRule; without a selector it taints nothing."""

    device_selector: TaintedDevices | None = None
    taint: dict[str, Any] = {}

    def taints(self, names: Sequence[str]) -> bool:
        """Return whether it taints the device with *names*, as of :meth:`TaintedDevices.has`."""
        return self.device_selector is not None and self.device_selector.has(names)


def tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """Return whether a device with *taint* may be used with *toleration*, apart from a limited
    time."""
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(toleration.get("value", "") == taint.get("value", ""))
