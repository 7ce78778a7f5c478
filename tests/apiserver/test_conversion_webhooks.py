"""Custom objects that a webhook converts between versions, on both servers."""

import asyncio
import base64
import copy
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.api_servers import ServerFactory
from support.embedded_apiserver import DEFINITIONS, MAPS, MERGE, RawResponse, Server
from support.polling import wait_until_equal, wait_until_true
from support.review_server import ReviewServer, review_server

Json = dict[str, Any]

NAME = "boxes.conv.io"
V1, V2 = (f"/apis/conv.io/{version}/namespaces/default/boxes" for version in ("v1", "v2"))
APPLY = "application/apply-patch+yaml"
INTEGER = {"type": "integer"}
SCALE = {"specReplicasPath": ".spec.count", "statusReplicasPath": ".status.count"}
FIELDS: dict[str, Json] = {
    "v1": {"size": {"type": "string"}, "count": INTEGER},
    "v2": {"width": INTEGER, "height": INTEGER, "count": INTEGER},
}
"""A size such as `2x3` in `v1` is a width and a height in `v2`."""


def converted(obj: Json, api_version: str) -> Json:
    obj = {**copy.deepcopy(obj), "apiVersion": api_version}
    spec = obj.setdefault("spec", {})
    if api_version == "conv.io/v2" and "size" in spec:
        width, _, height = spec.pop("size").partition("x")
        spec |= {"width": int(width), "height": int(height)}
    elif api_version == "conv.io/v1" and "width" in spec:
        spec["size"] = f"{spec.pop('width')}x{spec.pop('height')}"
    labels = obj["metadata"].setdefault("labels", {})
    labels["shown"] = api_version.rpartition("/")[2]
    return obj


def convert(request: Json) -> Json:
    version = request["desiredAPIVersion"]
    return success([converted(each, version) for each in request["objects"]])


def success(objects: list[Json]) -> Json:
    return {"result": {"status": "Success"}, "convertedObjects": objects}


def changing(change: Callable[[Json], object]) -> Callable[[Json], Json]:
    """Convert, and change each object afterwards."""

    def respond(request: Json) -> Json:
        response = convert(request)
        for each in response["convertedObjects"]:
            change(each)
        return response

    return respond


def definition(webhooks: ReviewServer, *, stored: str = "v1") -> Json:
    def version(name: str) -> Json:
        spec = {"type": "object", "properties": FIELDS[name]}
        status = {"type": "object", "properties": {"count": INTEGER}}
        schema = {"type": "object", "properties": {"spec": spec, "status": status}}
        return {
            "name": name,
            "served": True,
            "storage": name == stored,
            "schema": {"openAPIV3Schema": schema},
            "subresources": {"status": {}, "scale": SCALE},
            **({"selectableFields": [{"jsonPath": ".spec.width"}]} if name == "v2" else {}),
        }

    client = {"url": f"{webhooks.url}/convert", "caBundle": webhooks.bundle}
    webhook = {"clientConfig": client, "conversionReviewVersions": ["v1"]}
    return {
        "metadata": {"name": NAME},
        "spec": {
            "group": "conv.io",
            "scope": "Namespaced",
            "names": {"plural": "boxes", "kind": "Box"},
            "versions": [version(name) for name in FIELDS],
            "conversion": {"strategy": "Webhook", "webhook": webhook},
        },
    }


def box(version: str, name: str, **spec: Any) -> Json:
    head = {"apiVersion": f"conv.io/{version}", "kind": "Box"}
    return {**head, "metadata": {"name": name}, "spec": spec}


@pytest.fixture
async def server(servers: ServerFactory, tmp_path: Path) -> AsyncIterator[Server]:
    async with servers.start(tmp_path / "server") as started:
        yield started
        # A real server ends its connections to the webhooks, which are closed already.
        await wait_until_equal(lambda: _is_found(started, DEFINITIONS), True)


@pytest.fixture(autouse=True)
async def webhooks(server: Server, tmp_path: Path) -> AsyncIterator[ReviewServer]:
    async with review_server(tmp_path) as serving:
        serving.responses["convert"] = convert
        await server.install_crds(definition(serving))
        yield serving
        # A real server is used again, and deletes objects only while the webhook is there.
        serving.responses["convert"] = convert
        await server.request("DELETE", f"{DEFINITIONS}/{NAME}")
        await wait_until_equal(lambda: _is_found(server, f"{DEFINITIONS}/{NAME}"), False)


