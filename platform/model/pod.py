"""The words of core Pods that several parts share; views of Pods belong to who reads them."""

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
"""Phases that a pod does not leave."""


class VolumeMount(ApiStruct, frozen=True):
    """Where a volume appears in a container."""

    name: str = ""
    mount_path: str = ""
    sub_path: str = ""
    sub_path_expr: str = ""
    read_only: bool = False
