"""Responses are the types of the SDK, described in the OpenAPI document."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from batholith.api.schemas.responses import schema_of
from batholith.api.serving.app import document
from batholith.wire import (
    base,
    commands,
    flows,
    history,
    jobs,
    nodes,
    problem,
    queues,
    simulation,
    waits,
)


def wire_types() -> Iterator[type[base.Record]]:
    for module in (commands, flows, history, jobs, nodes, problem, queues, simulation, waits):
        for found in vars(module).values():
            is_own = isinstance(found, type) and found.__module__ == module.__name__
            if is_own and issubclass(found, base.Record):
                yield found


TYPES = {schema_of(each).__name__: each for each in wire_types()}
COMPONENTS: dict[str, Any] = document()["components"]["schemas"]


def response_schemas() -> set[str]:
    """Names of all objects that responses contain."""
    found: set[str] = set()
    todo = [
        response
        for operations in document()["paths"].values()
        for operation in operations.values()
        for response in operation["responses"].values()
    ]
    while todo:
        match todo.pop():
            case {"$ref": reference}:
                name = reference.rpartition("/")[2]
                if name not in found:
                    found.add(name)
                    todo.append(COMPONENTS[name])
            case dict() as schema:
                todo.extend(schema.values())
            case list() as schemas:
                todo.extend(schemas)
    return {name for name in found if "properties" in COMPONENTS[name]}


def json_types(schema: dict[str, Any], components: dict[str, Any]) -> set[str]:
    """The types of JSON that a schema allows."""
    if "$ref" in schema:
        return json_types(components[schema["$ref"].rpartition("/")[2]], components)
    if "anyOf" in schema:
        return set().union(*(json_types(each, components) for each in schema["anyOf"]))
    if "type" not in schema:
        return {"null"} if schema.get("enum") == [None] else set()
    found = schema["type"]
    return {found} if isinstance(found, str) else set(found)


def test_every_response_is_of_a_type_of_the_sdk() -> None:
    some_fields = {"PartialJob"}  # of a job, which the SDK reads as a job
    assert response_schemas() - some_fields == TYPES.keys()


@pytest.mark.parametrize("name", TYPES)
def test_the_sdk_accepts_what_is_documented(name: str) -> None:
    [own], components = msgspec.json.schema_components([TYPES[name]], ref_template="#/{name}")
    fields = components[own["$ref"].rpartition("/")[2]]["properties"]
    assert list(COMPONENTS[name]["properties"]) == list(fields)
    for field, schema in COMPONENTS[name]["properties"].items():
        understood = json_types(fields[field], components)
        sent = json_types(schema, COMPONENTS) - ({"integer"} if "number" in understood else set())
        assert sent <= understood, field


@pytest.mark.parametrize("name", TYPES)
def test_fields_of_other_versions_are_no_error(name: str) -> None:
    identity = {"namespace": "a", "name": "b", "id": "c", "flow": "d", "uid": "e"}
    required = {
        each.name: identity.get(each.name, {"id": "c"})
        for each in msgspec.structs.fields(TYPES[name])
        if each.required
    }
    found = msgspec.convert({**required, "of_a_later_version": [1]}, TYPES[name])
    assert msgspec.structs.asdict(found).keys() == set(TYPES[name].__struct_fields__)


def test_descriptions_are_the_docstrings() -> None:
    job = COMPONENTS["JobOut"]
    assert job["description"] == "Summary of a job."
    assert job["properties"]["resource_version"]["description"] == "For `If-Match`."
    assert COMPONENTS["QueueList"]["properties"]["total"]["description"].startswith("Number of")
