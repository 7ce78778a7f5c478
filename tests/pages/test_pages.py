"""Sessions over HTTP, and what every page has: headers, escaped texts, the rights of its user."""

import html
import re
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import AsyncMock, Mock

import aiohttp
import httpx
import pytest
from starlette.types import Receive, Scope, Send
from support.jumping_clock import HOUR, JumpingClock
from support.pages import PagesClient, pages_client
from support.polling import wait_until_true
from support.rest import rest_api

from batholith.api.identity.reviewer import UserInfo
from batholith.api.pages.app import Pages, PagesSettings
from batholith.api.pages.rendering import static_files
from batholith.api.pages.rest import RestCalls, RestError
from batholith.api.problems import ProblemError, to_response
from batholith.machinery.clock import SystemClock
from batholith.model.command import Command
from batholith.model.names import COMMANDS, JOBS

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCRIPT = "<script>alert(1)</script>"


async def raw(pages: PagesClient, path: str, **headers: str) -> aiohttp.ClientResponse:
    async with pages.session.get(
        pages.url + path, headers={"Accept": "text/html", **headers}, allow_redirects=False
    ) as response:
        await response.read()
        return response


async def test_without_a_session_there_is_only_the_sign_in_page(visitor: PagesClient) -> None:
    response = await raw(visitor, "/jobs")
    assert (response.status, response.headers["Location"]) == (303, "/login")
    response = await raw(visitor, "/jobs", **{"HX-Request": "true"})
    assert (response.status, response.headers["HX-Redirect"]) == (401, "/login")
    response = await raw(visitor, "/live/jobs?kind=jobs", Accept="text/event-stream")
    assert response.status == 401
    status, _ = await visitor.post("/jobs/commands", {"action": "suspend"})
    assert status == 303
    status, text = await visitor.get("/login")
    assert status == 200
    assert "Bearer token" in text


async def test_a_session_is_no_credential_of_the_rest_api(pages: PagesClient) -> None:
    assert (await raw(pages, "/v1/jobs")).status == 401


async def test_the_rest_api_without_the_flag_has_no_pages(tmp_path: Path) -> None:
    async with rest_api(tmp_path) as rest, rest.session.get(rest.url + "/login") as response:
        assert response.status == 404


async def test_the_cookie_of_a_session_is_for_this_server_alone(visitor: PagesClient) -> None:
    token = visitor.server.running.tokens["admin"]
    for origin, name, is_secure in (
        (visitor.url, "batholith_session", False),
        (visitor.url.replace("http:", "https:"), "__Host-batholith_session", True),
    ):
        async with visitor.session.post(
            visitor.url + "/login",
            data={"token": token},
            headers={"Origin": origin},
            allow_redirects=False,
        ) as response:
            cookie = response.cookies[name]
        assert cookie["httponly"]
        assert cookie["samesite"] == "strict"
        assert bool(cookie["secure"]) is is_secure
        assert (cookie["path"], cookie["domain"]) == ("/", "")
        assert token not in cookie.value


@pytest.mark.parametrize("token", ["wrong", "", " ", "a b", "\r\nx: y"])
async def test_a_token_that_the_cluster_rejects_gives_no_session(
    visitor: PagesClient, token: str
) -> None:
    status, text = await visitor.post("/login", {"token": token})
    assert status in (401, 422)
    assert 'role="alert"' in text
    assert len(visitor.session.cookie_jar) == 0


async def test_the_link_of_the_embedded_cluster_signs_in_once(visitor: PagesClient) -> None:
    wrong = await raw(visitor, "/login?code=wrong")
    assert (wrong.status, len(wrong.cookies)) == (403, 0)
    async with visitor.session.head(f"{visitor.url}/login?code={visitor.code}") as previewed:
        assert not previewed.cookies
    first = await raw(visitor, f"/login?code={visitor.code}")
    assert (first.status, first.headers["Location"]) == (303, "/jobs")
    assert (await visitor.get("/jobs"))[0] == 200
    visitor.session.cookie_jar.clear()
    again = await raw(visitor, f"/login?code={visitor.code}")
    assert (again.status, len(again.cookies)) == (403, 0)


