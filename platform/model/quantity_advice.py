"""What is wrong with a text that is meant as a quantity, for the person who wrote it."""

import re

from .quantity import QuantityError, parse

_BYTES = re.compile(r"([+-]?[0-9]+(?:\.[0-9]+)?) *([kKMGTPE])i?[bB]", re.ASCII)
"""An amount with the unit that people write elsewhere: ``4GB``, ``4 GiB``, ``512kb``."""

_SUFFIXES = "m (thousandths), k, M, G, T, P, E (powers of 1000), Ki, Mi, Gi, Ti, Pi, Ei (of 1024)"


def quantity_advice(value: object) -> str:
    """Return why *value* is no quantity and what to write instead; ``""`` if it is one."""
    try:
        parse(value)  # type: ignore[arg-type]  # it rejects other types
    except QuantityError as error:
        if not isinstance(value, str):
            return str(error)
        return f'"{value[:64]}" is not a quantity: {_alternative(value)}'
    return ""


def _alternative(text: str) -> str:
    match = _BYTES.fullmatch(text.strip())
    if match is None:
        return f"write a number, with one of the suffixes {_SUFFIXES} if needed"
    number, unit = match.groups()
    decimal, binary = ("k" if unit == "K" else unit), f"{unit.upper()}i"
    return f"write {number}{binary} (powers of 1024) or {number}{decimal} (powers of 1000)"
