"""Random sequences of requests about the objects of one kind, for two API servers.

A body or a path may refer to what a server has sent: ``PUT`` changes the object that this server
has, and preconditions name its versions and uids. So a request is a recipe that each server's own
state completes.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from hypothesis import strategies as st
from support import samples
from support.embedded_apiserver import MERGE, RawResponse, Server, definition

from batholith.local.apiserver.custom.kinds import custom_kinds
from batholith.local.apiserver.kinds.info import KindInfo

Json = dict[str, Any]
Strategy = st.SearchStrategy[Any]

APPLY = "application/apply-patch+yaml"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

NAMES = ("a", "b")
RUN = "run"
"""Label that all objects of a sequence have, so that lists show no others."""


def custom_definition() -> Json:
    """A custom kind with both subresources."""
    crd = definition("things", "Thing")
    (version,) = crd["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]["properties"]
    schema["spec"]["properties"] |= {
        "replicas": {"type": "integer", "minimum": 0},
        "tags": {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
    }
    schema["status"]["properties"]["replicas"] = {"type": "integer"}
    version["subresources"]["scale"] = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
    }
    version["additionalPrinterColumns"] = [
        {"name": "Mode", "type": "string", "jsonPath": ".spec.mode"},
        {"name": "Size", "type": "integer", "jsonPath": ".spec.size", "priority": 1},
    ]
    version["selectableFields"] = [{"jsonPath": ".spec.mode"}]
    return crd


CHANGED_BY_CONTROLLERS = (
    "CustomResourceDefinition", "FlowSchema", "Namespace", "PersistentVolume",
    "PersistentVolumeClaim", "PodDisruptionBudget", "ResourceQuota", "ServiceAccount", "Node",
    "VolumeAttributesClass",
)  # fmt: skip
"""Kinds whose objects controllers of the servers change at any time."""

AFFECTING_OTHERS = (
    "LimitRange", "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration",
    "PriorityClass", "RuntimeClass", "StorageClass",
)  # fmt: skip
"""Kinds whose objects change how others are written."""

INCOMPARABLE = (
    "Event", "NetworkPolicy", "PodGroup", "PriorityLevelConfiguration", "Workload",
)  # fmt: skip
"""Kinds with documented differences in most responses, or that kube-apiserver reads otherwise."""

VALIDATED = (
    "ConfigMap", "ControllerRevision", "CronJob", "CSINode", "Deployment", "Ingress",
    "HorizontalPodAutoscaler", "Job", "Lease", "Pod", "PodTemplate", "ReplicaSet",
    "ReplicationController", "Secret", "StatefulSet", "Thing", "VolumeAttachment",
)  # fmt: skip
"""Kinds that get odd values; of others not all are rejected, see docs/differences.md."""

CUSTOM = custom_kinds(custom_definition())[0]
KINDS = (
    CUSTOM,
    *(
        kind
        for kind in samples.KINDS
        if "create" in kind.verbs
        and kind.resource.kind not in (*CHANGED_BY_CONTROLLERS, *AFFECTING_OTHERS, *INCOMPARABLE)
    ),
)


@dataclass(frozen=True, slots=True)
class RandomRequest:
    """A request; ``{prefix}`` in its texts is that of the sequence's names."""

    method: str
    path: str
    body: Any = None
    content_type: str = "application/json"
    accept: str = ""
    based_on: str = ""
    """Path of the object that the body is merged into, as this server has it."""

    precondition: str = ""
    """``version`` or ``uid``: the body of a deletion names that of the object."""

    def __str__(self) -> str:
        return f"{self.method} {self.path} {self.accept} {self.content_type} {self.body}"

    async def send(self, server: Server, prefix: str) -> RawResponse:
        """Send the request to one server."""
        body, path = _filled(self.body, prefix), self.path.replace("{prefix}", prefix)
        if self.based_on or self.precondition:
            at = (self.based_on or path.partition("?")[0]).replace("{prefix}", prefix)
            present = (await server.request("GET", at)).body
            metadata = present.get("metadata") or {}
            if self.based_on:
                body = _merged(present, body) if present.get("kind") != "Status" else body
            elif self.precondition == "version":
                body["preconditions"] = {"resourceVersion": metadata.get("resourceVersion", "1")}
            else:
                body["preconditions"] = {"uid": metadata.get("uid", "none")}
        headers = {"Accept": self.accept} if self.accept else {}
        return await server.request(
            self.method, path, body, content_type=self.content_type, headers=headers
        )


