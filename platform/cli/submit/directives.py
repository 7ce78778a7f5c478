"""``#SBATCH`` and ``#BATHOLITH`` lines of a script, read as sbatch reads them. Pure.

Only lines before the first command count, and only those that begin exactly so: ``##SBATCH`` and
``# SBATCH`` are comments. A backslash escapes also inside quotes, and an unquoted ``#`` begins a
comment.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from .errors import SubmitError
from .option_table import BY_SHORT, BY_VARIABLE, OPTIONS, Argument, Option, long_option

SBATCH, BATHOLITH = "#SBATCH", "#BATHOLITH"
WRAPPER = "#!/bin/sh\n# Created by batholith submit --wrap.\n\n{}\n"


@dataclass(frozen=True, slots=True)
class Setting:
    """An option with its value, and where it is set: the begin of error messages."""

    option: Option
    value: str
    """Empty for an option without one."""
    where: str
    source: int
    """Settings of a greater source override those of a lesser one."""


OF_SCRIPT, OF_ENVIRONMENT, OF_FLAGS = range(3)


@dataclass(frozen=True, slots=True)
class Script:
    """A script with its settings."""

    text: str
    settings: Sequence[Setting] = ()
    notes: Sequence[str] = ()
    """What its author may not expect, one sentence each."""


def read_script(text: str) -> Script:
    """Read a script.

    Raises:
        SubmitError: it is no script, or a line is malformed or names an unknown option.
    """
    _check_text(text)
    settings: list[Setting] = []
    problems: list[str] = []
    notes: list[str] = []
    in_head = True
    for number, line in enumerate(text.split("\n"), 1):
        prefix = next((each for each in (SBATCH, BATHOLITH) if line.startswith(each)), "")
        where = f"line {number}: {prefix}"
        if not prefix:
            in_head = in_head and (not line.strip() or line.lstrip().startswith("#"))
        elif not in_head:
            notes.append(f"{where} after the first command is not read")
        else:
            try:
                arguments = split_arguments(line.removeprefix(prefix))
                settings += _parse(arguments, where, own=prefix == BATHOLITH)
            except ValueError as error:
                problems.append(f"{where}{error}")
    if problems:
        raise SubmitError(problems)
    return Script(text, settings, notes)


def _check_text(text: str) -> None:
    problem = ""
    if not text.strip():
        problem = "the script is empty"
    elif not text.startswith("#!"):
        problem = "line 1: a script begins with #! and the path of its interpreter"
    elif "\r\n" in text:
        line = text[: text.index("\r\n")].count("\n") + 1
        problem = f"line {line}: the script has DOS line breaks (\\r\\n); dos2unix changes them"
    elif "\0" in text:
        problem = f"line {text[: text.index(chr(0))].count(chr(10)) + 1}: the script has a NUL byte"
    if problem:
        raise SubmitError([problem])


def split_arguments(text: str) -> list[str]:
    """Return the arguments of a line.

    Raises:
        ValueError: a quote is not closed, or a heterogeneous job is asked for; the text continues
            that which names the line.
    """
    arguments: list[str] = []
    rest = text.lstrip()
    while rest and not rest.startswith("#"):
        if rest.startswith(":"):
            raise ValueError(": heterogeneous jobs are not supported")
        argument, rest = _first_argument(rest)
        arguments.append(argument)
        rest = rest.lstrip()
    return arguments


def _first_argument(text: str) -> tuple[str, str]:
    """Return the first argument, without its quotes, and what follows."""
    found: list[str] = []
    quote, is_escaped, position = "", False, 0
    for position, each in enumerate(text):  # noqa: B007
        if is_escaped:
            is_escaped = False
        elif each == "\\":
            is_escaped = True
            continue
        elif quote:
            if each == quote:
                quote = ""
                continue
        elif each in "'\"":
            quote = each
            continue
        elif each == "#" or each.isspace():
            break
        found.append(each)
    else:
        position = len(text)
    if quote:
        raise ValueError(f": the quote {quote} is not closed")
    return "".join(found), text[position:]


def _parse(arguments: Sequence[str], where: str, *, own: bool) -> Iterator[Setting]:
    """Parse arguments as getopt does.

    Raises:
        ValueError: an option is unknown or lacks its value, or an argument is no option; the text
            continues *where*.
    """
    remaining = list(reversed(arguments))
    while remaining:
        argument = remaining.pop()
        if argument.startswith("--") and argument != "--":
            yield _long(argument, remaining, where, own=own)
        elif argument.startswith("-") and argument not in ("-", "--"):
            yield from _short(argument, remaining, where)
        elif argument in ("hetjob", "packjob"):
            raise ValueError(": heterogeneous jobs are not supported")
        else:
            raise ValueError(f": {argument!r} is no option")


def _long(argument: str, remaining: list[str], where: str, *, own: bool) -> Setting:
    name, equals, value = argument.removeprefix("--").partition("=")
    try:
        option = long_option(name, own=own)
    except ValueError as error:
        raise ValueError(f" --{name} {error}") from None
    named = f" --{option.name}"
    if option.argument is Argument.NONE and equals:
        raise ValueError(f"{named} has no value")
    if option.argument is Argument.REQUIRED and not equals:
        value = _next_argument(remaining, named)
    return Setting(option, value, where + named, OF_SCRIPT)


def _short(argument: str, remaining: list[str], where: str) -> Iterator[Setting]:
    """Parse ``-n4``, ``-n 4``, and short options in one argument."""
    rest = argument.removeprefix("-")
    while rest:
        name, rest = rest[0], rest[1:]
        option = BY_SHORT.get(name)
        named = f" -{name}"
        if option is None:
            raise ValueError(f"{named} is no option of sbatch")
        value = ""
        if option.argument is not Argument.NONE:
            value, rest = rest, ""
        if option.argument is Argument.REQUIRED and not value:
            value = _next_argument(remaining, named)
        yield Setting(option, value, where + named, OF_SCRIPT)


def _next_argument(remaining: list[str], named: str) -> str:
    if not remaining:
        raise ValueError(f"{named}: the value is missing")
    return remaining.pop()


def from_environment(environment: Mapping[str, str]) -> list[Setting]:
    """Return the settings of sbatch's variables, such as ``SBATCH_PARTITION``."""
    found = []
    for variable, value in sorted(environment.items()):
        if not variable.startswith("SBATCH_"):
            continue
        name = variable.removeprefix("SBATCH_").lower().replace("_", "-")
        option = BY_VARIABLE.get(variable) or OPTIONS.get(name)
        if option is None or option.own:
            option = Option(name=name, reason="unset it")
        found.append(Setting(option, value, f"${variable}", OF_ENVIRONMENT))
    return found


def from_flags(flags: Mapping[str, str | bool | None]) -> list[Setting]:
    """Return the settings of flags, by the names of their options; ``None`` is not set."""
    return [
        Setting(OPTIONS[name], "" if value is True else str(value), f"--{name}", OF_FLAGS)
        for name, value in flags.items()
        if value is not None and value is not False
    ]
