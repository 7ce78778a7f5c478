"""API aggregation: groups and versions of other API servers, on both servers."""

import asyncio
import ssl
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.api_servers import ServerFactory, merge_patch
from support.embedded_apiserver import DISCOVERY, MERGE, Server, wait_deleted
from support.extension_server import (
    API,
    GROUP,
    NAME,
    SERVICE,
    THINGS,
    VERSION,
    ExtensionServer,
    condition,
    extension_server,
)
from support.polling import wait_until_equal, wait_until_true

from batholith.local.apiserver.aggregation.client import user_headers
from batholith.local.apiserver.authorization.bootstrap_policy import RESOURCES as POLICIES
from batholith.local.apiserver.errors.status import StatusError
from batholith.local.apiserver.http.auth import User
from batholith.model.names import (
    API_SERVICES,
    CONFIGMAPS,
    DEPLOYMENTS,
    ENDPOINTSLICES,
    NAMESPACES,
    SERVICES,
)

Json = dict[str, Any]

CLUSTER_ROLES, BINDINGS = POLICIES[:2]
AVAILABLE = ("True", "Passed")
_NAMESPACE_CONTROLLER = "system:serviceaccount:kube-system:namespace-controller"
_GARBAGE_COLLECTOR = "system:serviceaccount:kube-system:generic-garbage-collector"


@pytest.fixture
async def server(servers: ServerFactory, tmp_path: Path) -> AsyncIterator[Server]:
    async with servers.start(tmp_path / "server") as started:
        yield started


@pytest.fixture
async def things(server: Server, tmp_path: Path) -> AsyncIterator[ExtensionServer]:
    async with extension_server(tmp_path, client_ca=server.pki.front_proxy_ca) as serving:
        yield serving


async def register(
    server: Server, servers: ServerFactory, things: ExtensionServer, **spec: Any
) -> None:
    """Create the Service and the APIService, and wait until requests are passed on."""
    await things.expose(server, servers)
    await server.create(API_SERVICES.path(), things.api_service(**spec))

    async def is_passed_on() -> bool:
        return (await server.request("GET", f"{API}/things")).status == 418

    await wait_until_true(is_passed_on)
    assert await condition(server) == AVAILABLE
    things.requests.clear()


def as_jane(**headers: str) -> dict[str, str]:
    return {
        "Impersonate-User": "jane",
        "Impersonate-Group": "devs",
        "Impersonate-Extra-Ex.io%2fscope": "a b",
        **headers,
    }


async def let_jane_read_things(server: Server) -> None:
    rule = {"verbs": ["get"], "apiGroups": [GROUP], "resources": ["things"]}
    await server.create(CLUSTER_ROLES.path(), {"metadata": {"name": "things"}, "rules": [rule]})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "things"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}
    body = {"metadata": {"name": "things"}, "roleRef": role, "subjects": [subject]}
    await server.create(BINDINGS.path(), body)


async def test_requests_are_passed_on_with_their_user(
    server: Server, servers: ServerFactory, things: ExtensionServer
) -> None:
    await register(server, servers, things)
    await let_jane_read_things(server)
    headers = as_jane(**{"X-Remote-User": "root", "X-Remote-Group": "system:masters", "X-A": "1"})
    path = f"{THINGS}/a%20b?x=1&y=2"

    async def is_allowed() -> bool:
        return (await server.request("GET", path, headers=headers)).status == 418

    await wait_until_true(is_allowed)
    response = await server.request("GET", path, headers=headers)
    assert response.headers["X-Thing"] == "1"
    found = response.body
    assert (found["method"], found["path"], found["client"]) == ("GET", path, "front-proxy-client")
    received = [(key, value) for key, value in found["headers"]]
    remote = [list(each) for each in received if each[0].startswith("x-remote-")]
    assert remote == [
        ["x-remote-extra-ex.io%2fscope", "a b"],
        ["x-remote-group", "devs"],
        ["x-remote-group", "system:authenticated"],
        ["x-remote-user", "jane"],
    ]
    names = {key for key, _ in received}
    assert "x-a" in names
    assert not names & {"authorization", "impersonate-user", "impersonate-group"}


async def test_the_body_is_passed_on(
    server: Server, servers: ServerFactory, things: ExtensionServer
) -> None:
    await register(server, servers, things)
    response = await server.request("PATCH", f"{THINGS}/a", b"{}", content_type=MERGE)
    assert (response.body["method"], response.body["body"]) == ("PATCH", "{}")
    assert ["content-type", MERGE] in response.body["headers"]