def _filled(value: Any, prefix: str) -> Any:
    if isinstance(value, str):
        return value.replace("{prefix}", prefix)
    if isinstance(value, list):
        return [_filled(each, prefix) for each in value]
    if isinstance(value, dict):
        return {key: _filled(each, prefix) for key, each in value.items()}
    return value


def _merged(present: Any, change: Any) -> Any:
    """Return *present* after a merge patch."""
    if not isinstance(change, dict):
        return change
    result = dict(present) if isinstance(present, dict) else {}
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merged(result.get(key), value)
    return result


_TEXTS = st.sampled_from(("x", "y", "", "A b", "a" * 64))
_KEYS = st.sampled_from(("k", "ex.io/k", "-", "K_k.k"))
_METADATA: Mapping[str, Strategy] = {
    "labels": st.dictionaries(_KEYS, _TEXTS, max_size=2),
    "annotations": st.dictionaries(_KEYS, _TEXTS, max_size=2),
    "finalizers": st.lists(st.sampled_from(("ex.io/a", "ex.io/b")), max_size=2, unique=True),
    "generateName": st.just("gen-"),
    "namespace": st.sampled_from(("default", "other", "")),
    "uid": st.sampled_from(("", "u")),
    "generation": st.integers(-1, 3),
    "creationTimestamp": st.sampled_from((None, "2026-01-01T00:00:00Z")),
    "deletionTimestamp": st.just("2026-01-01T00:00:00Z"),
}
_ODD = st.sampled_from((None, "", "x", 0, -1, True, [], {}, ["x"], {"x": "y"}))


@st.composite
def _changed_metadata(draw: st.DrawFn) -> Json:
    chosen = draw(st.lists(st.sampled_from(sorted(_METADATA)), max_size=2, unique=True))
    usual = st.sampled_from(("labels", "annotations"))
    chosen = chosen if draw(st.integers(0, 2)) == 0 else [draw(usual)]
    return {key: draw(_METADATA[key]) for key in chosen}


@st.composite
def _content(draw: st.DrawFn, kind: KindInfo) -> Json:
    """The fields of an object but its metadata; sometimes with an odd value."""
    body = copy.deepcopy(_minimal(kind))
    for key in ("apiVersion", "kind", "metadata"):
        body.pop(key)
    if kind.resource.kind in VALIDATED and draw(st.integers(0, 3)) == 0:
        _set_odd(draw, body)
    return body


def _set_odd(draw: st.DrawFn, body: Json) -> None:
    """Replace or remove one of the values in *body*."""
    inner: Any = body
    while True:
        keys = sorted(inner) if isinstance(inner, dict) else list(range(len(inner)))
        if not keys:
            return
        key = draw(st.sampled_from(keys))
        if isinstance(inner[key], dict | list) and inner[key] and draw(st.integers(0, 3)):
            inner = inner[key]
        else:
            break
    if draw(st.booleans()):
        del inner[key]
    else:
        inner[key] = draw(_ODD)


def _minimal(kind: KindInfo) -> Json:
    if not kind.custom:
        return samples.minimal_sample(kind)
    head = {"apiVersion": kind.resource.api_version, "kind": kind.resource.kind}
    return {**head, "metadata": {}, "spec": {"mode": "a", "replicas": 1, "tags": ["x"]}}


def _body(kind: KindInfo, name: str, metadata: Json, content: Json) -> Json:
    labels = {RUN: "{prefix}", **(metadata.get("labels") or {})}
    head = {"apiVersion": kind.resource.api_version, "kind": kind.resource.kind}
    return {**head, "metadata": {"name": name, **metadata, "labels": labels}, **content}


_WRITE_QUERIES = st.sampled_from(
    ("", "", "", "", "?dryRun=All", "?dryRun=Some", "?fieldManager=m", "?fieldManager=" + "m" * 129,
     "?fieldValidation=Strict", "?fieldValidation=Warn", "?fieldValidation=Ignore",
     "?fieldValidation=Odd")
)  # fmt: skip


