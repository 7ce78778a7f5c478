"""The scheduler configuration, in Volcano's format: actions, plugins in tiers, and their arguments.

Nothing in it is ignored: names without an implementation, unknown keys, and arguments that are
unknown, of the wrong type or without effect are errors that name their path. The exceptions are
:data:`.plugins.registry.WITHOUT_EFFECT` and :data:`.actions.registry.ARGUMENTS`, which are
warnings, and plugins of Volcano that are not implemented, which are reported as disabled unless the
configuration is strict.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from difflib import get_close_matches
from inspect import iscoroutinefunction
from typing import cast

import yaml

from .actions.registry import ACTIONS, ARGUMENTS, CONFIGURED, Action, NamedAction
from .plugins import arguments as typed
from .plugins import default_spread
from .plugins.arguments import ArgumentError, Arguments
from .plugins.entry_points import ACTIONS_GROUP, PLUGINS_GROUP, EntryPointError, EntryPoints
from .plugins.extension_points import MAX_PRE_BIND_TIMEOUT, PRE_BIND_TIMEOUT, TOGETHER, has_method
from .plugins.handle import Handle
from .plugins.registry import (
    HIERARCHICAL,
    IN_PROFILES,
    OF_ALL_PROFILES,
    PLUGINS,
    WITHOUT_EFFECT,
    PluginFactory,
    PluginOption,
    Tiers,
    create,
)
from .plugins.rescheduling import METRICS_PERIOD
from .state.podinfo.declared_fields import PodFields

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

HIERARCHY = "enableHierarchy"
FLAGS = frozenset(
    {
        "enableBestNode",
        "enableJobEnqueued",
        "enableJobOrder",
        "enableJobPipelined",
        "enableJobReady",
        "enableJobStarving",
        "enableNodeOrder",
        "enablePredicate",
        "enablePreemptable",
        "enablePreemptive",
        "enableQueueOrder",
        "enableReclaimable",
        "enableReservedNodes",
        "enableTargetJob",
        "enableTaskOrder",
        "enabledAllocatable",
        "enabledClusterOrder",
        "enabledHyperNodeGradient",
        "enabledHyperNodeOrder",
        "enabledOverused",
        "enabledSubJobOrder",
        "enabledSubJobPipelined",
        "enabledSubJobReady",
        "enabledVictim",
    }
)
"""Flags of a plugin, in Volcano's irregular spelling; each is true by default."""

_SUB_GROUPS = "sub-groups are allocated with their gang"
_NO_PLUGIN = "no plugin has this extension point"
FLAGS_WITHOUT_EFFECT = {
    "enableBestNode": _NO_PLUGIN,
    "enableReservedNodes": _NO_PLUGIN,
    "enableTargetJob": _NO_PLUGIN,
    "enabledClusterOrder": _NO_PLUGIN,
    "enabledHyperNodeGradient": "hard topologies apply without plugins",
    "enabledSubJobOrder": _SUB_GROUPS,
    "enabledSubJobPipelined": _SUB_GROUPS,
    "enabledSubJobReady": _SUB_GROUPS,
}
"""Flags of Volcano that guard nothing here, with the reason: the log has a warning about one that
is false."""

_TOP_LEVEL = ("actions", "tiers", "configurations", "metrics", "profiles")
_METRICS = ("type", "interval", "address", "tls.insecureSkipVerify")
PROMETHEUS, METRICS_SERVER, ELASTICSEARCH = "prometheus", "metrics.k8s.io", "elasticsearch"
_ELASTICSEARCH = tuple(
    f"{ELASTICSEARCH}.{each}" for each in ("index", "username", "password", "hostnameFieldName")
)
PROMETHEUS_ADAPTER = "prometheus_adaptor"
"""The custom metrics API, in Volcano's spelling."""

_SOURCES = (PROMETHEUS, PROMETHEUS_ADAPTER, ELASTICSEARCH, METRICS_SERVER)


class ConfError(ValueError):
    """The configuration is invalid; the message has the path and the reason."""


@dataclass(frozen=True, slots=True)
class MetricsSource:
    """Where the utilization of nodes is read."""

    kind: str = METRICS_SERVER
    """One of :data:`_SOURCES`."""

    address: str = ""
    """URL of Prometheus or Elasticsearch."""

    interval: timedelta = timedelta(seconds=30)
    verify_tls: bool = True
    index: str = ""
    """Of Elasticsearch, as are the following ones."""

    host_field: str = ""
    """The field with the name of the node."""

    username: str = ""
    password: str = field(default="", repr=False)
    period: timedelta | None = None
    """Over which measurements are averaged; ``None`` for what is usual with the source."""


