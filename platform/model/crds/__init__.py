"""The custom resource definitions that Batholith serves: Job, Queue, PodGroup, Command.

Their fields, defaults and limits are those of Volcano's, so that every manifest and client keeps
working; a Job has one field more, ``spec.suspend``. The YAML files are our own description of the
types; `make crds` fills in the pod template and volume claim and writes what is loaded here.
"""

from importlib import resources
from typing import Any

import msgspec


def load() -> tuple[dict[str, Any], ...]:
    """The definitions, as objects ready to be created; each call gives fresh ones."""
    text = resources.files(__name__).joinpath("definitions.json").read_bytes()
    return tuple(msgspec.json.decode(text, type=list[dict[str, Any]]))