@pytest.mark.parametrize(
    "path", [THINGS, f"{THINGS}/a", f"{THINGS}/a/size", f"{THINGS}/a/size/more/of/it"]
)
async def test_requests_need_the_right(
    server: Server, servers: ServerFactory, things: ExtensionServer, path: str
) -> None:
    await register(server, servers, things)
    response = await server.request("GET", path, headers=as_jane())
    assert (response.status, response.body["reason"]) == (403, "Forbidden")
    assert response.body["details"]["kind"] == "things"
    assert not things.requests


async def test_a_watch_is_passed_on_as_it_arrives(
    server: Server, servers: ServerFactory, things: ExtensionServer
) -> None:
    await register(server, servers, things)
    headers = {"Authorization": f"Bearer {server.tokens['admin']}", "User-Agent": "curl"}
    url = f"{server.url}{THINGS}?watch=1"
    async with server.session.get(url, headers=headers) as response:
        assert await response.content.readline() == b'{"type":"ADDED"}\n'
        assert things.watches == 1
    await wait_until_equal(things.open_watches, 0)


async def test_an_upgraded_connection_is_passed_on(
    server: Server, servers: ServerFactory, things: ExtensionServer
) -> None:
    await register(server, servers, things)
    url = urlsplit(server.url)
    reader, writer = await asyncio.open_connection(
        url.hostname, url.port, ssl=ssl.create_default_context(cadata=server.ca.decode())
    )
    head = (
        f"GET {THINGS}/a/exec?command=x HTTP/1.1\r\nHost: {url.netloc}\r\n"
        f"Authorization: Bearer {server.tokens['admin']}\r\n"
        "Connection: Upgrade\r\nUpgrade: echo\r\nX-Stream-Protocol-Version: v5\r\n\r\n"
    )
    try:
        writer.write(head.encode())
        response = await reader.readuntil(b"\r\n\r\n")
        assert b" 101 " in response.splitlines()[0]
        assert b"upgrade: echo" in response.lower()
        for text in (b"one", b"two" * 50_000):
            writer.write(text)
            assert await reader.readexactly(len(text)) == text.upper()
    finally:
        writer.close()
    (request,) = things.requests
    assert request["path"] == f"{THINGS}/a/exec?command=x"
    headers = dict(request["headers"])
    assert headers["x-stream-protocol-version"] == "v5"
    assert headers["x-remote-user"]
    assert "authorization" not in headers


async def test_the_response_of_a_server_that_does_not_upgrade_is_passed_on(
    server: Server, servers: ServerFactory, things: ExtensionServer
) -> None:
    await register(server, servers, things)
    headers = {"Connection": "Upgrade", "Upgrade": "other"}
    response = await server.request("GET", f"{THINGS}/a", headers=headers)
    assert response.status == 418


EMBEDDED = pytest.mark.parametrize("servers", ["embedded"], indirect=True)


async def test_objects_of_other_servers_are_deleted_with_their_namespace(
    server: Server, servers: ServerFactory, things: ExtensionServer
) -> None:
    await register(server, servers, things)
    await server.create(NAMESPACES.path(), {"metadata": {"name": "going"}})
    things.stored["going"] = 2

    async def status() -> int:
        return (await server.request("GET", NAMESPACES.path("", "going"))).status

    await server.request("DELETE", NAMESPACES.path("", "going"))
    await wait_until_equal(status, 404)
    assert things.stored["going"] == 0
    deleting = [each for each in things.requests if each["method"] == "DELETE"]
    # The real kube-controller-manager of the tests has the token of the administrator.
    user = "admin" if servers.name == "real" else _NAMESPACE_CONTROLLER
    assert {dict(each["headers"])["x-remote-user"] for each in deleting} == {user}


async def collect_garbage(server: Server) -> None:
    """Let the garbage collector ask the other server now, as it does at intervals."""
    change = {"metadata": {"annotations": {"ex.io/changed": str(uuid.uuid4())}}}
    path = API_SERVICES.path("", NAME)
    assert (await server.request("PATCH", path, change, content_type=MERGE)).status == 200


def widget(name: str, *owners: Json) -> Json:
    """The metadata of an object of the other server."""
    references = [
        {
            "apiVersion": each["apiVersion"],
            "kind": each["kind"],
            "name": each["metadata"]["name"],
            "uid": each["metadata"]["uid"],
        }
        for each in owners
    ]
    return {
        "name": name,
        "namespace": "default",
        "uid": f"uid-{name}",
        "resourceVersion": "7",
        **({"ownerReferences": references} if references else {}),
    }


