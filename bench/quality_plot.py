"""Draws stored results of ``bench.scheduling_quality`` and ``bench.backfilling`` as an SVG file."""

from collections.abc import Mapping
from html import escape
from pathlib import Path

PLOT = Path(__file__).parents[1] / "docs" / "images" / "scheduling-quality.svg"

_GENERATED = "10000 jobs, 200 nodes"
_RUNS = {
    _GENERATED: ("first fit", "default", "binpack"),
    f"{_GENERATED}, limits": (
        "easy",
        "borrow, shortest first",
        "few nodes, easy, predictions",
    ),
}
_PANELS = (
    ("utilisation", "utilisation", 100.0, " %"),
    ("share error", "share error", 100.0, " %"),
    ("wait, mean", "mean wait", 1.0, " s"),
    ("wait p95, gangs of 65-512", "wait p95, gangs of 65-512", 1.0, " s"),
)
"""Of each panel: the metric, its title, the factor and the unit of what is shown."""

_LABELS, _PANEL, _GAP, _ROW, _TOP = 250, 150, 70, 26, 44


def draw(stored: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Return the SVG document: a row for each policy, and a panel for each metric."""
    rows = [
        (policy, stored[title][policy])
        for title, policies in _RUNS.items()
        for policy in policies
        if policy in stored.get(title, {})
    ]
    width = _LABELS + len(_PANELS) * (_PANEL + _GAP)
    height = _TOP + len(rows) * _ROW + 10
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
        f' font-family="sans-serif" font-size="13">',
        "<title>Utilisation, share error and waits of 10,000 jobs under several policies</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for number, (policy, _) in enumerate(rows):
        lines.append(_text(_LABELS - 10, _TOP + number * _ROW + 16, policy, "end"))
    for column, (metric, title, factor, unit) in enumerate(_PANELS):
        left = _LABELS + column * (_PANEL + _GAP)
        lines.append(_text(left, _TOP - 16, title))
        most = max((metrics[metric] for _, metrics in rows), default=1.0) or 1.0
        for number, (_, metrics) in enumerate(rows):
            top, length = _TOP + number * _ROW, _PANEL * metrics[metric] / most
            lines.append(
                f'<rect x="{left}" y="{top + 3}" width="{length:.1f}" height="{_ROW - 8}"'
                ' fill="#2b6cb0"/>'
            )
            shown = f"{metrics[metric] * factor:,.1f}" if factor > 1 else f"{metrics[metric]:,.0f}"
            lines.append(_text(left + length + 5, top + 16, shown + unit))
    return "\n".join([*lines, "</svg>", ""])


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(text)}</text>'
