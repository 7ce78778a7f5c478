"""All routes of the REST API that write, with paths and bodies that are valid."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from support.admission import cronjob

from batholith.model.names import CRONJOBS, JOBS, QUEUES, Resource

Json = dict[str, Any]

NAME = "train"
"""Name of all objects."""

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
TRAINING = sorted(path.stem for path in (EXAMPLES / "training-jobs").iterdir())

PARAMETERS = {"namespace": "default", "id_": "none"}
KIND = "kind"
"""Parameter of routes for jobs of all kinds."""

BODIES: Mapping[tuple[str, str], object] = {
    ("post", "/v1/namespaces/{namespace}/jobs/{name}/commands"): {"action": "suspend"},
    ("patch", "/v1/namespaces/{namespace}/cronjobs/{name}"): {"suspend": True},
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
    return (
        *((_resource_of(job), job) for job in _jobs().values()),
        (CRONJOBS, _object(CRONJOBS, cronjob()["spec"])),
        (QUEUES, _object(QUEUES, {"weight": 1})),
    )


def _jobs() -> dict[str, Json]:
    """Return a job of each kind by its segment in paths."""
    pods = {"containers": [{"name": "c", "image": "busybox"}], "restartPolicy": "Never"}
    task = {"name": "t", "replicas": 1, "template": {"spec": pods}}
    return {
        "jobs": _object(JOBS, {"minAvailable": 1, "tasks": [task]}),
        "batchjobs": _example("batch-job.yaml"),
        **{f"{kind}s": _example(f"training-jobs/{kind}.yaml") for kind in TRAINING},
    }


def _example(name: str) -> Json:
    found: Json = next(yaml.safe_load_all((EXAMPLES / name).read_text()))
    return found | {"metadata": {"name": NAME}}


def _object(resource: Resource, spec: Json) -> Json:
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": NAME},
        "spec": spec,
    }


def _resource_of(obj: Json) -> Resource:
    group, _, version = obj["apiVersion"].rpartition("/")
    return Resource(group, version, f"{obj['kind'].lower()}s", obj["kind"])


def write_routes(document: Json) -> list[WriteRoute]:
    """Return all requests that write by the OpenAPI *document*, for routes of several kinds all."""
    return [
        WriteRoute(
            method=method.upper(),
            path=template.format(**values),
            body=_body_of_kind(method, template, values) or _body(document, method, template),
        )
        for template, operations in document["paths"].items()
        for method, operation in operations.items()
        if method in ("post", "put", "patch", "delete")
        for values in _path_values(document, operation)
    ]


def _path_values(document: Json, operation: Json) -> Iterator[dict[str, str]]:
    choices: dict[str, Sequence[str]] = {}
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path":
            name = parameter["name"]
            schema = _resolved(document, parameter["schema"])
            choices[name] = schema.get("enum") or [PARAMETERS.get(name, NAME)]
    for values in product(*choices.values()):
        yield dict(zip(choices, values, strict=True))


def _body_of_kind(method: str, template: str, values: Mapping[str, str]) -> object:
    """Return the body of a route for jobs of all kinds, if it depends on the kind."""
    kind = values.get(KIND, "")
    if method == "post" and template.endswith(f"{{{KIND}}}"):
        return _jobs()[kind] | {"metadata": {"name": "created"}}
    if not template.endswith("/scale"):
        return None
    if kind == "batchjobs":
        return {"parallelism": 2}
    return {"tasks": {"t" if kind == "jobs" else "Worker": 2}}


def _body(document: Json, method: str, template: str) -> object:
    operation = document["paths"][template][method]
    if "requestBody" not in operation:
        return None
    known = BODIES.get((method, template))
    content = operation["requestBody"]["content"].get("application/json", {"schema": {}})
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
        yield from _resolved(document, each).get("examples", ())


def _resolved(document: Json, schema: Json) -> Json:
    """Follow a reference."""
    if "$ref" not in schema:
        return schema
    found: Json = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return found
