"""Idempotency-Key on every POST: the same response, and nothing is done twice."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from support.embedded_apiserver import EmbeddedServer
from support.polling import wait_until_true
from support.rest import JOB, PATH, RestClient, cluster, rest_at, running_api, sqlite

from batholith.api.http import idempotency
from batholith.api.routes.dependencies import operation_id
from batholith.api.serving.app import ROUTERS
from batholith.kube.client.client import Client
from batholith.kube.errors import ConnectionLostError
from batholith.model.names import COMMANDS, JOBS, Resource
from batholith.store.commands import CommandStore
from batholith.store.database import StoreUnavailableError
from batholith.store.idempotency import IdempotencyStore

Json = dict[str, Any]
RawResponse = tuple[int, str | None, bytes]


async def post(
    rest: RestClient, key: str, path: str = f"{PATH}/commands", **body: Any
) -> RawResponse:
    headers = {"Authorization": f"Bearer {rest.token}", "Idempotency-Key": key}
    url = rest.url + path
    async with rest.session.post(url, json=body, headers=headers) as response:
        return response.status, response.headers.get("Location"), await response.read()


async def created(rest: RestClient) -> int:
    return len(await rest.commands())


def _uses_operation(dependant: Dependant) -> bool:
    return dependant.call is operation_id or any(map(_uses_operation, dependant.dependencies))


def test_every_post_has_an_operation() -> None:
    """The names of what it creates are derived from it."""
    for router in ROUTERS:
        for route in router.routes:
            if isinstance(route, APIRoute) and "POST" in (route.methods or ()):
                assert _uses_operation(route.dependant), route.path


async def test_same_key_and_body_has_the_same_response(rest: RestClient) -> None:
    first = await post(rest, "k", action="restart")
    assert first[0] == 202
    [command] = await rest.commands()
    await rest.complete_command(command, phase="Restarting")
    assert await post(rest, "k", action="restart") == first
    assert await created(rest) == 0
    assert (await post(rest, "other", action="restart"))[0] == 202
    assert await created(rest) == 1


async def test_rejections_are_repeated_too(rest: RestClient) -> None:
    first = await post(rest, "k", f"{PATH.replace('train', 'late')}/commands", action="abort")
    assert first[0] == 404
    await rest.client.create(JOBS, JOB | {"metadata": {"name": "late"}}, namespace="default")
    again = await post(rest, "k", f"{PATH.replace('train', 'late')}/commands", action="abort")
    assert again == first


async def test_key_of_another_request_is_rejected(rest: RestClient) -> None:
    await post(rest, "k", action="suspend")
    for path, action in ((f"{PATH}/commands", "resume"), (f"{PATH}/commands?wait=1s", "suspend")):
        status, _, body = await post(rest, "k", path, action=action)
        assert status == 422
        assert b"Idempotency-Key" in body
    assert await created(rest) == 1


async def test_invalid_keys_are_rejected(rest: RestClient) -> None:
    for key in ("", "a b", "ä", "k" * 256):
        status, _, body = await post(rest, key, action="suspend")
        assert status == 422
        assert b"Idempotency-Key" in body
    assert await created(rest) == 0


async def test_concurrent_requests_with_a_key_are_executed_once(rest: RestClient) -> None:
    responses = await asyncio.gather(*(post(rest, "k", action="suspend") for _ in range(20)))
    assert {status for status, _, _ in responses} <= {202, 409}
    assert len({body for status, _, body in responses if status == 202}) == 1
    assert await created(rest) == 1


class FlakyClient(Client):
    """Loses the responses to created Commands, or their requests."""

    lost: list[str]

    async def create(self, resource: Resource, *given: Any, **more: Any) -> Any:
        lost = self.lost.pop() if resource == COMMANDS and self.lost else ""
        if lost == "request":
            raise ConnectionLostError("the request was lost")
        created = await super().create(resource, *given, **more)
        if lost == "response":
            raise ConnectionLostError("the response was lost")
        return created


@contextlib.asynccontextmanager
async def flaky_api(
    directory: Path, server: EmbeddedServer, lost: list[str]
) -> AsyncIterator[RestClient]:
    async with FlakyClient(server.credentials, user_agent="tests") as client:
        client.lost = lost
        async with (
            running_api(client, sqlite(directory)) as url,
            rest_at(url, server, client) as rest,
        ):
            yield rest


@pytest.mark.parametrize("lost", ["request", "response"])
async def test_interrupted_request_is_resumed_under_its_name(tmp_path: Path, lost: str) -> None:
    async with (
        cluster(tmp_path) as (server, _),
        flaky_api(tmp_path, server, [lost]) as rest,
    ):
        assert (await post(rest, "k", action="restart"))[0] == 503
        status, location, _ = await post(rest, "k", action="restart")
        assert status == 202
        [command] = await rest.commands()
        assert location is not None and location.endswith(command.operation)


@pytest.mark.parametrize("step", ["row", "command", "response"])
async def test_crash_after_each_step_executes_the_command_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The next replica acquires the lease when it has expired; here at once."""
    monkeypatch.setattr(idempotency, "LEASE", -idempotency.LEASE)
    async with cluster(tmp_path) as (server, client):
        async with flaky_api(tmp_path, server, ["request"] * (step == "row")) as rest:
            with monkeypatch.context() as patched:
                if step != "row":
                    patched.setattr(IdempotencyStore, "complete", _fails)
                patched.setattr(IdempotencyStore, "release", _fails)
                assert (await post(rest, "k", action="restart"))[0] == 503
            if step == "response":
                [command] = await rest.commands()
                await rest.complete_command(command, phase="Restarting")
                await _wait_executed(rest, command.operation)
        async with (
            running_api(client, sqlite(tmp_path)) as url,
            rest_at(url, server, client) as rest,
        ):
            status, _, _ = await post(rest, "k", action="restart")
            assert status == 202
            assert await created(rest) == (0 if step == "response" else 1)


