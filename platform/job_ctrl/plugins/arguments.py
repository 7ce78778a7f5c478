"""Plugin arguments: words in the manner of Go's flag package.

Unlike there, a word that makes no sense does not hide those after it: it is left out and complained
of, so that the user learns of it by an event.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Value = str | int | bool

_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})
_OCTAL = re.compile(r"[+-]?0[0-7_]+")


@dataclass(frozen=True, slots=True)
class Arguments:
    """What was read; a flag that was not given has its default."""

    values: Mapping[str, Value]
    warnings: tuple[str, ...]

    def text(self, flag: str) -> str:
        """The value of a flag that takes text."""
        return str(self.values[flag])

    def number(self, flag: str) -> int:
        """The value of a flag that takes a whole number."""
        return int(self.values[flag])

    def boolean(self, flag: str) -> bool:
        """Whether a flag is on."""
        return bool(self.values[flag])


def parse(args: Sequence[str], defaults: Mapping[str, Value]) -> Arguments:
    """Read ``--flag=value``, ``--flag value`` and, for switches, ``--flag``; one dash will do.

    The type of a flag is that of its default; of a flag that is given twice the last value wins.
    """
    values: dict[str, Value] = dict(defaults)
    complaints: list[str] = []
    left = list(reversed(args))
    while left:
        word = left.pop()
        flag, equals, text = word.lstrip("-").partition("=")
        if not word.startswith("-") or not flag:
            complaints.append(f"{word!r} is no flag")
            continue
        default = defaults.get(flag)
        if not equals:
            if isinstance(default, bool):
                text = "true"
            elif left and not left[-1].startswith("-"):
                text = left.pop()
            elif default is not None:
                complaints.append(f"flag {word!r} needs a value")
                continue
        try:
            values[flag] = _value(text, default)
        except ValueError as error:
            complaints.append(f"{word!r}: {error}")
    return Arguments(values, tuple(complaints))


def _value(text: str, default: Value | None) -> Value:
    if default is None:
        raise ValueError("there is no such flag")
    if isinstance(default, bool):
        if text not in _TRUE | _FALSE:
            raise ValueError(f"{text!r} is neither true nor false")
        return text in _TRUE
    if isinstance(default, int):
        return int(text, 8) if _OCTAL.fullmatch(text) else int(text, 0)
    return text
