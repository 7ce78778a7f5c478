"""Volcano's configuration of the discovery of HyperNodes: a YAML document in a ConfigMap.

Only the source ``label`` is implemented; others are reported.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import yaml

CONFIGMAP = "volcano-controller-configmap"
KEY = "volcano-controller.conf"
LABEL_SOURCE = "label"

MAX_TYPE_NAME = 20
"""Maximum length of the name of a topology type, which is part of the names of HyperNodes."""


class ConfigurationError(ValueError):
    """The configuration is invalid; the text names field and reason."""


@dataclass(frozen=True, slots=True)
class Discovery:
    """What is to be discovered."""

    types: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By the name of a topology type: the labels of its tiers, the lowest tier first."""

    problems: tuple[str, ...] = ()
    """What is left out, and why."""


def parse(text: str) -> Discovery:
    """Parse the configuration; without an enabled source nothing is to be discovered.

    Raises:
        ConfigurationError: it is no such document.
    """
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{KEY}: no YAML: {error}") from None
    sources = _field(document or {}, KEY, "networkTopologyDiscovery", list, [])
    types: dict[str, Sequence[str]] = {}
    problems: list[str] = []
    for index, source in enumerate(sources):
        path = f"networkTopologyDiscovery[{index}]"
        name = _field(source, path, "source", str, "")
        if not _field(source, path, "enabled", bool, False):
            continue
        if name != LABEL_SOURCE:
            problems.append(f"{path}: source {name!r} is not implemented")
            continue
        config = _field(source, path, "config", dict, {})
        found = _field(config, f"{path}.config", "networkTopologyTypes", dict, {})
        for type_name, entries in found.items():
            where = f"{path}.config.networkTopologyTypes.{type_name}"
            labels = _labels(entries, where)
            if problem := _problem(str(type_name), labels):
                problems.append(f"{where}: {problem}")
            else:
                types[str(type_name)] = labels
    return Discovery(types, tuple(problems))


def _labels(entries: object, path: str) -> Sequence[str]:
    """Return the labels of the tiers: the last one given is that of the nodes themselves."""
    if not isinstance(entries, list):
        raise ConfigurationError(f"{path}: must be a list")
    found = [
        _field(entry, f"{path}[{index}]", "nodeLabel", str, "")
        for index, entry in enumerate(entries)
    ]
    return found[:-1][::-1]


def _problem(name: str, labels: Sequence[str]) -> str:
    if len(name) > MAX_TYPE_NAME:
        return f"the name has more than {MAX_TYPE_NAME} characters"
    if not all(labels):
        return "nodeLabel is empty"
    if len(set(labels)) < len(labels):
        return "a label is listed twice"
    return ""


def _field(value: object, path: str, name: str, kind: type, default: object):  # type: ignore[no-untyped-def]
    """Return a field of *value*, or *default* if it is absent or null.

    Raises:
        ConfigurationError: *value* is no mapping, or the field has another type.
    """
    if not isinstance(value, dict):
        raise ConfigurationError(f"{path}: must be a mapping")
    found = value.get(name)
    if found is None:
        return default
    if not isinstance(found, kind):
        raise ConfigurationError(f"{path}.{name}: must be of type {kind.__name__}")
    return found


def cleaned(name: str) -> str:
    """Return *name* as a part of the name of a HyperNode."""
    return re.sub(r"[^a-z0-9.-]", "-", name.lower())
