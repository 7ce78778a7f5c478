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


# Values that Kubernetes supports, in the order of its error messages.
DNS_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
IMAGE_PULL_POLICIES = ("Always", "IfNotPresent", "Never")
PREEMPTION_POLICIES = ("PreemptLowerPriority", "Never")
PROTOCOLS = ("SCTP", "TCP", "UDP")
RESTART_POLICIES = ("Always", "OnFailure", "Never")
TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
TERMINATION_MESSAGE_POLICIES = ("File", "FallbackToLogsOnError")


class VolumeMount(ApiStruct, frozen=True):
    """Mount of a volume in a container."""

    name: str = ""
    mount_path: str = ""
    sub_path: str = ""
    sub_path_expr: str = ""
    read_only: bool = False
