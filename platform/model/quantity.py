"""Exact Kubernetes quantities: ``500m``, ``1.5Gi``, ``2e3``.

A quantity is an integer number of billionths. Parsing, :meth:`Quantity.value` and
:meth:`Quantity.milli_value` round away from zero, as upstream does. Unlike upstream, numbers may
exceed 64 bits (only binary suffixes are capped, since upstream stores the capped number).
"""

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

_NANO = 1_000_000_000
_BINARY_CAP = (2**63 - 1) * _NANO
_MAX_EXPONENT = 1000  # Bounds the memory of one quantity.
_MAX_LENGTH = 256
_CACHED_TEXTS = 8192

_SYNTAX = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?([eEinumkKMGTP]*[-+]?[0-9]*)", re.ASCII)
_EXPONENT = re.compile(r"[eE]([-+]?[0-9]+)", re.ASCII)

_DECIMAL_POWERS = {
    "n": -9,
    "u": -6,
    "m": -3,
    "": 0,
    "k": 3,
    "M": 6,
    "G": 9,
    "T": 12,
    "P": 15,
    "E": 18,
}
_BINARY_POWERS = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL_SUFFIXES = {power: sign for sign, power in _DECIMAL_POWERS.items()}
_BINARY_SUFFIXES = ("", *_BINARY_POWERS)


class QuantityError(ValueError):
    """The text is not a quantity; the message is Kubernetes' own."""


class Format(Enum):
    """Suffix family of a quantity (upstream's ``Format``)."""

    DECIMAL = "DecimalSI"
    BINARY = "BinarySI"
    EXPONENT = "DecimalExponent"


@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """An exact amount; equality and hash ignore the format."""

    nanos: int
    """The amount in billionths."""

    format: Format = Format.DECIMAL
    """Output format; sums take the format of their first non-zero term."""

    text: str = ""
    """The parsed text, where upstream keeps it as canonical."""

    def value(self) -> int:
        """Return the amount in whole units, rounded away from zero."""
        return _divide_away_from_zero(self.nanos, _NANO)

    def milli_value(self) -> int:
        """Return the amount in thousandths, rounded away from zero."""
        return _divide_away_from_zero(self.nanos, 1_000_000)

    @property
    def is_whole(self) -> bool:
        """Return whether the amount has no fraction."""
        return self.nanos % _NANO == 0

    def __str__(self) -> str:
        """Return the canonical text: no fraction, the largest exact suffix."""
        if self.text:
            return self.text
        if not self.nanos:
            return "0"
        if self.format is Format.BINARY and abs(self.nanos) >= 1024 * _NANO and self.is_whole:
            return _binary_text(self.nanos // _NANO)
        return _decimal_text(self.nanos, exponent=self.format is Format.EXPONENT)

    def __eq__(self, other: object) -> bool:
        return self.nanos == other.nanos if isinstance(other, Quantity) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.nanos)

    def __lt__(self, other: "Quantity") -> bool:
        return self.nanos < other.nanos

    def __le__(self, other: "Quantity") -> bool:
        return self.nanos <= other.nanos

    def __gt__(self, other: "Quantity") -> bool:
        return self.nanos > other.nanos

    def __ge__(self, other: "Quantity") -> bool:
        return self.nanos >= other.nanos

    def __bool__(self) -> bool:
        return self.nanos != 0

    def __add__(self, other: "Quantity") -> "Quantity":
        return Quantity(self.nanos + other.nanos, self.format if self.nanos else other.format)

    def __sub__(self, other: "Quantity") -> "Quantity":
        return Quantity(self.nanos - other.nanos, self.format if self.nanos else other.format)

    def __mul__(self, times: int) -> "Quantity":
        return Quantity(self.nanos * times, self.format)

    def __neg__(self) -> "Quantity":
        return Quantity(-self.nanos, self.format)


ZERO = Quantity(0)


def parse(value: str | int | float) -> Quantity:
    """Parse a quantity as in JSON: text or a bare number.

    Raises:
        QuantityError: *value* is not a quantity.
    """
    if isinstance(value, str):
        return _parse_text(value.strip())
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise QuantityError(f"a quantity is text or a number, not {type(value).__name__}")
    return _parse_text(str(value))


def canonical(value: str | int | float) -> str:
    """Return the canonical text of *value*.

    Raises:
        QuantityError: *value* is not a quantity.
    """
    return str(parse(value))


@lru_cache(maxsize=_CACHED_TEXTS)
def _parse_text(text: str) -> Quantity:
    match = _SYNTAX.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    sign, whole, fraction, suffix = match.groups(default="") if match else ("", "", "", "")
    if not whole + fraction:
        raise QuantityError(
            "quantities must match the regular expression"
            " '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        )
    format_, power = _parse_suffix(suffix)
    digits = whole.lstrip("0") + fraction
    number = int(whole + fraction)
    if format_ is Format.BINARY:
        nanos = _divide_away_from_zero(number * 1024**power * _NANO, 10 ** len(fraction))
        nanos, canonical_text = min(nanos, _BINARY_CAP), ""
    else:
        power -= len(fraction)
        nanos = _scale_by_ten(number, power + 9)
        canonical_text = text if _is_canonical(digits, power) else ""
    return Quantity(-nanos if sign == "-" else nanos, format_, canonical_text)


def _parse_suffix(suffix: str) -> tuple[Format, int]:
    """Return the format of a suffix and its power: of 1024 for BINARY, else of ten."""
    if suffix in _DECIMAL_POWERS:
        return Format.DECIMAL, _DECIMAL_POWERS[suffix]
    if suffix in _BINARY_POWERS:
        return Format.BINARY, _BINARY_POWERS[suffix]
    exponent = _EXPONENT.fullmatch(suffix)
    if exponent is None:
        raise QuantityError("unable to parse quantity's suffix")
    power = int(exponent[1])
    if abs(power) > _MAX_EXPONENT:
        raise QuantityError(f"the exponent of a quantity lies within ±{_MAX_EXPONENT}")
    return Format.EXPONENT, power


def _is_canonical(digits: str, power: int) -> bool:
    """Return whether upstream treats such digits as canonical and keeps the text.

    Hence ``1.234`` and ``+1`` are kept, but ``1.5`` becomes ``1500m`` and ``1000`` ``1k``.
    """
    return (
        digits[:1] not in ("", "0")
        and len(digits) <= 18
        and power % 3 == 0
        and power >= -9
        and not digits.endswith("000")
    )


def _scale_by_ten(number: int, power: int) -> int:
    return number * 10**power if power >= 0 else _divide_away_from_zero(number, 10**-power)


def _divide_away_from_zero(number: int, divisor: int) -> int:
    """Divide, rounding away from zero."""
    return -(-number // divisor) if number >= 0 else number // divisor


def _binary_text(units: int) -> str:
    power = 0
    while power < 6 and units % 1024 == 0:
        units //= 1024
        power += 1
    return f"{units}{_BINARY_SUFFIXES[power]}"


def _decimal_text(nanos: int, *, exponent: bool) -> str:
    power = -9
    while nanos % 1000 == 0 and (exponent or power < 18):
        nanos //= 1000
        power += 3
    if exponent:
        return f"{nanos}e{power}" if power else str(nanos)
    return f"{nanos}{_DECIMAL_SUFFIXES[power]}"
