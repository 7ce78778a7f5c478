"""Values of queries that are compared with rows of the store."""

from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, BeforeValidator

from ..model import times
from ..model.validation import DNS1123_SUBDOMAIN


def _parse_time(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return times.parse(value)
    except times.TimeError as error:
        raise ValueError(str(error)) from None


def _storable(value: str) -> str:
    """Reject text that PostgreSQL cannot compare."""
    if "\0" in value or any("\ud800" <= char <= "\udfff" for char in value):
        raise ValueError("NUL and surrogates are not allowed")
    return value


QueryTime = Annotated[AwareDatetime, BeforeValidator(_parse_time)]
"""A time in RFC 3339."""

StorableText = Annotated[str, AfterValidator(_storable)]
"""Any text that both databases can store."""

NAME_PATTERN = f"^{DNS1123_SUBDOMAIN}$"
UID_PATTERN = "^[0-9A-Za-z-]+$"
