"""Makes our custom resource definitions: our own description, with Kubernetes' types filled in.

`platform/model/crds/*.yaml` describe our types; where one of them holds a type of Kubernetes they
say ``x-batholith-type: PodTemplateSpec``. Such a type is read from an API server's OpenAPI and made
structural: references resolved, prose and everything that is no part of a definition left out.
"""

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

Json = dict[str, Any]

ROOT = Path(__file__).parents[2]
PACKAGED = ROOT / "platform" / "model" / "crds"
MANIFESTS = ROOT / "manifests" / "crds"
NAMES = ("jobs", "queues", "podgroups", "commands")
TYPE_PLACEHOLDER = "x-batholith-type"

_QUANTITY = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
_INT_OR_STRING: Json = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "x-kubernetes-int-or-string": True,
}
_TEXTS: Json = {"type": "object", "additionalProperties": {"type": "string"}}
_SPECIAL: Mapping[str, Json] = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {**_INT_OR_STRING, "pattern": _QUANTITY},
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": _INT_OR_STRING,
    # What a template may say of the objects made of it; the rest of metadata is the server's.
    "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta": {
        "type": "object",
        "properties": {
            "annotations": _TEXTS,
            "finalizers": {"type": "array", "items": {"type": "string"}},
            "labels": _TEXTS,
            "name": {"type": "string"},
            "namespace": {"type": "string"},
        },
    },
}
_WITHOUT_DEFAULT = frozenset(
    {
        ("io.k8s.api.core.v1.AzureDiskVolumeSource", "cachingMode"),
        ("io.k8s.api.core.v1.AzureDiskVolumeSource", "kind"),
    }
)
"""Fields whose default Volcano's definitions leave to the API server that makes the pods."""

_KEPT = (
    "type",
    "format",
    "required",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
)


def structural(document: Mapping[str, Any], name: str) -> Json:
    """The type *name* of core/v1 as a structural schema, from an OpenAPI v3 document.

    Enumerations are left out, as in Volcano's definitions: a new release may know more values.
    """
    return _Converter(document["components"]["schemas"]).named(f"io.k8s.api.core.v1.{name}")


class _Converter:
    def __init__(self, schemas: Mapping[str, Json]) -> None:
        self._schemas = schemas

    def named(self, name: str) -> Json:
        if name in _SPECIAL:
            return copy.deepcopy(_SPECIAL[name])
        made = self._convert(self._schemas[name])
        for key, inner in made.get("properties", {}).items():
            if (name, key) in _WITHOUT_DEFAULT:
                del inner["default"]
        return made

    def _convert(self, node: Json) -> Json:
        (target,) = node.get("allOf", [node])
        if "$ref" in target:
            beside = {word: node[word] for word in _KEPT if word in node}
            return self.named(target["$ref"].rpartition("/")[2]) | beside
        made = {word: node[word] for word in _KEPT if word in node}
        if "properties" in node:
            required = node.get("required", ())
            made["properties"] = {
                key: self._property(inner, required=key in required)
                for key, inner in sorted(node["properties"].items())
            }
        for word in ("items", "additionalProperties"):
            if word in node:
                made[word] = self._convert(node[word])
        return made

    def _property(self, node: Json, *, required: bool) -> Json:
        made = self._convert(node)
        default = node.get("default")
        # Required fields have Go's zero value as "default", and structs an empty object.
        if default is not None and default != {} and not required:
            made["default"] = default
        return made


def sources() -> list[Json]:
    """Our own description of the definitions, with marks in place of Kubernetes' types."""
    return [
        _without_yaml_anchors(yaml.safe_load((PACKAGED / f"{name}.yaml").read_text()))
        for name in NAMES
    ]


def _without_yaml_anchors(shared: Json) -> Json:
    """The same without parts in common: the files name repeated parts once."""
    copied: Json = json.loads(json.dumps(shared))
    return copied


def fill_in_types(document: Mapping[str, Any]) -> list[Json]:
    """The definitions with the types of an OpenAPI document filled in."""
    made = sources()
    for node in _is_placeholder(made):
        node |= structural(document, node.pop(TYPE_PLACEHOLDER))
    return made


def _is_placeholder(node: Any) -> Iterator[Json]:
    if isinstance(node, dict):
        # The inner ones first: a mark's node grows when it is filled.
        for inner in list(node.values()):
            yield from _is_placeholder(inner)
        if TYPE_PLACEHOLDER in node:
            yield node
    if isinstance(node, list):
        for inner in node:
            yield from _is_placeholder(inner)


def write(definitions: list[Json]) -> None:
    """Store definitions as package data and as manifests."""
    PACKAGED.joinpath("definitions.json").write_bytes(encoded(definitions))
    for name, definition in zip(NAMES, definitions, strict=True):
        MANIFESTS.joinpath(f"{name}.yaml").write_text(
            "# Generated by `make crds` from platform/model/crds.\n"
            + yaml.dump(definition, Dumper=_NoAliasDumper, sort_keys=False, width=100)
        )


def encoded(definitions: list[Json]) -> bytes:
    """Definitions as package data: JSON, which loads in a moment where YAML takes a second."""
    lines: list[Any] = [msgspec.json.encode(each) for each in definitions]
    return b"[" + b",\n".join(lines) + b"]\n"


class _NoAliasDumper(yaml.SafeDumper):
    """Writes repeated parts in full: some readers refuse many references."""

    ignore_aliases: Callable[..., bool] = staticmethod(lambda data: True)
