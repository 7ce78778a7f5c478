"""The scheduler configuration, in Volcano's format: actions, and plugins in tiers.

Volcano's actions and plugins without an implementation are ignored with a warning, so that its
files work unchanged; an unknown name is an error.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import yaml

from .actions.registry import ACTIONS
from .plugins.registry import PLUGINS, PluginOption, Tiers

log = logging.getLogger(__name__)

DEFAULT = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
  - name: conformance
- plugins:
  - name: overcommit
  - name: drf
  - name: predicates
  - name: proportion
  - name: nodeorder
"""


class ConfError(ValueError):
    """The configuration is invalid; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Conf:
    """The actions of a cycle in order, and the plugins."""

    actions: tuple[str, ...]
    tiers: Tiers


def load(text: str = DEFAULT) -> Conf:
    """Parse a configuration.

    Raises:
        ConfError: it is not YAML of the right structure, or has an unknown name.
    """
    try:
        parsed = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ConfError(f"the scheduler configuration is no YAML: {error}") from error
    document = _mapping(parsed, "the scheduler configuration")
    tiers = document.get("tiers", [])
    if not isinstance(tiers, list):
        raise ConfError("tiers: must be a list")
    return Conf(tuple(_actions(document.get("actions"))), tuple(_tiers(tiers)))


def _actions(raw: object) -> Iterator[str]:
    if not isinstance(raw, str):
        raise ConfError("actions: must be text, with commas between the names")
    for name in (each.strip() for each in raw.split(",")):
        if name not in ACTIONS:
            raise ConfError(f"actions: unknown action {name!r}; known: {_known(ACTIONS)}")
        if ACTIONS[name] is None:
            log.warning("ignoring unimplemented action", extra={"action": name})
        else:
            yield name


def _tiers(tiers: Iterable[object]) -> Iterator[tuple[PluginOption, ...]]:
    for number, tier in enumerate(tiers):
        plugins = _mapping(tier, f"tiers[{number}]").get("plugins") or []
        if not isinstance(plugins, list):
            raise ConfError(f"tiers[{number}].plugins: must be a list")
        options = (_plugin(each, f"tiers[{number}].plugins") for each in plugins)
        yield tuple(option for option in options if option is not None)


def _plugin(raw: object, path: str) -> PluginOption | None:
    entry = _mapping(raw, path)
    name = entry.get("name")
    if not isinstance(name, str) or name not in PLUGINS:
        raise ConfError(f"{path}: unknown plugin {name!r}; known: {_known(PLUGINS)}")
    factory = PLUGINS[name]
    if factory is None:
        log.warning("ignoring unimplemented plugin", extra={"plugin": name})
        return None
    arguments = _mapping(entry.get("arguments") or {}, f"{path}: arguments of {name}")
    disabled = frozenset(str(key) for key, value in entry.items() if value is False)
    return PluginOption(name, factory, arguments, disabled)


def _known(table: Mapping[str, object]) -> str:
    """Return the names that have an implementation."""
    return ", ".join(name for name, value in table.items() if value is not None)


def _mapping(raw: object, path: str) -> Mapping[str, object]:
    if not isinstance(raw, dict):
        raise ConfError(f"{path}: must be a mapping")
    return raw
