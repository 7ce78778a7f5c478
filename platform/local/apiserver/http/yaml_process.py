"""Convert YAML to JSON and back: in the server for small bodies, else in a separate process.

PyYAML takes a second for a megabyte and holds the interpreter lock all the time, so a large body
must not be converted in the server. ``python -m …yaml_process load`` converts YAML to JSON;
``dump`` does the opposite; ``dump-items`` reads a JSON object per line and writes YAML list items.
"""

import resource
import sys
from typing import Any

import msgspec
import yaml

from .yaml_scalars import Dumper, Loader

MAX_DEPTH = 200
"""Maximum nesting of lists and mappings in a body."""

MAX_VALUES = 100_000
"""Maximum values in a body: the time to parse it grows with these more than with its bytes."""

_MEMORY = 2 * 2**30
_CPU_SECONDS = 60

DECODE_ERRORS = (yaml.YAMLError, TypeError, ValueError, RecursionError, msgspec.MsgspecError)
"""Errors that :func:`to_json` may raise."""


def to_json(body: bytes) -> bytes:
    """Convert YAML to JSON; raises ``DECODE_ERRORS``."""
    _check(body)
    return msgspec.json.encode(yaml.load(body, Loader=Loader))  # noqa: S506


def duplicate_keys(body: bytes) -> list[str]:
    """Return a line for each key that a mapping has twice, as Go's decoder reports them.

    *body* must have passed :func:`to_json`.
    """
    found: list[str] = []
    _find_duplicates(yaml.compose(body, Loader=Loader), found)
    return found


def _find_duplicates(node: Any, found: list[str]) -> None:
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    line = key.start_mark.line + 1
                    found.append(f'line {line}: key "{key.value}" already set in map')
                seen.add(key.value)
            _find_duplicates(value, found)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _find_duplicates(item, found)


def _check(body: bytes) -> None:
    """Reject YAML that could crash the process with a few bytes.

    Deep nesting overflows the stack of the loader, which is in C; nested aliases expand to
    gigabytes of JSON. Reading the events alone has neither problem.

    Raises:
        yaml.YAMLError: the document is rejected or malformed.
    """
    depth = values = 0
    for event in yaml.parse(body, Loader=Loader):
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not supported")
        # A key is a separate node.
        values += isinstance(event, yaml.NodeEvent)
        if values > 2 * MAX_VALUES:
            raise yaml.YAMLError(f"more than {MAX_VALUES} values")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise yaml.YAMLError(f"nested deeper than {MAX_DEPTH} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def from_json(data: bytes) -> bytes:
    """Convert JSON to YAML."""
    return _dump(msgspec.json.decode(data))


def _dump(value: Any) -> bytes:
    text: str = yaml.dump(value, Dumper=Dumper, sort_keys=True)
    return text.encode()


def main(command: str) -> int:
    """Convert standard input to standard output; print errors to standard error."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    input_, output = sys.stdin.buffer, sys.stdout.buffer
    try:
        if command == "load":
            output.write(to_json(input_.read()))
        elif command == "dump":
            output.write(from_json(input_.read()))
        else:
            for line in input_:
                output.write(_dump([msgspec.json.decode(line)]))
    except (*DECODE_ERRORS, MemoryError) as error:
        sys.stderr.write(str(error) or type(error).__name__)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
