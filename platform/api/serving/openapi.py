"""The description of the API (OpenAPI 3.1), complete without the help of each route.

A route declares what is special to it: the body, its parameters, and the statuses of
:func:`..problems.problem_responses`. Statuses that every route of its kind has, the security scheme
and the schema of a problem are added here.
"""

from collections.abc import Sequence
from typing import Any

from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from ...wire.problem import Problem
from ..problems import MEDIA_TYPE, problem_responses
from ..schemas.responses import schema_of

TITLE = "Batholith"
VERSION = "1"

TAGS = {
    "jobs": "Volcano's jobs, Kubernetes' own (`batchjobs`) and training jobs.",
    "pods": "Pods, logs, events, and the explanation of what a job waits for.",
    "commands": "Commands to jobs and queues, and their outcomes.",
    "queues": "Queues and their use.",
    "podgroups": "PodGroups: gangs of pods.",
    "nodes": "Nodes and their pods.",
    "jobflows": "Job flows and their jobs.",
    "cronjobs": "CronJobs and the jobs that they start.",
    "history": "Jobs that may be deleted already.",
    "usage": "Resources that jobs have used over time.",
    "watch": "Server-sent events about changes.",
}

_COMMON = {
    401: "The bearer token is missing or not accepted.",
    403: "The caller may not do this.",
    422: "A parameter or a field of the body is invalid; `errors` names each.",
    429: "Too many requests; `Retry-After` is the time to wait.",
    502: "The Kubernetes API returned an unexpected error.",
    503: "The Kubernetes API or the database is unavailable; `Retry-After` is the time to wait.",
}
_WITH_BODY = {400: "The body is not JSON.", 413: "The body is too large."}
_EXAMPLE = {
    "type": "about:blank",
    "title": "Not Found",
    "status": 404,
    "detail": "job 'train' not found in namespace 'default'",
}
_IDEMPOTENT = {409: "The state of the object, or a request with the same key, is in conflict."}
_DESCRIPTION = (
    "Jobs, queues and their history over HTTP. Errors are problems as in RFC 9457. Send a bearer "
    "token of the cluster with each request; permissions are those of Kubernetes' RBAC."
)


def operation_id(route: APIRoute) -> str:
    """Return the operationId of *route*: the name of its function."""
    return route.name


def describe(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """Return the description of *routes*."""
    tags = [{"name": name, "description": text} for name, text in TAGS.items()]
    document = get_openapi(
        title=TITLE, version=VERSION, description=_DESCRIPTION, routes=routes, tags=tags
    )
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    problem = schema_of(Problem).model_json_schema(ref_template="#/components/schemas/{model}")
    schemas |= problem.pop("$defs")
    schemas["Problem"] = problem | {"examples": [_EXAMPLE]}
    document["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"bearer": []}]
    for path, item in document["paths"].items():
        for method, operation in item.items():
            if "{kind}" in path:
                operation["responses"].setdefault("404", problem_responses(404)[404])
            _complete(operation, is_post=method == "post")
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    return document


def _complete(operation: dict[str, Any], *, is_post: bool) -> None:
    """Add the statuses that every operation of its kind has."""
    responses = operation["responses"]
    common = dict(_COMMON)
    if "requestBody" in operation:
        common |= _WITH_BODY
    if is_post and _has_idempotency_key(operation):
        common |= _IDEMPOTENT
    for status, text in common.items():
        described = responses.get(str(status), {})
        if MEDIA_TYPE not in described.get("content", {}) or status in _COMMON:
            responses[str(status)] = problem_responses(status)[status] | {"description": text}
    for retryable in ("429", "503"):
        responses[retryable]["headers"] = {
            "Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}
        }
    operation["responses"] = dict(sorted(responses.items()))


def _has_idempotency_key(operation: dict[str, Any]) -> bool:
    parameters: Sequence[dict[str, Any]] = operation.get("parameters", ())
    return any(each["name"].lower() == "idempotency-key" for each in parameters)
