"""Conditions of a training job."""

from hypothesis import given
from hypothesis import strategies as st

from batholith.model.training.types import ConditionType, JobCondition
from batholith.training_ctrl.status import is_finished, is_true, set_condition

RUNNING, RESTARTING = ConditionType.RUNNING, ConditionType.RESTARTING
SUCCEEDED, FAILED = ConditionType.SUCCEEDED, ConditionType.FAILED


def condition(
    kind: str, status: str = "True", reason: str = "", message: str = "", at: str = "1"
) -> JobCondition:
    return JobCondition(
        type=kind,
        status=status,
        reason=reason or kind,
        message=message,
        last_update_time=at,
        last_transition_time=at,
    )


def test_changed_message_alone_is_ignored() -> None:
    before = (condition(RUNNING, message="a"),)
    assert set_condition(before, condition(RUNNING, message="b", at="2")) == before


def test_changed_reason_keeps_the_transition_time() -> None:
    (changed,) = set_condition((condition(RUNNING),), condition(RUNNING, reason="x", at="2"))
    assert (changed.last_transition_time, changed.last_update_time) == ("1", "2")


def test_changed_status_is_appended_with_a_new_time() -> None:
    before = (condition(ConditionType.SUSPENDED), condition(RUNNING))
    changed = set_condition(before, condition(ConditionType.SUSPENDED, "False", at="2"))
    assert [each.type for each in changed] == [RUNNING, ConditionType.SUSPENDED]
    assert changed[-1].last_transition_time == "2"


def test_running_and_restarting_exclude_each_other() -> None:
    running = set_condition((condition(RESTARTING),), condition(RUNNING))
    assert [each.type for each in running] == [RUNNING]
    restarting = set_condition(running, condition(RESTARTING))
    assert [each.type for each in restarting] == [RESTARTING]


def test_end_turns_running_to_false() -> None:
    before = (condition(ConditionType.CREATED), condition(RUNNING, reason="TFJobRunning"))
    for end in (SUCCEEDED, FAILED):
        ended = set_condition(before, condition(end, at="2"))
        assert [(each.type, each.status) for each in ended] == [
            (ConditionType.CREATED, "True"),
            (RUNNING, "False"),
            (end, "True"),
        ]
        assert ended[1].last_update_time == "1"


CHANGES = st.lists(
    st.builds(
        condition,
        st.sampled_from(list(ConditionType)),
        st.sampled_from(["True", "True", "False"]),
        st.sampled_from(["a", "b"]),
    ),
    max_size=12,
)


@given(CHANGES)
def test_conditions_after_any_changes(changes: list[JobCondition]) -> None:
    """INV-TJ-3: Failed is final; Running and Restarting are never both there."""
    now: tuple[JobCondition, ...] = ()
    for change in changes:
        before, now = now, set_condition(now, change)
        types = [each.type for each in now]
        assert len(types) == len(set(types))
        assert not {RUNNING, RESTARTING} <= set(types)
        if is_true(before, FAILED):
            assert now == before
        if now != before:
            assert now[-1].type == change.type
        if is_finished(now):
            assert is_true(now, SUCCEEDED) or is_true(now, FAILED)
