"""schemathesis over the whole OpenAPI document, so that new routes need no line here.

No request may lead to a 5xx, or to a status, content type, header or body that the document does
not describe; and what the document forbids must be rejected.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from support.rest import JOB, RestClient
from support.rest_in_thread import RestThread

from batholith.api.serving.app import document
from batholith.model.names import CRONJOBS, JOBFLOWS, JOBS

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


def checks_of(label: str) -> list[Any]:
    """Return the checks of responses to *label*. What asks the scheduler is described to end with
    503 if none runs, as here."""
    if label in ("POST /v1/simulate", "GET /v1/reservations"):
        return [each for each in CHECKS if each is not not_a_server_error]
    return CHECKS


DOCUMENT = {key: value for key, value in document().items() if key != "security"}
"""Without the security scheme: it is no parameter to vary, all requests have a valid token."""

SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
OPERATIONS = {
    each.ok().label: each.ok() for each in SCHEMA.get_all_operations() if isinstance(each, Ok)
}

# Hypothesis sees that the state of the module changes, which the API in the other thread uses.
pytestmark = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")

NAMES = ["train", "spare-1", "spare-2", "nightly", "steps", "default", "absent"]
KNOWN: dict[str, list[str]] = {"namespace": ["default"], "name": NAMES, "kind": ["jobs"]}
"""Values of path parameters that exist, drawn besides any others: else nearly all would be 404."""

MAX_URL = 16_000
"""The listener rejects much longer ones."""

STEADY = settings.default is not None and settings.default.derandomize
EXAMPLES = 4 if STEADY else 200
FUZZING = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def takes_input(path: str, method: str) -> bool:
    """Whether there is a request that the document forbids."""
    operation = DOCUMENT["paths"][path][method.lower()]
    return bool(operation.get("parameters") or operation.get("requestBody"))


async def create_objects(rest: RestClient) -> None:
    """Create what the known names refer to; some requests delete it."""
    for name in NAMES[:3]:
        job = JOB | {"metadata": {"name": name}}
        await rest.client.create(JOBS, job, namespace="default")
    schedule = {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": JOB["spec"]}}
    cronjob = {"metadata": {"name": "nightly"}, "spec": schedule}
    await rest.client.create(CRONJOBS, cronjob, namespace="default")
    flow = {"metadata": {"name": "steps"}, "spec": {"flows": [{"name": "a"}]}}
    await rest.client.create(JOBFLOWS, flow, namespace="default")


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestClient]:
    with RestThread(tmp_path_factory.mktemp("rest")).serving() as thread:

        async def prepare(client: RestClient) -> None:
            await client.client.delete(JOBS, "train", namespace="default")
            await create_objects(client)

        thread.run(prepare)
        yield thread.rest


@pytest.fixture(scope="module")
def session(rest: RestClient) -> Iterator[requests.Session]:
    with requests.Session() as found:
        found.headers["Authorization"] = f"Bearer {rest.token}"
        yield found


def send(generated: Any, rest: RestClient, session: requests.Session) -> requests.Response:
    """Send a request; of a stream only the head is read, as it lasts until its client ends it."""
    if isinstance(generated.query, dict) and "follow" in generated.query:
        generated.query["follow"] = "false"  # else the response lasts as long as the pods
    request = generated.as_transport_kwargs(base_url=rest.url)
    prepared = session.prepare_request(
        requests.Request(request["method"], request["url"], params=request.get("params"))
    )
    assume(len(prepared.url or "") < MAX_URL)
    request["headers"] = dict(request.get("headers") or {}) | dict(session.headers)
    response = session.request(**request, stream=True, allow_redirects=False, timeout=60)
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        response._content = b""
        response.close()
    else:
        _ = response.content
    return response


@st.composite
def cases(draw: st.DrawFn, operation: Any, mode: GenerationMode) -> Any:
    """A request of *operation*, often for an object that exists."""
    request = draw(operation.as_strategy(generation_mode=mode))
    if mode is GenerationMode.POSITIVE:
        for name, value in list(request.path_parameters.items()):
            known = KNOWN.get(name)
            if known is not None and draw(st.integers(0, 9)) > 0:
                request.path_parameters[name] = draw(st.sampled_from([*known, value]))
    return request


@pytest.mark.parametrize("label", OPERATIONS)
def test_requests_get_the_described_responses(
    label: str, rest: RestClient, session: requests.Session
) -> None:
    @FUZZING
    @given(cases(OPERATIONS[label], GenerationMode.POSITIVE))
    def check(request: Any) -> None:
        request.validate_response(send(request, rest, session), checks=checks_of(label))

    check()


@pytest.mark.parametrize(
    "label", [label for label, each in OPERATIONS.items() if takes_input(each.path, each.method)]
)
def test_requests_that_are_not_described_are_rejected(
    label: str, rest: RestClient, session: requests.Session
) -> None:
    @FUZZING
    @given(cases(OPERATIONS[label], GenerationMode.NEGATIVE))
    def check(request: Any) -> None:
        checks = [*checks_of(label), negative_data_rejection]
        request.validate_response(send(request, rest, session), checks=checks)

    check()
