"""Volcano's configuration of the discovery of HyperNodes: a YAML document in a ConfigMap.

The sources ``label`` and ``ufm`` are implemented; others are reported.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from urllib.parse import urlsplit

import msgspec
import yaml

from ..model import durations
from ..model.meta import LabelSelector
from ..model.selectors import Selector, SelectorError, from_label_selector

CONFIGMAP = "volcano-controller-configmap"
KEY = "volcano-controller.conf"
LABEL_SOURCE, UFM_SOURCE = "label", "ufm"

MAX_TYPE_NAME = 20
"""Maximum length of the name of a topology type, which is part of the names of HyperNodes."""

MAX_TIER_NAME = 253
"""Maximum length of a tierName of HyperNodes."""

_MIN_INTERVAL = timedelta(seconds=10)


class ConfigurationError(ValueError):
    """The configuration is invalid; the text names field and reason."""


@dataclass(frozen=True, slots=True)
class Level:
    """A tier of a topology type."""

    label: str
    """Nodes with the same value of it form a HyperNode."""

    tier_name: str
    """Of the HyperNodes."""


@dataclass(frozen=True, slots=True)
class TopologyType:
    """A network, as labels of nodes describe it."""

    levels: Sequence[Level]
    """The lowest tier first."""

    selector: Selector | None = None
    """Which nodes are in it; ``None``: all that have the labels."""


@dataclass(frozen=True, slots=True)
class Ufm:
    """A Unified Fabric Manager."""

    endpoint: str
    """URL, to which the path of the manager's REST API is appended."""

    secret_name: str
    """The Secret with ``username`` and ``password``."""

    namespace: str
    """Of the Secret."""

    verify_tls: bool = True
    interval: timedelta = timedelta(hours=1)
    """Between two discoveries."""


@dataclass(frozen=True, slots=True)
class Discovery:
    """What is to be discovered."""

    types: Mapping[str, TopologyType] = field(default_factory=dict)
    """By name."""

    problems: tuple[str, ...] = ()
    """What is left out, and why."""

    ufm: Ufm | None = None
    is_ufm_enabled: bool = False
    """Also if the source is left out because of a problem."""


def parse(text: str, namespace: str) -> Discovery:
    """Parse the configuration; without an enabled source nothing is to be discovered.

    *namespace* has the ConfigMap: no Secrets of others are read. Who may write the ConfigMap would
    otherwise have the controller send any of them to an address of their choice.

    Raises:
        ConfigurationError: it is no such document.
    """
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{KEY}: no YAML: {error}") from None
    sources = _field(document or {}, KEY, "networkTopologyDiscovery", list, [])
    types: dict[str, TopologyType] = {}
    problems: list[str] = []
    ufm: Ufm | None = None
    is_ufm_enabled = False
    for index, source in enumerate(sources):
        path = f"networkTopologyDiscovery[{index}]"
        name = _field(source, path, "source", str, "")
        if not _field(source, path, "enabled", bool, False):
            continue
        if name == UFM_SOURCE:
            is_ufm_enabled = True
            try:
                ufm = _ufm(source, path, namespace)
            except ConfigurationError as error:
                problems.append(str(error))
            continue
        if name != LABEL_SOURCE:
            problems.append(f"{path}: source {name!r} is not implemented")
            continue
        config = _field(source, path, "config", dict, {})
        found = _field(config, f"{path}.config", "networkTopologyTypes", dict, {})
        for type_name, given in found.items():
            where = f"{path}.config.networkTopologyTypes.{type_name}"
            topology_type = _topology_type(given, where)
            if problem := _problem(str(type_name), topology_type):
                problems.append(f"{where}: {problem}")
            else:
                types[str(type_name)] = topology_type
    return Discovery(types, tuple(problems), ufm, is_ufm_enabled)


