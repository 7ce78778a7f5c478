"""Whether the minimum of a gang is bound, or was once. Pure functions."""

from ...model.podgroup import PodGroupPhase
from ..state.gangs.gang import Gang, TaskStatus

SCHEDULED = "Scheduled"
"""Condition of PodGroups: written once all bindings of the minimum are confirmed, never removed."""

STARTED_PHASES = (PodGroupPhase.RUNNING, PodGroupPhase.UNKNOWN, PodGroupPhase.COMPLETED)
"""Phases of a PodGroup whose minimum was bound once."""


def is_complete(gang: Gang) -> bool:
    """Return whether the minimum is bound, in total, of each role and of sub-groups; bindings in
    progress do not count."""
    if gang.counts.bound < gang.min_member:
        return False
    for role, minimum in gang.role_minima.items():
        if gang.role_counts(role).bound < minimum:
            return False
    sub_groups = gang.sub_groups
    return sub_groups is None or not sub_groups.short(
        lambda each: each.counts.bound >= each.policy.size
    )


def was_complete(gang: Gang) -> bool:
    """Return whether the minimum is bound or was bound once. The latter is read from the status of
    the PodGroup, as that outlives this process."""
    status = gang.last_status
    scheduled = any((each.type, each.status) == (SCHEDULED, "True") for each in status.conditions)
    return scheduled or status.phase in STARTED_PHASES or is_complete(gang)


def has_bound_tasks(gang: Gang) -> bool:
    """Return whether tasks are bound; bindings in progress do not count."""
    return bool(gang.counts[TaskStatus.BOUND] or gang.counts[TaskStatus.RUNNING])
