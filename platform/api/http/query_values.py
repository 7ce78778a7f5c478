"""Values of queries, as the description of the API has them: nothing else is accepted."""

import re
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, BeforeValidator

from ...model import times
from ...model.validation import DNS1123_SUBDOMAIN


def _parse_time(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return times.parse(value)
    except times.TimeError as error:
        raise ValueError(str(error)) from None


def _parse_int(value: object) -> object:
    """Accept a number as JSON writes it; pydantic also accepts ``1_0``, ``+5``, ``05``, blanks."""
    if isinstance(value, str) and not _INTEGER.fullmatch(value):
        raise ValueError("must be a whole number")
    return value


def _parse_flag(value: object) -> object:
    """Accept ``true`` and ``false`` only; pydantic also accepts ``yes`` and ``1``."""
    if isinstance(value, str) and value not in ("true", "false"):
        raise ValueError("must be true or false")
    return value


def _storable(value: str) -> str:
    """Reject text that PostgreSQL cannot compare."""
    if "\0" in value or any("\ud800" <= char <= "\udfff" for char in value):
        raise ValueError("NUL and surrogates are not allowed")
    return value


_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")

WHOLE_NUMBER = BeforeValidator(_parse_int)
"""Annotation of a parameter of type ``int``. It follows the ``Query`` of the parameter, so that the
limits there are in the description."""

QueryFlag = Annotated[bool, BeforeValidator(_parse_flag)]
"""``true`` or ``false``."""

QueryTime = Annotated[AwareDatetime, BeforeValidator(_parse_time)]
"""A time in RFC 3339."""

StorableText = Annotated[str, AfterValidator(_storable)]
"""Any text that both databases can store."""

NAME_PATTERN = f"^{DNS1123_SUBDOMAIN}$"
UID_PATTERN = "^[0-9A-Za-z-]+$"
