"""Regular expressions of schemas: RE2 syntax, matched in linear time.

Linear in the product of the sizes of pattern and text, which is seconds for each megabyte with the
largest patterns. So the steps of one request are limited: such requests would keep all threads for
large bodies busy.
"""

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import re2

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
# Positions of groups are not needed, and finding them takes half of the time.
_OPTIONS.never_capture = True

_MAX_CACHED_LENGTH, _CACHE_SIZE = 64, 128
"""Maximum characters of cached strings, and strings cached per pattern: quantities and names
recur, and a call of RE2 takes 7 µs."""

MAX_STEPS = 300_000_000
"""Steps of matching and compiling patterns in one request: some seconds."""

_COMPILE_STEPS = 100
"""Steps that take as long as the compilation of one instruction."""

_TOO_LARGE_STEPS = 30_000_000
"""Steps that take as long as the compilation of a pattern that is found to be too large."""

_TOO_LARGE = "expression too large"
_GO_ERRORS = {
    "bad repetition operator": "invalid nested repetition operator",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid repetition size": "invalid repeat count",
    "invalid named capture group": "invalid named capture",
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "no argument for repetition operator": "missing argument to repetition operator",
    "pattern too large - compile failed": _TOO_LARGE,
    "trailing \\": "trailing backslash at end of expression",
}
"""Go's error texts by RE2's, where they differ."""


class PatternStepsError(Exception):
    """Patterns and texts of one request are too large; the text is the reason."""

    def __init__(self, path: str) -> None:
        super().__init__(
            "the patterns of the schema, and the texts to match, are too large together"
        )
        self.path = path
        """Where the limit was exceeded."""


_request = threading.local()


@contextmanager
def limited_steps() -> Iterator[None]:
    """Limit the steps that this thread spends within the block."""
    _request.left = MAX_STEPS
    try:
        yield
    finally:
        del _request.left


def spend(steps: int, path: str = "") -> None:
    """Count *steps* for what is at *path*, within :func:`limited_steps`.

    Raises:
        PatternStepsError: there were more than ``MAX_STEPS``.
    """
    left = getattr(_request, "left", None)
    if left is None:
        return
    if steps > left:
        raise PatternStepsError(path)
    _request.left = left - steps


def check_pattern(pattern: str) -> None:
    """Compile a Go pattern within :func:`limited_steps`.

    Raises:
        ValueError: as `compile_go`.
        PatternStepsError: all patterns together are too large.
    """
    try:
        size = program_size(pattern)
    except ValueError as error:
        spend(_TOO_LARGE_STEPS if _TOO_LARGE in str(error) else len(pattern))
        raise
    spend(_COMPILE_STEPS * size)


def program_size(pattern: str) -> int:
    """Return the maximum steps to match one character; see :func:`compile_go`.

    Raises:
        ValueError: the pattern is not a regular expression.
    """
    return int(_compile(pattern).programsize)


def compile_go(pattern: str) -> Callable[[str], object]:
    """Compile a Go pattern to a search: true if it matches anywhere in a string.

    Raises:
        ValueError: the pattern is not a regular expression; the message is Go's.
    """
    search: Callable[[str], object] = _compile(pattern).search

    @functools.lru_cache(maxsize=_CACHE_SIZE)
    def search_short(text: str) -> bool:
        return search(text) is not None

    def matches(text: str) -> bool:
        return search_short(text) if len(text) <= _MAX_CACHED_LENGTH else search(text) is not None

    return matches


@functools.lru_cache(maxsize=1024)
def _compile(pattern: str) -> Any:
    if "\\C" in pattern.replace("\\\\", ""):
        # RE2 matches a single byte by it; Go does not support it.
        raise ValueError("error parsing regexp: invalid escape sequence: `\\C`")
    try:
        return re2.compile(pattern, _OPTIONS)
    except re2.error as error:
        code, _, expression = error.args[0].decode(errors="replace").partition(": ")
        reason = _GO_ERRORS.get(code, code)
        raise ValueError(f"error parsing regexp: {reason}: `{expression}`") from error
