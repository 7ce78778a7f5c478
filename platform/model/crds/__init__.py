"""Custom resource definitions: Volcano's kinds and Kubeflow's training jobs.

Fields, defaults and limits of the former are Volcano's, plus ``spec.suspend`` of Job; patches in a
JobFlow have no defaults. The YAML
files and the modules of ``training_ctrl.frameworks`` are the source; `make crds` writes the JSON
file loaded here. It contains each type of Kubernetes, such as the pod template, only once.
"""

from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

import msgspec

Json = dict[str, Any]

TYPE_PLACEHOLDER = "x-batholith-type"
"""Keyword of a schema to be replaced by a type of Kubernetes; the value is the type's name."""


class Document(msgspec.Struct, frozen=True):
    """The content of the JSON file: definitions with placeholders, and the types by name."""

    types: dict[str, Json]
    volcano: list[Json]
    training: list[Json]


def load() -> tuple[Json, ...]:
    """Return the definitions of Volcano's kinds as new objects."""
    document = _read()
    return _filled(document.volcano, document.types)


def load_training() -> tuple[Json, ...]:
    """Return the definitions of Kubeflow's training jobs as new objects, which share pod templates.

    They are separate because Kubeflow's own definitions may be installed.
    """
    document = _read()
    return _filled(document.training, document.types)


def _read() -> Document:
    text = resources.files(__name__).joinpath("definitions.json").read_bytes()
    return msgspec.json.decode(text, type=Document)


def _filled(definitions: list[Json], types: Mapping[str, Json]) -> tuple[Json, ...]:
    for node in placeholders(definitions):
        node |= types[node.pop(TYPE_PLACEHOLDER)]
    return tuple(definitions)


def placeholders(node: Any) -> Iterator[Json]:
    """Yield the schemas below *node* to be replaced by a type; the caller may replace them."""
    if isinstance(node, list):
        for inner in node:
            yield from placeholders(inner)
    elif isinstance(node, dict):
        if TYPE_PLACEHOLDER in node:
            yield node
            return
        for inner in node.values():
            yield from placeholders(inner)
