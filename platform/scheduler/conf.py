"""The scheduler's configuration file, in Volcano's form: actions, and plugins in tiers.

Names that Volcano knows and we do not have yet are passed over with a warning, so that its
files work unchanged; names that nobody knows are an error.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import yaml

from .plugins.binpack import BinpackPlugin
from .plugins.conformance import ConformancePlugin
from .plugins.drf import DrfPlugin
from .plugins.gang import GangPlugin
from .plugins.nodeorder import NodeOrderPlugin
from .plugins.overcommit import OvercommitPlugin
from .plugins.predicates import PredicatesPlugin
from .plugins.priority import PriorityPlugin
from .plugins.proportion import ProportionPlugin

log = logging.getLogger(__name__)

PluginBuilder = Callable[[Mapping[str, object]], object]

PLUGINS: Mapping[str, PluginBuilder] = {
    "binpack": BinpackPlugin,
    "conformance": ConformancePlugin,
    "drf": DrfPlugin,
    "gang": GangPlugin,
    "nodeorder": NodeOrderPlugin,
    "overcommit": OvercommitPlugin,
    "predicates": PredicatesPlugin,
    "priority": PriorityPlugin,
    "proportion": ProportionPlugin,
}
ACTIONS = ("enqueue", "allocate", "backfill")

_UNIMPLEMENTED_PLUGINS = frozenset(
    {
        "capacity",
        "cdp",
        "deviceshare",
        "extender",
        "network-topology-aware",
        "nodegroup",
        "numa-aware",
        "numaaware",
        "pdb",
        "rescheduling",
        "resource-strategy-fit",
        "resourcequota",
        "sla",
        "task-topology",
        "tdm",
        "usage",
    }
)
_UNIMPLEMENTED_ACTIONS = frozenset(["gangpreempt", "gangreclaim", "preempt", "reclaim", "shuffle"])

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
    """The configuration cannot be used; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class PluginConf:
    """One plugin: its name, its arguments, and the things it shall not do."""

    name: str
    arguments: Mapping[str, object]
    disabled: frozenset[str]
    """Keys such as ``enableNodeOrder`` that are set to false."""


@dataclass(frozen=True, slots=True)
class Conf:
    """What a cycle does, and who has a say in it."""

    actions: tuple[str, ...]
    tiers: tuple[tuple[PluginConf, ...], ...]


def load(text: str = DEFAULT) -> Conf:
    """Read a configuration.

    Raises:
        ConfError: it is no YAML of the right form, or names what nobody knows.
    """
    try:
        parsed = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ConfError(f"the scheduler configuration is no YAML: {error}") from error
    document = _mapping(parsed, "the scheduler configuration")
    tiers = document.get("tiers", [])
    if not isinstance(tiers, list):
        raise ConfError("tiers: must be a list")
    return Conf(_actions(document.get("actions")), tuple(_tiers(tiers)))


def _actions(raw: object) -> tuple[str, ...]:
    if not isinstance(raw, str):
        raise ConfError("actions: must be text, with commas between the names")
    actions = []
    for name in (part.strip() for part in raw.split(",")):
        if name in _UNIMPLEMENTED_ACTIONS:
            log.warning("passing over an action that is not built yet", extra={"action": name})
        elif name not in ACTIONS:
            raise ConfError(f"actions: unknown action {name!r}; known: {', '.join(ACTIONS)}")
        else:
            actions.append(name)
    return tuple(actions)


def _tiers(tiers: Iterable[object]) -> Iterable[tuple[PluginConf, ...]]:
    for number, tier in enumerate(tiers):
        plugins = _mapping(tier, f"tiers[{number}]").get("plugins") or []
        if not isinstance(plugins, list):
            raise ConfError(f"tiers[{number}].plugins: must be a list")
        confs = (_plugin(each, f"tiers[{number}].plugins") for each in plugins)
        yield tuple(conf for conf in confs if conf is not None)


def _plugin(raw: object, path: str) -> PluginConf | None:
    entry = _mapping(raw, path)
    name = entry.get("name")
    if name in _UNIMPLEMENTED_PLUGINS:
        log.warning("passing over a plugin that is not built yet", extra={"plugin": name})
        return None
    if not isinstance(name, str) or name not in PLUGINS:
        known = ", ".join(sorted(PLUGINS))
        raise ConfError(f"{path}: unknown plugin {name!r}; known: {known}")
    arguments = _mapping(entry.get("arguments") or {}, f"{path}: arguments of {name}")
    disabled = frozenset(str(key) for key, value in entry.items() if value is False)
    return PluginConf(name, arguments, disabled)


def _mapping(raw: object, path: str) -> Mapping[str, object]:
    if not isinstance(raw, dict):
        raise ConfError(f"{path}: must be a mapping")
    return raw
