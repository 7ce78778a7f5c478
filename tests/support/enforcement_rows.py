"""Rows of the tables that state how kinds and fields are enforced."""

from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from batholith.local.apiserver.kinds.go_types import SCALARS, SPECIAL, json_fields

SERVER, AGENT, SCHEDULER = "local/apiserver", "local/agent", "scheduler"
_CODE = Path(__file__).parents[2] / "platform"


class EnforcementRow(NamedTuple):
    """What becomes of a kind or a field."""

    handling: str
    """`enforced`; `data`: stored for others, on any cluster; `warned`; `refused`."""

    enforced_by: str = ""
    """The module that enforces it, or why it is plain data."""

    body: Any = None
    """An object of the kind, or a value of the field that asks for something."""

    @property
    def enforcer_exists(self) -> bool:
        """Whether the enforcing module exists."""
        return self.handling != "enforced" or (_CODE / self.enforced_by).is_file()


def data(body: Any = None, reason: str = "others read it") -> EnforcementRow:
    return EnforcementRow("data", reason, {} if body is None else body)


def enforced(enforced_by: str, body: Any = None) -> EnforcementRow:
    return EnforcementRow("enforced", enforced_by, {} if body is None else body)


def warned(body: Any = None) -> EnforcementRow:
    return EnforcementRow("warned", "", {} if body is None else body)


def leaf_fields(message: str, rows: Container[str], path: str = "") -> Iterator[str]:
    """Yield the fields below *message* that are in *rows*, or nested too deep for a row."""
    for name, field in json_fields(message).items():
        here = path + name + ("[*]" if field.shape == "rep" else "")
        plain = here.removesuffix("[*]")
        if plain in rows or field.shape == "map" or field.type in SCALARS | SPECIAL:
            yield plain
        elif plain != "initContainers":
            yield from leaf_fields(field.type, rows, f"{here}.")
