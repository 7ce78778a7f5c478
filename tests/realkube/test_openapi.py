"""OpenAPI v3 of built-in kinds, from which `kubectl explain` reads, matches kube-apiserver's."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.api_servers import RealServerFactory
from support.api_types import without_descriptions

from batholith.local.apiserver.builtin.kinds import BUILT_IN
from batholith.local.apiserver.discovery import openapi

Json = dict[str, Any]
Operations = dict[tuple[str, str], Json]

UNSUPPORTED_PATHS = re.compile(
    r"/watch/"  # a deprecated form of lists with `watch`
    r"|/componentstatuses\b"  # deprecated
    r"|/proxy/\{path\}$"  # supported; `/proxy` describes it
    r"|/v\w+/$"  # the resources of a group: discovery
)
UNUSED_SCHEMAS = (
    "APIResource", "APIResourceList", "Patch", "RawExtension", "WatchEvent",  # no kinds
    "ComponentCondition", "ComponentStatus", "ComponentStatusList",  # deprecated
)  # fmt: skip
"""What kube-apiserver describes and no operation of the embedded server refers to."""

UNSUPPORTED_METHODS = ("head", "options")
"""Those of `/proxy`; the others are described."""

OMITTED_PARAMETERS = {
    "list": {"shardSelector"},  # of a feature that is off by default
    "delete": {"ignoreStoreReadErrorWithClusterBreakingPotential"},  # of a feature that is off
    "deletecollection": {
        "ignoreStoreReadErrorWithClusterBreakingPotential", "shardSelector",
        # Those of lists, which have no effect on a deletion.
        "continue", "resourceVersion", "resourceVersionMatch", "sendInitialEvents",
        "timeoutSeconds",
    },
}  # fmt: skip
"""By action: what kube-apiserver describes and the embedded server does not."""


def operations(document: Json) -> Operations:
    """Return the operations by path and method, with the parameters of their paths."""
    return {
        (path, method): {
            **operation,
            "parameters": [*operation.get("parameters", ()), *item.get("parameters", ())],
        }
        for path, item in document["paths"].items()
        if not UNSUPPORTED_PATHS.search(path)
        for method, operation in item.items()
        if method != "parameters" and method not in UNSUPPORTED_METHODS
    }


def parameters(operation: Json) -> set[tuple[str, str]]:
    """Return names and types of the parameters of an operation."""
    return {(each["name"], each["schema"]["type"]) for each in operation["parameters"]}


def differing_schemas(theirs: Json, ours: Json) -> Iterator[str]:
    """Yield the schemas that differ, other than in descriptions, and kinds without one."""
    expected = theirs["components"]["schemas"]
    for name, schema in ours["components"]["schemas"].items():
        if name in expected and without_descriptions(schema) != without_descriptions(
            expected[name]
        ):
            yield f"schema {name}"
    for name in expected.keys() - ours["components"]["schemas"].keys():
        if name.rpartition(".")[2] not in UNUSED_SCHEMAS:
            yield f"no schema {name}"


RENAMED = re.compile(r"\.scheduling\.v1alpha2\.|[.]nodeAllocatableResource", re.IGNORECASE)
"""Properties whose names differ in the version of the API that the installed package describes."""


def missing_descriptions(theirs: Json, ours: Json) -> Iterator[str]:
    """Yield the properties that only kube-apiserver describes."""
    expected = theirs["components"]["schemas"]
    for name, schema in ours["components"]["schemas"].items():
        for field, described in expected.get(name, {}).get("properties", {}).items():
            found = schema["properties"][field]
            path = f"{name}.{field}"
            lacking = "description" in described and not found.get("description")
            if lacking and not RENAMED.search(path):
                yield f"no description of {path}"


def differing_operations(theirs: Operations, ours: Operations) -> Iterator[str]:
    """Yield the operations that only one of both has, or that differ."""
    for key in theirs.keys() ^ ours.keys():
        yield f"{key} {'missing' if key in theirs else 'unexpected'}"
    for key in theirs.keys() & ours.keys():
        wanted, found = theirs[key], ours[key]
        action = wanted["x-kubernetes-action"]
        for field in ("x-kubernetes-action", "x-kubernetes-group-version-kind"):
            if wanted.get(field) != found.get(field):
                yield f"{key} {field}: {found.get(field)} instead of {wanted.get(field)}"
        if action == "connect" or key[0].endswith("/log"):
            continue  # their parameters are options of kinds that clients do not send as objects
        omitted = OMITTED_PARAMETERS.get(action, set())
        different = {
            each for each in parameters(wanted) ^ parameters(found) if each[0] not in omitted
        }
        if different:
            yield f"{key} parameters: {sorted(different)}"


async def test_the_documents_describe_the_same_kinds_and_operations(
    real: RealServerFactory, tmp_path: Path
) -> None:
    found: list[str] = []
    async with real.start(tmp_path) as server:
        for root in openapi.index(BUILT_IN)["paths"]:
            theirs = await server.get(f"/openapi/v3/{root}")
            ours = openapi.document(root, BUILT_IN)
            assert ours is not None
            found += differing_schemas(theirs, ours)
            found += missing_descriptions(theirs, ours)
            found += differing_operations(operations(theirs), operations(ours))
    assert found == []
