"""Builds the table of the built-in types and their schemas from Kubernetes' own sources.

Two sources: a real API server (the names, required fields and merge rules of its OpenAPI
documents, what it creates itself, the descriptions of the columns of its tables), and the tags of
the Go types (protobuf numbers, what is written out when it is empty), which the program in
`realkube/kube/fields` prints. Only what we serve is kept.
"""

import json
import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from support.embedded_apiserver import Server

from batholith.local.apiserver.authorization.bootstrap_policy import FILE, RESOURCES
from batholith.local.apiserver.builtin import flow_control_objects as flow_control
from batholith.local.apiserver.builtin.kinds import BUILT_IN
from batholith.local.apiserver.kinds import go_types
from batholith.local.apiserver.kinds.info import KindInfo
from batholith.local.apiserver.printing import column_descriptions

Json = dict[str, Any]

ROOT = Path(__file__).parents[2]
SERVER = ROOT / "platform" / "local" / "apiserver"
PACKAGED = SERVER / "kinds" / "data"
POLICY = SERVER / "authorization" / "data" / FILE
FLOW_CONTROL = SERVER / "builtin" / "data" / flow_control.FILE
COLUMNS = SERVER / "printing" / "data" / column_descriptions.FILE
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
GO_TYPES = "go-types.json"
SCHEMAS = "openapi-schemas.json"

_BOOTSTRAPPING = "kubernetes.io/bootstrapping"
_PREFIX = "#/components/schemas/"
_OPTIONS = ("Create", "Delete", "Get", "List", "Patch", "Update")
_SHARED = ("meta.ListMeta", "meta.Status", *(f"meta.{each}Options" for each in _OPTIONS))
"""Messages that no kind refers to, and every client may send or get."""


async def generate(server: Server) -> dict[Path, str]:
    """Return the files with their content."""
    messages = _messages()
    schemas = await _schemas(server)
    policy = await _bootstrap_policy(server)
    return {
        PACKAGED / GO_TYPES: _lines(messages),
        PACKAGED / SCHEMAS: _lines(schemas),
        POLICY: json.dumps(policy, indent=1) + "\n",
        FLOW_CONTROL: json.dumps(await _flow_control(server), indent=1) + "\n",
        COLUMNS: json.dumps(await _column_descriptions(server), indent=1) + "\n",
    }


async def _flow_control(server: Server) -> dict[str, list[Json]]:
    """The names and specs of the flow schemas and priority levels that the server creates."""
    return {
        each.plural: [
            {"metadata": {"name": obj["metadata"]["name"]}, "spec": obj["spec"]}
            for obj in (await server.get(each.path()))["items"]
            if flow_control.AUTO_UPDATE in (obj["metadata"].get("annotations") or {})
        ]
        for each in flow_control.RESOURCES
    }


async def _column_descriptions(server: Server) -> Mapping[str, Mapping[str, str]]:
    """Descriptions of columns by group and kind; the empty key has those that all kinds share."""
    result: dict[str, dict[str, str]] = {}
    for kind in sorted(BUILT_IN, key=lambda kind: column_descriptions.key(kind.resource)):
        if "list" not in kind.verbs or kind.computed:
            continue
        response = await server.request("GET", kind.resource.path(), headers=TABLE)
        found = {each["name"]: each["description"] for each in response.body["columnDefinitions"]}
        for name, description in found.items():
            owner = (
                "" if name in column_descriptions.SHARED else column_descriptions.key(kind.resource)
            )
            assert result.setdefault(owner, {}).setdefault(name, description) == description
    return result


async def _bootstrap_policy(server: Server) -> dict[str, list[Json]]:
    """The roles and bindings that the server creates itself, without rules that are aggregated."""
    return {
        each.plural: [
            _without_server_fields(obj)
            for obj in (await server.get(each.path()))["items"]
            if (obj["metadata"].get("labels") or {}).get(_BOOTSTRAPPING) == "rbac-defaults"
        ]
        for each in RESOURCES
    }


def _without_server_fields(obj: Json) -> Json:
    kept = ("annotations", "labels", "name", "namespace")
    metadata = {name: obj["metadata"][name] for name in kept if name in obj["metadata"]}
    result = {**obj, "metadata": metadata}
    if "aggregationRule" in obj:
        del result["rules"]
    return result


def _lines(entries: Mapping[str, Any]) -> str:
    """JSON with one entry a line, so that a new version shows what it changes."""
    rows = (
        f"{json.dumps(name)}:{json.dumps(entry, separators=(',', ':'))}"
        for name, entry in sorted(entries.items())
    )
    return "{" + ",\n".join(rows) + "}\n"


def _messages() -> Mapping[str, list[list[Any]]]:
    directory = Path(__file__).parents[1] / "realkube" / "kube"
    result = subprocess.run(
        ["go", "run", "-trimpath", "./fields"],
        cwd=directory,
        env={**os.environ, "CGO_ENABLED": "0"},
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, list[list[Any]]] = json.loads(result.stdout)
    expected = {*_SHARED, *(_message(found, *each) for each in _request_body_types(BUILT_IN))}
    return {name: found[name] for name in _reachable(expected, found)}


def _request_body_types(kinds: Iterable[KindInfo]) -> Iterator[tuple[str, str]]:
    """The version and kind of all bodies that are taken."""
    for kind in kinds:
        yield kind.resource.api_version, kind.resource.kind
        for subresource in kind.subresources.values():
            if subresource.connects:
                continue
            yield (
                f"{subresource.group}/{subresource.version}"
                if subresource.group
                else subresource.version,
                subresource.kind,
            )


def _message(found: Mapping[str, Any], api_version: str, kind: str) -> str:
    name = go_types.name_of(api_version, kind)
    assert name in found, f"no Go type for {kind} of {api_version}"
    return name


def _reachable(names: Iterable[str], found: Mapping[str, list[list[Any]]]) -> set[str]:
    left, seen = list(names), set[str]()
    while left:
        name = left.pop()
        if name not in seen:
            seen.add(name)
            left += [row[3] for row in found[name] if row[3] in found]
    return seen


async def _schemas(server: Server) -> Mapping[str, Json]:
    found: Json = {}
    for root in sorted({_root(kind) for kind in BUILT_IN} | {"apis/autoscaling/v1"}):
        document = await server.get(f"/openapi/v3/{root}")
        found |= document["components"]["schemas"]
    expected = {go_types.component(name) for name in _SHARED}
    for version, kind in _request_body_types(BUILT_IN):
        name = go_types.component(go_types.name_of(version, kind))
        expected |= {each for each in (name, f"{name}List") if each in found}
    left, seen = [name for name in expected if name in found], set[str]()
    while left:
        name = left.pop()
        if name not in seen:
            seen.add(name)
            left += _references(found[name])
    return {name: without_descriptions(found[name]) for name in seen}


def _root(kind: KindInfo) -> str:
    resource = kind.resource
    return f"apis/{resource.group}/{resource.version}" if resource.group else "api/v1"


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, list):
        for item in schema:
            yield from _references(item)
    elif isinstance(schema, dict):
        if isinstance(result := schema.get("$ref"), str):
            yield result.removeprefix(_PREFIX)
        for item in schema.values():
            yield from _references(item)


def without_descriptions(schema: Any) -> Any:
    """Leave out descriptions; a property of that name is none."""
    if isinstance(schema, list):
        return [without_descriptions(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: without_descriptions(each) for name, each in item.items()}
        if key == "properties"
        else without_descriptions(item)
        for key, item in schema.items()
        if key != "description"
    }
