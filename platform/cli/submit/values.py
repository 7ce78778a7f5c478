"""Values of options: times, sizes, GPUs, variables. Pure.

Each function raises ValueError with the reason if the text is malformed or not supported.
"""

import re
import shlex
from collections.abc import Mapping
from datetime import datetime, timedelta

from ...model.dependencies import DependencyType
from ...model.validation import label_value_error

MAX_NUMBER = 1_000_000
_UNLIMITED = ("unlimited", "infinite")
_MIB = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}
_TERM_SIGNALS = ("TERM", "SIGTERM", "15")
_NODE_FIELD = re.compile(r"[A-Za-z0-9./_-]+")


def number(text: str, *, minimum: int = 1) -> int:
    """Return a whole number of decimal digits."""
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise ValueError(f"{text!r} is no whole number")
    found = int(text)
    if not minimum <= found <= MAX_NUMBER:
        raise ValueError(f"{found} is not between {minimum} and {MAX_NUMBER}")
    return found


def account(text: str) -> str:
    """Return the name of an account, which is the value of a label."""
    if not text or label_value_error(text):
        raise ValueError(
            f"{text!r} is no account: up to 63 letters, digits, '-', '_' and '.', with a letter or"
            " a digit at both ends"
        )
    return text


def nodes(text: str) -> int:
    """Return the number of nodes of ``N`` or ``N-N``."""
    low, dash, high = text.partition("-")
    if dash and number(low) != number(high):
        raise ValueError(f"{text!r} is a range: give one number")
    return number(low)


def time_limit(text: str) -> int | None:
    """Return the seconds of ``m``, ``m:s``, ``h:m:s``, ``d-h``, ``d-h:m`` or ``d-h:m:s``.

    ``None`` is no limit: 0, ``UNLIMITED`` or ``INFINITE``.
    """
    if text.lower() in _UNLIMITED:
        return None
    match = re.fullmatch(r"(?:([0-9]+)-)?([0-9]+)(?::([0-9]+))?(?::([0-9]+))?", text, re.ASCII)
    if match is None or len(text) > 32:
        raise ValueError(f"{text!r} is none of minutes, m:s, h:m:s, d-h, d-h:m and d-h:m:s")
    days, *fields = match.groups()
    given = [int(each) for each in fields if each is not None]
    if days is not None:
        hours, minutes, seconds = (*given, 0, 0)[:3]
    elif len(given) == 3:
        hours, minutes, seconds = given
    else:
        hours, (minutes, seconds) = 0, (*given, 0)[:2]
    found = ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
    if found > 10 * 366 * 86400:
        raise ValueError(f"{text!r} is more than ten years")
    return found or None


