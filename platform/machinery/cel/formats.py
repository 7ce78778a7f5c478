"""Formats of strings: those of schemas, and those that expressions name by ``format``.

A function cannot return an optional value to the library, so :func:`with_optionals` encloses the
calls that Kubernetes declares with such a result.
"""

import base64
import ipaddress
import re
import urllib.parse
from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import date
from functools import partial
from itertools import chain, pairwise
from typing import Any

from ...model import durations, times, validation
from .kubernetes_functions import accepts
from .signatures import FORMAT, Signature, value_of

_HOSTNAME = re.compile(
    r"[a-zA-Z0-9]([-a-zA-Z0-9]{0,61}[a-zA-Z0-9])?(\.[a-zA-Z0-9]([-a-zA-Z0-9]{0,61}[a-zA-Z0-9])?)*"
)
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+")
_UUID = re.compile(r"(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}")
_MAC = re.compile(r"(?i)[0-9a-f]{2}([:-][0-9a-f]{2}){5,7}")


def _is_uri(text: str) -> bool:
    return bool(urllib.parse.urlsplit(text).scheme)


def _is_base64(text: str) -> bool:
    return bool(text) and accepts(partial(base64.b64decode, validate=True))(text)


FORMATS: dict[str, Callable[[str], bool]] = {
    "date-time": accepts(times.parse),
    "datetime": accepts(times.parse),
    "date": accepts(date.fromisoformat),
    "duration": accepts(durations.parse),
    "byte": _is_base64,
    "uri": _is_uri,
    "ipv4": accepts(ipaddress.IPv4Address),
    "ipv6": accepts(ipaddress.IPv6Address),
    "cidr": accepts(lambda text: ipaddress.ip_network(text, strict=False)),
    "hostname": lambda text: bool(_HOSTNAME.fullmatch(text)),
    "email": lambda text: bool(_EMAIL.fullmatch(text)),
    "uuid": lambda text: bool(_UUID.fullmatch(text)),
    "mac": lambda text: bool(_MAC.fullmatch(text)),
}
"""Checks by format; other formats, such as ``password``, have no effect."""


def _prefix(error: Callable[[str], str]) -> Callable[[str], str]:
    """Return a check of what random characters follow: it may end with a hyphen."""

    def check(text: str) -> str:
        return error(f"{text[:-2]}a" if len(text) > 1 and text.endswith("-") else text)

    return check


def _fits(name: str, problem: str) -> Callable[[str], str]:
    return lambda text: "" if FORMATS[name](text) else problem


def _request_uri_error(text: str) -> str:
    """Return what Go reports of a text that is neither an absolute URL nor an absolute path."""
    if not text:
        return 'parse "": empty url'
    if text.startswith("/") or _is_uri(text):
        return ""
    return f'parse "{text}": invalid URI for request'


_NAMED: dict[str, Callable[[str], str]] = {
    "dns1123Label": validation.dns1123_label_error,
    "dns1123Subdomain": validation.dns1123_subdomain_error,
    "dns1035Label": validation.dns1035_label_error,
    "qualifiedName": validation.qualified_name_error,
    "dns1123LabelPrefix": _prefix(validation.dns1123_label_error),
    "dns1123SubdomainPrefix": _prefix(validation.dns1123_subdomain_error),
    "dns1035LabelPrefix": _prefix(validation.dns1035_label_error),
    "labelValue": validation.label_value_error,
    "uri": _request_uri_error,
    "uuid": _fits("uuid", "does not match the UUID format"),
    "byte": _fits("byte", "invalid base64"),
    "date": _fits("date", "invalid date"),
    "datetime": _fits("datetime", "invalid datetime"),
}
"""Errors of texts, by the format's name in expressions."""


def _format(name: str) -> Callable[[], dict[str, Any]]:
    return lambda: value_of(FORMAT, name)


def _validate(name: str, text: str) -> list[str]:
    error = _NAMED[name](text)
    return [error] if error else []


SIGNATURES: tuple[Signature, ...] = (
    *(Signature(f"format.{name}", (), FORMAT, _format(name), member=False) for name in _NAMED),
    Signature(
        "format.named",
        ("string",),
        FORMAT,
        lambda name: value_of(FORMAT, name) if name in _NAMED else {},
        member=False,
    ),
    Signature("validate", (FORMAT, "string"), "list(string)", _validate),
)

_TOKEN = re.compile(
    r"""\"{3}(?:\\.|[^\\])*?\"{3}|'{3}(?:\\.|[^\\])*?'{3}|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'"""
    r"""|//[^\n]*|\w+|\s+|.""",
    re.DOTALL,
)
_OPENING, _CLOSING = ("(", "[", "{"), (")", "]", "}")
_ENCLOSE = "optional.ofNonZeroValue("


def with_optionals(expression: str) -> str:
    """Return an expression whose calls of ``format.named`` and ``validate`` are optional values.

    Both return an empty value if there is none, so that ``optional.ofNonZeroValue`` encloses them.
    """
    if "format" not in expression:
        return expression
    tokens = [
        token
        for token in _TOKEN.finditer(expression)
        if not token[0].isspace() and not token[0].startswith("//")
    ]
    texts = [token[0] for token in tokens]
    ends = _other_ends(texts)
    starts: dict[int, int] = {}
    before: dict[int, str] = defaultdict(str)
    after: dict[int, str] = defaultdict(str)
    for index in range(2, len(texts) - 1):
        if texts[index + 1] != "(" or index + 1 not in ends:
            continue
        if texts[index - 2 : index + 1] == ["format", ".", "named"]:
            starts[index] = index - 2
        elif texts[index - 1 : index + 1] == [".", "validate"]:
            starts[index] = _start_of_operand(texts, index - 2, ends, starts)
        else:
            continue
        before[tokens[starts[index]].start()] += _ENCLOSE
        after[tokens[ends[index + 1]].end()] += ")"
    # Where one call ends, the next does not start: there is a token between them.
    added = sorted([*before.items(), *after.items()])
    positions = [0, *(position for position, _ in added), len(expression)]
    pieces = [expression[start:end] for start, end in pairwise(positions)]
    return "".join(
        chain.from_iterable(zip(pieces, [*(text for _, text in added), ""], strict=True))
    )


def _start_of_operand(
    texts: list[str], index: int, ends: Mapping[int, int], starts: Mapping[int, int]
) -> int:
    """Return where the operand that ends at *index* starts, such as ``a.b(c)[d]``.

    *ends* are those of :func:`_other_ends`, *starts* those of earlier calls, by their names: a
    chain of calls is not read again for each of them.
    """
    while True:
        while texts[index] in _CLOSING and index in ends:
            start = ends[index]
            before = texts[start - 1] if start else ""
            if before in _CLOSING or (before.isidentifier() and before != "in"):
                index = start - 1  # a call, or an item
            else:
                index = start
        if index in starts:
            return starts[index]
        if index < 2 or texts[index - 1] != ".":
            return index
        index -= 2


def _other_ends(texts: list[str]) -> dict[int, int]:
    """Return for each parenthesis or bracket that has another end where that is."""
    ends: dict[int, int] = {}
    opened: list[int] = []
    for index, text in enumerate(texts):
        if text in _OPENING:
            opened.append(index)
        elif text in _CLOSING and opened:
            ends[index] = opened.pop()
            ends[ends[index]] = index
    return ends
