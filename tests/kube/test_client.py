"""Reads and writes over HTTP: typed responses and errors, retries."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry
from support.controller_api import ControllerApi
from support.loop_time import LoopTime
from support.polling import wait_for
from support.raw_http_server import raw_http_server

from batholith.kube.client.client import Client, ClientOptions, PatchType
from batholith.kube.client.config import Credentials
from batholith.kube.errors import (
    AlreadyExistsError,
    ApiError,
    BadRequestError,
    ConflictError,
    ConnectionLostError,
    DecodeError,
    ForbiddenError,
    GoneError,
    InvalidError,
    NotFoundError,
    RequestTimeoutError,
    ServerError,
    TooManyRequestsError,
    UnauthorizedError,
)
from batholith.kube.metrics import ClientMetrics
from batholith.kube.timing import Timing
from batholith.model.base import ApiStruct
from batholith.model.command import Command
from batholith.model.meta import ObjectMeta
from batholith.model.names import COMMANDS, CONFIGMAPS, NODES, PODS
from batholith.testing import RequestMatcher
from batholith.testing.faults import MESSAGE


class PodStatus(ApiStruct, frozen=True):
    phase: str = ""


class Pod(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    status: PodStatus = PodStatus()


class ClientWorld:
    """A server, a client of it, and the delays that the client requested (skipped)."""

    def __init__(self, api: ControllerApi) -> None:
        self.api = api
        self.delays: list[float] = []
        self.registry = CollectorRegistry()
        self.options = ClientOptions(
            metrics=ClientMetrics(self.registry),
            timing=Timing(sleep=self._sleep, random=lambda: 0.0),
        )
        self.client = self.new_client()

    def new_client(self, *, timeout: float = 100, credentials: Credentials | None = None) -> Client:
        return Client(
            credentials or self.api.credentials,
            user_agent="tests",
            timeout=timeout,
            options=self.options,
        )

    async def _sleep(self, seconds: float) -> None:
        self.delays.append(seconds)
        await asyncio.sleep(0)

    def metric(self, name: str, **labels: str) -> float:
        host = self.api.credentials.server.removeprefix("https://")
        return self.registry.get_sample_value(name, {**labels, "host": host}) or 0.0


@pytest.fixture
async def world() -> AsyncIterator[ClientWorld]:
    async with ControllerApi(COMMANDS) as api:
        world = ClientWorld(api)
        async with world.client:
            yield world


async def test_get_decodes_the_requested_view(world: ClientWorld) -> None:
    world.api.put(PODS, "a", status={"phase": "Running", "unknown": 1})
    pod = await world.client.get(PODS, "a", namespace="d", view=Pod)
    assert (pod.metadata.key, pod.status.phase) == ("d/a", "Running")
    raw = await world.client.get(PODS, "a", namespace="d", view=msgspec.Raw)
    assert b'"unknown"' in bytes(raw)
    assert (await world.client.get(PODS, "a", namespace="d", view=dict))["status"]["unknown"] == 1


async def test_malformed_response_raises_decode_error(world: ClientWorld) -> None:
    world.api.put(PODS, "a", status={"phase": 7})
    with pytest.raises(DecodeError, match="phase"):
        await world.client.get(PODS, "a", namespace="d", view=Pod)


async def test_create_adds_kind_to_struct_or_dict(world: ClientWorld) -> None:
    order = Command(metadata=ObjectMeta(name="c"), action="AbortJob")
    created = await world.client.create(COMMANDS, order, namespace="d", view=Command)
    assert created.metadata.uid
    stored = world.api.objects(COMMANDS)["d/c"]
    assert (stored["kind"], stored["apiVersion"]) == ("Command", "bus.volcano.sh/v1alpha1")
    assert stored["action"] == "AbortJob"
    await world.client.create(NODES, {"metadata": {"name": "n"}})
    assert world.api.objects(NODES)["n"]["kind"] == "Node"
    encoded = b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":{"k":"v"}}'
    await world.client.create(CONFIGMAPS, encoded, namespace="d")
    assert world.api.objects(CONFIGMAPS)["d/c"]["data"] == {"k": "v"}


@pytest.mark.parametrize(
    "steps",
    [
        [{"op": "test", "path": "/metadata/uid", "value": "another"}],
        [{"op": "test", "path": "/metadata/labels/a~1b", "value": "2"}],
        [{"op": "test", "path": "/spec/list/1", "value": "b"}],
        [{"op": "remove", "path": "/spec/none"}],
        [{"op": "test", "path": "/spec/list/0", "value": "a"}, {"op": "add", "path": "x"}],
    ],
)
async def test_json_patch_with_a_failing_operation_changes_nothing(
    world: ClientWorld, steps: list[dict[str, str]]
) -> None:
    before = world.api.put(
        PODS, "p", metadata={"labels": {"a/b": "1"}}, spec={"list": ["a"], "here": True}
    )
    removal = {"op": "remove", "path": "/spec/here"}
    with pytest.raises(InvalidError, match="the server rejected our request"):
        await world.client.patch(PODS, "p", [removal, *steps], namespace="d", kind=PatchType.JSON)
    assert world.api.objects(PODS)["d/p"] == before


@pytest.mark.parametrize(
    ("kind", "body", "content_type"),
    [
        (PatchType.MERGE, {"data": {"key": "new"}}, "application/merge-patch+json"),
        (PatchType.STRATEGIC, {"data": {"key": "new"}}, "application/strategic-merge"),
        (
            PatchType.JSON,
            [{"op": "replace", "path": "/data/key", "value": "new"}],
            "application/json-patch+json",
        ),
    ],
)
async def test_each_patch_type_sends_its_content_type(
    world: ClientWorld, kind: PatchType, body: object, content_type: str
) -> None:
    world.api.put(CONFIGMAPS, "a", data={"key": "old"})
    patched = await world.client.patch(CONFIGMAPS, "a", body, namespace="d", kind=kind, view=dict)
    assert patched["data"] == {"key": "new"}
    request = world.api.faults.requests[-1]
    assert request.headers["content-type"].startswith(content_type)


@pytest.mark.parametrize(
    ("force", "query"), [(False, b"fieldManager=me"), (True, b"fieldManager=me&force=true")]
)
async def test_apply_sends_kind_field_manager_and_force(force: bool, query: bytes) -> None:
    async with raw_http_server() as server:
        credentials = Credentials(server=f"http://127.0.0.1:{server.port}")
        async with Client(credentials, user_agent="tests") as client:
            body = {"metadata": {"name": "n"}}
            await client.patch(NODES, "n", body, kind=PatchType.apply("me", force=force))
    (request,) = server.requests
    assert request.startswith(b"PATCH /api/v1/nodes/n?%b HTTP/1.1" % query)
    assert b"content-type: application/apply-patch+yaml" in request.lower()
    assert b'"kind":"Node"' in request


async def test_patch_replace_and_post_address_subresources(world: ClientWorld) -> None:
    spec = {"containers": [{"name": "c", "image": "busybox"}]}
    await world.api.create(PODS, {"metadata": {"name": "a"}, "spec": spec}, namespace="d")
    status = {"status": {"phase": "Running"}}
    await world.client.patch(PODS, "a", status, namespace="d", subresource="status")
    assert world.api.faults.requests[-1].path == "/api/v1/namespaces/d/pods/a/status"
    body = world.api.objects(PODS)["d/a"]
    await world.client.replace(PODS, "a", body, namespace="d", subresource="status", view=Pod)
    assert world.api.faults.requests[-1].method == "PUT"
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "a"},
        "target": {"kind": "Node", "name": "n"},
    }
    await world.client.post(PODS.path("d", "a", "binding"), binding)
    assert world.api.faults.requests[-1].path == "/api/v1/namespaces/d/pods/a/binding"


async def test_delete_sends_uid_and_version_preconditions(world: ClientWorld) -> None:
    uid = world.api.put(PODS, "a")["metadata"]["uid"]
    with pytest.raises(ConflictError):
        await world.client.delete(PODS, "a", namespace="d", uid="another")
    with pytest.raises(ConflictError):
        await world.client.delete(PODS, "a", namespace="d", resource_version="1")
    assert "d/a" in world.api.objects(PODS)
    await world.client.delete(
        PODS, "a", namespace="d", uid=uid, grace_period=0, propagation="Background"
    )
    assert "d/a" not in world.api.objects(PODS)
    sent = world.api.faults.requests[-1].json()
    assert (sent["gracePeriodSeconds"], sent["propagationPolicy"]) == (0, "Background")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a%2fb"])
async def test_invalid_name_is_rejected_without_a_request(world: ClientWorld, name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        await world.client.delete(PODS, name, namespace="d")
    assert world.api.faults.requests == []


async def test_missing_namespace_is_rejected_without_a_request(world: ClientWorld) -> None:
    with pytest.raises(ValueError, match="namespace"):
        await world.client.delete(PODS, "a")
    with pytest.raises(ValueError, match="namespace"):
        await world.client.create(PODS, {"metadata": {"name": "a"}})
    assert world.api.faults.requests == []


async def test_list_reads_all_pages_of_one_version(world: ClientWorld) -> None:
    for number in range(1203):
        world.api.put(PODS, f"p{number:04}", metadata={"labels": {"odd": str(number % 2)}})
    everything = await world.client.list(PODS, view=Pod)
    assert [pod.metadata.name for pod in everything.items] == [f"p{i:04}" for i in range(1203)]
    newest = max(int(pod.metadata.resource_version) for pod in everything.items)
    assert int(everything.resource_version) >= newest
    assert world.api.count("list") == 3
    some = await world.client.list(PODS, namespace="d", view=Pod, label_selector="odd=1", limit=2)
    assert [pod.metadata.name for pod in some.items] == ["p0001", "p0003"]
    assert some.continue_token
    assert (await world.client.list(PODS, namespace="other", view=Pod)).items == []


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (302, ApiError),
        (400, BadRequestError),
        (401, UnauthorizedError),
        (403, ForbiddenError),
        (404, NotFoundError),
        (409, ConflictError),
        (410, GoneError),
        (418, ApiError),
        (422, InvalidError),
        (429, TooManyRequestsError),
        (500, ServerError),
        (504, ServerError),
    ],
)
async def test_each_status_maps_to_its_exception(
    world: ClientWorld, status: int, kind: type[ApiError]
) -> None:
    world.api.fail(status)
    with pytest.raises(kind) as caught:
        await world.client.get(PODS, "a", namespace="d", view=Pod)
    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.message) == (status, MESSAGE)


async def test_already_exists_differs_from_other_conflicts(world: ClientWorld) -> None:
    world.api.put(NODES, "n")
    with pytest.raises(AlreadyExistsError, match="already exists"):
        await world.client.create(NODES, {"metadata": {"name": "n"}})


async def test_throttled_request_is_retried_after_retry_after(
    world: ClientWorld,
) -> None:
    world.api.faults.error(RequestMatcher(count=2), 429, retry_after=3)
    await world.client.create(NODES, {"metadata": {"name": "n"}})
    assert world.delays == [3.0, 3.0]
    assert world.metric("rest_client_request_retries_total", code="429", verb="POST") == 2
    world.api.faults.error(RequestMatcher(count=None), 429, retry_after=1)
    with pytest.raises(TooManyRequestsError) as caught:
        await world.client.get(NODES, "n", view=Pod)
    assert caught.value.retry_after == 1.0
    assert world.api.count("GET") == 10


async def test_throttled_watch_is_opened_after_retry_after(world: ClientWorld) -> None:
    world.api.put(NODES, "n")
    world.api.faults.error(RequestMatcher("watch", count=2), 429, retry_after=3)
    async with aclosing(world.client.watch(NODES, view=Pod)) as events:
        assert (await anext(events)).object.metadata.name == "n"
    assert world.delays == [3.0, 3.0]
    world.api.faults.error(RequestMatcher("watch", count=None), 429, retry_after=1)
    with pytest.raises(TooManyRequestsError):
        await anext(world.client.watch(NODES, view=Pod))
    assert len(world.delays) == 2 + 9


async def test_broken_read_is_retried_but_broken_write_is_not(world: ClientWorld) -> None:
    world.api.put(NODES, "n")
    world.api.faults.lose_request(RequestMatcher(count=2))
    assert (await world.client.get(NODES, "n", view=Pod)).metadata.name == "n"
    assert world.api.count("GET") == 3
    world.api.faults.lose_request(RequestMatcher(count=4))
    for method, write in {
        "POST": world.client.create(NODES, {"metadata": {"name": "m"}}),
        "PATCH": world.client.patch(NODES, "n", {"x": 1}),
        "PUT": world.client.replace(NODES, "n", {"metadata": {"name": "n"}}),
        "DELETE": world.client.delete(NODES, "n"),
    }.items():
        with pytest.raises(ConnectionLostError):
            await write
        assert world.api.count(method) == 1
        assert world.metric("rest_client_requests_total", code="<error>", method=method) == 1
    assert world.api.objects(NODES).keys() == {"n"}


async def test_request_without_response_fails_at_the_timeout(
    world: ClientWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = LoopTime(monkeypatch)
    world.api.faults.hold(RequestMatcher(count=None))
    node = {"metadata": {"name": "n"}}
    for method, request in {
        "POST": world.client.create(NODES, node),
        "GET": world.client.get(NODES, "n", view=Pod),
    }.items():
        asking = asyncio.create_task(request)
        await wait_for(lambda: world.api.count(method))  # noqa: B023
        time.advance(101)
        with pytest.raises(RequestTimeoutError, match="no response within 100 s"):
            await asking
    assert world.api.count("GET") == 1


async def test_refused_connection_raises_connection_lost(world: ClientWorld) -> None:
    async with world.new_client(credentials=Credentials(server="http://127.0.0.1:1")) as client:
        with pytest.raises(ConnectionLostError):
            await client.get(NODES, "n", view=Pod)


async def test_requests_are_counted_under_client_go_metric_names(world: ClientWorld) -> None:
    await world.client.create(NODES, {"metadata": {"name": "n"}})
    with pytest.raises(AlreadyExistsError):
        await world.client.create(NODES, {"metadata": {"name": "n"}})
    total = "rest_client_requests_total"
    assert world.metric(total, code="201", method="POST") == 1
    assert world.metric(total, code="409", method="POST") == 1
    assert world.metric("rest_client_request_duration_seconds_count", verb="POST") == 2


@pytest.fixture
def token_client(world: ClientWorld, tmp_path: Path) -> Callable[[], Client]:
    def new_client() -> Client:
        token = str(tmp_path / "token")
        return world.new_client(
            credentials=replace(world.api.credentials, token="", token_file=token)
        )

    return new_client


async def test_token_file_is_reread_after_unauthorized(
    world: ClientWorld, tmp_path: Path, token_client: Callable[[], Client]
) -> None:
    token = tmp_path / "token"
    token.touch(0o600)
    one, two = (world.api.credentials_of(user).token for user in ("admin", "controllers"))
    token.write_text(f"{one}\n")
    world.api.put(PODS, "n")
    async with token_client() as client:
        await client.get(PODS, "n", namespace="d", view=Pod)
        token.write_text(two)
        await client.get(PODS, "n", namespace="d", view=Pod)
        world.api.fail(401)
        with pytest.raises(UnauthorizedError):
            await client.get(PODS, "n", namespace="d", view=Pod)
        await client.get(PODS, "n", namespace="d", view=Pod)
    sent = [request.headers["authorization"] for request in world.api.faults.requests]
    assert sent == [f"Bearer {token}" for token in (one, one, one, two)]


async def test_watch_yields_existing_objects_and_changes(world: ClientWorld) -> None:
    world.api.put(PODS, "a")
    got = []
    async for event in world.client.watch(PODS, view=Pod, namespace="d"):
        got.append((event.type, event.object.metadata.name))
        (stream,) = world.api.watches(PODS)
        if len(got) == 1:
            bookmark = {"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}}
            stream.send_event("BOOKMARK", bookmark)
            world.api.put(PODS, "elsewhere", namespace="e")
            world.api.put(PODS, "b")
            world.api.remove(PODS, "a")
        elif len(got) == 3:
            stream.close()
    assert got == [("ADDED", "a"), ("ADDED", "b"), ("DELETED", "a")]
    assert world.api.faults.requests[-1].query == {"watch": "true"}


async def test_watch_from_expired_version_raises_gone(world: ClientWorld) -> None:
    world.api.put(PODS, "a")
    world.api.compact()
    with pytest.raises(GoneError):
        async for _ in world.client.watch(PODS, view=Pod, resource_version="7"):
            pass
