"""Core Pod types used by several packages; each package declares its own views of Pods."""

from enum import StrEnum

from .base import ApiStruct


class PodPhase(StrEnum):
    """``status.phase`` of a Pod."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


FINISHED = frozenset({PodPhase.SUCCEEDED, PodPhase.FAILED})
"""Final phases."""


class VolumeMount(ApiStruct, frozen=True):
    """Mount of a volume in a container."""

    name: str = ""
    mount_path: str = ""
    sub_path: str = ""
    sub_path_expr: str = ""
    read_only: bool = False
