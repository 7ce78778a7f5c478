"""Reasons of events on Volcano's jobs, which the controller records and the REST API explains."""

from enum import StrEnum


class Reason(StrEnum):
    """Reasons of the events that are recorded on a Job."""

    EXECUTE_ACTION = "ExecuteAction"
    COMMAND_ISSUED = "CommandIssued"
    STATUS_ERROR = "JobStatusError"
    PLUGIN_ERROR = "PluginError"
    PVC_ERROR = "PVCError"
    PODGROUP_PENDING = "PodGroupPending"
    PODGROUP_ERROR = "PodGroupError"
    PODGROUP_NEEDED = "PodGroupNeeded"
    GANG_LIMITS = "GangProviderLimits"
    GANG_UNSATISFIABLE = "NotEnoughPods"
    POLICY_NEVER_FIRES = "PolicyCannotFire"
    POD_REJECTED = "PodRejected"
    POD_LOST = "PodLost"
    TOO_MANY_PODS = "TooManyPods"
    WAITING = "WaitingToBegin"
    DEPENDENCY_NEVER_MET = "DependencyNeverMet"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    FAILED_CREATE = "FailedCreate"
    FAILED_DELETE = "FailedDelete"
