"""Annotations that ask for notifications of jobs."""

from collections.abc import Iterator, Mapping

from ..model.field_errors import quote
from ..model.notifications import errors_of


def notify_errors(annotations: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with the annotations of a job."""
    for name, value, text in errors_of(annotations):
        yield f"metadata.annotations[{name}]: Invalid value: {quote(value)}: {text}"
