"""The custom resource definitions that Batholith serves: Job, Queue, PodGroup, Command.

Their fields, defaults and limits are those of Volcano's, so that every manifest and client keeps
working; a Job has one field more, ``spec.suspend``. The pod template and the volume claim are kept
as they are sent: admission checks the template, and the API server the pods made of it.
"""

import json
from importlib import resources
from typing import Any

import yaml

FILES = ("jobs.yaml", "queues.yaml", "podgroups.yaml", "commands.yaml")


def load() -> tuple[dict[str, Any], ...]:
    """The definitions, as objects ready to be created; each call gives fresh ones."""
    folder = resources.files(__name__)
    return tuple(_read(folder.joinpath(name).read_text(encoding="utf-8")) for name in FILES)


def _read(text: str) -> dict[str, Any]:
    # The files name repeated parts once; by way of JSON they become separate objects.
    definition: dict[str, Any] = json.loads(json.dumps(yaml.safe_load(text)))
    return definition
