"""Intervals of completion indexes in text, such as ``1,3-5,7``, with kube-apiserver's errors."""

import re
from collections.abc import Iterator

_INTEGER = re.compile(r"\+?[0-9]+", re.ASCII)
_MAX_INTEGER = 2**63 - 1


class IntervalError(ValueError):
    """The text is not a list of ascending intervals below the number of completions."""


def count_indexes(text: str, completions: int) -> int:
    """Return how many indexes *text* lists.

    Raises:
        IntervalError: it is malformed, not ascending, or an index is not below *completions*.
    """
    total, last = 0, None
    for piece in _pieces(text):
        first, end = _parse_interval(piece, completions)
        if last is not None and last >= first:
            raise IntervalError(f"non-increasing order, previous: {last}, current: {first}")
        total += end - first + 1
        last = end
    return total


def first_overlap(text: str, other: str, completions: int) -> int | None:
    """Return the first index found in both texts; malformed pieces are skipped."""
    left, right = (_valid_intervals(each, completions) for each in (text, other))
    interval, counterpart = next(left, None), next(right, None)
    while interval is not None and counterpart is not None:
        if interval[0] <= counterpart[1] and counterpart[0] <= interval[1]:
            return max(interval[0], counterpart[0])
        if interval[0] <= counterpart[0]:
            interval = next(left, None)
        else:
            counterpart = next(right, None)
    return None


def _pieces(text: str) -> list[str]:
    return text.split(",") if text else []


def _valid_intervals(text: str, completions: int) -> Iterator[tuple[int, int]]:
    for piece in _pieces(text):
        try:
            yield _parse_interval(piece, completions)
        except IntervalError:
            continue


def _parse_interval(piece: str, completions: int) -> tuple[int, int]:
    """Return the first and the last index of an interval, which may be a single index."""
    limits = piece.split("-")
    if len(limits) > 2:
        raise IntervalError(
            f'the fragment "{piece}" violates the requirement that an index interval can have at '
            "most two parts separated by '-'"
        )
    first = _parse_index(limits[0], completions)
    if len(limits) == 1:
        return first, first
    end = _parse_index(limits[1], completions)
    if first >= end:
        raise IntervalError(f"non-increasing order, previous: {first}, current: {end}")
    return first, end


def _parse_index(text: str, completions: int) -> int:
    if not _INTEGER.fullmatch(text) or int(text) > _MAX_INTEGER:
        raise IntervalError(f'cannot convert string to integer for index: "{text}"')
    if int(text) >= completions:
        raise IntervalError(f'too large index: "{text}"')
    return int(text)
