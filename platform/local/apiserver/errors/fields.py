"""Field errors, with the messages of Kubernetes' ``field.Error``.

Validation returns a list of :class:`FieldError`; the HTTP layer converts it to the causes of a
422 response.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec


class FieldError(NamedTuple):
    """One error of one field."""

    reason: str
    """Machine-readable cause, e.g. ``FieldValueRequired``."""

    field: str
    """Path of the field, e.g. ``spec.containers[0].image``."""

    detail: str
    """The error without the path: the ``message`` of a status cause."""

    @property
    def message(self) -> str:
        """Path and detail in one line, as in the message of the response."""
        return f"{self.field}: {self.detail}"


class MalformedError(Exception):
    """The body cannot be decoded as an object of its kind: 400."""

    def __init__(self, text: str, *, reason: str = "") -> None:
        super().__init__(text)
        self.reason = reason or text
        """The error of the decoder alone, without the kind."""


def quote(value: Any) -> str:
    """Format *value* for error messages: strings in quotes, other values as JSON."""
    return msgspec.json.encode(value).decode()


def required(path: str, detail: str = "") -> FieldError:
    """A required field is missing."""
    text = f"Required value: {detail}" if detail else "Required value"
    return FieldError("FieldValueRequired", path, text)


def invalid(path: str, value: Any, detail: str) -> FieldError:
    """A field has an invalid value."""
    return FieldError("FieldValueInvalid", path, f"Invalid value: {quote(value)}: {detail}")


def invalid_whole(path: str, detail: str) -> FieldError:
    """A field is invalid as a whole: the message does not repeat it."""
    return FieldError("FieldValueInvalid", path, f"Invalid value: {detail}")


def wrong_type(path: str, value: Any, detail: str) -> FieldError:
    """A field has a value of a wrong type."""
    return FieldError("FieldValueTypeInvalid", path, f"Invalid value: {quote(value)}: {detail}")


def not_supported(path: str, value: Any, allowed: Iterable[str]) -> FieldError:
    """A field has a value that is not in the fixed set."""
    names = ", ".join(quote(name) for name in allowed)
    text = f"Unsupported value: {quote(value)}: supported values: {names}"
    return FieldError("FieldValueNotSupported", path, text)


def forbidden(path: str, detail: str) -> FieldError:
    """A field may not be set, or not be changed."""
    return FieldError("FieldValueForbidden", path, f"Forbidden: {detail}")


def duplicate(path: str, value: Any) -> FieldError:
    """A list item repeats an earlier one."""
    return FieldError("FieldValueDuplicate", path, f"Duplicate value: {quote(value)}")


def not_found(path: str, value: Any) -> FieldError:
    """A field refers to something that does not exist."""
    return FieldError("FieldValueNotFound", path, f"Not found: {quote(value)}")


def first_positions(values: Iterable[Any]) -> dict[Any, int]:
    """Return where each of *values* occurs first: a later position is that of a duplicate."""
    found: dict[Any, int] = {}
    for position, value in enumerate(values):
        found.setdefault(value, position)
    return found


def too_long(path: str, limit: int) -> FieldError:
    """A string is longer than *limit* bytes."""
    return FieldError("FieldValueTooLong", path, f"Too long: may not be more than {limit} bytes")


def too_many(path: str, count: int, limit: int) -> FieldError:
    """A list or map has more than *limit* items."""
    items = "1 item" if limit == 1 else f"{limit} items"
    text = f"Too many: {count}: must have at most {items}"
    return FieldError("FieldValueTooMany", path, text)


IMMUTABLE = "field is immutable"
NOT_NEGATIVE = "must be greater than or equal to 0"
