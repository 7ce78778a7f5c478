"""Which methods and parameters paths have, by the description of the API."""

import asyncio
from typing import Any

from batholith.api.http.operations import OperationMiddleware, OperationTable


def table(*items: tuple[str, dict[str, Any]]) -> OperationTable:
    return OperationTable({"paths": dict(items), "components": {"schemas": KINDS}})


KINDS = {"Kind": {"enum": ["jobs", "batchjobs"]}}
KIND = {"name": "kind", "in": "path", "schema": {"$ref": "#/components/schemas/Kind"}}


def test_a_parameter_with_an_enum_matches_its_values_only() -> None:
    """``DELETE …/cronjobs/x`` is 405, not a job of an unknown kind."""
    found = table(
        ("/v1/{kind}/{name}", {"get": {"parameters": [KIND]}, "delete": {"parameters": [KIND]}}),
        ("/v1/cronjobs/{name}", {"patch": {}}),
        ("/v1/jobs/{name}", {"put": {}}),
    )
    assert set(found.operations("/v1/cronjobs/a")) == {"PATCH"}
    assert set(found.operations("/v1/batchjobs/a")) == {"GET", "DELETE"}
    assert set(found.operations("/v1/jobs/a")) == {"GET", "DELETE", "PUT"}
    assert found.operations("/v1/pods/a") == found.operations("/v1/jobs") == {}


def test_parameters_are_repeatable_if_they_are_lists() -> None:
    phases = {"anyOf": [{"type": "array"}, {"type": "null"}]}
    parameters = [
        {"name": "phase", "in": "query", "schema": phases},
        {"name": "limit", "in": "query", "schema": {"type": "integer"}},
        {"name": "x-header", "in": "header", "schema": {"type": "string"}},
    ]
    (operation,) = (
        table(("/v1/jobs", {"get": {"parameters": parameters}})).operations("/v1/jobs").values()
    )
    assert operation.query == {"phase": True, "limit": False}


async def test_a_request_whose_head_was_read_is_ended() -> None:
    """HEAD of a stream does not last as long as the stream."""
    ended = asyncio.Event()

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    sent = []

    async def send(message: Any) -> None:
        sent.append(message["type"])

    app = OperationMiddleware(stream, table=table(("/v1/watch", {"get": {}})))

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    await app({"type": "http", "method": "HEAD", "path": "/v1/watch"}, receive, send)
    assert ended.is_set()
    assert sent == ["http.response.start", "http.response.body"]
