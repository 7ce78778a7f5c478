"""Validation of lifecycle policies."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.admission import admit, denial, job, task

from batholith.model.job import POLICY_EVENTS, JobEvent
from batholith.model.job_actions import ACTIONS

Json = dict[str, Any]


@pytest.mark.parametrize(
    ("policies", "expected"),
    [
        ([{"event": "PodFailed", "action": "RestartJob"}], ""),
        ([{"event": "*", "action": "RestartJob"}], ""),
        ([{"event": "*", "action": "RestartJob"}, {"exitCode": 3, "action": "AbortJob"}], ""),
        ([{"event": "PodFailed", "events": ["PodFailed"], "action": "RestartJob"}], ""),
        ([{"event": "PodPending", "action": "RestartJob", "timeout": "1m"}], ""),
        ([{"event": "PodFailed", "exitCode": 1, "action": "RestartJob"}], "simultaneously"),
        ([{"action": "RestartJob"}], "either event and exitCode should be specified"),
        ([{"events": [], "action": "RestartJob"}], "either event and exitCode"),
        ([{"event": "PodRunning", "action": "RestartJob"}], '"PodRunning": invalid policy event'),
        ([{"event": "PodFailed", "action": "SyncJob"}], '"SyncJob": invalid policy action'),
        ([{"exitCode": 3, "action": "EnqueueJob"}], '"EnqueueJob": invalid policy action'),
        ([{"exitCode": 3}], '"": invalid policy action'),
        ([{"exitCode": 0, "action": "RestartJob"}], "0 is not a valid error code"),
        ([{"exitCode": 3, "action": "AbortJob"}] * 2, "duplicate exitCode 3"),
        (
            [
                {"events": ["PodFailed", "PodEvicted"], "action": "AbortJob"},
                {"event": "PodEvicted", "action": "RestartJob"},
            ],
            "duplicate event PodEvicted",
        ),
        ([{"events": ["*", "PodFailed"], "action": "AbortJob"}], "if there's *"),
        ([{"event": "PodPending", "action": "AbortJob", "timeout": "soon"}], "invalid timeout"),
    ],
)
def test_quirk_a5_a_list_of_policies(policies: list[Json], expected: str) -> None:
    if not expected:
        admit(job(policies=policies))
        admit(job(task(policies=policies)))
        return
    text = denial(job(policies=policies))
    assert text.startswith("spec.policies: ")
    assert expected in text
    assert "spec.tasks[0].policies" in denial(job(task(policies=policies)))


def test_quirk_a6_the_denial_lists_the_valid_values_in_a_fixed_order() -> None:
    text = denial(job(policies=[{"action": "AbortJob"}]))
    assert text.endswith(
        "; valid events are [* PodFailed PodEvicted PodPending Unknown TaskCompleted TaskFailed"
        " JobUpdated], valid actions are [AbortJob RestartJob RestartTask RestartPod"
        " RestartPartition TerminateJob CompleteJob ResumeJob]"
    )


policies = st.one_of(
    st.fixed_dictionaries(
        {
            "events": st.lists(st.sampled_from(POLICY_EVENTS), min_size=1, max_size=2),
            "action": st.sampled_from([*ACTIONS]),
        }
    ),
    st.fixed_dictionaries({"exitCode": st.integers(1, 4), "action": st.sampled_from([*ACTIONS])}),
)


@given(st.lists(policies, max_size=4))
def test_policies_are_valid_if_triggers_are_unique_and_any_is_the_only_one(
    given_policies: list[Json],
) -> None:
    events = [event for each in given_policies for event in set(each.get("events", ()))]
    codes = [each["exitCode"] for each in given_policies if "exitCode" in each]
    alone = JobEvent.ANY not in events or len(set(events)) == 1
    if alone and len(set(events)) == len(events) and len(set(codes)) == len(codes):
        admit(job(policies=given_policies))
    else:
        assert "spec.policies: " in denial(job(policies=given_policies))
