"""Field errors of one object, with the message formats of Kubernetes' ``field.ErrorList``."""

import json
from collections.abc import Iterable, Sequence
from typing import Any


class ErrorList:
    """List of error messages, each prefixed with the path of its field."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def add(self, path: str, text: str) -> None:
        """Add an error; an empty *text* is ignored."""
        if text:
            self.errors.append(f"{path}: {text}")

    def required(self, path: str, detail: str = "") -> None:
        """Add an error for a missing or empty field."""
        self.add(path, f"Required value: {detail}" if detail else "Required value")

    def invalid(self, path: str, value: Any, detail: str) -> None:
        """Add an error for an invalid value; an empty *detail* is ignored."""
        if detail:
            self.add(path, f"Invalid value: {quote(value)}: {detail}")

    def not_supported(self, path: str, value: str, allowed: Sequence[str]) -> None:
        """Add an error unless the value is one of *allowed* or empty."""
        if value:
            self.member(path, value, allowed)

    def member(self, path: str, value: str, allowed: Sequence[str]) -> None:
        """Add an error unless the value is one of *allowed*."""
        if value not in allowed:
            choices = ", ".join(quote(each) for each in allowed)
            self.add(path, f"Unsupported value: {quote(value)}: supported values: {choices}")

    def out_of_range(
        self, path: str, value: int | None, *, minimum: int, maximum: int | None = None
    ) -> None:
        """Add an error for a number below *minimum* or above *maximum*."""
        if value is None:
            return
        if maximum is not None and not minimum <= value <= maximum:
            self.invalid(path, value, f"must be between {minimum} and {maximum}, inclusive")
        elif value < minimum:
            self.invalid(path, value, f"must be greater than or equal to {minimum}")

    def duplicates(self, path: str, values: Iterable[tuple[str, str]]) -> None:
        """Add an error for each repeated value; *values* are pairs of path suffix and value."""
        seen = set()
        for where, value in values:
            if value and value in seen:
                self.add(f"{path}{where}", f"Duplicate value: {quote(value)}")
            seen.add(value)

    def one_of(self, path: str, given: Sequence[str], *, what: str) -> None:
        """Add an error unless exactly one field is set; *given* names the fields that are."""
        if not given:
            self.required(path, f"must specify one {what}")
        elif len(given) > 1:
            self.add(path, f"Forbidden: may not specify more than one {what}: {', '.join(given)}")


def join_errors(errors: Iterable[str]) -> str:
    """Join non-empty *errors* to one line, separated by semicolons, which some end with already."""
    non_empty = [each for each in errors if each]
    *first, last = non_empty or [""]
    return " ".join((*(each.removesuffix(";") + ";" for each in first), last))


def aggregate_errors(errors: Sequence[str]) -> str:
    """Join *errors* as Kubernetes does: in brackets unless there is only one."""
    return errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]"


def quote(value: Any) -> str:
    """Return *value* as JSON, for error texts."""
    return json.dumps(value, ensure_ascii=False)