async def _is_found(server: Server, path: str) -> bool:
    return (await server.request("GET", path)).status == 200


async def patch(server: Server, path: str, body: Json, kind: str = MERGE) -> RawResponse:
    return await server.request("PATCH", path, body, content_type=kind)


async def test_an_object_is_read_and_written_in_each_version(server: Server) -> None:
    created = await server.create(V1, box("v1", "a", size="2x3"))
    assert (created["apiVersion"], created["spec"]) == ("conv.io/v1", {"size": "2x3"})
    seen = await server.get(f"{V2}/a")
    assert (seen["apiVersion"], seen["spec"]) == ("conv.io/v2", {"width": 2, "height": 3})
    assert seen["metadata"]["uid"] == created["metadata"]["uid"]
    second = await server.create(V2, box("v2", "b", width=4, height=5))
    assert (second["apiVersion"], second["spec"]) == ("conv.io/v2", {"width": 4, "height": 5})
    assert (await server.get(f"{V1}/b"))["spec"] == {"size": "4x5"}
    seen["spec"]["height"] = 7
    replaced = await server.request("PUT", f"{V2}/a", seen)
    assert replaced.body["spec"] == {"width": 2, "height": 7}
    patched = await patch(server, f"{V2}/a", {"spec": {"width": 9}})
    assert patched.body["spec"] == {"width": 9, "height": 7}
    status = await patch(server, f"{V2}/a/status", {"status": {"count": 1}})
    assert (status.status, status.body["status"]) == (200, {"count": 1})
    shown = await server.get(f"{V1}/a")
    assert (shown["spec"], shown["status"]) == ({"size": "9x7"}, {"count": 1})
    dry = await server.request("POST", f"{V2}?dryRun=All", box("v2", "c", width=1, height=1))
    assert (dry.body["apiVersion"], dry.body["spec"]) == ("conv.io/v2", {"width": 1, "height": 1})
    await patch(server, f"{V2}/b", {"spec": {"count": 1}})
    scale = await server.get(f"{V2}/b/scale")
    scale["spec"]["replicas"] = 4
    scaled = await server.request("PUT", f"{V2}/b/scale", scale)
    assert (scaled.status, scaled.body["spec"]) == (200, {"replicas": 4})
    assert (await server.get(f"{V1}/b"))["spec"] == {"size": "4x5", "count": 4}
    deleted = await server.request("DELETE", f"{V2}/a")
    assert (deleted.status, deleted.body["kind"]) == (200, "Status")


async def test_lists_are_converted_and_selected_in_the_version_of_the_request(
    server: Server, webhooks: ReviewServer
) -> None:
    for name, size in (("a", "1x2"), ("b", "3x4"), ("c", "3x5")):
        await server.create(V1, box("v1", name, size=size))
    found = await server.get(V2)
    assert [each["spec"].get("width") for each in found["items"]] == [1, 3, 3]
    chosen = await server.get(f"{V2}?fieldSelector=spec.width%3D3")
    assert [each["metadata"]["name"] for each in chosen["items"]] == ["b", "c"]
    labelled = await server.get(f"{V2}?labelSelector=shown%3Dv2")
    assert [each["metadata"]["name"] for each in labelled["items"]] == ["a", "b", "c"]
    page = await server.get(f"{V2}?limit=2")
    rest = await server.get(f"{V2}?limit=2&continue={page['metadata']['continue']}")
    both = [*page["items"], *rest["items"]]
    assert [each["spec"]["height"] for each in both] == [2, 4, 5]
    await server.request("DELETE", f"{V2}?fieldSelector=spec.width%3D3")
    assert [each["metadata"]["name"] for each in (await server.get(V1))["items"]] == ["a"]


