"""Rows of the tables that state how kinds and fields are enforced."""

from pathlib import Path
from typing import Any, NamedTuple

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
