"""What is wrong with a field of an object, in the words that Kubernetes uses for it.

Every check of objects returns a list of :class:`FieldError`; the HTTP side turns that into the
causes of a 422 answer.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec


class FieldError(NamedTuple):
    """One complaint about one field."""

    reason: str
    """``FieldValueRequired`` and its like: the machine-readable cause."""

    field: str
    """Path of the field, e.g. ``spec.containers[0].image``."""

    detail: str
    """What is wrong, without the path: the ``message`` of a status cause."""

    @property
    def message(self) -> str:
        """Path and detail in one line, as it stands in the message of the whole answer."""
        return f"{self.field}: {self.detail}"


class MalformedError(Exception):
    """The body is no object of this kind at all: 400, before any field is looked at closely."""


def quote(value: Any) -> str:
    """Write *value* the way error texts quote it: text in quotes, all else as JSON."""
    return msgspec.json.encode(value).decode()


def required(path: str, detail: str = "") -> FieldError:
    """A field that must be there is missing."""
    text = f"Required value: {detail}" if detail else "Required value"
    return FieldError("FieldValueRequired", path, text)


def invalid(path: str, value: Any, detail: str) -> FieldError:
    """A field has a value that it may not have."""
    return FieldError("FieldValueInvalid", path, f"Invalid value: {quote(value)}: {detail}")


def wrong_type(path: str, value: Any, detail: str) -> FieldError:
    """A field has a value of another type."""
    return FieldError("FieldValueTypeInvalid", path, f"Invalid value: {quote(value)}: {detail}")


def not_supported(path: str, value: Any, allowed: Iterable[str]) -> FieldError:
    """A field has a value outside a fixed set."""
    names = ", ".join(quote(name) for name in allowed)
    text = f"Unsupported value: {quote(value)}: supported values: {names}"
    return FieldError("FieldValueNotSupported", path, text)


def forbidden(path: str, detail: str) -> FieldError:
    """A field may not be set, or not be changed, here."""
    return FieldError("FieldValueForbidden", path, f"Forbidden: {detail}")


def duplicate(path: str, value: Any) -> FieldError:
    """An entry of a list repeats an earlier one."""
    return FieldError("FieldValueDuplicate", path, f"Duplicate value: {quote(value)}")


def not_found(path: str, value: Any) -> FieldError:
    """A field names something that does not exist."""
    return FieldError("FieldValueNotFound", path, f"Not found: {quote(value)}")


def too_long(path: str, limit: int) -> FieldError:
    """A text is longer than *limit* bytes."""
    return FieldError("FieldValueTooLong", path, f"Too long: may not be more than {limit} bytes")


def too_many(path: str, count: int, limit: int) -> FieldError:
    """A list or map has more than *limit* entries."""
    text = f"Too many: {count}: must have at most {limit} items"
    return FieldError("FieldValueTooMany", path, text)


IMMUTABLE = "field is immutable"
