"""Methods, paths and query parameters of the REST API, for all routes alike."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.rest import PATH, RestClient, cluster, rest_at, running_api, sqlite

from batholith.api.http.operations import OperationTable
from batholith.api.serving.app import document

LIST = "/v1/namespaces/default/jobs"


@pytest.fixture
async def rest(tmp_path: Path) -> AsyncIterator[RestClient]:
    async with (
        cluster(tmp_path) as (server, client),
        running_api(client, sqlite(tmp_path)) as url,
        rest_at(url, server, client) as found,
    ):
        yield found


async def test_a_405_names_all_methods_of_the_path(rest: RestClient) -> None:
    """Starlette names those of the first route only."""
    headers = {"Authorization": f"Bearer {rest.token}"}
    for path, item in document()["paths"].items():
        concrete = path.replace("{kind}", "jobs").replace("{", "").replace("}", "")
        expected = {method.upper() for method in item}
        operations = OperationTable(document()).operations(concrete)
        assert expected <= set(operations), path
        missing = next(each for each in ("TRACE", "DELETE", "PUT") if each not in operations)
        sending = rest.session.request(missing, rest.url + concrete, headers=headers)
        async with sending as response:
            allowed = set(response.headers["allow"].split(", "))
            assert (response.status, response.content_type) == (405, "application/problem+json")
            assert allowed == set(operations) | ({"HEAD"} if "GET" in operations else set())


async def test_pages_without_description_name_their_methods_too(rest: RestClient) -> None:
    async with rest.session.delete(f"{rest.url}/readyz") as response:
        assert (response.status, response.headers["allow"]) == (405, "GET")


async def test_head_is_a_get_without_its_body(rest: RestClient) -> None:
    headers = {"Authorization": f"Bearer {rest.token}"}
    async with rest.session.get(rest.url + LIST, headers=headers) as response:
        size = len(await response.read())
    async with rest.session.head(rest.url + LIST, headers=headers) as response:
        assert (response.status, response.headers["content-length"]) == (200, str(size))
        assert await response.read() == b""
    async with rest.session.head(f"{rest.url}{LIST}/none", headers=headers) as response:
        assert response.status == 404
    async with rest.session.head(f"{rest.url}{PATH}/commands/", headers=headers) as response:
        assert response.status == 404
    async with rest.session.head(rest.url + LIST) as response:
        assert response.status == 401


async def test_unknown_paths_are_problems(rest: RestClient) -> None:
    for path in ("/", "/v1", "/v2/jobs", "/v1/nothing", f"{LIST}/", "/v1/jobs/x/y/z"):
        status, problem = await rest.call("GET", path)
        assert (status, problem["status"], problem["title"]) == (404, 404, "Not Found")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("colour=red", "colour"),
        ("limit=1&Limit=2", "Limit"),
        ("limit=1&limit=2", "limit"),
        ("=", ""),
        ("%00=1", "\0"),
    ],
)
async def test_unknown_and_repeated_query_parameters_are_rejected(
    rest: RestClient, query: str, field: str
) -> None:
    status, problem = await rest.call("GET", f"{PATH}/commands?{query}")
    assert (status, [each["field"] for each in problem["errors"]]) == (422, [field])
    status, _ = await rest.call("GET", f"{PATH}/commands?{query}", token="wrong")
    assert status == 401, "who is not authenticated learns nothing about parameters"


async def test_a_route_without_parameters_accepts_none(rest: RestClient) -> None:
    status, problem = await rest.call("GET", "/v1/cronjobs?force=true")
    assert status == 422
    assert problem["errors"][0]["message"] == "unknown query parameter; known: none"


@pytest.mark.parametrize("value", ["1_0", "+5", " 5", "5 ", "5%0A", "05", "5.0", "%C2%A05", "1e1"])
async def test_a_number_is_written_as_in_json(rest: RestClient, value: str) -> None:
    """Others are no integers by the description of the API."""
    for path in ("/v1/podgroups", "/v1/jobs", "/v1/queues", f"{PATH}/events"):
        assert (await rest.call("GET", f"{path}?limit={value}"))[0] == 422, path
        assert (await rest.call("GET", f"{path}?limit=5"))[0] == 200


async def test_a_flag_is_true_or_false(rest: RestClient) -> None:
    for value, expected in {"true": 200, "false": 200, "1": 422, "yes": 422, "True": 422}.items():
        path = f"{PATH}/logs?timestamps={value}&container=none"
        status, problem = await rest.call("GET", path)
        assert (status == 422) == (expected == 422), (value, problem)


async def test_an_unknown_parameter_or_field_is_answered_with_the_nearest(rest: RestClient) -> None:
    _, problem = await rest.call("GET", f"{LIST}?phaze=Running")
    message = "unknown query parameter; did you mean 'phase'?"
    assert problem["errors"] == [{"field": "phaze", "message": message}]
    status, problem = await rest.call(
        "POST", f"{PATH}/commands", json={"action": "suspend", "tsk": "a"}
    )
    assert status == 422
    assert problem["errors"] == [{"field": "tsk", "message": "unknown field; did you mean 'task'?"}]
    body = {"image": "x", "comand": ["true"], "replicas": 0}
    status, problem = await rest.call("POST", LIST, json=body)
    assert status == 422
    assert {each["field"]: each["message"] for each in problem["errors"]} == {
        "comand": "unknown field; did you mean 'command'?",
        "replicas": "Input should be greater than or equal to 1",
    }


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
    from batholith.api.http.operations import OperationMiddleware

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
