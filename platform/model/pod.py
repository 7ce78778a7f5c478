"""The words of core Pods that several parts share; views of Pods belong to who reads them."""

from enum import StrEnum


class PodPhase(StrEnum):
    """``status.phase`` of a Pod."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


FINISHED = frozenset({PodPhase.SUCCEEDED, PodPhase.FAILED})
"""Phases that a pod does not leave."""
