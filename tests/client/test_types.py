"""The types of the SDK are those of the OpenAPI document of the REST API, in both directions."""

from typing import Any

import msgspec
import pytest
from fastapi import FastAPI

from batholith.api.serving.app import ROUTERS
from batholith.client.errors import FieldError, Problem
from batholith.client.types import commands, flows, history, jobs, queues

TYPES: dict[str, type[msgspec.Struct]] = {
    "Problem": Problem,
    "FieldProblem": FieldError,
    "JobOut": jobs.JobSummary,
    "JobList": jobs.JobPage,
    "TaskOut": jobs.TaskSummary,
    "PodOut": jobs.PodSummary,
    "PodList": jobs.PodPage,
    "EventOut": jobs.Event,
    "EventObject": jobs.EventObject,
    "EventList": jobs.EventPage,
    "TimelineOut": jobs.Timeline,
    "PhaseOut": jobs.TimelinePhase,
    "WhyOut": jobs.Why,
    "PodGroupConditionOut": jobs.PodGroupCondition,
    "ExplanationOut": jobs.Explanation,
    "QueuePositionOut": jobs.QueuePosition,
    "GangCountsOut": jobs.GangCounts,
    "LimitOut": jobs.Limit,
    "LackOut": jobs.Lack,
    "NearestOut": jobs.NearestNode,
    "NodesOut": jobs.NodeExplanation,
    "QueueOut": queues.Queue,
    "QueueList": queues.QueuePage,
    "QueueUsage": queues.QueueUsage,
    "ResourceUsage": queues.ResourceUsage,
    "OwnerOut": queues.Owner,
    "PodGroupOut": queues.PodGroup,
    "PodGroupList": queues.PodGroupPage,
    "CommandOut": commands.Command,
    "CommandList": commands.CommandPage,
    "CommandResult": commands.CommandResult,
    "BulkResult": commands.BulkResult,
    "BulkResults": commands.BulkResults,
    "FlowJobOut": flows.FlowJob,
    "JobFlowOut": flows.JobFlow,
    "JobFlowList": flows.JobFlowPage,
    "CronJobOut": flows.CronJob,
    "CronJobList": flows.CronJobPage,
    "HistoryJobOut": history.RecordedJob,
    "HistoryJobList": history.RecordedJobPage,
    "HistoryJobDetails": history.JobHistory,
    "HistoryPhaseOut": history.RecordedPhase,
    "RecordedTaskOut": history.RecordedTask,
    "UsageOut": history.Usage,
    "UsageSeriesOut": history.UsageSeries,
    "UsagePointOut": history.UsagePoint,
}
UNTYPED = {"PartialJob"}
"""Those fields of another schema that a caller asks for."""
OF_PAGES = {"next_cursor", "total"}
"""Fields that every page of the SDK has, but not every list of the API."""


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    app = FastAPI()
    for router in ROUTERS:
        app.include_router(router)
    return app.openapi()


def responses(document: dict[str, Any]) -> set[str]:
    """Names of all schemas that responses contain."""
    found: set[str] = set()
    todo = [
        response
        for operations in document["paths"].values()
        for operation in operations.values()
        for response in operation["responses"].values()
    ]
    while todo:
        match todo.pop():
            case {"$ref": reference}:
                name = reference.rpartition("/")[2]
                if name not in found:
                    found.add(name)
                    todo.append(document["components"]["schemas"][name])
            case dict() as schema:
                todo.extend(schema.values())
            case list() as schemas:
                todo.extend(schemas)
    return {name for name in found if "properties" in document["components"]["schemas"][name]}


def json_types(schema: dict[str, Any], components: dict[str, Any]) -> set[str]:
    """The types of JSON that a schema allows."""
    if "$ref" in schema:
        return json_types(components[schema["$ref"].rpartition("/")[2]], components)
    if "anyOf" in schema:
        return set().union(*(json_types(each, components) for each in schema["anyOf"]))
    if "type" not in schema:
        return (
            {"null"} if schema.get("enum") == [None] else {"string"} if "enum" in schema else set()
        )
    found = schema["type"]
    return {found} if isinstance(found, str) else set(found)


def test_every_schema_of_a_response_has_a_type(document: dict[str, Any]) -> None:
    generated = {"HTTPValidationError", "ValidationError"}  # of FastAPI, unless it is replaced
    assert responses(document) - generated - UNTYPED == TYPES.keys()


@pytest.mark.parametrize("name", TYPES)
def test_a_type_has_exactly_the_fields_of_its_schema(name: str, document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    properties = schemas[name]["properties"]
    type_ = TYPES[name]
    optional = OF_PAGES if "items" in properties else set()
    assert set(type_.__struct_fields__) - optional == properties.keys() - optional
    [own], components = msgspec.json.schema_components([type_], ref_template="#/{name}")
    fields = components[own["$ref"].rpartition("/")[2]]["properties"]
    for field, schema in properties.items():
        sent = json_types(schema, schemas)
        understood = json_types(fields[field], components)
        assert sent - ({"integer"} if "number" in understood else set()) <= understood, field
