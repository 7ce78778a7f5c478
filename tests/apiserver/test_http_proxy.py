"""The subresource ``proxy``: requests to pods, Services and nodes through the API server.

kube-apiserver connects to no loopback addresses, so this runs on the embedded server only.
"""

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from support.aiohttp_servers import stop_server
from support.embedded_apiserver import MERGE, PODS, EmbeddedServer, embedded_server, pod

from batholith.local.apiserver.verbs.proxied_links import rewrite_html

ADDRESS = "127.64.90.1"
SERVICES = "/api/v1/namespaces/default/services"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    async with embedded_server(tmp_path) as running:
        yield running


async def _answer(request: web.Request) -> web.StreamResponse:
    if request.path == "/page":
        text = '<p><a class=x href="/next?a=1&amp;b=2">n</a><a href=rel>r</a></p>'
        return web.Response(text=text, content_type="text/html")
    if request.path == "/moved":
        raise web.HTTPFound("/target/")
    return web.json_response(
        {
            "method": request.method,
            "path": request.raw_path,
            "body": await request.text(),
            "headers": {name.lower(): value for name, value in request.headers.items()},
        },
        status=418,
    )


async def _healthz(_: web.Request) -> web.Response:
    return web.Response(text="ok")


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """Port of a program of a pod."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", _answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, ADDRESS, 0)
    await site.start()
    yield runner.addresses[0][1]
    await stop_server(runner)


async def running_pod(server: EmbeddedServer, port: int, *, address: str = ADDRESS) -> None:
    container = {"name": "c", "image": "i", "ports": [{"containerPort": port}]}
    await server.create(PODS, pod("p", containers=[container]))
    await server.request(
        "PATCH", f"{PODS}/p/status", {"status": {"podIP": address}}, content_type=MERGE
    )


async def test_a_request_reaches_the_pod_without_the_credentials_of_its_client(
    server: EmbeddedServer, port: int
) -> None:
    await running_pod(server, port)
    response = await server.request(
        "PUT", f"{PODS}/p:{port}/proxy/a%20b/c:d/?x=1&x=2", {"a": 1}, headers={"X-Own": "yes"}
    )
    assert response.status == 418
    received = response.body
    assert (received["method"], received["path"]) == ("PUT", "/a%20b/c:d/?x=1&x=2")
    assert received["body"] == '{"a":1}'
    assert received["headers"]["x-own"] == "yes"
    assert received["headers"]["x-forwarded-uri"] == f"{PODS}/p:{port}/proxy/a%20b/c:d/"
    assert "authorization" not in received["headers"]


@pytest.mark.parametrize("method", ["GET", "POST", "PATCH", "DELETE", "OPTIONS"])
async def test_all_methods_are_passed_on(server: EmbeddedServer, port: int, method: str) -> None:
    await running_pod(server, port)
    response = await server.request(method, f"{PODS}/p/proxy/")
    assert (response.status, response.body["method"]) == (418, method)


async def test_links_and_redirects_lead_through_the_proxy(
    server: EmbeddedServer, port: int
) -> None:
    await running_pod(server, port)
    prefix = f"{PODS}/http:p:{port}/proxy"
    page = await server.request("GET", f"{prefix}/page")
    assert f'<a class=x href="{prefix}/next?a=1&amp;b=2">n</a>' in page.body
    assert '<a href="rel">r</a>' in page.body
    for path, wanted in ((f"{prefix}/moved", f"{prefix}/target/"), (prefix, f"{prefix}/")):
        url = f"{server.url}{path}"
        headers = {"Authorization": f"Bearer {server.tokens['admin']}"}
        async with server.session.get(url, headers=headers, allow_redirects=False) as response:
            assert response.headers["Location"] == wanted


async def test_services_are_reached_by_name_and_number_of_their_port(
    server: EmbeddedServer, port: int
) -> None:
    spec = {"ports": [{"name": "web", "port": 80}]}
    await server.create(SERVICES, {"metadata": {"name": "s"}, "spec": spec})
    response = await server.request("GET", f"{SERVICES}/s:web/proxy/")
    assert (response.status, response.body["reason"]) == (503, "ServiceUnavailable")
    endpoints = {
        "metadata": {"name": "s", "labels": {"kubernetes.io/service-name": "s"}},
        "addressType": "IPv4",
        "ports": [{"name": "web", "port": port}],
        "endpoints": [{"addresses": [ADDRESS]}],
    }
    await server.create(SLICES, endpoints)
    for name in ("s:web", "s:80", "http:s:web"):
        response = await server.request("GET", f"{SERVICES}/{name}/proxy/x")
        assert (response.status, response.body["path"]) == (418, "/x")
    for name in ("s", "s:81", "https:s:other"):
        assert (await server.request("GET", f"{SERVICES}/{name}/proxy/")).status == 503
    assert (await server.request("GET", f"{SERVICES}/none/proxy/")).status == 404


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "127.128.0.5", "169.254.169.254", "::1", "::ffff:127.0.0.1", "a.b"]
)
async def test_no_other_addresses_than_those_of_pods_are_reached(
    server: EmbeddedServer, port: int, address: str
) -> None:
    await running_pod(server, port, address=address)
    response = await server.request("GET", f"{PODS}/p/proxy/")
    assert (response.status, response.body["message"]) == (400, "address not allowed")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"{PODS}/p:1:2:3/proxy/", 400),
        (f"{PODS}/ftp:p:1/proxy/", 400),
        (f"{PODS}/p:0/proxy/", 400),
        (f"{PODS}/p:1/proxy/", 503),
        (f"{PODS}/q/proxy/", 404),
        ("/api/v1/nodes/q/proxy/", 404),
    ],
)
async def test_what_cannot_be_reached_is_an_error(
    server: EmbeddedServer, port: int, path: str, status: int
) -> None:
    await running_pod(server, port)
    assert (await server.request("GET", path)).status == status


async def test_of_nodes_only_the_agents_are_reached(server: EmbeddedServer, port: int) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(server.pki.ca))
    context.load_cert_chain(server.pki.agent.certificate, server.pki.agent.key)
    context.verify_mode = ssl.CERT_REQUIRED
    application = web.Application()
    application.router.add_get("/healthz", _healthz)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": runner.addresses[0][1]}},
        }
        await server.create("/api/v1/nodes", {"metadata": {"name": "n"}, "status": status})
        response = await server.request("GET", "/api/v1/nodes/n/proxy/healthz")
        assert (response.status, response.body) == (200, "ok")
        response = await server.request("GET", f"/api/v1/nodes/n:{port}/proxy/healthz")
        assert response.status == 400
    finally:
        await stop_server(runner)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('<a href="/x">', '<a href="/p/x">'),
        ("<a href='/x?q=1'>", '<a href="/p/x?q=1">'),
        ("<IMG alt='>' SRC=/x>", "<IMG alt='>' SRC=\"/p/x\">"),
        ('<a href="http://own:1/x">', '<a href="/p/x">'),
        ('<a href="http://other/x">', '<a href="http://other/x">'),
        ('<a href="/p/x">', '<a href="/p/x">'),
        ('<a title="/x">', '<a title="/x">'),
        ('<b href="/x">', '<b href="/x">'),
        ('<a href="//[">', '<a href="//[">'),
        ("<a <b", "<a <b"),
    ],
)
def test_links_with_absolute_paths_on_the_same_host_are_rewritten(before: str, after: str) -> None:
    assert rewrite_html(before, "/p", hosts=("own:1",)) == after
