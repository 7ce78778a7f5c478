"""What is wrong with the fields of one object, in the words of Kubernetes' own validation."""

import json
from collections.abc import Iterable, Sequence
from typing import Any


class ErrorList:
    """A growing list of complaints, each led by the path of its field."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def add(self, path: str, text: str) -> None:
        """A complaint in free words; an empty *text* is none."""
        if text:
            self.errors.append(f"{path}: {text}")

    def required(self, path: str, detail: str = "") -> None:
        """The field is missing or empty."""
        self.add(path, f"Required value: {detail}" if detail else "Required value")

    def invalid(self, path: str, value: Any, detail: str) -> None:
        """The value is wrong; an empty *why* means that it is not."""
        if detail:
            self.add(path, f"Invalid value: {quote(value)}: {detail}")

    def not_supported(self, path: str, value: str, allowed: Sequence[str]) -> None:
        """The value must be one of *allowed*; an empty one is left to its default."""
        if value and value not in allowed:
            choices = ", ".join(quote(each) for each in allowed)
            self.add(path, f"Unsupported value: {quote(value)}: supported values: {choices}")

    def out_of_range(
        self, path: str, value: int | None, *, minimum: int, maximum: int | None = None
    ) -> None:
        """The number must not be smaller than *least* nor larger than *most*."""
        if value is None:
            return
        if maximum is not None and not minimum <= value <= maximum:
            self.invalid(path, value, f"must be between {minimum} and {maximum}, inclusive")
        elif value < minimum:
            self.invalid(path, value, f"must be greater than or equal to {minimum}")

    def duplicates(self, path: str, values: Iterable[tuple[str, str]]) -> None:
        """No value may come twice; *values* gives each with the end of its path."""
        seen = set()
        for where, value in values:
            if value and value in seen:
                self.add(f"{path}{where}", f"Duplicate value: {quote(value)}")
            seen.add(value)

    def one_of(self, path: str, given: Sequence[str], *, what: str) -> None:
        """Exactly one of several fields must be there; *given* names those that are."""
        if not given:
            self.required(path, f"must specify one {what}")
        elif len(given) > 1:
            self.add(path, f"Forbidden: may not specify more than one {what}: {', '.join(given)}")


def join_errors(errors: Iterable[str]) -> str:
    """All *problems* but empty ones as one line; some end with a semicolon of their own."""
    found = [each for each in errors if each]
    *first, last = found or [""]
    return " ".join((*(each.removesuffix(";") + ";" for each in first), last))


def quote(value: Any) -> str:
    """*value* as error texts quote it: text and numbers as JSON writes them."""
    return json.dumps(value, ensure_ascii=False)
