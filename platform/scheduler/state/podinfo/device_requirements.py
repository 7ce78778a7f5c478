"""What the claims of a pod require of its node; part of its equivalence class."""

from dataclasses import dataclass

from ....model.node_selectors import NodeSelector


@dataclass(frozen=True, slots=True)
class PendingClaim:
    """A claim that is allocated once its pod has a node."""

    devices: bytes
    """``spec.devices``, encoded."""
    key: str = ""
    """``namespace/name`` if several pods use it, which get the same devices."""
    extended: tuple[tuple[str, str], ...] = ()
    """Of a claim for extended resources: its requests, and the resource of each. On a node that has
    a resource itself, the requests for that are left out."""


@dataclass(frozen=True, slots=True)
class DeviceRequirements:
    """What the claims of a pod require."""

    node_selectors: tuple[NodeSelector, ...] = ()
    """Of claims that are allocated."""
    held: tuple[str, ...] = ()
    """The claims that are allocated, as ``namespace/name``."""
    pending: tuple[PendingClaim, ...] = ()

    def __bool__(self) -> bool:
        return self != NO_DEVICES


NO_DEVICES = DeviceRequirements()
