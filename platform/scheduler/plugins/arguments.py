"""Arguments of plugins and actions: typed reading, with errors that name the argument.

:class:`Arguments` records which arguments were read. One that its plugin has not read after the
construction is unknown, so constructors read all arguments that they know unconditionally.
"""

from collections.abc import Iterator, Mapping
from datetime import timedelta

from ...model import durations

_TRUE, _FALSE = ("true", "1", "t"), ("false", "0", "f")


class ArgumentError(ValueError):
    """An argument has the wrong type or an impossible value."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name}: {problem}")
        self.name = name
        self.problem = problem


class Arguments(Mapping[str, object]):
    """The arguments of one plugin or action."""

    def __init__(self, values: Mapping[str, object] | None = None) -> None:
        """Start with none of *values* read."""
        self._values = dict(values or {})
        self.known: set[str] = set()
        """Names that were looked up, given or not."""

    def __getitem__(self, name: str) -> object:
        """Return an argument, and record that its name is known."""
        self.known.add(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def unread(self) -> list[str]:
        """Return the names of the arguments that nothing has looked up."""
        return [name for name in self._values if name not in self.known]


def boolean(arguments: Mapping[str, object], name: str, *, default: bool) -> bool:
    """Return a boolean, which may also be given as text.

    Raises:
        ArgumentError: it is neither.
    """
    value = arguments.get(name, default)
    if isinstance(value, bool):
        return value
    text = str(value).lower()
    if text in (*_TRUE, *_FALSE):
        return text in _TRUE
    raise ArgumentError(name, f"must be true or false, not {value!r}")


def integer(
    arguments: Mapping[str, object], name: str, *, default: int, minimum: int | None = None
) -> int:
    """Return an integer.

    Raises:
        ArgumentError: it is none, or below *minimum*.
    """
    value = arguments.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ArgumentError(name, f"must be an integer, not {value!r}")
    if minimum is not None and value < minimum:
        raise ArgumentError(name, f"must be at least {minimum}, not {value}")
    return value


def number(arguments: Mapping[str, object], name: str, *, default: float) -> float:
    """Return a number.

    Raises:
        ArgumentError: it is none, or not finite.
    """
    value = arguments.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < 1e15:
        raise ArgumentError(name, f"must be a number, not {value!r}")
    return float(value)


def text(arguments: Mapping[str, object], name: str, *, default: str = "") -> str:
    """Return text.

    Raises:
        ArgumentError: it is none.
    """
    value = arguments.get(name, default)
    if not isinstance(value, str):
        raise ArgumentError(name, f"must be text, not {value!r}")
    return value


def duration(
    arguments: Mapping[str, object], name: str, *, default: timedelta | None = None
) -> timedelta | None:
    """Return a positive duration in Go's notation, or *default* if there is none.

    Raises:
        ArgumentError: it is no such duration.
    """
    given = arguments.get(name)
    if given is None:
        return default
    try:
        parsed = durations.parse(given) if isinstance(given, str) else None
    except durations.DurationError:
        parsed = None
    if parsed is None or parsed <= timedelta():
        raise ArgumentError(name, f'must be a positive duration such as "1h30m", not {given!r}')
    return parsed


def mapping(arguments: Mapping[str, object], name: str) -> "Arguments":
    """Return a nested mapping, empty if there is none; its reader checks what is unread.

    Raises:
        ArgumentError: it is no mapping with text as keys.
    """
    value = arguments.get(name)
    if value is None:
        return Arguments()
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ArgumentError(name, f"must be a mapping, not {value!r}")
    return Arguments(value)


def require_read(nested: Arguments, name: str) -> None:
    """Check that all entries of the mapping *name* have been read.

    Raises:
        ArgumentError: one has not.
    """
    for entry in nested.unread():
        known = ", ".join(sorted(nested.known))
        raise ArgumentError(name, f"unknown entry {entry!r}; known: {known}")


def with_prefix(arguments: Mapping[str, object], prefix: str) -> dict[str, object]:
    """Return the arguments whose names begin with *prefix*, without it."""
    names = [name for name in arguments if name.startswith(prefix)]
    return {name.removeprefix(prefix): arguments[name] for name in names}
