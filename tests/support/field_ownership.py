"""Writes by several managers, sent to two API servers whose responses must be equal."""

import re
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any

from support.embedded_apiserver import RawResponse, Server

Json = dict[str, Any]

APPLY = "application/apply-patch+yaml"
JSON_PATCH = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
TYPED = "/apis/ownership.example.com/v1/namespaces/default/typeds"


def typed_kind(*, atomic: bool = False) -> Json:
    """A definition whose fields merge in all ways; *atomic*: as a later schema that merges less.

    In version v2, its list ``set`` is atomic.
    """
    item = {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string"},
            "protocol": {"type": "string", "default": "TCP"},
            "value": {"type": "integer"},
            "tags": {"type": "array", "items": {"type": "string"}, **_list("set")},
        },
    }
    texts = {"type": "object", "additionalProperties": {"type": "string"}}
    whole = {"x-kubernetes-map-type": "atomic"}
    keyed = {**_list("map"), "x-kubernetes-list-map-keys": ["name", "protocol"]}
    properties = {
        "replicas": {"type": "integer"},
        "mode": {"type": "string", "default": "auto"},
        "items": {"type": "array", "items": item, **(_list("atomic") if atomic else keyed)},
        "set": {"type": "array", "items": {"type": "string"}, **_list("set")},
        "list": {"type": "array", "items": {"type": "integer"}},
        "map": {**texts, **(whole if atomic else {})},
        "whole": {**texts, **whole},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "any": {"x-kubernetes-preserve-unknown-fields": True},
        "size": {"x-kubernetes-int-or-string": True},
        "template": {
            "type": "object",
            "x-kubernetes-embedded-resource": True,
            "x-kubernetes-preserve-unknown-fields": True,
        },
    }
    later = {**properties, "set": {**properties["set"], **_list("atomic")}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "typeds.ownership.example.com"},
        "spec": {
            "group": "ownership.example.com",
            "scope": "Namespaced",
            "names": {"plural": "typeds", "singular": "typed", "kind": "Typed"},
            "versions": [_version("v1", properties), _version("v2", later)],
        },
    }


def _list(kind: str) -> Json:
    return {"x-kubernetes-list-type": kind}


def _version(name: str, properties: Json) -> Json:
    status = {
        "type": "object",
        "properties": {
            "phase": {"type": "string"},
            "counts": {"type": "object", "additionalProperties": {"type": "string"}},
        },
    }
    spec = {"type": "object", "properties": properties}
    schema = {"type": "object", "properties": {"spec": spec, "status": status}}
    return {
        "name": name,
        "served": True,
        "storage": name == "v1",
        "schema": {"openAPIV3Schema": schema},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
            },
        },
    }


@dataclass(slots=True)
class Write:
    """One request."""

    method: str
    path: str
    body: Any = None
    media: str = "application/json"
    agent: str = "tests/1"
    versioned: bool = False
    """Whether the body gets the present version of the object, which is then required."""

    def named(self, name: str) -> "Write":
        """The same for the object *name*, where it has ``{name}``."""
        return replace(
            self, path=self.path.replace("{name}", name), body=_replaced(self.body, name)
        )

    async def send(self, server: Server) -> RawResponse:
        body = self.body
        if self.versioned:
            found = await server.request("GET", self.path.partition("?")[0])
            version = found.body.get("metadata", {}).get("resourceVersion", "")
            body = {**body, "metadata": {**body["metadata"], "resourceVersion": version}}
        return await server.request(
            self.method,
            self.path,
            body,
            content_type=self.media,
            headers={"User-Agent": self.agent},
        )


def _replaced(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(each, name) for key, each in value.items()}
    if isinstance(value, list):
        return [_replaced(each, name) for each in value]
    return name if value == "{name}" else value


def apply(path: str, manager: str, body: Json, query: str = "") -> Write:
    """A server-side apply."""
    return Write("PATCH", f"{path}?fieldManager={manager}{query}", body, APPLY)


_APPLY_ERRORS = (
    "metadata.managedFields",
    "invalid object type",
    "the name of the object",
    "error decoding YAML",
    "error strict decoding YAML",
    "PatchOptions",
)


@dataclass(slots=True)
class Normaliser:
    """Replaces what two servers choose differently: ids, versions, times."""

    versions: dict[str, str] = field(default_factory=dict)

    def response(self, response: RawResponse) -> Any:
        """What must be equal of a response; the texts of applies, not of validation."""
        if response.status in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY):
            text = str(response.body.get("message", ""))
            if not text.startswith(_APPLY_ERRORS):
                return response.status, response.body.get("reason")
        return response.status, self.value(response.body)

    def value(self, value: Any, key: str = "") -> Any:
        if isinstance(value, list):
            each = [self.value(item) for item in value]
            if key in ("managedFields", "causes"):
                each.sort(key=_entry_order)
            if key == "causes":
                each = [cause for n, cause in enumerate(each) if cause not in each[:n]]
            return each
        if isinstance(value, dict):
            if value.get("subresource") == "scale":
                # kube-apiserver forgets when a manager has scaled.
                value = {key: each for key, each in value.items() if key != "time"}
            return {k: self.value(v, k) for k, v in value.items() if v is not None}
        if key == "resourceVersion":
            return self.versions.setdefault(value, f"version-{len(self.versions)}")
        if key == "uid":
            return "uid"
        if key == "time" or key.endswith("Timestamp"):
            return "time" if value else value
        if key == "message":
            return _message(value)
        return value


def differences(theirs: Any, ours: Any, path: str = "") -> list[str]:
    """Where two normalised values differ."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return [
            each
            for key in sorted(theirs.keys() | ours.keys())
            for each in differences(theirs.get(key), ours.get(key), f"{path}/{key}")
        ]
    sequences = all(isinstance(each, list | tuple) for each in (theirs, ours))
    if sequences and len(theirs) == len(ours):
        return [
            each
            for index, pair in enumerate(zip(theirs, ours, strict=True))
            for each in differences(*pair, f"{path}/{index}")
        ]
    return [] if theirs == ours else [f"{path}: {ours} instead of {theirs}"]


def _entry_order(entry: Json) -> list[str]:
    keys = ("operation", "manager", "apiVersion", "subresource", "message", "field")
    return [str(entry.get(key, "")) for key in keys]


def _message(text: str) -> Any:
    """A message as its set of lines: conflicts have no order."""
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}", "uid", text)
    return sorted(text.splitlines())