def mebibytes(text: str) -> int:
    """Return the MiB of a size such as ``4000``, ``4000M``, ``16G`` or ``16GB``."""
    match = re.fullmatch(r"([0-9]{1,12})([KMGT]?)B?", text, re.IGNORECASE)
    if match is None:
        raise ValueError(f"{text!r} is no size such as 4000M or 16G")
    found = int(-(-int(match[1]) * _MIB[match[2].upper() or "M"] // 1))
    if not found:
        raise ValueError("0, all memory of a node, is not supported: name the size")
    return found


def gpus(text: str) -> int:
    """Return the number of ``N``, as of ``--gpus``."""
    kind, colon, count = text.rpartition(":")
    if colon:
        raise ValueError(
            f"the type {kind!r} is not supported: use {count} and --constraint=KEY=VALUE with the"
            " label that your nodes have"
        )
    return number(text, minimum=0)


def gres(text: str) -> int:
    """Return the number of GPUs of ``gpu``, ``gpu:N``."""
    if text.lower() == "none":
        return 0
    name, colon, count = text.partition(":")
    if name != "gpu" or "," in text:
        raise ValueError(f"{text!r} is not supported: only gpu:N is")
    if colon and not count[:1].isdigit() and ":" not in count:
        count = f"{count}:1"
    return gpus(count) if colon else 1


def warning(text: str) -> tuple[bool, int]:
    """Return whether ``B:`` is given, and the seconds of ``B:TERM@SECONDS``."""
    match = re.fullmatch(r"(B:)?([A-Za-z0-9]+)(?:@([0-9]{1,5}))?", text)
    if match is None:
        raise ValueError(f"{text!r} is not B:TERM@SECONDS")
    if match[2].upper() not in _TERM_SIGNALS:
        raise ValueError(f"the signal {match[2]} is not supported: pods get SIGTERM only")
    return match[1] is not None, number(match[3] or "60")


def constraint(text: str) -> dict[str, str]:
    """Return the labels that nodes must have."""
    from ...model.validation import label_value_error, qualified_name_error

    labels = {}
    for each in text.split("&"):
        key, equals, value = each.partition("=")
        if not _NODE_FIELD.fullmatch(key):
            raise ValueError(f"{each!r} is not supported: only names and KEY=VALUE, joined by &")
        if not equals:
            key, value = f"features.batholith.io/{key}", "true"
        if problem := qualified_name_error(key) or label_value_error(value):
            raise ValueError(f"{each!r}: {problem}")
        labels[key] = value
    return labels


def export(text: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ``NAME=VALUE,NAME,…``; a name alone is taken from *environment*."""
    from ...model.validation import env_name_error

    if text.upper() in ("NONE", "NIL"):
        return {}
    found = {}
    for each in _split_unquoted(text):
        name, equals, value = each.partition("=")
        if not equals and name.upper() == "ALL":
            raise ValueError(
                "ALL is not supported, since it would store all your variables in the job: name"
                " those that it needs"
            )
        if problem := env_name_error(name):
            raise ValueError(f"{name!r}: {problem}")
        if not equals and name not in environment:
            raise ValueError(f"{name} is not set")
        found[name] = value if equals else environment[name]
    return found


def _split_unquoted(text: str) -> list[str]:
    """Split at commas; a value with a comma is quoted, as in ``A='x,y'``."""
    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = ",", True, ""
    lexer.escape = ""
    try:
        return list(lexer)
    except ValueError:
        raise ValueError(f"a quote of {text!r} is not closed") from None


def array(text: str) -> tuple[str, int | None]:
    """Return the indices of ``0-99%10``, and how many members may run at a time."""
    from ...model.arrays import parse_indices

    indices, percent, limit = text.partition("%")
    parse_indices(indices)
    return indices, number(limit) if percent else None


def dependencies(text: str) -> tuple[tuple[str, str], ...]:
    """Return types and jobs of ``afterok:A:B,afterany:C,singleton``; the job of a singleton is
    empty."""
    if "?" in text:
        raise ValueError("alternatives with ? are not supported: all dependencies must be met")
    found = []
    for each in text.split(","):
        kind, colon, jobs = each.partition(":")
        if kind not in set(DependencyType):
            raise ValueError(f"{each!r} is not supported: only {', '.join(DependencyType)} are")
        if (kind == DependencyType.SINGLETON) == bool(colon):
            raise ValueError(f"{each!r} is neither TYPE:JOB nor singleton")
        found += [(kind, job) for job in jobs.split(":")]
        if colon and not all(jobs.split(":")):
            raise ValueError(f"{each!r}: the name of a job is missing")
    return tuple(found)


_TIMES_OF_DAY = {"midnight": "00:00", "noon": "12:00", "fika": "15:00", "teatime": "16:00"}
_UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 7 * 86400}


def begin(text: str, now: datetime) -> datetime:
    """Return the time of ``now+1hour``, ``16:00``, ``tomorrow``, ``2026-01-31T16:00``.

    A time of the day that has passed is that of tomorrow. *now* has the zone of times without one.
    """
    if match := re.fullmatch(r"now(?:\+([0-9]{1,7})([a-z]*))?", text):
        unit = (match[2] or "second").removesuffix("s")
        if unit not in _UNITS:
            raise ValueError(f"{match[2]!r} is none of {', '.join(_UNITS)}")
        return now + timedelta(seconds=int(match[1] or 0) * _UNITS[unit])
    if text in ("today", "tomorrow"):
        return now + timedelta(days=text == "tomorrow")
    given = _TIMES_OF_DAY.get(text, text)
    try:
        if re.fullmatch(r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2})?", given):
            time = datetime.strptime(given, "%H:%M:%S" if given.count(":") == 2 else "%H:%M").time()
            found = datetime.combine(now.date(), time, now.tzinfo)
            return found if found > now else found + timedelta(days=1)
        if re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}:[0-9]{2}(:[0-9]{2})?)?", given):
            return datetime.fromisoformat(given).replace(tzinfo=now.tzinfo)
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from None
    raise ValueError(f"{text!r} is no time such as now+1hour, 16:00 or 2026-01-31T16:00")