@dataclass(frozen=True, slots=True)
class Conf:
    """The actions of a cycle in order, and the plugins."""

    actions: tuple[NamedAction, ...]
    tiers: Tiers
    metrics: MetricsSource = MetricsSource()
    disabled: Mapping[str, str] = field(default_factory=dict)
    """Plugins of Volcano that are configured and not implemented, with their paths."""

    @property
    def disabled_text(self) -> str:
        """Which plugins are disabled and why; empty if none is."""
        found = ", ".join(f"{name!r} ({path})" for name, path in self.disabled.items())
        return f"disabled plugins, which are not implemented: {found}" if found else ""

    @property
    def plugin_names(self) -> frozenset[str]:
        """The names of the configured plugins."""
        return frozenset(option.name for tier in self.tiers for option in tier)

    @property
    def has_default_spread(self) -> bool:
        """Whether pods without topology spread constraints get some."""
        return any(
            default_spread.parse(option.arguments) is not None
            for tier in self.tiers
            for option in tier
            if option.name == "predicates"
        )

    @property
    def uses_numatopologies(self) -> bool:
        """Whether a plugin uses Numatopologies."""
        return bool(self.plugin_names & {"numa-aware", "numaaware"})

    @property
    def metrics_source(self) -> MetricsSource | None:
        """Where nodes are measured, if a plugin uses that."""
        if not self.plugin_names & {"rescheduling", "usage"}:
            return None
        periods = (
            typed.duration(option.arguments, METRICS_PERIOD)
            for tier in self.tiers
            for option in tier
            if option.name == "rescheduling"
        )
        return replace(self.metrics, period=next(periods, None))


def load(
    text: str = DEFAULT, *, strict: bool = True, scheduler_names: Collection[str] | None = None
) -> Conf:
    """Parse a configuration.

    Args:
        text: YAML.
        strict: whether a plugin of Volcano that is not implemented is an error; else it is left
            out and reported in :attr:`Conf.disabled`.
        scheduler_names: the ``schedulerName`` of pods that are scheduled at all, if they are known:
            a profile of any other name is an error.

    Raises:
        ConfError: it is not YAML of the right structure, or has an unknown name or argument.
    """
    try:
        parsed = yaml.load(text, Loader=_Loader) or {}  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise ConfError(f"the scheduler configuration is no YAML: {error}") from error
    document = _mapping(parsed, "the scheduler configuration")
    _require_known(document, _TOP_LEVEL, "")
    try:
        plugins = EntryPoints(PLUGINS_GROUP, _implemented(PLUGINS))
        actions = EntryPoints(ACTIONS_GROUP, _implemented(ACTIONS))
        disabled: dict[str, str] = {}
        tolerated = None if strict else disabled
        tiers = tuple(_tiers(_list(document.get("tiers"), "tiers"), plugins, tolerated))
        _require_compatible(tiers)
        tiers = _with_profiles(tiers, document.get("profiles"), scheduler_names)
        return Conf(
            tuple(_actions(document.get("actions"), _configurations(document), actions)),
            tiers,
            _metrics(document.get("metrics")),
            disabled,
        )
    except EntryPointError as error:
        raise ConfError(str(error)) from error