@EMBEDDED
async def test_objects_of_other_servers_are_deleted_with_their_owner(
    server: Server, servers: ServerFactory, things: ExtensionServer
) -> None:
    widgets: dict[str, Json] = {}
    things.widgets = widgets
    await register(server, servers, things)
    maps = CONFIGMAPS.path("default")
    going, staying = [
        await server.create(maps, {"metadata": {"name": name}}) for name in ("going", "staying")
    ]
    unknown = {"apiVersion": "ex.io/v7", "kind": "Ghost", "metadata": {"name": "g", "uid": "g"}}
    for each in (
        widget("free"),
        widget("going", going),
        widget("shared", going, staying),
        widget("staying", staying),
        widget("unknown", unknown),
    ):
        widgets[each["uid"]] = each
    await server.request("DELETE", CONFIGMAPS.path("default", "going"))
    await collect_garbage(server)
    await wait_until_true(lambda: is_deleted(widgets, "uid-going"))
    deleting = next(each for each in things.requests if each["method"] == "DELETE")
    headers = dict(deleting["headers"])
    assert headers["x-remote-user"] == _GARBAGE_COLLECTOR
    assert deleting["path"] == f"{API}/namespaces/default/widgets/going"
    # Another list, which begins after that deletion, finds nothing more to delete.
    widgets["uid-last"] = widget("last", {**going, "kind": "Secret"})
    await collect_garbage(server)
    await wait_until_true(lambda: is_deleted(widgets, "uid-last"))
    assert [*widgets] == ["uid-free", "uid-shared", "uid-staying", "uid-unknown"]


@EMBEDDED
async def test_objects_of_other_servers_are_orphaned(
    server: Server, servers: ServerFactory, things: ExtensionServer
) -> None:
    widgets: dict[str, Json] = {}
    things.widgets = widgets
    await register(server, servers, things)
    maps = CONFIGMAPS.path("default")
    first, second = [
        await server.create(maps, {"metadata": {"name": name}}) for name in ("first", "second")
    ]
    widgets["uid-kept"] = widget("kept", first)
    widgets["uid-shared"] = widget("shared", first, second)
    await server.request(
        "DELETE", f"{CONFIGMAPS.path('default', 'first')}?propagationPolicy=Orphan"
    )
    await wait_deleted(server, maps, "first")
    owners = {uid: each["ownerReferences"] for uid, each in widgets.items()}
    assert owners == {"uid-kept": [], "uid-shared": widget("", second)["ownerReferences"]}


@EMBEDDED
async def test_objects_are_deleted_with_their_owner_on_another_server(
    server: Server, servers: ServerFactory, things: ExtensionServer
) -> None:
    widgets: dict[str, Json] = {}
    things.widgets = widgets
    await register(server, servers, things)
    maps = CONFIGMAPS.path("default")
    owners: list[Json] = [
        {"apiVersion": f"{GROUP}/{VERSION}", "kind": "Widget", "metadata": widget(name)}
        for name in ("a", "b")
    ]
    for owner in owners:
        widgets[owner["metadata"]["uid"]] = owner["metadata"]
        name = owner["metadata"]["name"]
        widgets[f"uid-below-{name}"] = widget(f"below-{name}", owner)
        references = widget("", owner)["ownerReferences"]
        await server.create(maps, {"metadata": {"name": name, "ownerReferences": references}})
    del widgets["uid-a"]

    async def is_deleted() -> bool:
        await collect_garbage(server)
        found = await server.request("GET", CONFIGMAPS.path("default", "a"))
        return found.status == 404 and "uid-below-a" not in widgets

    await wait_until_true(is_deleted)
    assert (await server.request("GET", CONFIGMAPS.path("default", "b"))).status == 200
    assert [*widgets] == ["uid-b", "uid-below-b"]


async def is_deleted(widgets: dict[str, Json], uid: str) -> bool:
    return uid not in widgets


