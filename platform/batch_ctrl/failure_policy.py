"""The pod failure policy: what a failed pod means for its Job. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..model.meta import Condition
from .core_types import (
    ConditionPattern,
    ContainerStatus,
    FailureRule,
    OnExitCodes,
    Pod,
    PodFailurePolicy,
    PodStatus,
    PolicyAction,
)


@dataclass(frozen=True, slots=True)
class FailureMatch:
    """Result of the policy for one failed pod."""

    action: PolicyAction | None = None
    """Action of the first rule that matches; ``None`` counts the failure, too."""
    message: str = ""
    """Message of the Job's failure, if the action is FailJob."""

    @property
    def counts(self) -> bool:
        """Whether the failure counts towards the backoff limits."""
        return self.action is not PolicyAction.IGNORE


COUNTED = FailureMatch()
"""Result without a policy or without a matching rule."""

_ACTIONS = {action.value: action for action in PolicyAction}


def match(policy: PodFailurePolicy | None, pod: Pod) -> FailureMatch:
    """Return the result of the first rule that matches *pod*; rules of unknown actions are skipped.

    A terminating pod is evaluated like a failed one: the caller decides whether it has failed.
    """
    for number, rule in enumerate(policy.rules if policy is not None else ()):
        action = _ACTIONS.get(rule.action)
        if action is None or (reason := _match_rule(rule, pod)) is None:
            continue
        message = ""
        if action is PolicyAction.FAIL_JOB:
            message = f"{reason} matching {rule.action} rule at index {number}"
        return FailureMatch(action, message)
    return COUNTED


def _match_rule(rule: FailureRule, pod: Pod) -> str | None:
    """Return the description of what matches *rule*, if anything."""
    key = pod.metadata.key
    if rule.on_exit_codes is not None:
        container = _match_exit_codes(rule.on_exit_codes, pod.status)
        if container is None or container.state.terminated is None:
            return None
        code = container.state.terminated.exit_code
        return f"Container {container.name} for pod {key} failed with exit code {code}"
    condition = _match_conditions(rule.on_pod_conditions or (), pod.status.conditions)
    return None if condition is None else f"Pod {key} has condition {condition.type}"


def _match_exit_codes(rule: OnExitCodes, status: PodStatus) -> ContainerStatus | None:
    """Return the first failed container that matches; main containers precede init ones."""
    for container in (*status.container_statuses, *status.init_container_statuses):
        terminated = container.state.terminated
        if terminated is None or terminated.exit_code == 0:
            continue
        if rule.container_name not in (None, container.name):
            continue
        listed = terminated.exit_code in rule.values
        if (rule.operator == "In" and listed) or (rule.operator == "NotIn" and not listed):
            return container
    return None


def _match_conditions(
    patterns: Sequence[ConditionPattern], conditions: Sequence[Condition]
) -> Condition | None:
    wanted = {(pattern.type, pattern.status) for pattern in patterns}
    return next((one for one in conditions if (one.type, one.status) in wanted), None)
