"""Core Pod types used by several packages; each package declares its own views of Pods.

Why it does is in docs/decisions/0017-views-of-pods.md.
"""

from enum import StrEnum

from .base import ApiStruct


class PodPhase(StrEnum):
    """``status.phase`` of a Pod."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


class PodPhaseStatus(ApiStruct, frozen=True):
    """``status`` of a Pod, for those who read nothing but its phase."""

    phase: str = ""


DISRUPTION_TARGET = "DisruptionTarget"
"""Condition of a Pod that is to be deleted because of a disruption, such as an eviction."""

FINISHED = frozenset({PodPhase.SUCCEEDED, PodPhase.FAILED})
"""Final phases."""


_REJECTION_REASONS = frozenset(
    {
        "NodeAffinity",
        "NodeName",
        "NodePorts",
        "NodeShutdown",
        "NodeUnschedulable",
        "SMTAlignmentError",
        "TaintToleration",
        "TopologyAffinityError",
        "UnexpectedAdmissionError",
    }
)
_OUT_OF_RESOURCE = "OutOf"
"""Prefix of the reasons for a lack of resources, such as ``OutOfcpu``."""


def is_rejection(phase: str, reason: str) -> bool:
    """Return whether a pod with this phase and ``status.reason`` was rejected by the kubelet.

    The kubelet rejects a pod before it starts a container, mostly because two schedulers have used
    the same resources. On another node, or later, the same pod may run. Reasons that depend on the
    pod alone, such as a forbidden sysctl, are not included.
    """
    if phase != PodPhase.FAILED:
        return False
    return reason in _REJECTION_REASONS or reason.startswith(_OUT_OF_RESOURCE)


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
