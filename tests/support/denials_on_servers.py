"""Responses of servers to the writes of `support.denial_phrases`, sent as dry runs."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from support.admission import queue
from support.cel_policies import RESOURCES
from support.denial_phrases import DenialCase
from support.embedded_apiserver import MERGE, RawResponse, Server
from support.polling import wait_until_true

from batholith.model.names import QUEUES, Resource

Json = dict[str, Any]


async def create_queues(server: Server, cases: Iterable[DenialCase]) -> None:
    """Create the queues of all *cases*, which agree about them."""
    expected = {"root": queue("root"), "default": queue("default", parent="root")}
    for case in cases:
        expected |= {each["metadata"]["name"]: each for each in case.existing_queues}
    for name, body in expected.items():
        await server.create(QUEUES.path(), body)
        path = QUEUES.path(name=name, subresource="status")
        status = {"status": body["status"]}
        response = await server.request("PATCH", path, status, content_type=MERGE)
        assert response.status == 200, response.body


async def denials(
    server: Server,
    cases: Mapping[str, DenialCase],
    *,
    eventually_consistent: Callable[[str, str], bool] = lambda phrase, message: False,
) -> dict[str, str]:
    """Return the denial message of each write, ``""`` where it is accepted.

    A write is repeated while *eventually_consistent* is true for phrase and response: the server
    has not yet seen what is there.
    """
    messages = {}
    for phrase, case in cases.items():
        if case.old is not None and case.old["kind"] != "Queue":
            await server.create(_path(case.old), _sent(case.old))

        async def denial(phrase: str = phrase, case: DenialCase = case) -> bool:
            response = await _try(server, case)
            messages[phrase] = "" if response.status < 400 else str(response.body["message"])
            return not eventually_consistent(phrase, messages[phrase])

        await wait_until_true(denial)
        if case.old is not None and case.old["kind"] != "Queue":
            await server.request("DELETE", _path(case.old, case.old["metadata"]["name"]))
    return messages


async def _try(server: Server, case: DenialCase) -> RawResponse:
    if case.new is None:
        assert case.old is not None
        at = _path(case.old, case.old["metadata"]["name"])
        return await server.request("DELETE", f"{at}?dryRun=All")
    if case.old is None:
        return await server.request("POST", f"{_path(case.new)}?dryRun=All", _sent(case.new))
    at = _path(case.new, case.new["metadata"]["name"])
    now = await server.get(at)
    sent = _sent(case.new)
    sent["metadata"]["resourceVersion"] = now["metadata"]["resourceVersion"]
    return await server.request("PUT", f"{at}?dryRun=All", sent)


def _path(body: Json, name: str = "") -> str:
    resource: Resource = RESOURCES[body["kind"]]
    return resource.path("default" if resource.namespaced else "", name)


def _sent(body: Json) -> Json:
    metadata = {key: value for key, value in body["metadata"].items() if key != "namespace"}
    return {**body, "metadata": metadata}