async def test_a_watch_sends_each_change_in_its_version_and_in_order(server: Server) -> None:
    created = await server.create(V1, box("v1", "old", size="1x1"))
    async with server.watch(f"{V2}?watch=1&fieldSelector=spec.width%3D1") as lines:
        assert (await lines.next())["object"]["spec"] == {"width": 1, "height": 1}
        await server.create(V1, box("v1", "other", size="2x2"))
        for height in range(2, 5):
            await patch(server, f"{V1}/old", {"spec": {"size": f"1x{height}"}})
        await patch(server, f"{V1}/old", {"spec": {"size": "5x5"}})
        await patch(server, f"{V1}/other", {"spec": {"size": "1x9"}})
        await server.request("DELETE", f"{V1}/other")
        events = [await lines.next() for _ in range(6)]
    assert [
        (each["type"], each["object"]["metadata"]["name"], each["object"]["spec"]["height"])
        for each in events
    ] == [
        ("MODIFIED", "old", 2),
        ("MODIFIED", "old", 3),
        ("MODIFIED", "old", 4),
        ("DELETED", "old", 4),
        ("ADDED", "other", 9),
        ("DELETED", "other", 9),
    ]
    assert {each["object"]["apiVersion"] for each in events} == {"conv.io/v2"}
    version = created["metadata"]["resourceVersion"]
    async with server.watch(f"{V2}?watch=1&resourceVersion={version}") as lines:
        resumed = [await lines.next() for _ in range(2)]
    assert [each["object"]["spec"]["width"] for each in resumed] == [2, 1]


async def test_managers_own_fields_in_the_versions_in_which_they_apply(server: Server) -> None:
    first = await patch(
        server, f"{V1}/a?fieldManager=one", box("v1", "a", size="2x3", count=1), APPLY
    )
    assert first.status == 201
    same = await patch(server, f"{V2}/a?fieldManager=two", box("v2", "a", width=2, height=3), APPLY)
    assert (same.status, same.body["spec"]) == (200, {"width": 2, "height": 3, "count": 1})
    wider = box("v2", "a", width=7, height=3)
    other = await patch(server, f"{V2}/a?fieldManager=two", wider, APPLY)
    assert other.status == 409
    assert [(each["field"], each["message"]) for each in other.body["details"]["causes"]] == [
        (".spec.size", 'conflict with "one"')
    ]
    forced = await patch(server, f"{V2}/a?fieldManager=two&force=true", wider, APPLY)
    assert (forced.status, forced.body["spec"]["width"]) == (200, 7)
    owners = {
        each["manager"]: (each["apiVersion"], sorted(each["fieldsV1"]["f:spec"]))
        for each in forced.body["metadata"]["managedFields"]
    }
    assert owners == {
        "one": ("conv.io/v1", ["f:count"]),
        "two": ("conv.io/v2", ["f:height", "f:width"]),
    }


async def test_the_storage_version_changes_with_the_objects_that_are_written(
    server: Server, webhooks: ReviewServer
) -> None:
    await server.create(V1, box("v1", "a", size="1x1"))
    versions = definition(webhooks, stored="v2")["spec"]["versions"]
    changed = await patch(server, f"{DEFINITIONS}/{NAME}", {"spec": {"versions": versions}})
    assert changed.status == 200

    async def stored_versions() -> list[str]:
        found = await server.get(f"{DEFINITIONS}/{NAME}")
        stored: list[str] = found["status"]["storedVersions"]
        return stored

    await wait_until_equal(stored_versions, ["v1", "v2"])
    for name in ("b", "c"):
        await server.create(V2, box("v2", name, width=2, height=2))
    items = (await server.get(V1))["items"]
    assert [each["spec"] for each in items] == [{"size": "1x1"}, {"size": "2x2"}, {"size": "2x2"}]
    items = (await server.get(V2))["items"]
    assert [each["spec"].get("width") for each in items] == [1, 2, 2]
    assert {each["apiVersion"] for each in items} == {"conv.io/v2"}
    without = [versions[1]]
    refused = await patch(server, f"{DEFINITIONS}/{NAME}", {"spec": {"versions": without}})
    assert refused.status == 422
    assert [each["field"] for each in refused.body["details"]["causes"]] == [
        "status.storedVersions[0]"
    ]
    before = await server.get(f"{V2}/a")
    migrated = await server.request("PUT", f"{V2}/a", before)
    assert migrated.status == 200


