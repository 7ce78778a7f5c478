"""PyYAML's loader and dumper with the plain scalars of kube-apiserver's YAML decoder.

PyYAML follows YAML 1.1: there ``1:30`` is the number 90 and ``1e3`` a string. Kubernetes decodes
the first one as a string, the second one as a number, and ``y`` as a boolean.
"""

import base64
import math
import re
from typing import Any, ClassVar

import yaml

_TAG = "tag:yaml.org,2002:"
_DIGITS = list("-+0123456789")
_TRUE = ("y", "yes", "true", "on")
_FALSE = ("n", "no", "false", "off")
_RESOLVERS = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    (
        "bool",
        r"[yYnN]|yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF",
        list("yYnNtTfFoO"),
    ),
    ("merge", r"<<", ["<"]),
    (
        "int",
        r"[-+]?(?:0[bB][01_]+|0[oO]?[0-7_]*|0[xX][0-9a-fA-F_]+|[1-9][0-9_]*)",
        _DIGITS,
    ),
    (
        "float",
        r"[-+]?(?:\._*[0-9][0-9_]*|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9_]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        [*_DIGITS, "."],
    ),
)
_KEYS = {True: "true", False: "false"}
_UNSIGNED_LIMIT, _SIGNED_LIMIT = 2**64, 2**63


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Loads YAML as kube-apiserver does."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping, whose keys are strings also if they are spelled as booleans."""
        found = super().construct_mapping(node, deep=deep)
        return {_KEYS.get(key, key) if type(key) is bool else key: found[key] for key in found}


class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Quotes texts that :class:`Loader` or PyYAML would read as something else."""


def _read_int(loader: Any, node: Any) -> int | float:
    text = loader.construct_scalar(node).replace("_", "").lower()
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("+-")
    # A leading zero alone is octal, too.
    has_base = digits[:2] in ("0b", "0o", "0x")
    try:
        value = sign * (int(digits, 0) if has_base else int(digits, 8 if digits[0] == "0" else 10))
        return value if -_SIGNED_LIMIT <= value < _UNSIGNED_LIMIT else float(value)
    except (ValueError, IndexError, OverflowError) as error:
        raise yaml.YAMLError(f"cannot decode {text[:100]!r} as an integer") from error


def _read_float(loader: Any, node: Any) -> float:
    text = loader.construct_scalar(node).replace("_", "").lower()
    try:
        value = float(re.sub(r"^([-+]?)\.(inf|nan)$", r"\1\2", text))
    except ValueError as error:
        raise yaml.YAMLError(f"cannot decode {text!r} as a number") from error
    if not math.isfinite(value):
        raise yaml.YAMLError(f"json: unsupported value: {text}")
    return value


def _read_bool(loader: Any, node: Any) -> bool:
    text = loader.construct_scalar(node).lower()
    if text not in (*_TRUE, *_FALSE):
        raise yaml.YAMLError(f"cannot decode {text!r} as a boolean")
    return text in _TRUE


def _read_text(loader: Any, node: Any) -> str:
    text: str = loader.construct_scalar(node)
    return text


def _read_binary(loader: Any, node: Any) -> str:
    try:
        return base64.b64decode(loader.construct_scalar(node)).decode()
    except ValueError as error:
        raise yaml.YAMLError(f"!!binary value contains invalid base64 data: {error}") from error


for _each in (Loader, Dumper):
    for _name, _pattern, _first in _RESOLVERS:
        _each.add_implicit_resolver(f"{_TAG}{_name}", re.compile(f"(?:{_pattern})$"), _first)
for _name, _read in (
    ("binary", _read_binary),
    ("bool", _read_bool),
    ("float", _read_float),
    ("int", _read_int),
    ("merge", _read_text),
):
    Loader.add_constructor(f"{_TAG}{_name}", _read)
