"""Go's regular expressions in the words of Python's :mod:`re`.

Schemas carry patterns in RE2 syntax. Most of it reads the same; what differs is rewritten:
``$`` and ``\\z`` mean the very end, ``\\d`` and its like mean ASCII, ``[[:alpha:]]`` exists.
"""

import functools
import re

_POSIX = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": "\\x00-\\x7f",
    "blank": "\\t ",
    "cntrl": "\\x00-\\x1f\\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": "!-/:-@\\[-`{-~",
    "space": "\\t\\n\\v\\f\\r ",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
_TOKEN = re.compile(
    r"\\Q(?P<literal>.*?)(?:\\E|$)"
    r"|(?P<escape>\\(?:[pP]\{\^?\w+\}|[pP]\w|x\{[0-9A-Fa-f]+\}|.))"
    r"|\[:(?P<posix>\^?\w+):\]"
    r"|(?P<other>.)",
    re.DOTALL,
)


@functools.lru_cache(maxsize=1024)
def compile_go(pattern: str) -> re.Pattern[str] | None:
    """Compile a Go pattern; ``None`` if Python has no words for it (Unicode classes).

    Raises:
        ValueError: the pattern is no regular expression.
    """
    parts: list[str] = []
    # Where the character class began that the walk is in; -1 outside.
    opened = -1
    for token in _TOKEN.finditer(pattern):
        if token["literal"] is not None:
            parts.append(re.escape(token["literal"]))
        elif escape := token["escape"]:
            if escape[1] in "pPC":
                return None
            parts.append(_escape(escape))
        elif name := token["posix"]:
            if opened < 0 or name not in _POSIX:
                return None
            parts.append(_POSIX[name])
        elif opened < 0:
            opened = len(parts) if token["other"] == "[" else -1
            parts.append(r"\Z" if token["other"] == "$" else token["other"])
        else:
            opened = _in_class(parts, opened, token["other"])
    try:
        return re.compile("".join(parts), re.ASCII)
    except re.error as error:
        raise ValueError(f"error parsing regexp: {error}") from error


def _escape(escape: str) -> str:
    if escape == r"\z":
        return r"\Z"
    if escape.startswith(r"\x{"):
        return re.escape(chr(int(escape[3:-1], 16)))
    return escape


def _in_class(parts: list[str], opened: int, char: str) -> int:
    """Take *char* into the class that began at *opened*; return -1 if that closes it."""
    if char == "^" and len(parts) == opened + 1:
        parts[-1] = "[^"
        return opened
    if char == "]" and len(parts) > opened + 1:
        parts.append(char)
        return -1
    # Python warns of what might become set operations one day; an escape means the same.
    parts.append("\\" + char if char in "[&~|]" else char)
    return opened
