"""The gang timeline: which bars a job and its pods have."""

from datetime import UTC, datetime, timedelta

from batholith.api.pages.timeline import LABELS, WIDTH, Chart, draw
from batholith.wire.jobs import ContainerRun, PodSummary, TimelinePhase

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def run(start: float, end: float | None = None, code: int | None = None) -> ContainerRun:
    return ContainerRun(
        container="main",
        started_at=at(start),
        finished_at=None if end is None else at(end),
        exit_code=code,
    )


def pod(*runs: ContainerRun, restarts: int = 0, scheduled: float | None = 10) -> PodSummary:
    return PodSummary(
        name="train-w-0",
        created_at=NOON,
        scheduled_at=None if scheduled is None else at(scheduled),
        runs=list(runs),
        restarts=restarts,
    )


def bars(chart: Chart, row: int) -> list[tuple[str, float, float]]:
    """States of a row with their begin and end as shares of the chart."""
    width = WIDTH - LABELS
    return [
        (
            bar.state,
            round((bar.x - LABELS) / width, 2),
            round((bar.x + bar.width - LABELS) / width, 2),
        )
        for bar in chart.rows[row].bars
    ]


def test_a_pod_waits_starts_runs_and_ends() -> None:
    chart = draw([], [pod(run(20, 70, 0))], at(100))
    assert chart.start == NOON
    assert bars(chart, 1) == [
        ("waiting", 0, 0.14),
        ("starting", 0.14, 0.29),
        ("succeeded", 0.29, 1),
    ]
    assert chart.rows[1].restarts == []


def test_what_lasts_ends_now() -> None:
    assert bars(draw([], [pod(run(20))], at(100)), 1)[-1] == ("running", 0.2, 1)
    assert bars(draw([], [pod()], at(100)), 1)[-1] == ("starting", 0.1, 1)
    assert bars(draw([], [pod(scheduled=None)], at(100)), 1) == [("waiting", 0, 1)]


def test_a_restart_is_marked_and_the_time_before_it_is_a_gap() -> None:
    chart = draw([], [pod(run(20, 40, 3), run(60), restarts=1)], at(100))
    assert bars(chart, 1)[2:] == [("failed", 0.2, 0.4), ("running", 0.6, 1)]
    (mark,) = chart.rows[1].restarts
    assert round((mark - LABELS) / (WIDTH - LABELS), 2) == 0.6


def test_runs_that_kubernetes_does_not_know_any_more_are_a_gap() -> None:
    chart = draw([], [pod(run(60, 80, 3), restarts=2)], at(100))
    assert bars(chart, 1) == [("waiting", 0, 0.12), ("failed", 0.75, 1)]


def test_the_phases_of_the_job_are_the_first_row() -> None:
    phases = [
        TimelinePhase(phase="Pending", entered_at=at(0)),
        TimelinePhase(phase="Running", entered_at=at(20), left_at=at(50)),
        TimelinePhase(phase="Aborted", entered_at=at(60)),
        TimelinePhase(phase="Running", entered_at=None),
    ]
    assert bars(draw(phases, [], at(100)), 0) == [
        ("waiting", 0, 0.2),
        ("running", 0.2, 0.5),
        ("stopped", 0.6, 1),
    ]


def test_a_final_phase_does_not_grow() -> None:
    phases = [
        TimelinePhase(phase="Running", entered_at=at(0)),
        TimelinePhase(phase="Completed", entered_at=at(100)),
    ]
    early, late = draw(phases, [], at(100)), draw(phases, [], at(10_000))
    assert early.rows == late.rows


def test_a_clock_that_runs_behind_gives_no_negative_width() -> None:
    chart = draw([TimelinePhase(phase="Running", entered_at=at(0))], [pod(run(20))], at(-50))
    assert all(bar.width > 0 for row in chart.rows for bar in row.bars)


def test_the_axis_has_few_marks_for_any_length() -> None:
    for seconds in (0, 1, 59, 3600, 10**6, 10**9):
        chart = draw([TimelinePhase(phase="Running", entered_at=NOON)], [], at(seconds))
        assert 1 <= len(chart.ticks) <= 50