async def test_signing_out_ends_the_session(pages: PagesClient) -> None:
    cookies = {each.key: each.value for each in pages.session.cookie_jar}
    assert await pages.post("/logout", {}) == (303, "")
    headers = {"Accept": "text/html"}
    async with (
        aiohttp.ClientSession(cookies=cookies, headers=headers) as copied,
        copied.get(pages.url + "/jobs", allow_redirects=False) as response,
    ):
        assert response.status == 303


async def test_a_session_expires_and_ends_its_streams(tmp_path: Path) -> None:
    clock = JumpingClock()
    async with pages_client(tmp_path, clock=clock) as pages:
        await pages.sign_in()
        assert (await pages.get("/jobs"))[0] == 200
        async with pages.session.get(pages.url + "/live/jobs?kind=jobs") as stream:
            assert stream.status == 200
            clock.wrong_by = 13 * HOUR
            async for _ in stream.content:
                pass
        assert (await raw(pages, "/jobs")).status == 303


def rejecting_pages(status: int, *, user: str = "anna") -> Pages:
    """Pages in front of an API that rejects every request."""

    async def reject(scope: Scope, receive: Receive, send: Send) -> None:
        await to_response(ProblemError(status, "rejected"))(scope, receive, send)

    caller = SimpleNamespace(user=UserInfo(username=user), expires_at=None)
    callers = Mock(authenticate=AsyncMock(return_value=caller))
    return Pages(reject, PagesSettings(), callers=callers, clock=SystemClock())


async def test_the_name_of_the_user_is_escaped() -> None:
    transport = httpx.ASGITransport(rejecting_pages(404, user=SCRIPT))
    async with httpx.AsyncClient(transport=transport, base_url="http://pages") as browser:
        await browser.post("/login", data={"token": "x"}, headers={"Origin": "http://pages"})
        response = await browser.get("/jobs/default/jobs/train")
    assert response.status_code == 404
    assert html.escape(SCRIPT) in response.text
    assert SCRIPT not in response.text


async def test_a_session_ends_when_its_token_is_not_accepted_any_more() -> None:
    app = rejecting_pages(401)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://pages") as browser:
        origin, html_only = {"Origin": "http://pages"}, {"Accept": "text/html"}
        response = await browser.post("/login", data={"token": "x"}, headers=origin)
        assert response.status_code == 303
        id_ = browser.cookies["batholith_session"]
        assert app.find_rejection("/jobs", f"batholith_session={id_}") is None
        assert (await browser.get("/jobs", headers=html_only)).headers["Location"] == "/login"
        assert app.find_rejection("/jobs", f"batholith_session={id_}") is not None


@pytest.mark.parametrize(
    "origin", ["", "null", "http://evil.example", "http://127.0.0.1:1", "http://["]
)
async def test_a_form_of_another_origin_changes_nothing(pages: PagesClient, origin: str) -> None:
    form: dict[str, str | list[str]] = {
        "kind": "jobs",
        "action": "suspend",
        "job": "default/train",
    }
    assert (await pages.post("/jobs/commands", form, origin=origin))[0] == 403
    assert (await pages.post("/login", {"token": "x"}, origin=origin))[0] == 403
    assert (await pages.client.list(COMMANDS, view=Command)).items == []


async def test_browsers_load_and_run_static_files_only(pages: PagesClient) -> None:
    for path in ("/login", "/jobs", "/jobs?phase=nonsense", "/jobs/x", "/static/0/none.js"):
        response = await raw(pages, path)
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self';" in policy
        assert "unsafe" not in policy
        assert response.headers["X-Content-Type-Options"] == "nosniff"


async def test_pages_have_neither_inline_scripts_nor_styles(pages: PagesClient) -> None:
    for path in ("/login", "/jobs", "/queues", "/cluster", "/history", "/history/usage"):
        _, text = await pages.get(path)
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|hx-on|hx-vals", text)
        assert re.findall(r"<script(?! src=\"/static/)", text) == []
        assert re.findall(r"(?:src|href|action)=\"(?:https?:)?//", text) == []


