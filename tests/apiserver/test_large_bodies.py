"""Large bodies are handled off the event loop, with the results of small ones."""

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from support.embedded_apiserver import (
    MAPS,
    MERGE,
    EmbeddedServer,
    RawResponse,
    config_map,
    embedded_server,
)
from support.polling import DEFAULT_TIMEOUT, wait_until_true

from batholith.local.apiserver.custom.schema import StructuralSchema
from batholith.local.apiserver.errors.status import StatusError
from batholith.local.apiserver.http import bodies, yaml_process
from batholith.local.apiserver.kinds.info import OFFLOAD_THRESHOLD
from batholith.local.apiserver.kinds.patches import json_patch
from batholith.model.admission import AdmissionRequest, ObjectReader, Webhook
from batholith.model.names import CONFIGMAPS

JSON_PATCH = "application/json-patch+json"
YAML = "application/yaml"


def large(name: str, **labels: str) -> dict[str, Any]:
    return {**config_map(name, **labels), "data": {"k": "," * (OFFLOAD_THRESHOLD + 1)}}


class BlockingWebhook:
    """An admission webhook that blocks the first large write while something else happens."""

    def __init__(self) -> None:
        self.reviewed: list[str] = []
        self.begun = threading.Event()
        self.released = threading.Event()
        self.reads = ""
        """The object that it reads."""

    def __call__(self, review: AdmissionRequest, lookup: ObjectReader) -> None:
        self.reviewed.append(review.name)
        if self.reads:
            lookup.get(CONFIGMAPS, "default", self.reads)
        if review.name == "large" and not self.begun.is_set():
            self.begun.set()
            assert self.released.wait(DEFAULT_TIMEOUT)

    async def reached(self) -> None:
        async def begun() -> bool:
            return self.begun.is_set()

        await wait_until_true(begun)


@asynccontextmanager
async def in_flight(
    request: Coroutine[Any, Any, RawResponse],
) -> AsyncIterator[asyncio.Task[RawResponse]]:
    task = asyncio.create_task(request)
    try:
        yield task
    finally:
        task.cancel()


@pytest.fixture
def webhook() -> BlockingWebhook:
    return BlockingWebhook()


@pytest.fixture
async def server(tmp_path: Path, webhook: BlockingWebhook) -> AsyncIterator[EmbeddedServer]:
    hook = Webhook(
        name="rule.example.io",
        path="/rule",
        resource=CONFIGMAPS,
        operations=frozenset(("CREATE", "UPDATE")),
        validate=webhook,
    )
    async with embedded_server(tmp_path, webhooks=[hook]) as server:
        yield server


async def test_a_large_write_does_not_block_others(
    server: EmbeddedServer, webhook: BlockingWebhook
) -> None:
    async with in_flight(server.request("POST", MAPS, large("large"))) as writing:
        await webhook.reached()
        await server.create(MAPS, config_map("small"))
        webhook.released.set()
        assert (await writing).status == 201


async def test_a_large_write_is_based_on_the_latest_state(
    server: EmbeddedServer, webhook: BlockingWebhook
) -> None:
    webhook.released.set()
    await server.create(MAPS, config_map("large"))
    webhook.begun.clear()
    webhook.released.clear()
    patch = {"data": {"more": "x" * OFFLOAD_THRESHOLD}}
    request = server.request("PATCH", f"{MAPS}/large", patch, content_type=MERGE)
    async with in_flight(request) as writing:
        await webhook.reached()
        label = {"metadata": {"labels": {"between": "yes"}}}
        small = await server.request("PATCH", f"{MAPS}/large", label, content_type=MERGE)
        assert small.status == 200
        webhook.released.set()
        response = await writing
    assert response.status == 200
    assert response.body["metadata"]["labels"] == {"between": "yes"}
    assert response.body["data"].keys() == {"k", "more"}


async def test_a_webhook_runs_again_if_what_it_read_has_changed(
    server: EmbeddedServer, webhook: BlockingWebhook
) -> None:
    webhook.reads = "read"
    async with in_flight(server.request("POST", MAPS, large("large"))) as writing:
        await webhook.reached()
        await server.create(MAPS, config_map("read"))
        webhook.released.set()
        assert (await writing).status == 201
    assert webhook.reviewed.count("large") == 2


async def test_the_first_write_gets_the_name_of_a_large_object(
    server: EmbeddedServer, webhook: BlockingWebhook
) -> None:
    async with in_flight(server.request("POST", MAPS, large("large"))) as writing:
        await webhook.reached()
        await server.create(MAPS, config_map("large"))
        webhook.released.set()
        response = await writing
    assert (response.status, response.body["reason"]) == (409, "AlreadyExists")


