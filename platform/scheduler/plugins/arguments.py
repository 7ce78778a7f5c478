"""Reading a plugin's arguments: a value of the wrong type leaves the default in force."""

import logging
from collections.abc import Mapping

log = logging.getLogger(__name__)


def flag(arguments: Mapping[str, object], name: str, *, default: bool) -> bool:
    """A truth value, which may also be written as text."""
    given = arguments.get(name, default)
    if isinstance(given, bool):
        return given
    text = str(given).lower()
    if text in ("true", "false", "1", "0", "t", "f"):
        return text in ("true", "1", "t")
    log.warning("argument is no truth value", extra={"argument": name, "given": given})
    return default


def whole(arguments: Mapping[str, object], name: str, *, default: int) -> int:
    """A whole number."""
    given = arguments.get(name, default)
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    log.warning("argument is no whole number", extra={"argument": name, "given": given})
    return default


def number(arguments: Mapping[str, object], name: str, *, default: float) -> float:
    """A number."""
    given = arguments.get(name, default)
    if isinstance(given, int | float) and not isinstance(given, bool):
        return float(given)
    log.warning("argument is no number", extra={"argument": name, "given": given})
    return default