async def test_static_files_are_those_of_the_package(pages: PagesClient) -> None:
    _, text = await pages.get("/jobs")
    urls = re.findall(r"(?:src|href)=\"(/static/[^\"]+)\"", text)
    assert len(urls) == len(static_files())
    for url in urls:
        response = await raw(pages, url)
        assert response.status == 200
        assert "immutable" in response.headers["Cache-Control"]
    assert (await raw(pages, "/static/x/..%2f..%2fapp.py")).status == 404


async def test_texts_of_the_cluster_and_of_the_query_are_escaped(pages: PagesClient) -> None:
    state = {"phase": "Failed", "reason": SCRIPT, "message": f'"{SCRIPT}'}
    status = {"status": {"state": state}}
    await pages.client.patch(JOBS, "train", status, namespace="default", subresource="status")
    await wait_until_true(lambda: _shows(pages, "/jobs", html.escape(SCRIPT)))
    for path in ("/jobs", f"/jobs?queue={SCRIPT}&labels=a%3D%22{SCRIPT}&search=%22{SCRIPT}"):
        assert SCRIPT not in (await pages.get(path))[1]


async def _shows(pages: PagesClient, path: str, text: str) -> bool:
    return text in (await pages.get(path))[1]


async def test_a_wrong_filter_is_named_and_can_be_corrected(pages: PagesClient) -> None:
    status, text = await pages.get("/jobs?labels=a%3D%3D%3D")
    assert status == 200
    assert "label_selector" in text
    assert 'name="labels"' in text


async def test_a_list_that_cannot_be_read_at_the_moment_is_read_again(
    pages: PagesClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        unavailable = AsyncMock(side_effect=RestError(503, "the API server does not respond"))
        patch.setattr(RestCalls, "get", unavailable)
        _, text = await pages.get("/jobs", fragment=True)
    assert "the API server does not respond" in text
    assert 'hx-trigger="refresh, load delay:2s"' in text
    assert 'data-live="/live/jobs' in text
    _, text = await pages.get("/jobs?labels=a%3D%3D%3D", fragment=True)
    assert 'hx-trigger="refresh"' in text


async def test_jobs_are_searched_by_a_part_of_the_name(pages: PagesClient) -> None:
    assert await _shows(pages, "/jobs?search=RAI", ">train<")
    assert not await _shows(pages, "/jobs?search=rainy", ">train<")


async def test_a_fragment_is_the_list_alone(pages: PagesClient) -> None:
    _, text = await pages.get("/jobs", fragment=True)
    assert text.startswith('<section id="jobs"')


async def test_selected_jobs_are_commanded_with_the_identity_of_the_session(
    pages: PagesClient,
) -> None:
    running = {"status": {"state": {"phase": "Running"}}}
    await pages.client.patch(JOBS, "train", running, namespace="default", subresource="status")
    await wait_until_true(lambda: _shows(pages, "/jobs?phase=Running", ">train<"))
    form: dict[str, str | list[str]] = {
        "kind": "jobs",
        "action": "suspend",
        "job": ["default/train", "default/missing", "other/train"],
    }
    status, text = await pages.post("/jobs/commands", form)
    assert status == 200
    assert "1 job commanded" in text
    assert "default/missing" in text
    assert "other/train" in text
    (command,) = (await pages.client.list(COMMANDS, view=Command)).items
    assert command.action == "AbortJob"


@pytest.mark.parametrize("job", ["/train", "..//x", "train", "a/b/c"])
async def test_a_job_that_is_no_name_commands_nothing(pages: PagesClient, job: str) -> None:
    form: dict[str, str | list[str]] = {"kind": "jobs", "action": "suspend", "job": job}
    status, _ = await pages.post("/jobs/commands", form)
    assert status in (404, 422)
    assert (await pages.client.list(COMMANDS, view=Command)).items == []


async def test_a_large_form_without_a_session_is_not_read(visitor: PagesClient) -> None:
    assert (await visitor.post("/login", {"token": "x" * 20_000}))[0] == 413
    assert (await visitor.post("/jobs/commands", {"job": "x" * 20_000}))[0] == 303
