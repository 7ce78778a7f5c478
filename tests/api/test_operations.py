"""Methods, paths and query parameters of the REST API, for all routes alike."""

import pytest
from support.rest import PATH, RestClient

from batholith.api.http.operations import OperationTable
from batholith.api.serving.app import document

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIST = "/v1/namespaces/default/jobs"


@pytest.fixture
def rest(module_rest: RestClient) -> RestClient:
    return module_rest


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
