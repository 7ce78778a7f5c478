"""The gang timeline: bars of pods and phases over time. Pure; a template draws it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from ...model import durations
from ...wire.jobs import FINAL_PHASES, Phase, PodSummary, TimelinePhase

WIDTH = 900
LABELS = 210
"""Width of the names, left of the bars."""
ROW = 20
"""Height of a row."""
TOP = 22
"""Height of the axis."""
MAX_NAME = 28
"""Characters of a name that are shown."""
_TICKS = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 604800)
_MAX_TICKS = 8
_CLASSES = {
    Phase.PENDING: "waiting",
    Phase.RUNNING: "running",
    Phase.COMPLETED: "succeeded",
    Phase.FAILED: "failed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar of a row."""

    x: float
    width: float
    state: str
    """Class of its colour."""
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineRow:
    """One pod, or the job."""

    label: str
    title: str
    y: int
    bars: Sequence[Bar]
    restarts: Sequence[float] = ()
    """Where a container was started again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A mark of the axis."""

    x: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A timeline to draw."""

    height: int
    rows: Sequence[TimelineRow]
    ticks: Sequence[Tick]
    start: datetime


@dataclass(frozen=True, slots=True)
class _Span:
    start: datetime
    end: datetime
    state: str
    text: str


def draw(phases: Sequence[TimelinePhase], pods: Sequence[PodSummary], now: datetime) -> Chart:
    """Return the chart of a job: its phases in the first row, then its pods."""
    job = list(_phase_spans(phases, now))
    by_pod = [list(_pod_spans(pod, now)) for pod in pods]
    spans = [span for each in (job, *by_pod) for span in each]
    start = min((span.start for span in spans), default=now)
    end = max((span.end for span in spans), default=now)
    scale = _Scale(start, max(end, start + timedelta(seconds=1)))
    rows = [TimelineRow(label="job", title="Phases", y=TOP, bars=scale.bars(job))]
    for number, (pod, each) in enumerate(zip(pods, by_pod, strict=True), start=1):
        rows.append(
            TimelineRow(
                label=_shorten(pod.name),
                title=pod.name,
                y=TOP + number * ROW,
                bars=scale.bars(each),
                restarts=[scale.x(time) for time in _restarts(pod)],
            )
        )
    return Chart(
        height=TOP + len(rows) * ROW + 4, rows=rows, ticks=list(scale.ticks()), start=start
    )


def _phase_spans(phases: Sequence[TimelinePhase], now: datetime) -> Iterator[_Span]:
    """Yield the times of the phases; what is not known is a gap."""
    known = [each for each in phases if each.entered_at is not None]
    for each, following in zip(known, (*known[1:], None), strict=False):
        left = each.left_at or (None if following is None else following.entered_at)
        is_last = following is None and each.phase in FINAL_PHASES
        end = left or (each.entered_at if is_last else now)
        state = _CLASSES.get(Phase(each.phase), "stopped") if each.phase in set(Phase) else ""
        if each.entered_at is not None and end is not None:
            yield _Span(each.entered_at, max(end, each.entered_at), state or "stopped", each.phase)


def _pod_spans(pod: PodSummary, now: datetime) -> Iterator[_Span]:
    end = pod.finished_at or now
    first_run = next((run.started_at for run in pod.runs if run.started_at), None)
    scheduled = pod.scheduled_at or first_run
    if pod.created_at is not None:
        yield _Span(pod.created_at, max(scheduled or end, pod.created_at), "waiting", "waiting")
    if scheduled is not None and _knows_all_runs(pod):
        yield _Span(scheduled, max(first_run or end, scheduled), "starting", "starting")
    for run in pod.runs:
        if run.started_at is None:
            continue
        if run.finished_at is None and run.exit_code is None:
            yield _Span(run.started_at, max(end, run.started_at), "running", "running")
            continue
        state = "failed" if run.exit_code else "succeeded"
        text = f"{run.container} ended with exit code {run.exit_code}"
        yield _Span(run.started_at, max(run.finished_at or end, run.started_at), state, text)


def _knows_all_runs(pod: PodSummary) -> bool:
    """Return whether no run is missing, which would be between the scheduling and the others."""
    return len(pod.runs) >= pod.restarts + (1 if pod.restarts else 0)


def _restarts(pod: PodSummary) -> Iterator[datetime]:
    """Yield the starts of containers after an earlier run of the same one."""
    seen: set[str] = set()
    for run in pod.runs:
        if run.container in seen and run.started_at is not None:
            yield run.started_at
        seen.add(run.container)


class _Scale:
    def __init__(self, start: datetime, end: datetime) -> None:
        self._start = start
        self._seconds = (end - start).total_seconds()

    def x(self, time: datetime) -> float:
        """Return the horizontal position of *time*."""
        share = (time - self._start).total_seconds() / self._seconds
        return round(LABELS + share * (WIDTH - LABELS), 1)

    def bars(self, spans: Iterable[_Span]) -> list[Bar]:
        """Return the bars of *spans*; each is visible, however short it is."""
        return [
            Bar(
                x=self.x(span.start),
                width=max(round(self.x(span.end) - self.x(span.start), 1), 1.0),
                state=span.state,
                title=f"{span.text}, from {span.start.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC, "
                f"{durations.human((span.end - span.start).total_seconds())}",
            )
            for span in spans
        ]

    def ticks(self) -> Iterator[Tick]:
        """Yield marks at multiples of a round number of seconds since the start."""
        width = next((step for step in _TICKS if self._seconds / step <= _MAX_TICKS), _TICKS[-1])
        for number in range(min(int(self._seconds // width) + 1, 50)):
            time = self._start + timedelta(seconds=number * width)
            yield Tick(x=self.x(time), label=f"+{durations.human(number * width)}")


def _shorten(name: str) -> str:
    return name if len(name) <= MAX_NAME else f"…{name[1 - MAX_NAME :]}"