def _ufm(source: object, path: str, namespace: str) -> Ufm:
    credentials = _field(source, path, "credentials", dict, {})
    reference = _field(credentials, f"{path}.credentials", "secretRef", dict, {})
    where = f"{path}.credentials.secretRef"
    secret = _field(reference, where, "name", str, "")
    if not secret:
        raise ConfigurationError(f"{where}.name: is required")
    if _field(reference, where, "namespace", str, namespace) != namespace:
        raise ConfigurationError(f"{where}.namespace: must be {namespace!r}, that of the ConfigMap")
    config = _field(source, path, "config", dict, {})
    return Ufm(
        _endpoint(_field(config, f"{path}.config", "endpoint", str, ""), f"{path}.config.endpoint"),
        secret,
        namespace,
        verify_tls=not _field(config, f"{path}.config", "insecureSkipVerify", bool, False),
        interval=_interval(_field(source, path, "interval", str, "1h"), f"{path}.interval"),
    )


def _endpoint(given: str, path: str) -> str:
    """Return a URL, of ``https`` if *given* names no scheme."""
    url = given.rstrip("/") if "://" in given else f"https://{given.rstrip('/')}"
    try:
        parsed = urlsplit(url)
        is_valid = parsed.scheme in ("http", "https") and bool(parsed.hostname) and parsed.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or "@" in parsed.netloc or parsed.query or parsed.fragment:
        raise ConfigurationError(f"{path}: must be a URL of http or https, not {given!r}")
    return url


def _interval(given: str, path: str) -> timedelta:
    try:
        found = durations.parse(given)
    except durations.DurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    if found < _MIN_INTERVAL:
        raise ConfigurationError(f"{path}: must be at least 10s")
    return found


def _topology_type(given: object, path: str) -> TopologyType:
    """Return a type: a list of its levels, or a mapping of them with a selector of nodes.

    The last level is that of the nodes themselves.
    """
    if isinstance(given, list):
        return TopologyType(_levels(given, path))
    if not isinstance(given, dict):
        raise ConfigurationError(f"{path}: must be a list, or a mapping with levels")
    _reject_others(given, path, "nodeSelector", "levels")
    levels = _levels(_field(given, path, "levels", list, []), f"{path}.levels")
    where = f"{path}.nodeSelector"
    selector = _field(given, path, "nodeSelector", dict, {})
    _reject_others(selector, where, "matchLabels", "matchExpressions")
    try:
        wanted = from_label_selector(msgspec.convert(selector, LabelSelector))
    except (msgspec.ValidationError, SelectorError) as error:
        raise ConfigurationError(f"{where}: {error}") from None
    return TopologyType(levels, wanted)


def _reject_others(given: Mapping[object, object], path: str, *names: str) -> None:
    for name in given:
        if name not in names:
            raise ConfigurationError(f"{path}.{name}: is not known")


def _levels(entries: Sequence[object], path: str) -> Sequence[Level]:
    found: list[Level] = []
    for index, entry in enumerate(entries):
        where = f"{path}[{index}]"
        label = _field(entry, where, "nodeLabel", str, "")
        tier_name = _field(entry, where, "tierName", str, "")
        if tier_name and entry is entries[-1]:
            raise ConfigurationError(f"{where}.tierName: the last level is the nodes themselves")
        found.append(Level(label, tier_name or label))
    return found[:-1][::-1]


def _problem(name: str, given: TopologyType) -> str:
    if len(name) > MAX_TYPE_NAME:
        return f"the name has more than {MAX_TYPE_NAME} characters"
    if given.selector is not None and not given.levels:
        return "levels: must have at least two entries, the last one for the nodes themselves"
    labels = [each.label for each in given.levels]
    if not all(labels):
        return "nodeLabel is empty"
    if len(set(labels)) < len(labels):
        return "a label is listed twice"
    if len({each.tier_name for each in given.levels}) < len(labels):
        return "a tierName is listed twice"
    if any(len(each.tier_name) > MAX_TIER_NAME for each in given.levels):
        return f"a tierName has more than {MAX_TIER_NAME} characters"
    if given.selector is not None and not profile_label(name):
        return "the name has no letter or digit"
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


def profile_label(name: str) -> str:
    """Return the name of a topology type as the value of a label."""
    return cleaned(name).strip(".-")
