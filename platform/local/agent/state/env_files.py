"""Files with environment variables, which a container writes for later ones; pure.

As kubelets, in a subset of the shell's syntax: ``NAME='value'``, with values in single quotes that
may span lines, blank lines, and comments.
"""

from collections.abc import Iterator


class EnvFileError(Exception):
    """A file is malformed."""


def parse_env_file(text: str, key: str) -> str:
    """Return the value of *key*; empty if the file does not define it.

    What follows its definition is not read.

    Raises:
        EnvFileError: the file is malformed.
    """
    lines = ((number, line.removesuffix("\r")) for number, line in enumerate(text.split("\n"), 1))
    for number, line in lines:
        content = line.lstrip(" \t")
        if not content or content.startswith("#"):
            continue
        name, value = _split(content, number)
        # After a space there is a command, as in a shell.
        found = "" if value[:1] in (" ", "\t") else _quoted(value, number, lines)
        if name == key:
            return found
    return ""


def _split(line: str, number: int) -> tuple[str, str]:
    name, equals, value = line.partition("=")
    if not equals:
        raise EnvFileError(f"line {number}: missing '='")
    if not name:
        raise EnvFileError(f"line {number}: empty variable name")
    if name != name.rstrip(" \t"):
        raise EnvFileError(f"line {number}: whitespace before '=' is not allowed")
    return name, value


def _quoted(value: str, number: int, lines: Iterator[tuple[int, str]]) -> str:
    """Return what is in quotes in *value* and the lines after it."""
    if not value.startswith("'"):
        raise EnvFileError(f"line {number}: value must be enclosed in single quotes")
    found = value[1:]
    while "'" not in found:
        _, more = next(lines, (0, None))
        if more is None:
            raise EnvFileError(f"line {number}: unclosed single quote")
        found += "\n" + more
    found, _, rest = found.partition("'")
    if rest.lstrip(" \t")[:1] not in ("", "#"):
        raise EnvFileError(f"line {number}: unexpected content after closing quote")
    return found
