"""Plugin arguments in the syntax of Go's flag package.

Unlike there, parsing continues after an invalid argument: it is skipped with a warning, which is
recorded as an event on the job.
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
    """Parsed arguments; a flag that is not set has its default."""

    values: Mapping[str, Value]
    warnings: tuple[str, ...]
    """One sentence per invalid argument."""

    def text(self, flag: str) -> str:
        """Return the value of a text flag."""
        return str(self.values[flag])

    def number(self, flag: str) -> int:
        """Return the value of an integer flag."""
        return int(self.values[flag])

    def boolean(self, flag: str) -> bool:
        """Return the value of a boolean flag."""
        return bool(self.values[flag])


def parse(args: Sequence[str], defaults: Mapping[str, Value]) -> Arguments:
    """Parse ``--flag=value``, ``--flag value`` and, for booleans, ``--flag``, with one dash or two.

    The type of a flag is that of its default. The last value of a repeated flag counts.
    """
    values: dict[str, Value] = dict(defaults)
    warnings: list[str] = []
    remaining = list(reversed(args))
    while remaining:
        argument = remaining.pop()
        flag, equals, text = argument.lstrip("-").partition("=")
        if not argument.startswith("-") or not flag:
            warnings.append(f"{argument!r} is no flag")
            continue
        default = defaults.get(flag)
        if not equals:
            if isinstance(default, bool):
                text = "true"
            elif remaining and not remaining[-1].startswith("-"):
                text = remaining.pop()
            elif default is not None:
                warnings.append(f"flag {argument!r} needs a value")
                continue
        try:
            values[flag] = _value(text, default)
        except ValueError as error:
            warnings.append(f"{argument!r}: {error}")
    return Arguments(values, tuple(warnings))


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
