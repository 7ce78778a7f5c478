"""The table of actions agrees with all other lists of them."""

import pytest

from batholith.admission.policy_validation import policies_error
from batholith.api.commands.orders import TABLE, CommandAction
from batholith.job_ctrl.status.phases import RULES
from batholith.job_ctrl.status.restarts import RestartTarget, target_for_event
from batholith.job_ctrl.tracker.pod_info import LifecycleEvent
from batholith.model.job import Action, JobEvent, LifecyclePolicy
from batholith.model.job_actions import ACTIONS, Target


@pytest.mark.parametrize("action", Action)
def test_admission_allows_the_actions_of_the_table(action: Action) -> None:
    policy = LifecyclePolicy(action=action, event="PodFailed")
    assert (policies_error([policy], "spec.policies") == "") == (action in ACTIONS)


def test_rest_api_only_issues_actions_on_jobs() -> None:
    issued = {action for name in CommandAction for action in TABLE[name].values()}
    assert issued == ACTIONS.keys()


@pytest.mark.parametrize("action", ACTIONS)
def test_each_action_has_an_effect_in_some_phase(action: str) -> None:
    phases = ACTIONS[action].transitions.keys()
    assert phases
    assert phases <= RULES.keys()


@pytest.mark.parametrize("action", ACTIONS)
def test_each_action_has_a_target_for_a_pod_event(action: str) -> None:
    event = LifecycleEvent(
        event_type=JobEvent.POD_FAILED, task="t", partition="1", pod="j-t-1", uid="u"
    )
    names = {Target.JOB: "", Target.TASK: "t", Target.POD: "j-t-1", Target.PARTITION: "t/1"}
    kind = ACTIONS[action].target
    assert target_for_event(action, event) == RestartTarget(kind, names[kind])
    nothing = LifecycleEvent(event_type=JobEvent.JOB_UNKNOWN)
    assert (target_for_event(action, nothing) is None) == (kind is not Target.JOB)
