"""What an administrator wants pods of some namespaces or with some annotations to be given.

That is Volcano's admission configuration: a YAML file whose ``resourceGroups`` say for which pods,
and what node labels, tolerations, affinity and scheduler these get when they are created.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import yaml

from ..model.admission import Json
from ..model.base import ApiStruct
from .decoding import nested_list, nested_object

GROUP_ANNOTATION = "volcano.sh/resource-group"
"""Annotation of a pod: the group that it wants to belong to."""


class ResourceGroupsError(ValueError):
    """A configuration that cannot be used; the text says where and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceGroup:
    """Some pods and what they get."""

    namespaces: frozenset[str] = frozenset()
    annotations: frozenset[tuple[str, str]] = frozenset()
    """A pod of one of the namespaces, or with one of these, belongs to the group."""
    scheduler_name: str = ""
    tolerations: tuple[Json, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    """Of nodes that the pods may run on."""
    affinity: Json | None = None

    def matches(self, pod: Json, namespace: str) -> bool:
        """Whether *pod* belongs to it."""
        annotations = nested_object(nested_object(pod, "metadata"), "annotations")
        return namespace in self.namespaces or any(
            annotations.get(key) == value for key, value in self.annotations
        )

    def apply_to(self, pod: Json) -> Json:
        """*pod* with what the group gives it."""
        spec = nested_object(pod, "spec")
        given: Json = {}
        if self.labels:
            given["nodeSelector"] = {**nested_object(spec, "nodeSelector"), **self.labels}
        if self.affinity and not spec.get("affinity"):
            given["affinity"] = self.affinity
        if self.tolerations:
            given["tolerations"] = [*nested_list(spec, "tolerations"), *self.tolerations]
        if self.scheduler_name:
            given["schedulerName"] = self.scheduler_name
        return pod | {"spec": spec | given}


def apply_groups(pod: Json, namespace: str, groups: Iterable[ResourceGroup]) -> Json:
    """*pod* as the first group that takes it wants it to be."""
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
    """The groups of a configuration file; one with an unknown ``object.key`` takes no pod.

    Raises:
        ResourceGroupsError: it is no YAML, a field has another type, or an affinity is no JSON.
    """
    try:
        document = yaml.safe_load(text)
        written = msgspec.convert({} if document is None else document, _AdmissionConfig)
    except (yaml.YAMLError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ResourceGroupsError(f"resource groups: {error}") from error
    return tuple(_build_group(each) for each in written.resource_groups)


def _build_group(config: _GroupConfig) -> ResourceGroup:
    members, pairs = config.object, set()
    try:
        if members.key in ("", "annotation"):
            pairs = {pair for line in members.value for pair in _parse_annotation(line)}
        affinity = msgspec.json.decode(config.affinity, type=Json) if config.affinity else None
    except (yaml.YAMLError, msgspec.DecodeError, ResourceGroupsError) as error:
        raise ResourceGroupsError(f"resource group {config.resource_group!r}: {error}") from error
    if not members.key and config.resource_group:
        pairs.add((GROUP_ANNOTATION, config.resource_group))
    return ResourceGroup(
        namespaces=frozenset(members.value if members.key == "namespace" else ()),
        annotations=frozenset(pairs),
        scheduler_name=config.scheduler_name,
        tolerations=config.tolerations,
        labels=config.labels,
        affinity=affinity,
    )


def _parse_annotation(line: str) -> Iterable[tuple[str, str]]:
    """The pairs in one line of a configuration."""
    pairs = yaml.load(line, Loader=yaml.BaseLoader)  # noqa: S506 - which makes nothing but text
    if not isinstance(pairs, dict) or not all(isinstance(each, str) for each in pairs.values()):
        raise ResourceGroupsError(f"{line!r} is no annotation")
    return pairs.items()