def name_of(kind: KindInfo, name: str) -> str:
    """The name of an object; that of a driver is a domain."""
    return f"{{prefix}}-{name}{'.ex.io' if kind.resource.kind == 'CSIDriver' else ''}"


@st.composite
def _create(draw: st.DrawFn, kind: KindInfo) -> RandomRequest:
    name = name_of(kind, draw(st.sampled_from(NAMES)))
    body = _body(kind, name, draw(_changed_metadata()), draw(_content(kind)))
    if draw(st.integers(0, 9)) == 0:
        keys = ("unknown", "apiVersion") if kind.custom else ("unknown", "apiVersion", "kind")
        body[draw(st.sampled_from(keys))] = "x"
    query = draw(_WRITE_QUERIES)
    if not query and draw(st.integers(0, 4)) == 0:
        body["metadata"]["resourceVersion"] = draw(st.sampled_from(("1", "", "x")))
    return RandomRequest("POST", _path(kind) + query, body)


@st.composite
def _update(draw: st.DrawFn, kind: KindInfo) -> RandomRequest:
    path, _ = draw(_target(kind))
    change: Json = {"metadata": draw(_changed_metadata())}
    change |= draw(_content(kind)) if draw(st.booleans()) else {}
    if draw(st.integers(0, 7)) == 0:
        change = {"metadata": {"resourceVersion": draw(st.sampled_from(("1", "x")))}}
    return RandomRequest("PUT", path + draw(_WRITE_QUERIES), change, based_on=path)


@st.composite
def _patch(draw: st.DrawFn, kind: KindInfo) -> RandomRequest:
    path, name = draw(_target(kind))
    form = draw(st.sampled_from((MERGE, MERGE, STRATEGIC, JSON_PATCH, APPLY, "text/plain")))
    change: Any = {"metadata": draw(_changed_metadata())}
    change |= draw(_content(kind)) if draw(st.booleans()) else {}
    query = draw(_WRITE_QUERIES)
    if form == JSON_PATCH:
        operation = draw(st.sampled_from(("add", "remove", "test")))
        where = draw(st.sampled_from(("/metadata/labels/k", "/metadata/annotations", "/none/x")))
        change = [{"op": operation, "path": where, "value": draw(_TEXTS)}]
    elif form == APPLY:
        path = path.removesuffix("/status")  # where kube-apiserver creates some kinds
        change["metadata"].pop("deletionTimestamp", None)  # which an apply that creates stores
        change = _body(kind, name, change["metadata"], draw(_content(kind)))
        query = f"?fieldManager={draw(st.sampled_from(('one', 'two')))}" + draw(
            st.sampled_from(("", "&force=true"))
        )
    return RandomRequest("PATCH", path + query, change, form)


@st.composite
def _target(draw: st.DrawFn, kind: KindInfo) -> tuple[str, str]:
    """The path of an object or its status, and its name."""
    name = name_of(kind, draw(st.sampled_from(NAMES)))
    path = f"{_path(kind)}/{name}"
    if draw(st.integers(0, 4)) == 0:
        path += "/status"
    return path, name


@st.composite
def _scale(draw: st.DrawFn, kind: KindInfo) -> RandomRequest:
    name = name_of(kind, draw(st.sampled_from(NAMES)))
    path = f"{_path(kind)}/{name}/scale"
    replicas = draw(st.sampled_from((0, 1, 5, -1, "x", None)))
    change = {"spec": {"replicas": replicas}}
    if draw(st.booleans()):
        return RandomRequest("PATCH", path, change, MERGE)
    if draw(st.booleans()):
        return RandomRequest("PUT", path, change, based_on=path)
    return RandomRequest("GET", path)


@st.composite
def _read(draw: st.DrawFn, kind: KindInfo) -> RandomRequest:
    if draw(st.integers(0, 2)) == 0:
        path, _ = draw(_target(kind))
        query = draw(st.sampled_from(("", "", "?resourceVersion=x")))
        forms = ("",) if path.endswith("/status") else ("", "", TABLE)
        return RandomRequest("GET", path + query, accept=draw(st.sampled_from(forms)))
    return RandomRequest(
        "GET",
        f"{_path(kind)}?{draw(_selection(kind))}{draw(_LIST_QUERIES)}",
        accept=draw(st.sampled_from(("", "", TABLE, METADATA_LIST))),
    )


