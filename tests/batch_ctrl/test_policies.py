"""Pod failure policy and success policy as tables."""

import msgspec
import pytest

from batholith.batch_ctrl import failure_policy, success_policy
from batholith.batch_ctrl.core_types import Pod, PodFailurePolicy, PolicyAction, SuccessPolicy
from batholith.batch_ctrl.failure_policy import FailureMatch
from batholith.batch_ctrl.indexes import IndexSet


def _pod(*codes: tuple[str, int | None], init: int = 0, condition: str = "") -> Pod:
    """A failed pod with these containers; *init* is the exit code of init container ``i``."""
    states = [
        {"name": name, "state": {} if code is None else {"terminated": {"exitCode": code}}}
        for name, code in codes
    ]
    return msgspec.convert(
        {
            "metadata": {"name": "p", "namespace": "d"},
            "status": {
                "phase": "Failed",
                "containerStatuses": states,
                "initContainerStatuses": [
                    {"name": "i", "state": {"terminated": {"exitCode": init}}}
                ],
                "conditions": [{"type": condition, "status": "True"}],
            },
        },
        Pod,
    )


def _codes(action: str, operator: str, *values: int, container: str = "") -> dict[str, object]:
    rule: dict[str, object] = {"operator": operator, "values": values}
    return {
        "action": action,
        "onExitCodes": rule | ({"containerName": container} if container else {}),
    }


def _match(pod: Pod, *rules: object) -> FailureMatch:
    return failure_policy.match(msgspec.convert({"rules": rules}, PodFailurePolicy), pod)


MAIN_42 = _pod(("main", 42))
DISRUPTED = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}


@pytest.mark.parametrize(
    ("pod", "rules", "action"),
    [
        (MAIN_42, [], None),
        (MAIN_42, [_codes("Count", "In", 42)], PolicyAction.COUNT),
        (MAIN_42, [_codes("Count", "In", 41, 43)], None),
        (MAIN_42, [_codes("Ignore", "NotIn", 41)], PolicyAction.IGNORE),
        (MAIN_42, [_codes("Ignore", "NotIn", 42)], None),
        (MAIN_42, [_codes("Ignore", "In", 42, container="other")], None),
        (MAIN_42, [_codes("FailIndex", "In", 42, container="main")], PolicyAction.FAIL_INDEX),
        (_pod(("main", 0)), [_codes("Ignore", "NotIn", 1)], None),
        (_pod(("main", None)), [_codes("Ignore", "NotIn", 1)], None),
        (_pod(("a", 1), ("b", 42)), [_codes("FailJob", "In", 42)], PolicyAction.FAIL_JOB),
        (_pod(init=42), [_codes("FailJob", "In", 42)], PolicyAction.FAIL_JOB),
        (_pod(condition="DisruptionTarget"), [DISRUPTED], PolicyAction.IGNORE),
        (_pod(condition="Other"), [DISRUPTED], None),
        (MAIN_42, [_codes("Unknown", "In", 42), _codes("Count", "In", 42)], PolicyAction.COUNT),
        (MAIN_42, [_codes("Count", "In", 42), _codes("FailJob", "In", 42)], PolicyAction.COUNT),
    ],
)
def test_first_matching_rule_decides(
    pod: Pod, rules: list[object], action: PolicyAction | None
) -> None:
    found = _match(pod, *rules)
    assert found.action is action
    assert found.counts == (action is not PolicyAction.IGNORE)


def test_message_names_what_failed() -> None:
    found = _match(_pod(("main", 7), init=42), DISRUPTED, _codes("FailJob", "In", 42))
    assert found.message == (
        "Container i for pod d/p failed with exit code 42 matching FailJob rule at index 1"
    )
    condition = {"action": "FailJob", "onPodConditions": [{"type": "X", "status": "True"}]}
    found = _match(_pod(condition="X"), condition)
    assert found.message == "Pod d/p has condition X matching FailJob rule at index 0"


def test_without_policy_every_failure_counts() -> None:
    assert failure_policy.match(None, MAIN_42) == FailureMatch()


@pytest.mark.parametrize(
    ("rules", "succeeded", "message"),
    [
        ([], "0-4", None),
        ([{"succeededIndexes": "1,2"}], "1", None),
        ([{"succeededIndexes": "1,2"}], "0-2", "Matched rules at index 0"),
        ([{"succeededIndexes": "1-3", "succeededCount": 2}], "2,3", "Matched rules at index 0"),
        ([{"succeededIndexes": "1-3", "succeededCount": 2}], "0,3,4", None),
        ([{"succeededCount": 2}], "0,4", "Matched rules at index 0"),
        ([{"succeededCount": 3}], "0,4", None),
        ([{"succeededIndexes": ""}, {"succeededCount": 1}], "0", "Matched rules at index 1"),
        ([{"succeededIndexes": "9"}], "0-4", None),
        ([{"succeededCount": 0}], "", None),
    ],
)
def test_success_policy(rules: list[object], succeeded: str, message: str | None) -> None:
    policy = msgspec.convert({"rules": rules}, SuccessPolicy)
    indexes = IndexSet.parse(succeeded, 5)
    assert success_policy.match(policy, indexes, completions=5) == message


def test_no_success_policy_never_matches() -> None:
    assert success_policy.match(None, IndexSet([0]), completions=1) is None
