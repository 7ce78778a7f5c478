"""Objects over HTTP: create, read, change, watch, delete, and persistence."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.embedded_apiserver import (
    DEFINITIONS,
    FOOS,
    MAPS,
    MERGE,
    PODS,
    EmbeddedServer,
    Server,
    WatchStream,
    config_map,
    definition,
    embedded_server,
    foo,
    pod,
    wait_deleted,
)
from support.polling import wait_for, wait_until_true

from batholith.model.admission import AdmissionRequest, DeniedError, ObjectReader, Webhook
from batholith.model.names import CONFIGMAPS, Resource

Json = dict[str, Any]
INITIAL = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"


async def names(lines: WatchStream, count: int) -> list[tuple[str, str]]:
    events = [await lines.next() for _ in range(count)]
    return [(event["type"], event["object"]["metadata"].get("name", "")) for event in events]


async def test_create_read_update_delete(server: Server) -> None:
    created = await server.create(MAPS, config_map("a"))
    assert created["metadata"]["uid"] and created["metadata"]["creationTimestamp"].endswith("Z")
    assert await server.get(f"{MAPS}/a") == created
    changed = await server.request("PATCH", f"{MAPS}/a", {"data": {"k": "w"}}, content_type=MERGE)
    assert changed.body["data"] == {"k": "w"}
    assert int(changed.body["metadata"]["resourceVersion"]) > int(
        created["metadata"]["resourceVersion"]
    )
    deleted = await server.request("DELETE", f"{MAPS}/a")
    assert deleted.body["status"] == "Success"
    assert deleted.body["details"]["uid"] == created["metadata"]["uid"]
    assert (await server.request("GET", f"{MAPS}/a")).body["reason"] == "NotFound"


async def test_a_stale_write_conflicts_and_an_unchanged_object_is_not_written(
    server: Server,
) -> None:
    first = await server.create(MAPS, config_map("a"))
    second = await server.request("PUT", f"{MAPS}/a", {**first, "data": {"k": "2"}})
    assert second.status == 200
    stale = await server.request("PUT", f"{MAPS}/a", {**first, "data": {"k": "3"}})
    assert (stale.status, stale.body["reason"]) == (409, "Conflict")
    same = await server.request("PUT", f"{MAPS}/a", second.body)
    assert same.body == second.body
    again = await server.request("POST", MAPS, config_map("a"))
    assert (again.status, again.body["reason"]) == (409, "AlreadyExists")


async def test_of_concurrent_updates_of_one_version_one_wins(server: Server) -> None:
    created = await server.create(MAPS, config_map("a"))
    responses = await asyncio.gather(
        *(
            server.request("PUT", f"{MAPS}/a", {**created, "data": {"by": str(n)}})
            for n in range(20)
        )
    )
    assert sorted(response.status for response in responses) == [200] + [409] * 19


async def test_concurrent_patches_are_all_applied(server: Server) -> None:
    await server.create(MAPS, config_map("a"))
    await asyncio.gather(
        *(
            server.request("PATCH", f"{MAPS}/a", {"data": {f"by{n}": "x"}}, content_type=MERGE)
            for n in range(30)
        )
    )
    assert len((await server.get(f"{MAPS}/a"))["data"]) == 31


async def test_lists_are_sorted_selected_and_paginated(server: Server) -> None:
    for name, tier in (("c", "x"), ("a", "x"), ("b", "y")):
        await server.create(MAPS, config_map(name, tier=tier))
    chosen = await server.get(f"{MAPS}?labelSelector=tier%3Dx")
    assert [item["metadata"]["name"] for item in chosen["items"]] == ["a", "c"]
    by_name = await server.get(f"{MAPS}?fieldSelector=metadata.name%3Db")
    assert [item["metadata"]["name"] for item in by_name["items"]] == ["b"]
    page = await server.get(f"{MAPS}?limit=2")
    assert page["metadata"]["remainingItemCount"] == 2
    # The pages are one snapshot: changes in between are not visible.
    await server.request("DELETE", f"{MAPS}/c")
    await server.create(MAPS, config_map("d"))
    rest = await server.get(f"{MAPS}?limit=5&continue={page['metadata']['continue']}")
    assert [item["metadata"]["name"] for item in rest["items"]] == ["c", "kube-root-ca.crt"]
    assert rest["metadata"]["resourceVersion"] == page["metadata"]["resourceVersion"]


async def test_a_watch_resumes_exactly_where_a_list_ended(server: Server) -> None:
    await server.create(MAPS, config_map("a"))
    listed = await server.get(MAPS)
    await server.create(MAPS, config_map("b"))
    version = listed["metadata"]["resourceVersion"]
    async with server.watch(f"{MAPS}?watch=1&resourceVersion={version}") as lines:
        await server.request("DELETE", f"{MAPS}/a")
        assert await names(lines, 2) == [("ADDED", "b"), ("DELETED", "a")]


async def test_a_streaming_list_ends_with_a_bookmark(server: Server) -> None:
    await server.create(MAPS, config_map("a"))
    async with server.watch(f"{MAPS}?{INITIAL}&allowWatchBookmarks=true") as lines:
        events = [await lines.next() for _ in range(3)]
    assert [event["type"] for event in events] == ["ADDED", "ADDED", "BOOKMARK"]
    marks = events[2]["object"]["metadata"]["annotations"]
    assert marks == {"k8s.io/initial-events-end": "true"}


async def test_objects_enter_and_leave_a_selection(server: Server) -> None:
    await server.create(MAPS, config_map("a", tier="x"))
    path = f"{MAPS}?watch=1&labelSelector=tier%3Dx"
    async with server.watch(path) as lines:
        assert await names(lines, 1) == [("ADDED", "a")]
        for tier in ("y", "x"):
            body = {"metadata": {"labels": {"tier": tier}}}
            changed = await server.request("PATCH", f"{MAPS}/a", body, content_type=MERGE)
            event = await lines.next()
            metadata = event["object"]["metadata"]
            # A watcher that no longer selects an object sees its old content at the new version.
            assert metadata["labels"] == {"tier": "x"}
            assert metadata["resourceVersion"] == changed.body["metadata"]["resourceVersion"]
            assert event["type"] == ("DELETED" if tier == "y" else "ADDED")


async def test_a_watch_by_node_sees_only_its_pods(server: Server) -> None:
    path = "/api/v1/pods?watch=1&fieldSelector=spec.nodeName%3Dn1"
    async with server.watch(path) as lines:
        await server.create(PODS, pod("other", nodeName="n2"))
        await server.create(PODS, pod("mine"))
        binding = {"metadata": {"name": "mine"}, "target": {"kind": "Node", "name": "n1"}}
        bound = await server.request("POST", f"{PODS}/mine/binding", binding)
        assert (bound.status, bound.body["status"]) == (201, "Success")
        event = await lines.next()
    assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "mine")
    conditions = event["object"]["status"]["conditions"]
    assert [(c["type"], c["status"]) for c in conditions] == [("PodScheduled", "True")]


async def test_an_expired_version_is_a_410_error_event(embedded: EmbeddedServer) -> None:
    store = embedded.running.app.handlers.writer.store
    kind = embedded.running.app.catalog.get("", "v1", "configmaps")
    assert kind is not None
    store.resource_store(kind).oldest_version = store.committed_rv
    async with embedded.watch(f"{MAPS}?watch=1&resourceVersion=1") as lines:
        assert lines.status == 200
        (event,) = await lines.remaining()
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)
    assert event["object"]["reason"] == "Expired"


async def test_objects_survive_a_restart_and_watches_resume(tmp_path: Path) -> None:
    async with embedded_server(tmp_path) as server:
        created = await server.create(MAPS, config_map("a"))
        await server.create(MAPS, config_map("b"))
        await server.request("DELETE", f"{MAPS}/b")
        before = int((await server.get(MAPS))["metadata"]["resourceVersion"])
        token = server.running.tokens["admin"]
    async with embedded_server(tmp_path) as server:
        assert server.running.tokens["admin"] == token
        assert await server.get(f"{MAPS}/a") == created
        listed = await server.get(MAPS)
        assert int(listed["metadata"]["resourceVersion"]) >= before
        version = created["metadata"]["resourceVersion"]
        query = f"{MAPS}?watch=1&resourceVersion={version}&fieldSelector=metadata.name=b"
        async with server.watch(query) as lines:
            assert await names(lines, 2) == [("ADDED", "b"), ("DELETED", "b")]


async def test_a_crd_defines_a_kind(server: Server) -> None:
    await server.install_crds(definition())
    created = await server.create(FOOS, foo("x", mode="a"))
    assert created["spec"] == {"mode": "a", "size": 1}
    assert created["metadata"]["generation"] == 1
    wrong = await server.request("POST", FOOS, foo("y", mode="c"))
    assert (wrong.status, wrong.body["details"]["causes"][0]["field"]) == (422, "spec.mode")
    status = await server.request(
        "PATCH",
        f"{FOOS}/x/status",
        {"status": {"phase": "Good"}, "spec": {"mode": "b"}},
        content_type=MERGE,
    )
    assert status.body["status"] == {"phase": "Good"}
    assert status.body["spec"]["mode"] == "a"
    deleted = await server.request("DELETE", f"{DEFINITIONS}/foos.ex.io")
    assert deleted.status == 200
    await wait_deleted(server, DEFINITIONS, "foos.ex.io")

    async def unknown() -> bool:
        return (await server.request("GET", FOOS)).status == 404

    await wait_until_true(unknown)  # a real server removes the path a little later


async def test_configured_crds_are_served_from_the_start(tmp_path: Path) -> None:
    for _ in range(2):
        async with embedded_server(tmp_path, crds=[definition()]) as server:
            await server.create(FOOS, foo("x", mode="a"))
            assert (await server.get(FOOS))["items"][0]["spec"]["size"] == 1
            found = await server.get("/apis/ex.io/v1")
            assert [each["name"] for each in found["resources"]] == ["foos", "foos/status"]
            await server.request("DELETE", f"{FOOS}/x")


async def test_webhooks_mutate_then_validate_and_their_messages_reach_the_user(
    tmp_path: Path,
) -> None:
    def mutate(review: AdmissionRequest, lookup: ObjectReader) -> Json:
        assert review.object is not None
        return {**review.object, "spec": {**review.object["spec"], "mode": "b"}}

    def validate(review: AdmissionRequest, lookup: ObjectReader) -> None:
        assert review.object is None or review.object["spec"]["mode"] == "b"
        if review.operation == "CREATE" and review.name == "no":
            raise DeniedError(f"{review.user} may not")

    foos = Resource("ex.io", "v1", "foos", "Foo")
    webhooks = [
        Webhook(
            name="mutatefoo.ex.io",
            path="/foos/mutate",
            resource=foos,
            operations=frozenset({"CREATE"}),
            mutate=mutate,
        ),
        Webhook(
            name="validatefoo.ex.io",
            path="/foos/validate",
            resource=foos,
            operations=frozenset({"CREATE", "UPDATE", "DELETE"}),
            validate=validate,
        ),
    ]
    async with embedded_server(tmp_path, crds=[definition()], webhooks=webhooks) as server:
        created = await server.create(FOOS, foo("yes", mode="a"))
        assert created["spec"]["mode"] == "b"
        denied = await server.request("POST", FOOS, foo("no", mode="a"))
        assert (
            denied.body["message"]
            == 'admission webhook "validatefoo.ex.io" denied the request: admin may not'
        )
        assert "reason" not in denied.body
        assert (await server.request("GET", f"{FOOS}/no")).status == 404
        own = FOOS.replace("/default/", "/volcano-system/")
        assert (await server.create(own, foo("no", mode="a")))["spec"]["mode"] == "a"


@pytest.mark.parametrize("path", ["/api/v1/pods", "/apis", "/metrics"])
async def test_reading_requires_a_token(server: Server, path: str) -> None:
    async with server.session.get(server.url + path) as response:
        await response.read()
    assert response.status in (401, 403)
    wrong = await server.request("GET", path, token="wrong")
    assert (wrong.status, wrong.body["reason"]) == (401, "Unauthorized")


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz", "/version"])
async def test_health_and_version_require_no_token(server: Server, path: str) -> None:
    async with server.session.get(server.url + path) as response:
        await response.read()
    assert response.status == 200


async def test_malformed_bodies_are_rejected(server: Server) -> None:
    bad = await server.request("POST", MAPS, b"{bad json")
    assert (bad.status, bad.body["reason"]) == (400, "BadRequest")
    large = await server.request("POST", MAPS, b" " * (3 * 2**20 + 1))
    assert (large.status, large.body["reason"]) == (413, "RequestEntityTooLarge")
    rejected = await server.request("POST", MAPS, b"x", content_type="text/csv")
    assert (rejected.status, rejected.body["reason"]) == (415, "UnsupportedMediaType")
    yaml = b"metadata: {name: z}\ndata: {a: b}\n"
    created = await server.request("POST", MAPS, yaml, content_type="application/yaml")
    assert (created.status, created.body["data"]) == (201, {"a": "b"})
    elsewhere = {"metadata": {"name": "z", "namespace": "other"}}
    assert (await server.request("POST", MAPS, elsewhere)).status == 400
    lost = await server.request("POST", "/api/v1/namespaces/none/configmaps", config_map("z"))
    assert (lost.status, lost.body["message"]) == (404, 'namespaces "none" not found')


async def test_our_own_client_works(server: Server) -> None:
    async with server.client("controllers") as client:
        body = config_map("a")
        created = await client.create(CONFIGMAPS, body, namespace="default", view=dict)
        assert created["metadata"]["name"] == "a"
        found = await client.list(CONFIGMAPS, namespace="default", view=dict)
        assert len(found.items) == 2
        await client.delete(CONFIGMAPS, "a", namespace="default")


async def test_events_have_two_groups_and_one_store(server: Server) -> None:
    new = "/apis/events.k8s.io/v1/namespaces/default/events"
    core = "/api/v1/namespaces/default/events"
    body = {
        "metadata": {"name": "e"},
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"},
        "note": "it happened",
        "reportingController": "ex.io/c",
        "reportingInstance": "c-1",
        "action": "Bind",
        "reason": "Bound",
        "type": "Normal",
        "eventTime": "2026-01-02T03:04:05.000006Z",
    }
    created = await server.create(new, body)
    assert (created["apiVersion"], created["note"]) == ("events.k8s.io/v1", "it happened")
    async with server.watch(f"{core}?watch=1&fieldSelector=involvedObject.name%3Dp") as lines:
        seen = (await lines.next())["object"]
        assert (seen["apiVersion"], seen["message"]) == ("v1", "it happened")
        assert seen["involvedObject"]["name"] == "p"
        patch = {"message": "again"}
        await server.request("PATCH", f"{core}/e", patch, content_type=MERGE)
        assert (await lines.next())["object"]["message"] == "again"
    ours = "fieldSelector=metadata.name%3De"  # a real server has further Events
    async with server.watch(f"{new}?watch=1&{ours}") as lines:
        assert (await lines.next())["object"]["note"] == "again"
    listed = (await server.get(f"{new}?{ours}"))["items"]
    assert [item["note"] for item in listed] == ["again"]


async def test_versions_of_a_custom_kind_show_the_same_objects(tmp_path: Path) -> None:
    two = definition()
    other = {**two["spec"]["versions"][0], "name": "v1beta1", "storage": False}
    two["spec"]["versions"].append(other)
    beta = FOOS.replace("/v1/", "/v1beta1/")
    async with embedded_server(tmp_path, crds=[two]) as server:
        body = {**foo("x", mode="a"), "apiVersion": "ex.io/v1beta1"}
        created = await server.create(beta, body)
        assert created["apiVersion"] == "ex.io/v1beta1"
        found = await server.get(f"{FOOS}/x")
        assert found["apiVersion"] == "ex.io/v1"
        async with server.watch(f"{beta}?watch=1") as lines:
            assert (await lines.next())["object"]["apiVersion"] == "ex.io/v1beta1"
            await server.request("PUT", f"{FOOS}/x", {**found, "spec": {"mode": "b"}})
            event = await lines.next()
        assert event["object"]["apiVersion"] == "ex.io/v1beta1"
        assert event["object"]["spec"]["mode"] == "b"


async def test_long_lists_and_streams_are_complete(server: Server) -> None:
    wanted = sorted([*(f"m{n:04}" for n in range(1100)), "kube-root-ca.crt"])
    names_left = iter([name for name in wanted if name.startswith("m")])

    async def create_some() -> None:
        for name in names_left:
            await server.create(MAPS, config_map(name))

    await asyncio.gather(*(create_some() for _ in range(50)))
    listed = await server.get(MAPS)
    assert [item["metadata"]["name"] for item in listed["items"]] == wanted
    async with server.watch(f"{MAPS}?{INITIAL}") as lines:
        assert sorted(await names(lines, len(wanted))) == [("ADDED", name) for name in wanted]


async def test_a_disconnected_watcher_is_removed(embedded: EmbeddedServer) -> None:
    app = embedded.running.app
    hub = app.handlers.writer.store.resource_store(app.catalog.require(CONFIGMAPS)).broadcaster
    async with embedded.watch(f"{MAPS}?watch=1") as lines:
        await lines.next()
        assert len(hub) == 1
    await wait_for(lambda: not len(hub))


@pytest.mark.parametrize(
    ("status", "content_type"),
    [
        ({"status": {}}, "application/strategic-merge-patch+json"),
        ({"status": {"phase": "Succeeded"}}, "application/strategic-merge-patch+json"),
        ({"status": {"phase": "Succeeded"}}, MERGE),
        ({"metadata": {"labels": {"a": "b"}}}, MERGE),
    ],
)
async def test_an_empty_status_write_keeps_the_status(
    server: Server, status: Json, content_type: str
) -> None:
    await server.create(PODS, pod("p"))
    ended = {"status": {"phase": "Succeeded", "message": "done"}}
    before = await server.request("PATCH", f"{PODS}/p/status", ended, content_type=MERGE)
    after = await server.request("PATCH", f"{PODS}/p/status", status, content_type=content_type)
    assert after.status == 200
    assert after.body["status"] == before.body["status"]
    assert after.body["spec"] == before.body["spec"]
    assert await server.get(f"{PODS}/p") == after.body


async def test_a_custom_status_survives_an_unchanged_write(server: Server) -> None:
    await server.install_crds(definition())
    await server.create(FOOS, foo("f"))
    patch = {"status": {"phase": "Ready"}}
    before = await server.request("PATCH", f"{FOOS}/f/status", patch, content_type=MERGE)
    after = await server.request("PATCH", f"{FOOS}/f/status", patch, content_type=MERGE)
    assert before.body["status"] == patch["status"]
    assert (after.status, after.body) == (200, before.body)


async def test_defaults_set_again_by_a_webhook_are_no_change(tmp_path: Path) -> None:
    def fill_in(review: AdmissionRequest, lookup: ObjectReader) -> Json:
        obj = review.object or {}
        return {**obj, "spec": {**obj["spec"], "mode": "a"}}

    rule = Webhook(
        name="mutatefoo.ex.io",
        path="/foos/mutate",
        resource=Resource("ex.io", "v1", "foos", "Foo"),
        operations=frozenset({"CREATE", "UPDATE"}),
        mutate=fill_in,
    )
    async with embedded_server(tmp_path, webhooks=[rule]) as server:
        await server.install_crds(definition())
        created = await server.create(FOOS, foo("f"))
        again = await server.request(
            "PATCH", f"{FOOS}/f", {"spec": {"mode": None}}, content_type=MERGE
        )
        assert (again.status, again.body) == (200, created)