_LIST_QUERIES = st.sampled_from(
    ("", "", "", "&limit=x", "&limit=-1", "&resourceVersion=x", "&resourceVersionMatch=Exact",
     "&resourceVersionMatch=Odd&resourceVersion=1", "&continue=x", "&timeoutSeconds=x")
)  # fmt: skip
_SELECTORS = st.sampled_from(
    (
        "",
        "",
        "k=x",
        "k!=x",
        "k",
        "!k",
        "k in (x,y)",
        "k notin (x)",
        "ex.io/k=",
        "k=A b",
        "=",
        "k in x",
    )
)


@st.composite
def _selection(draw: st.DrawFn, kind: KindInfo) -> str:
    more = draw(_SELECTORS)
    labels = f"{RUN}={{prefix}}" + (f",{more}" if more else "")
    query = f"labelSelector={quote(labels, safe='{}')}"
    label = draw(
        st.sampled_from(("", "", "metadata.name", "metadata.namespace", "none", *kind.field_labels))
    )
    if label:
        operator = draw(st.sampled_from(("=", "==", "!=")))
        value = draw(st.sampled_from((name_of(kind, "a"), "default", "x", "")))
        query += f"&fieldSelector={quote(label + operator + value, safe='{}')}"
    return query


@st.composite
def _delete(draw: st.DrawFn, kind: KindInfo) -> RandomRequest:
    # The garbage collector would change what waits for it, and Jobs keep their pods by default.
    options: Json = {"propagationPolicy": "Background"}
    more: Json = draw(
        st.sampled_from(
            ({}, {}, {}, {"gracePeriodSeconds": 0}, {"gracePeriodSeconds": -1},
             {"dryRun": ["All"]}, {"dryRun": ["x"]}, {"propagationPolicy": "x"},
             {"orphanDependents": True}, {"kind": "DeleteOptions", "apiVersion": "v1"})
        )
    )  # fmt: skip
    if draw(st.integers(0, 4)) == 0:
        return RandomRequest("DELETE", f"{_path(kind)}?{draw(_selection(kind))}", options | more)
    name = name_of(kind, draw(st.sampled_from(NAMES)))
    precondition = draw(st.sampled_from(("", "", "", "version", "uid")))
    path = f"{_path(kind)}/{name}"
    return RandomRequest("DELETE", path, options | more, precondition=precondition)


@st.composite
def _odd_request(draw: st.DrawFn, kind: KindInfo) -> RandomRequest:
    name = name_of(kind, draw(st.sampled_from(NAMES)))
    choices = [("POST", f"/{name}/none"), ("GET", f"/{name}/none"), ("PUT", ""), ("PATCH", "")]
    if not kind.custom:  # of which kube-apiserver creates an object there
        choices.append(("POST", f"/{name}"))
    method, path = draw(st.sampled_from(choices))
    body = None if method == "GET" else _body(kind, name, {}, draw(_content(kind)))
    return RandomRequest(method, _path(kind) + path, body, MERGE if method == "PATCH" else JSON)


JSON = "application/json"


def _path(kind: KindInfo) -> str:
    return kind.resource.path("default" if kind.resource.namespaced else "")


@st.composite
def sequences(draw: st.DrawFn) -> tuple[KindInfo, list[RandomRequest]]:
    """A kind, and requests about two of its objects, of which the first creates one."""
    kind = draw(st.sampled_from(KINDS))
    name = name_of(kind, "a")
    content = {key: value for key, value in _minimal(kind).items() if key != "metadata"}
    first = RandomRequest("POST", _path(kind), _body(kind, name, {}, content))
    steps = [_create, _update, _patch, _patch, _read, _read, _delete, _odd_request]
    if "scale" in kind.subresources:
        steps.append(_scale)
    request = st.sampled_from(steps).flatmap(lambda step: step(kind))
    return kind, [first, *draw(st.lists(request, min_size=3, max_size=8))]
