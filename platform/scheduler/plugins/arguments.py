"""Reading a plugin's arguments: a value of the wrong type leaves the default in force."""

import logging
from collections.abc import Mapping

log = logging.getLogger(__name__)


def boolean(arguments: Mapping[str, object], name: str, *, default: bool) -> bool:
    """A truth value, which may also be written as text."""
    value = arguments.get(name, default)
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if text in ("true", "false", "1", "0", "t", "f"):
        return text in ("true", "1", "t")
    log.warning("argument is no truth value", extra={"argument": name, "given": value})
    return default


def integer(arguments: Mapping[str, object], name: str, *, default: int) -> int:
    """A whole number."""
    value = arguments.get(name, default)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    log.warning("argument is no whole number", extra={"argument": name, "given": value})
    return default


def number(arguments: Mapping[str, object], name: str, *, default: float) -> float:
    """A number."""
    value = arguments.get(name, default)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    log.warning("argument is no number", extra={"argument": name, "given": value})
    return default
