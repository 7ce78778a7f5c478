"""What is wrong with the fields of one object, in the words of Kubernetes' own validation."""

import json
from collections.abc import Iterable, Sequence
from typing import Any


class Problems:
    """A growing list of complaints, each led by the path of its field."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def add(self, path: str, text: str) -> None:
        """A complaint in free words; an empty *text* is none."""
        if text:
            self.found.append(f"{path}: {text}")

    def required(self, path: str, why: str = "") -> None:
        """The field is missing or empty."""
        self.add(path, f"Required value: {why}" if why else "Required value")

    def invalid(self, path: str, value: Any, why: str) -> None:
        """The value is wrong; an empty *why* means that it is not."""
        if why:
            self.add(path, f"Invalid value: {show(value)}: {why}")

    def choice(self, path: str, value: str, allowed: Sequence[str]) -> None:
        """The value must be one of *allowed*; an empty one is left to its default."""
        if value and value not in allowed:
            choices = ", ".join(show(each) for each in allowed)
            self.add(path, f"Unsupported value: {show(value)}: supported values: {choices}")

    def range(self, path: str, value: int | None, *, least: int, most: int | None = None) -> None:
        """The number must not be smaller than *least* nor larger than *most*."""
        if value is None:
            return
        if most is not None and not least <= value <= most:
            self.invalid(path, value, f"must be between {least} and {most}, inclusive")
        elif value < least:
            self.invalid(path, value, f"must be greater than or equal to {least}")

    def unique(self, path: str, values: Iterable[tuple[str, str]]) -> None:
        """No value may come twice; *values* gives each with the end of its path."""
        seen = set()
        for where, value in values:
            if value and value in seen:
                self.add(f"{path}{where}", f"Duplicate value: {show(value)}")
            seen.add(value)

    def one_of(self, path: str, given: Sequence[str], *, what: str) -> None:
        """Exactly one of several fields must be there; *given* names those that are."""
        if not given:
            self.required(path, f"must specify one {what}")
        elif len(given) > 1:
            self.add(path, f"Forbidden: may not specify more than one {what}: {', '.join(given)}")


def joined(problems: Iterable[str]) -> str:
    """All *problems* but empty ones as one line; some end with a semicolon of their own."""
    found = [each for each in problems if each]
    *first, last = found or [""]
    return " ".join((*(each.removesuffix(";") + ";" for each in first), last))


def show(value: Any) -> str:
    """*value* as error texts quote it: text and numbers as JSON writes them."""
    return json.dumps(value, ensure_ascii=False)
