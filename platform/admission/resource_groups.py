"""What an administrator wants pods of some namespaces or with some annotations to be given.

That is Volcano's admission configuration: a YAML file whose ``resourceGroups`` say for which pods,
and what node labels, tolerations, affinity and scheduler these get when they are created.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import yaml

from ..model.base import Part
from ..model.review import Json
from .decoding import entries, part

GROUP_ANNOTATION = "volcano.sh/resource-group"
"""Annotation of a pod: the group that it wants to belong to."""


class ResourceGroupsError(ValueError):
    """A configuration that cannot be used; the text says where and why."""


class Members(Part, frozen=True):
    """Which pods belong to a group."""

    key: str = ""
    """``namespace``, ``annotation``, or empty: by annotation, too."""
    value: tuple[str, ...] = ()
    """Namespaces, or annotations as ``key: value``."""


class ResourceGroup(Part, frozen=True):
    """One group and what its pods get."""

    resource_group: str = ""
    object: Members = Members()
    scheduler_name: str = ""
    tolerations: tuple[dict[str, Any], ...] = ()
    labels: dict[str, str] = {}
    affinity: str = ""
    """JSON."""

    def takes(self, pod: Json, namespace: str) -> bool:
        """Whether *pod* belongs to it."""
        if self.object.key == "namespace":
            return namespace in self.object.value
        if self.object.key not in ("", "annotation"):
            return False
        annotations = part(part(pod, "metadata"), "annotations")
        by_name = not self.object.key and bool(self.resource_group)
        if by_name and annotations.get(GROUP_ANNOTATION) == self.resource_group:
            return True
        return any(
            annotations.get(key) == value
            for text in self.object.value
            for key, value in _annotations(text).items()
        )

    def complete(self, pod: Json) -> Json:
        """*pod* with what the group gives it."""
        spec = part(pod, "spec")
        given: Json = {}
        if self.labels:
            given["nodeSelector"] = {**part(spec, "nodeSelector"), **self.labels}
        if self.affinity and not spec.get("affinity"):
            given["affinity"] = msgspec.json.decode(self.affinity)
        if self.tolerations:
            given["tolerations"] = [*entries(spec, "tolerations"), *self.tolerations]
        if self.scheduler_name:
            given["schedulerName"] = self.scheduler_name
        return pod | {"spec": spec | given}


class _Configuration(Part, frozen=True):
    resource_groups: tuple[ResourceGroup, ...] = ()


def read(text: bytes) -> tuple[ResourceGroup, ...]:
    """The groups of a configuration file.

    Raises:
        ResourceGroupsError: it is no YAML, a field has another type, or an affinity is no JSON.
    """
    try:
        groups = msgspec.convert(yaml.safe_load(text) or {}, _Configuration).resource_groups
    except (yaml.YAMLError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise ResourceGroupsError(f"resource groups: {error}") from error
    for group in groups:
        try:
            if group.affinity:
                msgspec.json.decode(group.affinity, type=dict)
            for text_ in group.object.value if group.object.key != "namespace" else ():
                _annotations(text_)
        except (msgspec.DecodeError, yaml.YAMLError, ResourceGroupsError) as error:
            raise ResourceGroupsError(
                f"resource group {group.resource_group!r}: {error}"
            ) from error
    return groups


def fill_in(pod: Json, namespace: str, groups: Iterable[ResourceGroup]) -> Json:
    """*pod* as the first group that takes it wants it to be."""
    for group in groups:
        if group.takes(pod, namespace):
            return group.complete(pod)
    return pod


def _annotations(text: str) -> Mapping[str, str]:
    """The pairs in one line of a configuration."""
    pairs = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506 - which makes nothing but text
    if not isinstance(pairs, dict) or not all(isinstance(each, str) for each in pairs.values()):
        raise ResourceGroupsError(f"{text!r} is no annotation")
    return pairs
