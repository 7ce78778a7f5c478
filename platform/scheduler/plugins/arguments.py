"""Parse plugin arguments; a value of the wrong type is ignored in favour of the default."""

import logging
from collections.abc import Mapping

log = logging.getLogger(__name__)


def boolean(arguments: Mapping[str, object], name: str, *, default: bool) -> bool:
    """Return a boolean, which may also be given as text."""
    value = arguments.get(name, default)
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if text in ("true", "false", "1", "0", "t", "f"):
        return text in ("true", "1", "t")
    log.warning("ignoring argument: not a boolean", extra={"argument": name, "given": value})
    return default


def integer(arguments: Mapping[str, object], name: str, *, default: int) -> int:
    """Return an integer."""
    value = arguments.get(name, default)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    log.warning("ignoring argument: not an integer", extra={"argument": name, "given": value})
    return default


def number(arguments: Mapping[str, object], name: str, *, default: float) -> float:
    """Return a number."""
    value = arguments.get(name, default)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    log.warning("ignoring argument: not a number", extra={"argument": name, "given": value})
    return default