FAILURES: tuple[tuple[Callable[[Json], Json], str], ...] = (
    (lambda request: {"result": {"status": "Failed", "message": "no"}}, "failed: no"),
    (lambda request: success([]), "returned 0 objects, expected 1"),
    (
        changing(lambda each: each.update(apiVersion="conv.io/v3")),
        "invalid groupVersion (expected conv.io/v2, received conv.io/v3)",
    ),
    (changing(lambda each: each.update(kind="Bag")), "invalid kind (expected Box"),
    (changing(lambda each: each["metadata"].update(name="b")), "must have the same name: a != b"),
    (changing(lambda each: each["metadata"].update(uid="u")), "must have the same UID"),
    (changing(lambda each: each.pop("metadata")), "must have the same name: a != "),
    (
        changing(lambda each: each["metadata"].update(labels={"a b": ""})),
        "returned invalid metadata: metadata.labels",
    ),
    (lambda request: {**convert(request), "uid": "other"}, "expected response.uid="),
)


async def test_what_a_webhook_must_not_return_is_reported(
    server: Server, webhooks: ReviewServer
) -> None:
    created = await server.create(V1, box("v1", "a", size="1x1"))
    for response, text in FAILURES:
        webhooks.responses["convert"] = response
        found = await server.request("GET", f"{V2}/a")
        assert found.status == 500, found.body
        assert "conversion webhook for conv.io/v1, Kind=Box " in found.body["message"]
        assert text in found.body["message"]

    def change(each: Json) -> None:
        each["metadata"] |= {"finalizers": ["x.io/y"], "generation": 9, "resourceVersion": "1"}
        each["metadata"]["annotations"] = {"a": "b"}

    webhooks.responses["convert"] = changing(change)
    seen = (await server.get(f"{V2}/a"))["metadata"]
    assert (seen["labels"], seen["annotations"]) == ({"shown": "v2"}, {"a": "b"})
    kept = ("generation", "resourceVersion", "creationTimestamp", "uid", "finalizers")
    assert [seen.get(key) for key in kept] == [created["metadata"].get(key) for key in kept]


async def test_nothing_changes_if_an_object_cannot_be_converted(
    server: Server, webhooks: ReviewServer
) -> None:
    await server.create(V1, box("v1", "a", size="1x1"))
    webhooks.responses["convert"] = FAILURES[0][0]
    for failing in (
        await patch(server, f"{V2}/a", {"spec": {"width": 2}}),
        await server.request("DELETE", f"{V2}/a"),
        await server.request("POST", V2, box("v2", "b", width=1, height=1)),
    ):
        assert (failing.status, "failed: no" in failing.body["message"]) == (500, True)
    assert [each["spec"] for each in (await server.get(V1))["items"]] == [{"size": "1x1"}]
    webhooks.responses["convert"] = convert
    assert (await server.get(f"{V2}/a"))["spec"] == {"width": 1, "height": 1}


async def test_a_slow_conversion_delays_only_what_needs_it(
    server: Server, webhooks: ReviewServer
) -> None:
    released = asyncio.Event()

    async def asked() -> bool:
        return bool(webhooks.requests("convert"))

    async def slow(request: Json) -> Json:
        await released.wait()
        return convert(request)

    await server.create(V1, box("v1", "a", size="1x1"))
    webhooks.responses["convert"] = slow
    waiting = asyncio.create_task(server.get(f"{V2}/a"))
    try:
        await wait_until_true(asked)
        assert (await server.get(f"{V1}/a"))["spec"] == {"size": "1x1"}
        assert (await server.get(MAPS))["kind"] == "ConfigMapList"
        assert not waiting.done()
    finally:
        released.set()
        with suppress(asyncio.CancelledError):
            found = await waiting
    assert found["spec"] == {"width": 1, "height": 1}


@pytest.mark.parametrize("servers", ["embedded"], indirect=True)
async def test_objects_are_converted_in_batches_and_once(
    server: Server, webhooks: ReviewServer
) -> None:
    for number in range(5):
        await server.create(V1, box("v1", f"b{number}", size=f"{number}x1"))
    assert webhooks.requests("convert") == []
    watches = [asyncio.create_task(_first_event(server)) for _ in range(3)]
    await asyncio.gather(*watches, server.get(V2), server.get(V2))
    await server.get(f"{V2}/b3")
    assert [len(each["objects"]) for each in webhooks.requests("convert")] == [5]


@pytest.mark.parametrize("servers", ["embedded"], indirect=True)
async def test_a_definition_is_deleted_with_its_objects_while_the_webhook_fails(
    server: Server, webhooks: ReviewServer
) -> None:
    await server.create(V2, box("v2", "a", width=1, height=1))
    webhooks.responses["convert"] = FAILURES[0][0]
    await server.request("DELETE", f"{DEFINITIONS}/{NAME}")
    await wait_until_equal(lambda: _is_found(server, f"{DEFINITIONS}/{NAME}"), False)


