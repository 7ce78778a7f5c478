"""YAML to JSON and back: in the server for small bodies, else as a process of its own.

PyYAML takes a second for a megabyte and holds the interpreter meanwhile, so a large body must not
be read in the server. ``python -m …yaml_process load`` reads YAML and writes JSON; ``dump`` does
the opposite; ``dump-items`` reads a JSON object a line and writes the entries of a YAML list.
"""

import resource
import sys
from typing import Any

import msgspec
import yaml

MAX_DEPTH = 200
"""Levels of lists and mappings in one another that a body may have."""

MAX_VALUES = 100_000
"""Values that a body may hold: the time to read one grows with these more than with its bytes."""

_MEMORY = 2 * 2**30
_CPU_SECONDS = 60
_loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

DECODE_ERRORS = (yaml.YAMLError, TypeError, ValueError, RecursionError, msgspec.MsgspecError)
"""What :func:`to_json` may raise."""


def to_json(body: bytes) -> bytes:
    """Turn YAML into JSON; what it raises is in ``DECODE_ERRORS``."""
    _check(body)
    return msgspec.json.encode(yaml.load(body, Loader=_loader))  # noqa: S506


def _check(body: bytes) -> None:
    """Refuse what a few bytes of YAML could bring a process down with.

    Deep nesting overflows the stack of the loader, which is C; aliases of aliases become
    gigabytes of JSON. Reading events alone does neither.

    Raises:
        yaml.YAMLError: it is such a document, or none that can be read.
    """
    depth = values = 0
    for event in yaml.parse(body, Loader=_loader):
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not supported")
        # A key is a node of its own.
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
    """Turn JSON into YAML."""
    return _dump(msgspec.json.decode(data))


def _dump(value: Any) -> bytes:
    text: str = yaml.dump(value, Dumper=_dumper, sort_keys=True)
    return text.encode()


def main(command: str) -> int:
    """Convert standard input to standard output; what is wrong with it goes to standard error."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    given, told = sys.stdin.buffer, sys.stdout.buffer
    try:
        if command == "load":
            told.write(to_json(given.read()))
        elif command == "dump":
            told.write(from_json(given.read()))
        else:
            for line in given:
                told.write(_dump([msgspec.json.decode(line)]))
    except (*DECODE_ERRORS, MemoryError) as error:
        sys.stderr.write(str(error) or type(error).__name__)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
