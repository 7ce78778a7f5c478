"""Descriptions of the columns of tables: those of kube-apiserver, which `make api-types` reads."""

import functools
import importlib.resources
from collections.abc import Mapping

import msgspec

from ....model.names import Resource

FILE = "columns.json"
SHARED = ("Name", "Age", "Created At")
"""Columns with the same description in each kind."""


def key(resource: Resource) -> str:
    """Return the key of a kind in the packaged file."""
    return f"{resource.group}/{resource.kind}"


def description(resource: Resource, column: str) -> str:
    """Return the description of a column of *resource*; empty if it has none."""
    owner = "" if column in SHARED else key(resource)
    return _descriptions().get(owner, {}).get(column, "")


@functools.cache
def _descriptions() -> Mapping[str, Mapping[str, str]]:
    content = importlib.resources.files(__package__).joinpath("data", FILE).read_bytes()
    return msgspec.json.decode(content, type=dict[str, dict[str, str]])