@pytest.mark.process
async def test_large_yaml_is_converted_in_another_process(
    server: EmbeddedServer, webhook: BlockingWebhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    webhook.released.set()

    def here(data: bytes) -> bytes:
        raise AssertionError("converted in the server")

    monkeypatch.setattr(yaml_process, "to_json", here)
    monkeypatch.setattr(yaml_process, "from_json", here)
    body = {**config_map("large"), "data": {f"k{i}": "v: ä" for i in range(1000)}}
    response = await server.request("POST", MAPS, yaml.safe_dump(body).encode(), content_type=YAML)
    assert (response.status, response.body["data"]) == (201, body["data"])
    for path in (f"{MAPS}/large", MAPS):
        plain = await server.request("GET", path)
        shown = await server.request("GET", path, headers={"Accept": YAML})
        assert shown.headers["Content-Type"] == YAML
        assert shown.body == yaml.safe_dump(plain.body, allow_unicode=False, sort_keys=True)


@pytest.mark.process
async def test_yaml_with_too_many_keys_is_rejected(server: EmbeddedServer) -> None:
    body = b"".join(b"a%06d: 1\n" % number for number in range(180_000))
    response = await server.request("POST", MAPS, body, content_type=YAML)
    assert (response.status, response.body["reason"]) == (400, "BadRequest")
    assert "more than 100000 values" in response.body["message"]


@pytest.mark.parametrize("media", ["application/json", MERGE, JSON_PATCH])
async def test_json_with_too_many_values_is_rejected(server: EmbeddedServer, media: str) -> None:
    await server.create(MAPS, config_map("m"))
    method, path = ("POST", MAPS) if media == "application/json" else ("PATCH", f"{MAPS}/m")
    body = b'{"data":{"k":[' + b"0," * yaml_process.MAX_VALUES + b"0]}}"
    response = await server.request(method, path, body, content_type=media)
    assert (response.status, response.body["reason"]) == (413, "RequestEntityTooLarge")
    assert "limit is 100000 values" in response.body["message"]


def test_commas_in_strings_are_not_counted_as_values() -> None:
    text = ',[{"' * yaml_process.MAX_VALUES
    assert bodies.parse_json(msgspec.json.encode({"k": text})) == {"k": text}


@pytest.mark.parametrize(
    "body", [b'{"a":' * 201 + b"1" + b"}" * 201, b"[" * 40_000 + b"]" * 40_000]
)
def test_json_nested_too_deep_is_rejected(body: bytes) -> None:
    with pytest.raises(StatusError, match="nested deeper than 200 levels") as refused:
        bodies.parse_json(body)
    assert refused.value.code == 400


def test_json_with_many_sibling_objects_is_not_deep() -> None:
    assert bodies.parse_json(b"[" + b"{}," * 300 + b"{}]") == [{}] * 301


async def test_a_json_patch_cannot_nest_an_object_deeper_step_by_step(
    server: EmbeddedServer,
) -> None:
    await server.create(MAPS, config_map("deep"))
    deeper = [
        {"op": "add", "path": "/data" + "/a" * depth, "value": {"a": {}}} for depth in range(1, 250)
    ]
    response = await server.request("PATCH", f"{MAPS}/deep", deeper, content_type=JSON_PATCH)
    assert (response.status, response.body["reason"]) == (400, "BadRequest")
    assert "nested deeper than 200 levels" in response.body["message"]


def test_a_json_patch_test_distinguishes_true_from_one() -> None:
    document = {"a": [{"b": 1}, True]}
    same = {"op": "test", "path": "/a", "value": [{"b": 1}, True]}
    assert json_patch(document, [same]) == document
    for other in ([{"b": True}, True], [{"b": 1}, 1], [{"b": 1}], [{"c": 1}, True]):
        with pytest.raises(Exception, match="the server rejected our request"):
            json_patch(document, [{**same, "value": other}])


async def test_patches_cannot_grow_an_object_beyond_the_limit(
    server: EmbeddedServer, webhook: BlockingWebhook
) -> None:
    webhook.released.set()
    await server.create(MAPS, config_map("m"))
    statuses = []
    for manager in ("a", "b", "c", "d"):
        entry: dict[str, Any] = {
            "manager": manager,
            "operation": "Apply",
            "apiVersion": "v1",
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:" + "x" * 2**20: {}},
        }
        step = {"op": "add", "path": "/metadata/managedFields/-", "value": entry}
        response = await server.request("PATCH", f"{MAPS}/m", [step], content_type=JSON_PATCH)
        statuses.append(response.status)
    assert statuses == [200, 200, 413, 413]


def test_a_kind_with_expensive_patterns_has_a_lower_offload_threshold() -> None:
    def of(*patterns: str) -> int:
        text = {"type": "string", "allOf": [{"pattern": each} for each in patterns]}
        return StructuralSchema({"type": "object", "properties": {"spec": text}}).offload_threshold

    assert of("^[a-z]+$") == OFFLOAD_THRESHOLD
    expensive = "(a|b)*a((a|b){30}){30}"
    assert of(expensive, expensive) < of(expensive) < OFFLOAD_THRESHOLD
