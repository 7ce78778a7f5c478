"""The body of error responses."""

from typing import Annotated

import msgspec

from .base import Record, Sends


class FieldProblem(Record, frozen=True):
    """What is wrong with one field of the body, or one parameter."""

    field: str = ""
    message: str = ""


class Problem(Record, frozen=True, omit_defaults=True):
    """An error (RFC 9457)."""

    type: str = msgspec.field(default_factory=lambda: "about:blank")  # which is sent, too
    title: str = ""
    status: int = 0
    detail: str = ""
    errors: Annotated[list[FieldProblem], Sends(list[FieldProblem], always=False)] = []
    """Given for status 422."""
    allowed_phases: Annotated[list[str], Sends(list[str], always=False)] = []
    """Given for status 409: phases in which the action is allowed."""
