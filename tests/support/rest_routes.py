"""All routes of the REST API that write, with paths and bodies that are valid."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from support.admission import cronjob

from batholith.model.names import CRONJOBS, JOBS, QUEUES, Resource

Json = dict[str, Any]

NAME = "train"
"""Name of all objects."""

PARAMETERS = {"namespace": "default", "id_": "none"}
BODIES: Mapping[tuple[str, str], object] = {
    ("POST", "/v1/namespaces/{namespace}/jobs/{name}/commands"): {"action": "suspend"},
    ("PATCH", "/v1/namespaces/{namespace}/cronjobs/{name}"): {"suspend": True},
}
"""Bodies of routes whose description has no example."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRoute:
    """A request that writes."""

    method: str
    path: str
    body: object = None


def stored_objects() -> Sequence[tuple[Resource, Json]]:
    """Objects that the routes write."""
    pods = {"containers": [{"name": "c", "image": "busybox"}], "restartPolicy": "Never"}
    task = {"name": "t", "replicas": 1, "template": {"spec": pods}}
    job = {"minAvailable": 1, "tasks": [task]}
    return (
        (JOBS, _object(JOBS, job)),
        (CRONJOBS, _object(CRONJOBS, cronjob()["spec"])),
        (QUEUES, _object(QUEUES, {"weight": 1})),
    )


def _object(resource: Resource, spec: Json) -> Json:
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": NAME},
        "spec": spec,
    }


def write_routes(document: Json) -> list[WriteRoute]:
    """Return all requests that write by the OpenAPI *document*, for routes of several kinds all."""
    return [
        WriteRoute(method=method.upper(), path=path, body=_body(document, method, template))
        for template, operations in document["paths"].items()
        for method, operation in operations.items()
        if method in ("post", "put", "patch", "delete")
        for path in _paths(template, operation)
    ]


def _paths(template: str, operation: Json) -> Iterator[str]:
    choices: dict[str, Sequence[str]] = {}
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path":
            name, schema = parameter["name"], parameter["schema"]
            choices[name] = schema.get("enum") or [PARAMETERS.get(name, NAME)]
    for values in product(*choices.values()):
        yield template.format(**dict(zip(choices, values, strict=True)))


def _body(document: Json, method: str, template: str) -> object:
    operation = document["paths"][template][method]
    if "requestBody" not in operation:
        return None
    known = BODIES.get((method.upper(), template))
    content = operation["requestBody"]["content"]["application/json"]
    found = known or next(_examples(document, content), None)
    if found is None and operation["requestBody"].get("required"):
        raise AssertionError(f"{method} {template} has no example of its body")
    return found


def _examples(document: Json, content: Json) -> Iterator[object]:
    if "example" in content:
        yield content["example"]
    for each in content.get("examples", {}).values():
        yield each["value"]
    schema = content["schema"]
    for each in (schema, *schema.get("anyOf", ()), *schema.get("oneOf", ())):
        if "$ref" in each:
            each = document["components"]["schemas"][each["$ref"].rpartition("/")[2]]
        yield from each.get("examples", ())
