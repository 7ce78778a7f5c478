"""Conditions as data."""

from batholith.batch_ctrl import conditions
from batholith.batch_ctrl.conditions import (
    BACKOFF_LIMIT_EXCEEDED,
    COMPLETIONS_REACHED,
    RESUMED,
    SUSPENDED,
    interim,
    terminal,
    upsert,
)

NOW, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"


def test_false_condition_is_not_added() -> None:
    assert upsert((), RESUMED, now=NOW) == ()


def test_equal_condition_is_kept_with_its_times() -> None:
    before = upsert((), SUSPENDED, now=NOW)
    assert upsert(before, SUSPENDED, now=LATER) is before


def test_differing_condition_is_replaced_in_its_position() -> None:
    before = upsert(upsert((), SUSPENDED, now=NOW), interim(COMPLETIONS_REACHED), now=NOW)
    after = upsert(before, RESUMED, now=LATER)
    assert [one.type for one in after] == ["Suspended", "SuccessCriteriaMet"]
    assert after[0].status == "False" and after[0].last_transition_time == LATER
    assert after[0].last_probe_time == LATER


def test_terminal_condition_has_reason_and_message_of_the_interim_one() -> None:
    """INV-BJ-5."""
    for outcome in (BACKOFF_LIMIT_EXCEEDED, COMPLETIONS_REACHED):
        announced = upsert((), interim(outcome), now=NOW)
        assert conditions.declared_outcome(announced) == outcome
        assert not conditions.is_finished(announced)
        ended = upsert(announced, terminal(outcome), now=LATER)
        assert (ended[0].reason, ended[0].message) == (ended[1].reason, ended[1].message)
        assert conditions.finished_condition(ended) == ended[1]


def test_announced_success_has_priority_over_failure() -> None:
    """INV-BJ-10."""
    both = upsert((), interim(BACKOFF_LIMIT_EXCEEDED), now=NOW)
    both = upsert(both, interim(COMPLETIONS_REACHED), now=NOW)
    assert conditions.declared_outcome(both) == COMPLETIONS_REACHED
