"""Rows of the tables that say what becomes of kinds and fields."""

from pathlib import Path
from typing import Any, NamedTuple

SERVER, AGENT, SCHEDULER = "apiserver", "agent", "scheduler"
_CODE = Path(__file__).parents[2] / "platform"


class Row(NamedTuple):
    """What becomes of a kind or a field."""

    state: str
    """`enforced`; `data`: stored for others, on any cluster; `warned`; `refused`."""

    by: str = ""
    """The module that enforces it, or why it is plain data."""

    body: Any = None
    """An object of the kind, or a value of the field that asks for something."""

    @property
    def holds(self) -> bool:
        """Whether what is said to enforce it is there."""
        return self.state != "enforced" or (_CODE / self.by).is_file()


def data(body: Any = None, why: str = "others read it") -> Row:
    return Row("data", why, {} if body is None else body)


def enforced(by: str, body: Any = None) -> Row:
    return Row("enforced", by, {} if body is None else body)


def warned(body: Any = None) -> Row:
    return Row("warned", "", {} if body is None else body)