@EMBEDDED
async def test_a_namespace_stays_while_other_servers_may_have_objects_of_it(
    server: Server, servers: ServerFactory, things: ExtensionServer
) -> None:
    await register(server, servers, things)
    await server.create(NAMESPACES.path(), {"metadata": {"name": "going"}})
    things.stored["going"] = 1
    await server.request("DELETE", SERVICES.path("default", SERVICE))
    await wait_until_equal(lambda: condition(server), ("False", "ServiceNotFound"))
    await server.request("DELETE", NAMESPACES.path("", "going"))

    async def reason() -> str:
        found = (await server.get(NAMESPACES.path("", "going"))).get("status") or {}
        kind = "NamespaceDeletionDiscoveryFailure"
        reasons = [e["reason"] for e in found.get("conditions") or () if e["type"] == kind]
        return "".join(reasons)

    await wait_until_equal(reason, "DiscoveryFailed")
    await server.request("DELETE", API_SERVICES.path("", NAME))

    async def status() -> int:
        return (await server.request("GET", NAMESPACES.path("", "going"))).status

    await wait_until_equal(status, 404)
    assert things.stored["going"] == 1


@EMBEDDED
async def test_a_service_may_name_another_host(
    server: Server, servers: ServerFactory, things: ExtensionServer
) -> None:
    await register(server, servers, things)
    path = SERVICES.path("default", SERVICE)
    await server.request("DELETE", path)
    await server.request("DELETE", f"{ENDPOINTSLICES.path('default')}/{SERVICE}")
    ports = [{"name": "https", "port": things.port}]
    spec = {"type": "ExternalName", "externalName": "localhost", "ports": ports}
    await server.create(SERVICES.path("default"), {"metadata": {"name": SERVICE}, "spec": spec})

    async def is_passed_on() -> bool:
        return (await server.request("GET", f"{API}/things")).status == 418

    await wait_until_true(is_passed_on)
    # Other requests for the Service do not reach that host.
    proxied = await server.request("GET", f"{path}:{things.port}/proxy/")
    assert proxied.status == 503


async def test_other_servers_are_in_the_lists_of_groups(
    server: Server, servers: ServerFactory, things: ExtensionServer
) -> None:
    await register(server, servers, things)
    group = {
        "name": GROUP,
        "versions": [{"groupVersion": f"{GROUP}/v1", "version": "v1"}],
        "preferredVersion": {"groupVersion": f"{GROUP}/v1", "version": "v1"},
    }

    async def is_listed() -> bool:
        return group in (await server.get("/apis"))["groups"]

    await wait_until_true(is_listed)
    assert await server.get(f"/apis/{GROUP}") == {"kind": "APIGroup", "apiVersion": "v1"} | group
    assert (await server.get(API))["resources"][0]["name"] == "things"
    assert (await server.request("GET", f"/apis/{GROUP}/v2")).status == 404


@EMBEDDED  # a real server reads the documents of others once a minute
async def test_other_servers_are_in_aggregated_discovery(
    server: Server, servers: ServerFactory, things: ExtensionServer
) -> None:
    await register(server, servers, things)
    thing = {
        "resource": "things",
        "responseKind": {"group": GROUP, "version": "v1", "kind": "Thing"},
        "scope": "Namespaced",
        "singularResource": "thing",
        "verbs": ["get", "list", "delete", "deletecollection"],
        "shortNames": ["th"],
        "subresources": [
            {
                "subresource": "size",
                "responseKind": {"group": "autoscaling", "version": "v1", "kind": "Scale"},
                "verbs": ["get"],
            }
        ],
    }

    async def versions() -> list[Json]:
        found = await server.request("GET", "/apis", headers={"Accept": DISCOVERY})
        items = {each["metadata"]["name"]: each for each in found.body["items"]}
        return list(items.get(GROUP, {"versions": []})["versions"])

    wanted = [{"version": "v1", "freshness": "Current", "resources": [thing]}]
    await wait_until_equal(versions, wanted)


@EMBEDDED
async def test_other_servers_are_in_openapi(
    server: Server, servers: ServerFactory, things: ExtensionServer
) -> None:
    await register(server, servers, things)

    async def has_v3() -> bool:
        return API[1:] in (await server.get("/openapi/v3"))["paths"]

    async def has_v2() -> bool:
        return f"{API}/things" in (await server.get("/openapi/v2"))["paths"]

    await wait_until_true(has_v3)
    index = await server.get("/openapi/v3")
    document = await server.get(index["paths"][API[1:]]["serverRelativeURL"])
    assert "Thing" in document["components"]["schemas"]
    await wait_until_true(has_v2)
    definitions = (await server.get("/openapi/v2"))["definitions"]
    assert definitions["io.ex.Thing"]["description"] == "Thing is of another server."