@pytest.mark.parametrize("servers", ["embedded"], indirect=True)
async def test_a_watch_ends_with_an_error_if_an_object_cannot_be_converted(
    server: Server, webhooks: ReviewServer
) -> None:
    async with server.watch(f"{V2}?watch=1") as lines:
        webhooks.responses["convert"] = FAILURES[0][0]
        await server.create(V1, box("v1", "a", size="1x1"))
        event, *others = await lines.remaining()
    assert (event["type"], event["object"]["code"], others) == ("ERROR", 500, [])


async def _first_event(server: Server) -> Json:
    async with server.watch(f"{V2}?watch=1") as lines:
        return await lines.next()


async def test_without_a_webhook_fields_that_a_version_lacks_are_removed(
    server: Server, webhooks: ReviewServer
) -> None:
    crd = definition(webhooks)
    crd["metadata"]["name"] = "plain.conv.io"
    crd["spec"] |= {"names": {"plural": "plain", "kind": "Plain"}, "conversion": None}
    await server.install_crds(crd)
    one, two = (path.replace("boxes", "plain") for path in (V1, V2))
    try:
        body = {**box("v2", "a", width=1, height=2, count=3), "kind": "Plain"}
        created = await server.create(two, body)
        assert created["spec"] == {"count": 3}  # as it is stored
        await server.create(one, {**box("v1", "b", size="1x1", count=4), "kind": "Plain"})
        for path, specs in (
            (one, [{"count": 3}, {"size": "1x1", "count": 4}]),
            (two, [{"count": 3}, {"count": 4}]),
        ):
            assert [each["spec"] for each in (await server.get(path))["items"]] == specs
    finally:
        await server.request("DELETE", f"{DEFINITIONS}/plain.conv.io")
        await wait_until_equal(lambda: _is_found(server, f"{DEFINITIONS}/plain.conv.io"), False)


async def test_definitions_with_wrong_conversions_are_rejected(
    server: Server, webhooks: ReviewServer
) -> None:
    good = definition(webhooks)
    webhook = good["spec"]["conversion"]["webhook"]
    where = "spec.conversion"
    wrong: list[tuple[Json, set[str]]] = [
        ({"strategy": "Other"}, {f"{where}.strategy"}),
        ({"strategy": ""}, {f"{where}.strategy"}),
        (
            {"strategy": "Webhook"},
            {f"{where}.webhookClientConfig", f"{where}.conversionReviewVersions"},
        ),
        (
            {"strategy": "None", "webhook": webhook},
            {f"{where}.webhookClientConfig", f"{where}.conversionReviewVersions"},
        ),
        (
            {"strategy": "Webhook", "webhook": {**webhook, "clientConfig": {}}},
            {f"{where}.webhookClientConfig"},
        ),
        (
            {"strategy": "Webhook", "webhook": {**webhook, "clientConfig": {"url": "http://a"}}},
            {f"{where}.webhookClientConfig.url"},
        ),
        (
            {"strategy": "Webhook", "webhook": {**webhook, "conversionReviewVersions": ["v2"]}},
            {f"{where}.conversionReviewVersions"},
        ),
    ]
    for conversion, fields in wrong:
        body = {**good, "spec": {**good["spec"], "conversion": conversion}}
        body["metadata"] = {"name": "other.conv.io"}
        body["spec"]["names"] = {"plural": "other", "kind": "Other"}
        found = await server.request("POST", f"{DEFINITIONS}?dryRun=All", body)
        assert found.status == 422, found.body
        assert {each["field"] for each in found.body["details"]["causes"]} == fields


async def test_the_authority_of_a_webhook_may_have_the_serial_number_0(server: Server) -> None:
    """As that of Kueue and KEDA has."""
    authority = (Path(__file__).parents[1] / "data" / "ca-with-serial-number-0.pem").read_bytes()
    client = {"caBundle": base64.b64encode(authority).decode()}
    change = {"spec": {"conversion": {"webhook": {"clientConfig": client}}}}
    patched = await patch(server, f"{DEFINITIONS}/{NAME}?dryRun=All", change)
    assert patched.status == 200, patched.body
