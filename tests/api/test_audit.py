"""The audit log: one line for each write, also for rejected ones, without secrets."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.admission import cronjob
from support.controller_api import ControllerApi
from support.polling import wait_for
from support.rest import running_api, sqlite

from batholith.api.identity.audit import AuditMiddleware, RouteMiddleware
from batholith.api.identity.authentication import SecuritySettings
from batholith.kube.client.client import Client
from batholith.model.names import COMMANDS, CRONJOBS, JOBS
from batholith.testing import RequestMatcher

ONE = "/v1/namespaces/default/cronjobs/report"
TEMPLATE = "/v1/namespaces/{namespace}/cronjobs/{name}"
LOGGER = "batholith.api.identity.audit"


@pytest.fixture(autouse=True)
def _record_all(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The fields of the audit log's lines."""
    known = set(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
    return [
        {key: value for key, value in vars(record).items() if key not in known}
        for record in caplog.records
        if record.name == LOGGER
    ]


@asynccontextmanager
async def rest(
    tmp_path: Path, **security: Any
) -> AsyncIterator[tuple[ControllerApi, aiohttp.ClientSession]]:
    async with ControllerApi(CRONJOBS, COMMANDS, JOBS) as api:
        await api.create(CRONJOBS, {**cronjob(), "metadata": {"name": "report"}})
        headers = {"Authorization": f"Bearer {api.credentials_of('admin').token}"}
        async with (
            Client(api.credentials_of("api"), user_agent="rest") as client,
            running_api(client, sqlite(tmp_path), security=SecuritySettings(**security)) as url,
            aiohttp.ClientSession(url, headers=headers) as session,
        ):
            yield api, session


async def send(session: aiohttp.ClientSession, method: str, path: str, **more: Any) -> int:
    async with session.request(method, path, **more) as response:
        await response.read()
        return response.status


async def test_a_write_is_logged_with_user_object_and_outcome(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with rest(tmp_path) as (_, session):
        assert await send(session, "GET", ONE) == 200
        assert await send(session, "PATCH", ONE, json={"suspend": True}) == 200
        await wait_for(lambda: lines(caplog))
    [line] = lines(caplog)
    assert 0 < line.pop("duration_seconds") < 60
    assert line == {
        "audit": "write",
        "user": "admin",
        "user_uid": "admin",
        "source": "127.0.0.1",
        "verb": "PATCH",
        "path": TEMPLATE,
        "object": "default/report",
        "status": 200,
        "dry_run": False,
    }


async def test_the_source_cannot_be_forged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A header of the client names another address; through a port-forward it is from loopback."""
    async with rest(tmp_path) as (_, session):
        forged = {"X-Forwarded-For": "10.9.9.9"}
        assert await send(session, "PATCH", ONE, json={"suspend": True}, headers=forged) == 200
        await wait_for(lambda: lines(caplog))
    assert [each["source"] for each in lines(caplog)] == ["127.0.0.1"]


async def test_rejected_writes_are_logged_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with rest(tmp_path) as (api, session):
        api.faults.error(RequestMatcher("patch", CRONJOBS), 403, message="not you")
        wrong = {"Authorization": "Bearer wrong"}
        for more, status in (
            ({"json": {"suspend": True}}, 403),
            ({"json": {"suspend": 7}}, 422),
            ({"data": b"{"}, 400),
            ({"json": {"suspend": True}, "headers": wrong}, 401),
        ):
            sent = await send(session, "PATCH", ONE, **more)
            assert sent == status
        assert await send(session, "PATCH", "/v1/nowhere") == 404
        assert await send(session, "PUT", ONE) == 405
        await wait_for(lambda: len(lines(caplog)) == 6)
    found = [(each["status"], each.get("user", ""), each["path"]) for each in lines(caplog)]
    assert found == [
        (403, "admin", TEMPLATE),
        (422, "admin", TEMPLATE),
        (400, "admin", TEMPLATE),
        (401, "", ONE),
        (404, "admin", "/v1/nowhere"),
        (405, "admin", ONE),
    ]


async def test_requests_beyond_the_rate_are_logged_with_their_user(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with rest(tmp_path, caller_rate=0.01) as (_, session):
        assert await send(session, "PATCH", ONE, json={"suspend": True}) == 200
        assert await send(session, "PATCH", ONE, json={"suspend": True}) == 429
        await wait_for(lambda: len(lines(caplog)) == 2)
    assert [(each["status"], each["user"]) for each in lines(caplog)] == [
        (200, "admin"),
        (429, "admin"),
    ]


async def test_neither_tokens_nor_bodies_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In no log, and in no error."""
    async with rest(tmp_path) as (api, session):
        api.faults.error(RequestMatcher("create", "tokenreviews", nth=2), 500)
        for token in (api.credentials_of("admin").token, "SECRET-1", "SECRET-2", "SECRET 3"):
            headers = {"Authorization": f"Bearer {token}"}
            body = {"suspend": "SECRET-BODY"}
            async with session.patch(ONE, json=body, headers=headers) as response:
                assert "SECRET-BODY" not in await response.text() or response.status == 422
                assert token not in await response.text()
        token = api.credentials_of("admin").token
    shown = "\n".join(json.dumps(vars(each), default=repr) for each in caplog.records)
    assert "SECRET" not in shown
    assert token not in shown


async def test_a_request_about_a_job_has_its_key_as_all_logs_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Route:
        def __init__(self, path: str) -> None:
            self.path = path

    names = {"namespace": "default", "name": "train"}
    one = "/v1/namespaces/{namespace}/{kind:job_kind}/{name}"
    for path, more in (
        ("/v1/namespaces/{namespace}/jobs/{name}/commands", {}),
        (one, {"kind": "jobs"}),
        (one, {"kind": "batchjobs"}),
        ("/v1/namespaces/{namespace}/cronjobs/{name}/jobs", {}),
    ):
        await run_app(route=Route(path), path_params=names | more)
    assert [each.get("job") for each in lines(caplog)] == ["default/train"] * 2 + [None] * 2
    assert lines(caplog)[1]["path"] == "/v1/namespaces/{namespace}/{kind}/{name}"


@pytest.mark.parametrize(
    ("query", "expected"), [(b"", False), (b"dry_run=true", True), (b"a=b&dry_run=false", False)]
)
async def test_a_dry_run_is_marked(
    caplog: pytest.LogCaptureFixture, query: bytes, expected: bool
) -> None:
    await run_app(query_string=query)
    assert [each["dry_run"] for each in lines(caplog)] == [expected]


async def test_a_handler_that_fails_or_is_cancelled_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(ValueError, match="broken"):
        await run_app(error=ValueError("broken"))
    with pytest.raises(asyncio.CancelledError):
        await run_app(error=asyncio.CancelledError())
    assert [each["status"] for each in lines(caplog)] == [500, 0]


async def run_app(*, error: BaseException | None = None, **scope: Any) -> None:
    """Handle a POST by an application that does nothing else."""

    async def handle(scope: Any, receive: Any, send: Any) -> None:
        if error is not None:
            raise error
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def ignore(message: Any) -> None:
        pass

    scope = {"type": "http", "method": "POST", "path": "/v1/x", "query_string": b""} | scope
    app = AuditMiddleware(RouteMiddleware(handle))
    await app(scope, ignore, ignore)  # type: ignore[arg-type]
