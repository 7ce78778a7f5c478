"""Builds our custom resource definitions: our own description with Kubernetes' types filled in.

`platform/model/crds/*.yaml` and the frameworks of training jobs describe our types; where one of
them holds a type of Kubernetes they say ``x-batholith-type: PodTemplateSpec``. Such a type is read
from an API server's OpenAPI and converted to a structural schema: references resolved, prose and
everything that is no part of a definition left out.
"""

import copy
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from batholith.model import crds
from batholith.model.crds import TYPE_PLACEHOLDER
from batholith.training_ctrl.frameworks import FRAMEWORKS
from batholith.training_ctrl.frameworks.base import Framework

Json = dict[str, Any]

ROOT = Path(__file__).parents[2]
PACKAGED = ROOT / "platform" / "model" / "crds"
MANIFESTS = ROOT / "manifests" / "crds"
TRAINING = ROOT / "manifests" / "training-crds"
NAMES = (
    "jobs", "queues", "podgroups", "commands", "cronjobs", "jobflows", "jobtemplates", "hypernodes",
)  # fmt: skip

JOB_SPEC_PLACEHOLDER = "x-batholith-job-spec"
"""Keyword of a schema to be replaced by that of a Job's spec: the ``whole``, or as a ``patch``."""
PATCH_SUFFIX = ".patch"
"""Ending of the name of a type as it is in patches."""
_NOT_IN_PATCHES = (
    "default",
    "required",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
)
"""A patch may lack any field, and what it lacks must not be set."""

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
    # Metadata that a template may set; the server sets the rest.
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
"""Fields that Volcano's definitions leave for the API server to default in pods."""

_KEPT = (
    "type",
    "format",
    "required",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
)


def structural(schemas: Mapping[str, Any], name: str) -> Json:
    """The type *name*, by default of core/v1, as a structural schema, from OpenAPI v3 schemas.

    Enumerations are left out, as in Volcano's definitions: a new release may know more values.
    """
    return _Converter(schemas).named(name if "." in name else f"io.k8s.api.core.v1.{name}")


class _Converter:
    def __init__(self, schemas: Mapping[str, Json]) -> None:
        self._schemas = schemas

    def named(self, name: str) -> Json:
        if name in _SPECIAL:
            return copy.deepcopy(_SPECIAL[name])
        created = self._convert(self._schemas[name])
        for key, inner in created.get("properties", {}).items():
            if (name, key) in _WITHOUT_DEFAULT:
                del inner["default"]
        return created

    def _convert(self, node: Json) -> Json:
        (target,) = node.get("allOf", [node])
        if "$ref" in target:
            siblings = {keyword: node[keyword] for keyword in _KEPT if keyword in node}
            return self.named(target["$ref"].rpartition("/")[2]) | siblings
        created = {keyword: node[keyword] for keyword in _KEPT if keyword in node}
        if "properties" in node:
            required = node.get("required", ())
            created["properties"] = {
                key: self._property(inner, required=key in required)
                for key, inner in sorted(node["properties"].items())
            }
        for keyword in ("items", "additionalProperties"):
            if keyword in node:
                created[keyword] = self._convert(node[keyword])
        return created

    def _property(self, node: Json, *, required: bool) -> Json:
        created = self._convert(node)
        default = node.get("default")
        # Required fields have Go's zero value as "default", and structs an empty object.
        if default is not None and default != {} and not required:
            created["default"] = default
        return created


def sources() -> list[Json]:
    """Our own description of Volcano's kinds, with placeholders for Kubernetes' types."""
    job = _read_yaml(PACKAGED / "jobs.yaml")
    (version,) = job["spec"]["versions"]
    whole = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    specs = {"whole": whole, "patch": _as_patch(whole)}
    return [_with_job_specs(_read_yaml(PACKAGED / f"{name}.yaml"), specs) for name in NAMES]


def _with_job_specs(node: Any, specs: Mapping[str, Json]) -> Any:
    """Return *node* with the spec of a Job where it has the placeholder."""
    if isinstance(node, list):
        return [_with_job_specs(inner, specs) for inner in node]
    if not isinstance(node, dict):
        return node
    if JOB_SPEC_PLACEHOLDER in node:
        return copy.deepcopy(specs[node[JOB_SPEC_PLACEHOLDER]])
    return {key: _with_job_specs(inner, specs) for key, inner in node.items()}


def _as_patch(schema: Json) -> Json:
    """Return *schema* for patches."""
    created = {key: value for key, value in schema.items() if key not in _NOT_IN_PATCHES}
    if TYPE_PLACEHOLDER in created:
        created[TYPE_PLACEHOLDER] += PATCH_SUFFIX
    if "properties" in created:
        properties = created["properties"].items()
        created["properties"] = {name: _as_patch(inner) for name, inner in properties}
    for keyword in ("items", "additionalProperties"):
        if keyword in created:
            created[keyword] = _as_patch(created[keyword])
    return created


