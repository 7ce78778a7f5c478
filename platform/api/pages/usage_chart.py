"""The chart of usage over time: one column for each interval, divided by series. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from ...wire.history import Usage
from .rendering import amount

WIDTH, HEIGHT = 900, 220
LEFT, BOTTOM, TOP = 60, 20, 10
MAX_SERIES = 6
"""Series with a colour of their own: those that have used most."""
OTHERS = "others"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The usage of one series in one interval."""

    x: float
    y: float
    width: float
    height: float
    series: int
    """Number of its colour."""
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageChart:
    """A chart to draw."""

    columns: Sequence[Column]
    names: Sequence[str]
    """Series by the number of their colour."""
    maximum: str
    """What the whole height is."""
    labels: Sequence[tuple[float, str]]
    """Positions and texts of the times."""
    width: int = WIDTH
    height: int = HEIGHT


def draw(usage: Usage, resource: str) -> UsageChart:
    """Return the chart of one resource, as the average amount during each interval."""
    if usage.start is None or usage.end is None or usage.step_seconds <= 0:
        return UsageChart(columns=(), names=(), maximum="0", labels=())
    step = timedelta(seconds=usage.step_seconds)
    count = max(-((usage.start - usage.end) // step), 1)
    totals = {name: total.get(resource, 0.0) for name, total in usage.totals().items()}
    ranked = sorted((name for name in totals if totals[name]), key=lambda each: -totals[each])
    names = ranked[:MAX_SERIES] + ([OTHERS] if len(ranked) > MAX_SERIES else [])
    values = [[0.0] * count for _ in names]
    for series in usage.series:
        if series.name not in totals or not totals[series.name]:
            continue
        rank = min(ranked.index(series.name), len(names) - 1)
        for point in series.points:
            at = (point.start - usage.start) // step if point.start else -1
            if 0 <= at < count:
                amounts = point.resource_seconds
                values[rank][at] += amounts.get(resource, 0.0) / usage.step_seconds
    top = max((sum(each[at] for each in values) for at in range(count)), default=0.0)
    width = (WIDTH - LEFT) / count
    columns, bases = [], [0.0] * count
    for rank, (name, series_values) in enumerate(zip(names, values, strict=True)):
        for at, value in enumerate(series_values):
            if not value:
                continue
            height = (HEIGHT - BOTTOM - TOP) * value / top
            bases[at] += height
            start = usage.start + at * step
            average = amount(value, resource)
            columns.append(
                Column(
                    x=round(LEFT + at * width, 1),
                    y=round(HEIGHT - BOTTOM - bases[at], 1),
                    width=round(max(width - 1, 1.0), 1),
                    height=round(height, 1),
                    series=rank,
                    title=f"{name}: {average} on average, {start:%Y-%m-%d %H:%M} UTC",
                )
            )
    form = "%H:%M" if usage.step_seconds < 86400 else "%m-%d"
    labels = [
        (round(LEFT + at * width, 1), format(usage.start + at * step, form))
        for at in range(0, count, -(-count // 8))
    ]
    return UsageChart(columns=columns, names=names, maximum=amount(top, resource), labels=labels)
