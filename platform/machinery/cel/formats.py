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
_UUID = r"(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}"
_UUID_OF_VERSION = "(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?%s[0-9a-f]{3}-?%s[0-9a-f]{3}-?[0-9a-f]{12}"
_COLOR = "(0|[1-9][0-9]?|1[0-9][0-9]?|2[0-4][0-9]|25[0-5])"
_CARD = re.compile(
    "(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|"
    "(222[1-9]|22[3-9][0-9]|2[3-6][0-9]{2}|27[01][0-9]|2720)[0-9]{12}|"
    "6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}|3(?:0[0-5]|[68][0-9])[0-9]{11}|"
    r"(?:2131|1800|35\d{3})\d{11}|6[27][0-9]{14})"
)
_MAC = re.compile(r"(?i)[0-9a-f]{2}([:-][0-9a-f]{2}){5,7}")


def _is_uri(text: str) -> bool:
    return bool(urllib.parse.urlsplit(text).scheme)


def _is_base64(text: str) -> bool:
    return bool(text) and accepts(partial(base64.b64decode, validate=True))(text)


def _matches(pattern: str) -> Callable[[str], bool]:
    compiled = re.compile(pattern, re.ASCII)
    return lambda text: compiled.fullmatch(text) is not None


def _is_card_number(text: str) -> bool:
    """Return whether a text is a number of a known kind of card with the right last digit."""
    digits = re.sub(r"[^0-9]+", "", text)
    if _CARD.fullmatch(digits) is None:
        return False
    doubled = (sum(divmod(2 * int(each), 10)) for each in digits[-2::-2])
    return (sum(map(int, digits[-1::-2])) + sum(doubled)) % 10 == 0


def _is_isbn10(text: str) -> bool:
    digits = re.sub(r"[\s-]+", "", text)
    if re.fullmatch(r"[0-9]{9}[0-9X]", digits) is None:
        return False
    values = (10 if each == "X" else int(each) for each in digits)
    return sum(index * each for index, each in enumerate(values, 1)) % 11 == 0


def _is_isbn13(text: str) -> bool:
    digits = re.sub(r"[\s-]+", "", text)
    if re.fullmatch(r"[0-9]{13}", digits) is None:
        return False
    return sum((1, 3)[index % 2] * int(each) for index, each in enumerate(digits)) % 10 == 0


FORMATS: dict[str, Callable[[str], bool]] = {
    "date-time": accepts(times.parse),
    "password": lambda text: True,
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
    "uuid": _matches(_UUID),
    "uuid3": _matches(_UUID_OF_VERSION % ("3", "[0-9a-f]")),
    "uuid4": _matches(_UUID_OF_VERSION % ("4", "[89ab]")),
    "uuid5": _matches(_UUID_OF_VERSION % ("5", "[89ab]")),
    "bsonobjectid": _matches(r"[0-9a-fA-F]{24}"),
    "creditcard": _is_card_number,
    "hexcolor": _matches(r"#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})"),
    "isbn": lambda text: _is_isbn10(text) or _is_isbn13(text),
    "isbn10": _is_isbn10,
    "isbn13": _is_isbn13,
    "k8s-long-name": lambda text: not validation.dns1123_subdomain_error(text),
    "k8s-short-name": lambda text: not validation.dns1123_label_error(text),
    "rgbcolor": _matches(rf"rgb\(\s*{_COLOR}\s*,\s*{_COLOR}\s*,\s*{_COLOR}\s*\)"),
    "ssn": _matches(r"\d{3}[- ]\d{2}[- ]\d{4}"),
    "mac": lambda text: bool(_MAC.fullmatch(text)),
}
"""Checks by format; unknown formats have no effect."""

_BY_NAME = {name.replace("-", ""): fits for name, fits in FORMATS.items()}


def format_named(name: str) -> Callable[[str], bool] | None:
    """Return the check of a format, whose name may have hyphens anywhere."""
    return _BY_NAME.get(name.replace("-", ""))


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
