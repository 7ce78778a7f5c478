"""The subset of JSONPath for printer columns and other paths in definitions.

Fields (``.spec.replicas``, ``['a.b']``), indices (``[0]``, ``[-1]``), slices (``[-1:]``), wildcards
(``[*]``) and filters that compare one field (``[?(@.type=="Ready")]``).
"""

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

_SLICE = ("start", "end", "step")
Step = Callable[[Any], Iterator[Any]]

_MAX_LENGTH = 8192
"""Maximum characters of a path."""

# Adjacent groups must not match the same characters: failing must take linear time.
_STEP = re.compile(
    r"""\.(?P<field>(?:\\.|[^.\[\]\\])+)"""
    r"""|\[\s*(?P<quote>['"])(?P<quoted>.*?)(?P=quote)\s*\]"""
    r"""|\[\s*(?P<index>-?\d+)\s*\]"""
    r"""|\[\s*(?:(?P<start>-?\d+)\s*)?(?P<slice>:)\s*(?:(?P<end>-?\d+)\s*)?"""
    r"""(?::\s*(?:(?P<step>\d+)\s*)?)?\]"""
    r"""|(?:\.?\[\s*|\.)(?P<all>\*)\s*\]?"""
    r"""|\[\s*\?\(\s*@(?P<left>[^=!<>)\s]*)\s*"""
    r"""(?:(?P<op>==|!=)\s*(?P<right>'[^']*'|"[^"]*"|[^\s)'"]*)\s*)?\)\s*\]"""
)


def find(path: str, obj: Any) -> list[Any]:
    """Return all values at *path*; none if a field is missing.

    Raises:
        ValueError: the path is not supported.
    """
    values: Iterable[Any] = (obj,)
    for step in _compile(path):
        values = [found for value in values for found in step(value)]
    return list(values)


def fields(path: str) -> tuple[str, ...]:
    """Return the field names of a simple path such as ``.spec.replicas``.

    Raises:
        ValueError: the path has steps other than fields.
    """
    names = []
    for match in _steps(path):
        name = match["field"] or match["quoted"]
        if name is None or match["field"] == "*":
            raise ValueError(f"only fields are allowed: {path!r}")
        names.append(name.replace("\\", ""))
    return tuple(names)


def _steps(path: str) -> list[re.Match[str]]:
    if len(path) > _MAX_LENGTH:
        raise ValueError(f"a JSON path is longer than {_MAX_LENGTH} characters")
    text = path.strip().removeprefix("{").removesuffix("}").removeprefix("$")
    if text and text[0] not in ".[":
        text = f".{text}"
    found, position = [], 0
    while position < len(text):
        match = _STEP.match(text, position)
        if match is None:
            raise ValueError(f"not a JSON path: {path!r}")
        found.append(match)
        position = match.end()
    return found


@functools.lru_cache(maxsize=1024)
def _compile(path: str) -> tuple[Step, ...]:
    return tuple(_step(match) for match in _steps(path))


def _step(match: re.Match[str]) -> Step:
    if match["all"] or match["field"] == "*":
        return _everything
    if match["index"]:
        return functools.partial(_at, int(match["index"]))
    if match["slice"]:
        start, end, step = (int(each) if each else None for each in match.group(*_SLICE))
        return functools.partial(_slice, start, end, step)
    if match["left"] is not None:
        return functools.partial(_filter, match["left"].strip(), match["op"], match["right"])
    name = match["quoted"] if match["quote"] else match["field"].replace("\\", "")
    return functools.partial(_field, name)


def _everything(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _at(index: int, value: Any) -> Iterator[Any]:
    if isinstance(value, list) and -len(value) <= index < len(value):
        yield value[index]


def _slice(start: int | None, end: int | None, step: int | None, value: Any) -> Iterator[Any]:
    """Yield the items of a slice; none if a limit is out of range, where Go reports an error."""
    if not isinstance(value, list) or step == 0:
        return
    length = len(value)
    first = _limit(start, length, default=0)
    last = _limit(end, length, default=length)
    if 0 <= first < last <= length:
        yield from value[first : last : step or 1]


def _limit(given: int | None, length: int, *, default: int) -> int:
    if given is None:
        return default
    return given + length if given < 0 else given


def _field(name: str, value: Any) -> Iterator[Any]:
    if isinstance(value, dict) and name in value:
        yield value[name]


def _filter(left: str, op: str | None, right: str | None, value: Any) -> Iterator[Any]:
    wanted = (right or "").strip().strip("\"'")
    for item in value if isinstance(value, list) else ():
        found = find(left, item) if left else [item]
        if op is None:
            keeps = bool(found)
        elif op == "==":
            keeps = any(_text(each) == wanted for each in found)
        else:
            keeps = all(_text(each) != wanted for each in found)
        if keeps:
            yield item


def _text(value: Any) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def as_json(value: Any) -> str:
    """Encode an object or list as printer columns show it."""
    return msgspec.json.encode(value).decode()
