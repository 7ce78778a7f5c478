"""Checks of lifecycle policies: the list of a job, and that of each task."""

from collections import Counter
from collections.abc import Sequence

from ..job_ctrl.actions import ACTIONS
from ..model import durations
from ..model.job import JobEvent, LifecyclePolicy
from .field_errors import quote

EVENTS = (
    JobEvent.ANY,
    JobEvent.POD_FAILED,
    JobEvent.POD_EVICTED,
    JobEvent.POD_PENDING,
    JobEvent.JOB_UNKNOWN,
    JobEvent.TASK_COMPLETED,
    JobEvent.TASK_FAILED,
    JobEvent.JOB_UPDATED,
)
"""Events that a policy may wait for; the others are the controller's own."""


def policies_error(policies: Sequence[LifecyclePolicy], path: str) -> str:
    """The first thing that is wrong with the list at *path*, or ``""``."""
    problem = next(filter(None, (_policy_error(each, path) for each in policies)), "")
    problem = problem or _conflict_error(policies, path)
    if not problem:
        return ""
    valid = f"valid events are [{' '.join(EVENTS)}], valid actions are [{' '.join(ACTIONS)}]"
    return f"{problem}; {valid}"


def policy_events(policy: LifecyclePolicy) -> list[str]:
    """The distinct events of a policy, in the order in which they are written."""
    return list(dict.fromkeys(filter(None, (policy.event, *policy.events))))


def _policy_error(policy: LifecyclePolicy, path: str) -> str:
    """What is wrong with one policy by itself."""
    events = policy_events(policy)
    if events and policy.exit_code is not None:
        return f"{path}: must not specify event and exitCode simultaneously"
    if not events and policy.exit_code is None:
        return f"{path}: either event and exitCode should be specified"
    for event in events:
        if event not in EVENTS:
            return f"{path}: Invalid value: {quote(event)}: invalid policy event"
    if policy.action not in ACTIONS:
        return f"{path}: Invalid value: {quote(policy.action)}: invalid policy action"
    if policy.exit_code == 0:
        return f"{path}: 0 is not a valid error code"
    return _timeout_error(policy, path)


def _timeout_error(policy: LifecyclePolicy, path: str) -> str:
    try:
        durations.parse(policy.timeout if policy.timeout is not None else "0")
    except durations.DurationError as wrong:
        return f"{path}: Invalid value: {quote(policy.timeout)}: invalid timeout: {wrong}"
    return ""


def _conflict_error(policies: Sequence[LifecyclePolicy], path: str) -> str:
    """Where the policies of one list get in each other's way."""
    events = Counter(event for policy in policies for event in policy_events(policy))
    codes = Counter(policy.exit_code for policy in policies if policy.exit_code is not None)
    for event, times in events.items():
        if times > 1:
            return f"{path}: duplicate event {event}  across different policy"
    for code, times in codes.items():
        if times > 1:
            return f"{path}: duplicate exitCode {code}"
    if JobEvent.ANY in events and len(events) > 1:
        return f"{path}: if there's * here, no other policy should be here"
    return ""
