"""Functions of strings: those of the extension of strings, and of regular expressions."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import re2

from ...model import times
from .signatures import Signature

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_CLAUSE = re.compile(r"%(%|(?:\.(\d+))?([a-zA-Z]))")


def _char_at(text: str, index: int) -> str:
    _check_index(text, index)
    return text[index : index + 1]


def _check_index(text: str, index: int) -> None:
    if not 0 <= index <= len(text):
        raise ValueError(f"index out of range: {index}")


def _index_of(text: str, searched: str, start: int = 0) -> int:
    if not searched:
        return start
    _check_index(text, start)
    return text.find(searched, start)


def _last_index_of(text: str, searched: str, end: int | None = None) -> int:
    last = len(text) if end is None else end
    if not searched:
        return last
    _check_index(text, last)
    return text.rfind(searched, 0, last + len(searched))


def _ascii(text: str, *, upper: bool) -> str:
    return "".join((s.upper() if upper else s.lower()) if s.isascii() else s for s in text)


def _split(text: str, separator: str, limit: int = -1) -> list[str]:
    if limit == 0:
        return []
    if not separator:
        signs = list(text)
        return signs if limit < 0 else [*signs[: limit - 1], "".join(signs[limit - 1 :])]
    return text.split(separator, -1 if limit < 0 else limit - 1)


def _substring(text: str, start: int, end: int | None = None) -> str:
    last = len(text) if end is None else end
    _check_index(text, start)
    _check_index(text, last)
    if start > last:
        raise ValueError(f"invalid substring range. start: {start}, end: {last}")
    return text[start:last]


def _replace(text: str, old: str, new: str, limit: int = -1) -> str:
    return text.replace(old, new, limit)


def _join(items: Sequence[Any], separator: str = "") -> str:
    if not all(isinstance(item, str) for item in items):
        raise ValueError("no such overload")
    return separator.join(items)


def _quote(text: str) -> str:
    escapes = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    escapes |= {"\v": "\\v", "\\": "\\\\", '"': '\\"'}
    return '"' + "".join(escapes.get(sign, sign) for sign in text) + '"'


@lru_cache(maxsize=256)
def _pattern(pattern: str) -> Any:
    try:
        return re2.compile(pattern, _OPTIONS)
    except re2.error as error:
        raise ValueError(f"Illegal regex: {error}") from error


def _find(text: str, pattern: str) -> str:
    found = _pattern(pattern).search(text)
    return str(found.group(0)) if found else ""


def _find_all(text: str, pattern: str, limit: int = -1) -> list[str]:
    found: list[str] = []
    for match in _pattern(pattern).finditer(text):
        if 0 <= limit <= len(found):
            break
        found.append(str(match.group(0)))
    return found


def _format(text: str, arguments: Sequence[Any]) -> str:
    remaining = iter(arguments)
    count = 0

    def clause(match: re.Match[str]) -> str:
        nonlocal count
        if match[1] == "%":
            return "%"
        if count == len(arguments):
            raise ValueError(f"index {count} out of range")
        count += 1
        return _format_one(match[3], next(remaining), match[2])

    return _CLAUSE.sub(clause, text)


def _format_one(verb: str, value: Any, precision: str | None) -> str:
    number = not isinstance(value, bool) and isinstance(value, int)
    match verb:
        case "s":
            return _shown(value)
        case "d" if number:
            return str(value)
        case "f" | "e" if number or isinstance(value, float):
            return format(float(value), f".{precision or 6}{verb}")
        case "b" if number or isinstance(value, bool):
            return format(int(value), "b")
        case "o" if number:
            return format(value, "o")
        case "x" | "X" if number:
            return format(value, verb)
        case "x" | "X" if isinstance(value, str | bytes | bytearray):
            raw = value.encode() if isinstance(value, str) else bytes(value)
            return raw.hex() if verb == "x" else raw.hex().upper()
    raise ValueError(f"error during formatting: no formatting clause '%{verb}' for this value")


def _shown(value: Any) -> str:
    """Format a value for the clause ``%s``."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case float():
            return str(int(value)) if value.is_integer() and abs(value) < 1e21 else repr(value)
        case datetime():
            return times.format(value)
        case timedelta():
            return f"{_shown(value.total_seconds())}s"
        case bytes() | bytearray():
            return bytes(value).decode(errors="replace")
        case list() | tuple():
            return f"[{', '.join(map(_shown, value))}]"
        case Mapping():
            pairs = sorted((_shown(key), _shown(item)) for key, item in value.items())
            return "{" + ", ".join(f"{key}: {item}" for key, item in pairs) + "}"
    return str(value)


_S, _I = "string", "int"
SIGNATURES: tuple[Signature, ...] = (
    Signature("charAt", (_S, _I), _S, _char_at),
    Signature("indexOf", (_S, _S), _I, _index_of),
    Signature("indexOf", (_S, _S, _I), _I, _index_of),
    Signature("lastIndexOf", (_S, _S), _I, _last_index_of),
    Signature("lastIndexOf", (_S, _S, _I), _I, _last_index_of),
    Signature("lowerAscii", (_S,), _S, lambda text: _ascii(text, upper=False)),
    Signature("upperAscii", (_S,), _S, lambda text: _ascii(text, upper=True)),
    Signature("replace", (_S, _S, _S), _S, _replace),
    Signature("replace", (_S, _S, _S, _I), _S, _replace),
    Signature("split", (_S, _S), "list(string)", _split),
    Signature("split", (_S, _S, _I), "list(string)", _split),
    Signature("substring", (_S, _I), _S, _substring),
    Signature("substring", (_S, _I, _I), _S, _substring),
    Signature("trim", (_S,), _S, str.strip),
    Signature("reverse", (_S,), _S, lambda text: text[::-1]),
    Signature("join", ("list(string)",), _S, _join),
    Signature("join", ("list(string)", _S), _S, _join),
    Signature("format", (_S, "list(dyn)"), _S, _format),
    Signature("strings.quote", (_S,), _S, _quote, member=False),
    Signature("find", (_S, _S), _S, _find),
    Signature("findAll", (_S, _S), "list(string)", _find_all),
    Signature("findAll", (_S, _S, _I), "list(string)", _find_all),
)
