"""Responses are structs of :mod:`batholith.wire`; here are their schemas for the OpenAPI document.

FastAPI derives a document from pydantic models, so each struct has one, which describes it and is
never instantiated. The bytes of a response are those of the struct itself.
"""

import ast
import functools
import inspect
import itertools
import operator
import sys
from collections.abc import Callable
from datetime import datetime
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
from fastapi import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field, create_model

from ...wire import commands, history, jobs, problem, queues
from ...wire.base import Sends

JSON = "application/json"

_NAMES: dict[type[msgspec.Struct], str] = {
    commands.CommandResult: "CommandResult",
    commands.BulkResult: "BulkResult",
    commands.BulkResults: "BulkResults",
    history.JobHistory: "HistoryJobDetails",
    history.RecordedJob: "HistoryJobOut",
    history.RecordedJobPage: "HistoryJobList",
    history.RecordedPhase: "HistoryPhaseOut",
    jobs.EventObject: "EventObject",
    jobs.JobSummary: "JobOut",
    jobs.NearestNode: "NearestOut",
    jobs.NodeExplanation: "NodesOut",
    jobs.PodSummary: "PodOut",
    jobs.TaskSummary: "TaskOut",
    jobs.TimelinePhase: "PhaseOut",
    problem.FieldProblem: "FieldProblem",
    problem.Problem: "Problem",
    queues.QueueUsage: "QueueUsage",
    queues.ResourceUsage: "ResourceUsage",
}
"""Names of schemas that do not follow from those of their types."""


@functools.cache
def schema_of(struct: type[msgspec.Struct]) -> type[BaseModel]:
    """Return the model that describes *struct* in the OpenAPI document."""
    texts = _field_docstrings(struct)
    fields: dict[str, Any] = {
        each.name: _described(each, texts.get(each.name)) for each in msgspec.structs.fields(struct)
    }
    return create_model(_name(struct), __doc__=_markdown(struct.__doc__), **fields)


class WireRoute(APIRoute):
    """A route whose function may return a struct of :mod:`batholith.wire`."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """Create the route; *options* are those of FastAPI."""
        result = get_type_hints(endpoint).get("return")
        if isinstance(result, type) and issubclass(result, msgspec.Struct):
            options["response_model"] = schema_of(result)
            endpoint = _encoded(endpoint, options.get("status_code") or 200)
        super().__init__(path, endpoint, **options)


def respond(body: msgspec.Struct, status: int = 200, **headers: str) -> Response:
    """Return the response with *body*."""
    return Response(msgspec.json.encode(body), status, headers=headers, media_type=JSON)


def _encoded(endpoint: Callable[..., Any], status: int) -> Callable[..., Any]:
    @functools.wraps(endpoint)
    async def respond_with_result(*arguments: Any, **named: Any) -> Response:
        return respond(await endpoint(*arguments, **named), status)

    # FastAPI must not take the struct for a model when a router includes the route again.
    respond_with_result.__annotations__ = {**endpoint.__annotations__, "return": Response}
    return respond_with_result


def _name(struct: type[msgspec.Struct]) -> str:
    name = struct.__name__
    if struct in _NAMES:
        return _NAMES[struct]
    if name.endswith("Page"):
        return f"{name.removesuffix('Page')}List"
    return name if name.endswith("List") else f"{name}Out"


def _described(field: Any, text: str | None) -> Any:
    """Return annotation and default of a field of a model; a response has every field."""
    plain, *notes = get_args(field.type) if get_origin(field.type) is Annotated else [field.type]
    sends = next((each for each in notes if isinstance(each, Sends)), Sends(plain))
    examples = next((each.examples for each in notes if isinstance(each, msgspec.Meta)), None)
    default: Any = ... if sends.always else field.default_factory()
    return _sent(sends.type), Field(default, description=_markdown(text), examples=examples)


def _sent(annotation: Any) -> Any:
    """Return *annotation* as it is on the wire: models for structs, text for times."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is datetime:
        return str
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return schema_of(annotation)
    if origin in (list, dict):
        return origin[tuple(map(_sent, arguments))]
    if origin in (Union, UnionType):
        return functools.reduce(operator.or_, map(_sent, arguments))
    return annotation


def _field_docstrings(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Return the strings that follow the fields in the source of *struct* and its bases."""
    found: dict[str, str] = {}
    for class_ in reversed(struct.__mro__):
        if class_ in (msgspec.Struct, object) or not issubclass(class_, msgspec.Struct):
            continue
        found |= _texts_of(class_.__module__)[class_.__qualname__]
    return found


@functools.cache
def _texts_of(module: str) -> dict[str, dict[str, str]]:
    """Return the docstrings of fields in the source of a module, by class and field.

    `inspect.getsource` of a class would parse the whole module each time, at the start of a server.
    """
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {each.name: _texts_in(each) for each in tree.body if isinstance(each, ast.ClassDef)}


def _texts_in(class_: ast.ClassDef) -> dict[str, str]:
    return {
        ast.unparse(field.target): inspect.cleandoc(ast.literal_eval(text.value))
        for field, text in itertools.pairwise(class_.body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


def _markdown(text: str | None) -> str | None:
    """Return a docstring as OpenAPI documents write it."""
    return None if text is None else text.replace("``", "`").replace("\n", " ")
