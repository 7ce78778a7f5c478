"""Validation of the lifecycle policies of a Job and its tasks."""

from collections import Counter
from collections.abc import Sequence

from ..model import durations
from ..model.field_errors import quote
from ..model.job import POLICY_EVENTS, JobEvent, LifecyclePolicy
from ..model.job_actions import ACTIONS


def policies_error(policies: Sequence[LifecyclePolicy], path: str) -> str:
    """Return the first error of the policies at *path*, or ``""``."""
    if not policies:
        return ""
    error = next(filter(None, (_policy_error(each, path) for each in policies)), "")
    error = error or _conflict_error(policies, path)
    if not error:
        return ""
    events, actions = " ".join(POLICY_EVENTS), " ".join(ACTIONS)
    return f"{error}; valid events are [{events}], valid actions are [{actions}]"


def policy_events(policy: LifecyclePolicy) -> list[str]:
    """Return the distinct events of a policy, in order."""
    return list(dict.fromkeys(filter(None, (policy.event, *policy.events))))


def _policy_error(policy: LifecyclePolicy, path: str) -> str:
    """Return the error of a single policy, or ``""``."""
    events = policy_events(policy)
    if events and policy.exit_code is not None:
        return f"{path}: must not specify event and exitCode simultaneously"
    if not events and policy.exit_code is None:
        return f"{path}: either event and exitCode should be specified"
    for event in events:
        if event not in POLICY_EVENTS:
            return f"{path}: Invalid value: {quote(event)}: invalid policy event"
    if policy.action not in ACTIONS:
        return f"{path}: Invalid value: {quote(policy.action)}: invalid policy action"
    if policy.exit_code == 0:
        return f"{path}: 0 is not a valid error code"
    return _timeout_error(policy, path)


def _timeout_error(policy: LifecyclePolicy, path: str) -> str:
    try:
        durations.parse(policy.timeout if policy.timeout is not None else "0")
    except durations.DurationError as error:
        return f"{path}: Invalid value: {quote(policy.timeout)}: invalid timeout: {error}"
    return ""


def _conflict_error(policies: Sequence[LifecyclePolicy], path: str) -> str:
    """Return the conflict between policies of one list, or ``""``."""
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