def training_sources() -> list[Json]:
    """The same of the kinds of training jobs."""
    return [_training_source(framework) for framework in FRAMEWORKS]


def _training_source(framework: Framework[Any]) -> Json:
    kind = framework.kind
    names = kind.resource
    created = _read_yaml(PACKAGED / "training.yaml")
    created["metadata"] = {"name": f"{names.plural}.{names.group}"} | created["metadata"]
    plural = {"kind": names.kind, "listKind": f"{names.kind}List", "plural": names.plural}
    spec = created["spec"]
    created["spec"] = {"group": names.group, "names": plural | {"singular": names.kind.lower()}}
    created["spec"] |= spec
    (version,) = spec["versions"]
    if kind.scalable:
        version["subresources"]["scale"] = {
            "specReplicasPath": f".spec.{kind.replica_field}.Worker.replicas",
            "statusReplicasPath": ".status.replicaStatuses.Worker.active",
            "labelSelectorPath": ".status.replicaStatuses.Worker.selector",
        }
    root = version["schema"]["openAPIV3Schema"]
    version["schema"]["openAPIV3Schema"] = {"description": kind.description} | root
    desired = root["properties"]["spec"]
    fields = desired["properties"]
    replicas = fields.pop("replicaSpecs")
    types = ", ".join(kind.replica_types)
    replicas["description"] = f"Pods of the job by replica type: {types}."
    fields |= {kind.replica_field: replicas} | copy.deepcopy(dict(framework.spec_schema))
    desired["required"] = [kind.replica_field]
    return created


def _read_yaml(path: Path) -> Json:
    """Return a file without shared objects: the files use YAML anchors for repeated schemas."""
    copied: Json = json.loads(json.dumps(yaml.safe_load(path.read_text())))
    return copied


async def read_schemas(get: Callable[[str], Awaitable[Json]]) -> Json:
    """The OpenAPI schemas of an API server that have the types; *get* requests a path."""
    schemas: Json = {}
    for path in ("/openapi/v3/api/v1", "/openapi/v3/apis/autoscaling/v2"):
        schemas |= (await get(path))["components"]["schemas"]
    return schemas


def document(schemas: Mapping[str, Any]) -> crds.Document:
    """The package data, with the types of some OpenAPI schemas."""
    volcano, training = sources(), training_sources()
    names = {node[TYPE_PLACEHOLDER] for node in crds.placeholders([volcano, training])}
    types = {name: _type(schemas, name) for name in sorted(names)}
    return crds.Document(types=types, volcano=volcano, training=training)


def _type(schemas: Mapping[str, Any], name: str) -> Json:
    if name.endswith(PATCH_SUFFIX):
        return _as_patch(structural(schemas, name.removesuffix(PATCH_SUFFIX)))
    return structural(schemas, name)


def write(created: crds.Document) -> None:
    """Store definitions as package data and as manifests."""
    PACKAGED.joinpath("definitions.json").write_bytes(encoded(created))
    TRAINING.joinpath("Kustomization").write_text(_kustomization(crds.load_training()))
    for directory, definitions in ((MANIFESTS, crds.load()), (TRAINING, crds.load_training())):
        for definition in definitions:
            name = definition["spec"]["names"]["plural"]
            directory.joinpath(f"{name}.yaml").write_text(
                "# Generated by `make crds` from platform/model/crds.\n"
                + yaml.dump(definition, Dumper=_NoAliasDumper, sort_keys=False, width=100)
            )


def _kustomization(definitions: Iterable[Json]) -> str:
    lines = [
        "# Generated by `make crds`. Named so that `kubectl create -f` ignores it.",
        "apiVersion: kustomize.config.k8s.io/v1beta1",
        "kind: Kustomization",
        "resources:",
        *(f"  - {each['spec']['names']['plural']}.yaml" for each in definitions),
    ]
    return "\n".join(lines) + "\n"


def encoded(created: crds.Document) -> bytes:
    """Definitions as package data: JSON, which loads in a moment where YAML takes a second."""
    types = [
        f"{json.dumps(name)}: ".encode() + msgspec.json.encode(each)
        for name, each in created.types.items()
    ]
    lists = [
        [msgspec.json.encode(each) for each in one] for one in (created.volcano, created.training)
    ]
    volcano, training = (b"[" + b",\n".join(one) + b"]" for one in lists)
    sections = (
        b'{"types": {' + b",\n".join(types) + b"}",
        b'"volcano": ' + volcano,
        b'"training": ' + training + b"}\n",
    )
    return b",\n".join(sections)


class _NoAliasDumper(yaml.SafeDumper):
    """Write repeated schemas in full: some parsers refuse many YAML aliases."""

    ignore_aliases: Callable[..., bool] = staticmethod(lambda data: True)
