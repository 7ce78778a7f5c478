"""Resource groups: Volcano's admission configuration for pods.

A YAML file whose ``resourceGroups`` select pods by namespace or annotation, and set their node
selector, tolerations, affinity and scheduler on create.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import yaml

from ..model.admission import Json, nested_list, nested_object
from ..model.base import ApiStruct

GROUP_ANNOTATION = "volcano.sh/resource-group"
"""Pod annotation: name of its resource group."""


class ResourceGroupsError(ValueError):
    """The configuration is invalid; the text names the group and cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceGroup:
    """A selection of pods and the fields set on them."""

    namespaces: frozenset[str] = frozenset()
    annotations: frozenset[tuple[str, str]] = frozenset()
    """Pods with any of these annotations, or in any of the namespaces, match."""
    scheduler_name: str = ""
    tolerations: tuple[Json, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    """Added to the node selector."""
    affinity: Json | None = None

    def matches(self, pod: Json, namespace: str) -> bool:
        """Return whether *pod* belongs to the group."""
        annotations = nested_object(nested_object(pod, "metadata"), "annotations")
        return namespace in self.namespaces or any(
            annotations.get(key) == value for key, value in self.annotations
        )

    def apply_to(self, pod: Json) -> Json:
        """Return *pod* with the group's fields set."""
        spec = nested_object(pod, "spec")
        changed: Json = {}
        if self.labels:
            changed["nodeSelector"] = {**nested_object(spec, "nodeSelector"), **self.labels}
        if self.affinity and not spec.get("affinity"):
            changed["affinity"] = self.affinity
        if self.tolerations:
            changed["tolerations"] = [*nested_list(spec, "tolerations"), *self.tolerations]
        if self.scheduler_name:
            changed["schedulerName"] = self.scheduler_name
        return pod | {"spec": spec | changed}


def apply_groups(pod: Json, namespace: str, groups: Iterable[ResourceGroup]) -> Json:
    """Return *pod* with the fields of the first group that matches it."""
    for group in groups:
        if group.matches(pod, namespace):
            return group.apply_to(pod)
    return pod


class _GroupSelector(ApiStruct, frozen=True):
    key: str = ""
    """``namespace``, ``annotation``, or empty: by annotation or by the group's name."""
    value: tuple[str, ...] = ()
    """Namespaces, or annotations as ``key: value``."""


class _GroupConfig(ApiStruct, frozen=True):
    resource_group: str = ""
    object: _GroupSelector = _GroupSelector()
    scheduler_name: str = ""
    tolerations: tuple[dict[str, Any], ...] = ()
    labels: dict[str, str] = {}
    affinity: str = ""
    """JSON."""


class _AdmissionConfig(ApiStruct, frozen=True):
    resource_groups: tuple[_GroupConfig, ...] = ()


def parse(text: bytes) -> tuple[ResourceGroup, ...]:
    """Parse a configuration file; a group with an unknown ``object.key`` matches no pod.

    Raises:
        ResourceGroupsError: invalid YAML, a field of a wrong type, or an affinity of invalid JSON.
    """
    try:
        document = yaml.safe_load(text)
        config = msgspec.convert({} if document is None else document, _AdmissionConfig)
    except (yaml.YAMLError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ResourceGroupsError(f"resource groups: {error}") from error
    return tuple(_build_group(each) for each in config.resource_groups)


def _build_group(config: _GroupConfig) -> ResourceGroup:
    selector, pairs = config.object, set()
    try:
        if selector.key in ("", "annotation"):
            pairs = {pair for line in selector.value for pair in _parse_annotation(line)}
        affinity = msgspec.json.decode(config.affinity, type=Json) if config.affinity else None
    except (yaml.YAMLError, msgspec.DecodeError, ResourceGroupsError) as error:
        raise ResourceGroupsError(f"resource group {config.resource_group!r}: {error}") from error
    if not selector.key and config.resource_group:
        pairs.add((GROUP_ANNOTATION, config.resource_group))
    return ResourceGroup(
        namespaces=frozenset(selector.value if selector.key == "namespace" else ()),
        annotations=frozenset(pairs),
        scheduler_name=config.scheduler_name,
        tolerations=config.tolerations,
        labels=config.labels,
        affinity=affinity,
    )


def _parse_annotation(line: str) -> Iterable[tuple[str, str]]:
    """Parse the annotations in one line of the configuration."""
    pairs = yaml.load(line, Loader=yaml.BaseLoader)  # noqa: S506 - loads plain text only
    if not isinstance(pairs, dict) or not all(isinstance(each, str) for each in pairs.values()):
        raise ResourceGroupsError(f"{line!r} is not an annotation")
    return pairs.items()
