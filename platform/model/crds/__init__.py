"""Custom resource definitions: Job, Queue, PodGroup, Command.

Fields, defaults and limits are Volcano's, plus ``spec.suspend`` of Job. The YAML files are the
source; `make crds` inserts the pod template and volume claim schemas and writes the JSON file
loaded here.
"""

from importlib import resources
from typing import Any

import msgspec


def load() -> tuple[dict[str, Any], ...]:
    """Return the definitions as new objects."""
    text = resources.files(__name__).joinpath("definitions.json").read_bytes()
    return tuple(msgspec.json.decode(text, type=list[dict[str, Any]]))