class _Loader(yaml.SafeLoader):
    """A safe loader that rejects duplicate keys, of which YAML would use the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        """Return the mapping.

        Raises:
            ConstructorError: it has a key twice.
        """
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for position, key in enumerate(keys):
            if key in keys[:position]:
                mark = node.value[position][0].start_mark
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key!r}", mark)
        return super().construct_mapping(node, deep)


# -- actions ---------------------------------------------------------------------------------------


def _actions(
    raw: object, configurations: Mapping[str, Mapping[str, object]], third_party: EntryPoints
) -> Iterator[NamedAction]:
    if not isinstance(raw, str):
        raise ConfError("actions: must be text, with commas between the names")
    paths = {
        name: f"configurations[{number}].arguments" for number, name in enumerate(configurations)
    }
    built_in = dict(ACTIONS)
    for name, given in configurations.items():
        if name in CONFIGURED:  # also of actions that are not run, arguments are checked
            built_in[name] = cast(Action, _create(CONFIGURED[name], given, paths[name], ()))
    for name in (each.strip() for each in raw.split(",")):
        yield name, built_in.get(name) or _loaded(name, configurations.get(name, {}), third_party)


def _loaded(name: str, given: Mapping[str, object], third_party: EntryPoints) -> Action:
    """Return an action of another package."""
    path = f"configurations: arguments of {name}"
    factory = third_party.load(name)
    if factory is None:
        raise _unknown("action", name, "actions", ACTIONS, third_party)
    built = _create(factory, given, path, {})
    if not callable(built):
        raise ConfError(f"actions: {name}: its factory returned no function")
    return cast(Action, built)


def _configurations(document: Mapping[str, object]) -> dict[str, Mapping[str, object]]:
    """Return the arguments of actions by name; the first entry of a name counts, as in Volcano."""
    named: dict[str, Mapping[str, object]] = {}
    actions = document.get("actions")
    configured = [each.strip() for each in actions.split(",")] if isinstance(actions, str) else []
    for number, raw in enumerate(_list(document.get("configurations"), "configurations")):
        path = f"configurations[{number}]"
        entry = _mapping(raw, path)
        _require_known(entry, ("name", "arguments"), path)
        name = entry.get("name")
        if not isinstance(name, str) or name not in {*ACTIONS, *configured}:
            raise ConfError(f"{path}.name: unknown action {name!r}")
        if name in named:
            raise ConfError(f"{path}.name: action {name!r} is configured twice")
        given = _mapping(entry.get("arguments") or {}, f"{path}.arguments")
        without_effect = ARGUMENTS.get(name, {})
        named[name] = {key: value for key, value in given.items() if key not in without_effect}
        for argument in given:
            where = f"{path}.arguments.{argument}"
            if argument in without_effect:
                extra = {"argument": where, "reason": without_effect[argument]}
                log.warning("argument of scheduler action without effect", extra=extra)
            elif name in ARGUMENTS and name not in CONFIGURED:  # others read theirs themselves
                raise ConfError(f"{where}: unknown argument")
    return named


# -- plugins ---------------------------------------------------------------------------------------


def _tiers(
    tiers: Iterable[object], third_party: EntryPoints, disabled: dict[str, str] | None
) -> Iterator[tuple[PluginOption, ...]]:
    """Yield the plugins of each tier; unimplemented ones are errors if *disabled* is ``None``."""
    paths: dict[str, str] = {}
    for number, raw in enumerate(tiers):
        path = f"tiers[{number}]"
        tier = _mapping(raw, path)
        _require_known(tier, ("plugins",), path)
        options = []
        for position, entry in enumerate(_list(tier.get("plugins"), f"{path}.plugins")):
            entry_path = f"{path}.plugins[{position}]"
            settings = _mapping(entry, entry_path)
            option = None
            if disabled is None or not _is_unimplemented(settings.get("name"), third_party):
                option = _plugin(settings, entry_path, third_party)
                options.append(option)
            name = str(settings["name"])
            if name in paths:
                raise ConfError(f"{entry_path}: plugin {name!r} is already at {paths[name]}")
            paths[name] = entry_path
            if disabled is not None and option is None:
                list(_disabled(settings, name, entry_path))  # checks the keys
                disabled[name] = entry_path
        yield tuple(options)


def _is_unimplemented(name: object, third_party: EntryPoints) -> bool:
    """Whether Volcano has the plugin, and neither Batholith nor another package."""
    if not isinstance(name, str) or name not in PLUGINS or PLUGINS[name] is not None:
        return False
    return name not in third_party.names


def _plugin(entry: Mapping[str, object], path: str, third_party: EntryPoints) -> PluginOption:
    name = entry.get("name")
    factory = PLUGINS.get(name) or third_party.load(name) if isinstance(name, str) else None
    if not isinstance(name, str) or factory is None:
        raise _unknown("plugin", name, f"{path}.name", PLUGINS, third_party)
    disabled = frozenset(_disabled(entry, name, path))
    if entry.get(HIERARCHY):
        factory = HIERARCHICAL.get(name)
        if factory is None:
            raise ConfError(f"{path}.{HIERARCHY}: plugin {name!r} has no hierarchy")
    given = _mapping(entry.get("arguments") or {}, f"{path}.arguments")
    without_effect = WITHOUT_EFFECT.get(name, {})
    created = _create(factory, given, f"{path}.arguments", without_effect, Handle(name))
    _check_plugin(created, path)
    for argument in given.keys() & without_effect.keys():
        extra = {"argument": f"{path}.arguments.{argument}", "reason": without_effect[argument]}
        log.warning("argument of scheduler plugin without effect", extra=extra)
    return PluginOption(name, factory, given, disabled, hierarchical=bool(entry.get(HIERARCHY)))


def _disabled(entry: Mapping[str, object], name: str, path: str) -> Iterator[str]:
    """Yield the flags that are false, after a check of all keys."""
    _require_known(entry, ("name", "arguments", HIERARCHY, *FLAGS), path)
    for key, value in entry.items():
        if key in FLAGS or key == HIERARCHY:
            if not isinstance(value, bool):
                raise ConfError(f"{path}.{key}: must be true or false, not {value!r}")
            if not value and key in FLAGS_WITHOUT_EFFECT:
                extra = {"flag": f"{path}.{key}", "reason": FLAGS_WITHOUT_EFFECT[key]}
                log.warning("flag of scheduler plugin without effect", extra=extra)
            if not value:
                yield key


def _create(
    factory: PluginFactory,
    given: Mapping[str, object],
    path: str,
    tolerated: Collection[str],
    handle: Handle | None = None,
) -> object:
    """Return what *factory* creates from *given*, all of which it must have read.

    Only plugins get a *handle*.
    """
    values = Arguments(given)
    try:
        created = factory(values) if handle is None else create(factory, values, handle)
    except ArgumentError as error:
        raise ConfError(f"{path}.{error.name}: {error.problem}") from error
    except Exception as error:
        raise ConfError(f"{path}: rejected: {type(error).__name__}: {error}") from error
    for argument in values.unread():
        if argument not in tolerated:
            raise ConfError(_unknown_key(argument, values.known, path, "argument"))
    return created


def _check_plugin(plugin: object, path: str) -> None:
    """Reject a plugin with attributes that would be used too late to name them."""
    fields = getattr(plugin, "pod_fields", None)
    if fields is not None and not isinstance(fields, PodFields):
        raise ConfError(f"{path}: pod_fields must be of PodFields, not {fields!r}")
    for pair in TOGETHER:
        has = [has_method(plugin, name) for name in pair]
        if any(has) and not all(has):
            raise ConfError(f"{path}: has {pair[has.index(True)]} without {pair[has.index(False)]}")
    hook = getattr(plugin, "pre_bind", None)
    if has_method(plugin, "pre_bind") and not iscoroutinefunction(hook):
        raise ConfError(f"{path}: pre_bind must be an async function")
    timeout = getattr(plugin, "pre_bind_timeout", PRE_BIND_TIMEOUT)
    if not isinstance(timeout, int | float) or not 0 < timeout < MAX_PRE_BIND_TIMEOUT:
        limit = f"between 0 and {MAX_PRE_BIND_TIMEOUT:.0f} seconds"
        raise ConfError(f"{path}: pre_bind_timeout must be {limit}, not {timeout!r}")


def _require_compatible(tiers: Tiers) -> None:
    """Reject drf with a hierarchy together with proportion, even in different tiers."""
    options = {option.name: option for tier in tiers for option in tier}
    drf = options.get("drf")
    if drf is not None and drf.hierarchical and "proportion" in options:
        raise ConfError(f"tiers: drf with {HIERARCHY} and proportion exclude each other")


# -- profiles --------------------------------------------------------------------------------------


def _with_profiles(tiers: Tiers, raw: object, scheduler_names: Collection[str] | None) -> Tiers:
    """Return *tiers* whose plugins have the arguments of the profiles, too."""
    options = {option.name: option for tier in tiers for option in tier}
    names: set[str] = set()
    for number, entry in enumerate(_list(raw, "profiles")):
        path = f"profiles[{number}]"
        profile = _mapping(entry, path)
        _require_known(profile, ("schedulerName", "plugins"), path)
        name = profile.get("schedulerName")
        if not isinstance(name, str) or not name:
            raise ConfError(f"{path}.schedulerName: must be the schedulerName of pods")
        if name in names:
            raise ConfError(f"{path}.schedulerName: {name!r} has a profile already")
        if scheduler_names is not None and name not in scheduler_names:
            problem = f"pods of {name!r} are not scheduled; set --scheduler-name={name}, too"
            raise ConfError(f"{path}.schedulerName: {problem}")
        names.add(name)
        for position, plugin in enumerate(_list(profile.get("plugins"), f"{path}.plugins")):
            plugin_path = f"{path}.plugins[{position}]"
            option = _profiled(_mapping(plugin, plugin_path), plugin_path, name, options)
            options[option.name] = option
    return tuple(tuple(options[option.name] for option in tier) for tier in tiers)


def _profiled(
    entry: Mapping[str, object],
    path: str,
    scheduler_name: str,
    options: Mapping[str, PluginOption],
) -> PluginOption:
    """Return the option of the plugin that *entry* of a profile names, with its arguments."""
    _require_known(entry, ("name", "arguments"), path)
    name = entry.get("name")
    if name not in IN_PROFILES:
        possible = ", ".join(sorted(IN_PROFILES))
        raise ConfError(f"{path}.name: must be one of {possible}, not {name!r}")
    option = options.get(str(name))
    if option is None:
        raise ConfError(f"{path}.name: plugin {name!r} is not in tiers")
    if scheduler_name in option.profiles:
        raise ConfError(f"{path}.name: plugin {name!r} is in the profile twice")
    given = _mapping(entry.get("arguments") or {}, f"{path}.arguments")
    for argument in given:
        if argument in OF_ALL_PROFILES or argument in WITHOUT_EFFECT.get(option.name, {}):
            raise ConfError(f"{path}.arguments.{argument}: has no effect in a profile")
    _create(option.factory, given, f"{path}.arguments", (), Handle(option.name))
    return replace(option, profiles={**option.profiles, scheduler_name: given})


# -- metrics ---------------------------------------------------------------------------------------


def _metrics(raw: object) -> MetricsSource:
    if raw is None:
        return MetricsSource()
    given = _mapping(raw, "metrics")
    _require_known(given, (*_METRICS, *_ELASTICSEARCH), "metrics")
    try:
        kind = typed.text(given, "type", default=METRICS_SERVER)
        address = typed.text(given, "address")
        interval = typed.duration(given, "interval", default=timedelta(seconds=30))
        insecure = typed.boolean(given, "tls.insecureSkipVerify", default=False)
        index, username, password, host_field = (typed.text(given, key) for key in _ELASTICSEARCH)
    except ArgumentError as error:
        raise ConfError(f"metrics.{error}") from error
    if kind not in _SOURCES:
        known = " or ".join((", ".join(_SOURCES[:-1]), _SOURCES[-1]))
        raise ConfError(f"metrics.type: must be {known}, not {kind!r}")
    has_url = kind in (PROMETHEUS, ELASTICSEARCH)
    if has_url != address.startswith(("http://", "https://")):
        problem = f"{PROMETHEUS} and {ELASTICSEARCH} require a URL, other types none"
        raise ConfError(f"metrics.address: {problem}")
    source = MetricsSource(kind, address, interval or timedelta(seconds=30), not insecure)
    if kind == ELASTICSEARCH:
        return replace(
            source,
            index=index or "metricbeat-*",
            host_field=host_field or "host.hostname",
            username=username,
            password=password,
        )
    for key in given:
        if key in _ELASTICSEARCH:
            raise ConfError(f"metrics.{key}: has no effect with type {kind!r}")
    return source


# -- structure -------------------------------------------------------------------------------------


def _unknown(
    kind: str,
    name: object,
    path: str,
    table: Mapping[str, object],
    third_party: EntryPoints,
) -> ConfError:
    known = ", ".join((*_implemented(table), *third_party.names))
    problem = "unimplemented" if isinstance(name, str) and name in table else "unknown"
    return ConfError(f"{path}: {problem} {kind} {name!r}; known: {known}")


def _implemented(table: Mapping[str, object]) -> list[str]:
    return [name for name, value in table.items() if value is not None]


def _require_known(entry: Mapping[str, object], known: Collection[str], path: str) -> None:
    for key in entry:
        if key not in known:
            raise ConfError(_unknown_key(key, known, path, "key"))


def _unknown_key(key: str, known: Collection[str], path: str, kind: str) -> str:
    close = get_close_matches(key, sorted(known), n=1)
    every = ", ".join(sorted(known)) or "none"
    hint = f"did you mean {close[0]!r}?" if close else f"known: {every}"
    return f"{path}{'.' if path else ''}{key}: unknown {kind}; {hint}"


def _mapping(raw: object, path: str) -> Mapping[str, object]:
    if not isinstance(raw, dict) or not all(isinstance(key, str) for key in raw):
        raise ConfError(f"{path}: must be a mapping")
    return raw


def _list(raw: object, path: str) -> list[object]:
    if not isinstance(raw, list | None):
        raise ConfError(f"{path}: must be a list")
    return raw or []