async def _fails(*_given: object, **_more: object) -> bool:
    raise StoreUnavailableError("unavailable")


async def _wait_executed(rest: RestClient, id_: str) -> None:
    assert (await rest.wait_outcome(id_))["state"] == "Executed"


async def test_bulk_command_is_resumed_with_the_same_targets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        cluster(tmp_path) as (server, client),
        flaky_api(tmp_path, server, []) as rest,
    ):
        names = [f"j{n}" for n in range(5)]
        for name in names:
            await client.create(JOBS, JOB | {"metadata": {"name": name}}, namespace="default")
        order = {"action": "suspend", "names": names}

        async def are_listed() -> bool:
            found = await rest.call("POST", "/v1/commands", json=order | {"dry_run": True})
            return len(found[1]["results"]) == len(names)

        await wait_until_true(are_listed)
        add, failing = CommandStore.add, {"j1", "j3"}

        async def fails_for_some(self: CommandStore, record: Any) -> bool:
            if record.job in failing:
                raise StoreUnavailableError("unavailable")
            return await add(self, record)

        monkeypatch.setattr(CommandStore, "add", fails_for_some)
        first = await _bulk(rest, "k", order)
        statuses = {row["name"]: row["status"] for row in first["results"]}
        assert statuses == {name: 503 if name in failing else 202 for name in names}
        failing.clear()
        await client.delete(JOBS, "j4", namespace="default")
        second = await _bulk(rest, "k", order)
        assert [row["status"] for row in second["results"]] == [202] * 5
        for before, after in zip(first["results"], second["results"], strict=True):
            if before["command"]:
                assert before["command"]["id"] == after["command"]["id"]
        assert await _bulk(rest, "k", order) == second


async def _bulk(rest: RestClient, key: str, body: Json) -> Json:
    headers = {"Authorization": f"Bearer {rest.token}", "Idempotency-Key": key}
    async with rest.session.post(f"{rest.url}/v1/commands", json=body, headers=headers) as found:
        assert found.status == 200
        result: Json = await found.json()
        return result