async def test_an_unavailable_server_has_a_reason(
    server: Server, servers: ServerFactory, things: ExtensionServer
) -> None:
    await server.create(API_SERVICES.path(), things.api_service())
    await wait_until_equal(lambda: condition(server), ("False", "ServiceNotFound"))
    for path in (API, THINGS):
        response = await server.request("GET", path)
        assert (response.status, response.body) == (503, "service unavailable\n")
    assert (await server.request("GET", THINGS, headers=as_jane())).status == 403
    spec = {"ports": [{"name": "https", "port": 80}]}
    await server.create(SERVICES.path("default"), {"metadata": {"name": SERVICE}, "spec": spec})
    await wait_until_equal(lambda: condition(server), ("False", "ServicePortError"))
    ports = {"spec": {"ports": [{"name": "https", "port": things.port}]}}
    await merge_patch(server, SERVICES.path("default", SERVICE), ports)
    await wait_until_equal(lambda: condition(server), ("False", "EndpointsNotFound"))
    await server.request("DELETE", API_SERVICES.path("", NAME))

    async def status() -> int:
        return (await server.request("GET", API)).status

    await wait_until_equal(status, 404)


async def test_a_certificate_is_verified_unless_it_is_not_to_be(
    server: Server, servers: ServerFactory, things: ExtensionServer
) -> None:
    await things.expose(server, servers)
    await server.create(API_SERVICES.path(), things.api_service(caBundle=None))
    await wait_until_equal(lambda: condition(server), ("False", "FailedDiscoveryCheck"))
    insecure = {"spec": {"insecureSkipTLSVerify": True}}
    await merge_patch(server, API_SERVICES.path("", NAME), insecure)
    await wait_until_equal(lambda: condition(server), AVAILABLE)


def _without_times(obj: Json) -> Json:
    conditions = [
        {key: value for key, value in each.items() if key != "lastTransitionTime"}
        for each in obj["status"]["conditions"]
    ]
    return {"labels": obj["metadata"].get("labels"), "spec": obj["spec"], "conditions": conditions}


@EMBEDDED
async def test_clients_cannot_break_the_apis_of_the_server(
    server: Server, servers: ServerFactory, things: ExtensionServer
) -> None:
    """A real server lets a client give its own APIs to a Service."""
    await things.expose(server, servers)
    path = API_SERVICES.path("", "v1.apps")
    before = _without_times(await server.get(path))

    async def content() -> Json | None:
        response = await server.request("GET", path)
        return _without_times(response.body) if response.status == 200 else None

    spec = things.api_service()["spec"] | {"group": "apps"}
    patch = {"metadata": {"labels": None}, "spec": spec}
    await merge_patch(server, path, patch)
    assert (await server.get(DEPLOYMENTS.path("default")))["kind"] == "DeploymentList"
    await wait_until_equal(content, before)
    assert (await server.request("DELETE", path)).status == 200
    assert (await server.get(DEPLOYMENTS.path("default")))["kind"] == "DeploymentList"
    await wait_until_equal(content, before)
    assert not things.requests


@pytest.mark.parametrize("path", ["things/../x", "things//x", "./things"])
@EMBEDDED
async def test_ambiguous_paths_are_not_passed_on(
    server: Server, servers: ServerFactory, things: ExtensionServer, path: str
) -> None:
    await register(server, servers, things)
    reader, writer = await connect(server)
    head = f"GET {API}/{path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    token = server.tokens["admin"]
    writer.write(f"{head}authorization: Bearer {token}\r\n\r\n".encode())
    status = await reader.readline()
    writer.close()
    await writer.wait_closed()
    assert status.split()[1] == b"404"
    assert not things.requests


async def connect(server: Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    context = ssl.create_default_context(cadata=server.ca.decode())
    host, _, port = server.url.removeprefix("https://").partition(":")
    return await asyncio.open_connection(host, int(port), ssl=context)


@pytest.mark.parametrize(
    "user",
    [
        User(name="jane\r\nX-Remote-Group: system:masters"),
        User(name=" jane"),
        User(name="jane", groups=("devs\n",)),
        User(name="jane", extra={"scope": ("a\0",)}),
    ],
)
def test_a_user_that_headers_cannot_name_is_rejected(user: User) -> None:
    """White space would be removed on the way: the request would be that of another user."""
    with pytest.raises(StatusError, match="cannot be named"):
        user_headers(user)
