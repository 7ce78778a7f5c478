"""Deletion: finalizers, owners, namespaces, grace periods; and what the server adds to objects."""

import ssl
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from support.aiohttp_servers import stop_server
from support.embedded_apiserver import (
    DEFINITIONS,
    FOOS,
    MAPS,
    MERGE,
    PODS,
    EmbeddedServer,
    RawResponse,
    Server,
    config_map,
    definition,
    embedded_server,
    foo,
    pod,
    wait_deleted,
    wait_owners_observed,
)
from support.polling import wait_until_true

from batholith.local.apiserver.aggregation.content import RemoteContent
from batholith.local.apiserver.controllers.base import ControllerContext, internal_request
from batholith.local.apiserver.controllers.event_ttl import EVENT_TTL, EventTtlController
from batholith.local.apiserver.controllers.namespaces import NamespaceController
from batholith.local.apiserver.storage.resource_store import ResourceStore
from batholith.local.apiserver.storage.stored_objects import StoredObject, WatchEvent
from batholith.machinery.testing import FakeClock

Json = dict[str, Any]
SECRETS = "/api/v1/namespaces/default/secrets"
NAMESPACES_PATH = "/api/v1/namespaces"


def owned(name: str, *owners: Json, **reference: Any) -> Json:
    references = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            **reference,
        }
        for owner in owners
    ]
    return {"metadata": {"name": name, "ownerReferences": references}}


async def bound_pod(server: Server, name: str, **spec: Any) -> Json:
    return await server.create(PODS, pod(name, nodeName="n1", **spec))


async def test_dependents_are_deleted_with_their_last_owner(server: Server) -> None:
    """INV-OW-5, in the background."""
    first = await server.create(MAPS, config_map("first"))
    second = await server.create(MAPS, config_map("second"))
    await server.create(SECRETS, owned("child", first, second))
    async with server.watch(f"{SECRETS}?watch=1&fieldSelector=metadata.name%3Dchild") as lines:
        await lines.next()
        await server.request("DELETE", f"{MAPS}/first")
        event = await lines.next()
        left = [each["name"] for each in event["object"]["metadata"]["ownerReferences"]]
        assert (event["type"], left) == ("MODIFIED", ["second"])
        await server.request("DELETE", f"{MAPS}/second")
        assert (await lines.next())["type"] == "DELETED"


MISSING_OWNER = {"metadata": {"name": "ghost", "uid": "11111111-1111-1111-1111-111111111111"}}


async def test_an_object_whose_owner_never_existed_is_deleted(server: Server) -> None:
    await server.create(SECRETS, owned("child", MISSING_OWNER))
    await wait_deleted(server, SECRETS, "child")


async def test_an_object_whose_owner_has_an_unknown_kind_is_kept(server: Server) -> None:
    """The owner may exist on another API server."""
    await server.create(SECRETS, owned("child", MISSING_OWNER, apiVersion="ex.io/v1", kind="Ghost"))
    await wait_owners_observed(server, SECRETS, {})
    assert (await server.request("GET", f"{SECRETS}/child")).status == 200


async def test_dependents_of_a_custom_object_are_deleted_with_its_kind(tmp_path: Path) -> None:
    """kube-controller-manager learns of new kinds within 30 s only, and does the same then."""
    async with embedded_server(tmp_path, crds=[definition()]) as server:
        owner = await server.create(FOOS, foo("owner"))
        await server.create(SECRETS, owned("child", owner, apiVersion="ex.io/v1", kind="Foo"))
        deleted = await server.request("DELETE", f"{DEFINITIONS}/foos.ex.io")
        assert deleted.status == 200, deleted.body
        await wait_deleted(server, SECRETS, "child")


async def test_an_owner_in_another_namespace_is_ignored(server: Server) -> None:
    await server.create(NAMESPACES_PATH, {"metadata": {"name": "other"}})
    owner = await server.create("/api/v1/namespaces/other/configmaps", config_map("owner"))
    await server.create(SECRETS, owned("child", owner))
    await wait_deleted(server, SECRETS, "child")


async def test_inv_ow_5_no_grandchild_is_left(server: Server) -> None:
    owner = await server.create(MAPS, config_map("owner"))
    child = await server.create(MAPS, owned("child", owner))
    await server.create(SECRETS, owned("grandchild", child))
    await server.request("DELETE", f"{MAPS}/owner")
    await wait_deleted(server, SECRETS, "grandchild")
    assert (await server.request("GET", f"{MAPS}/child")).status == 404


async def test_inv_ow_1_an_object_has_one_controller_at_most(server: Server) -> None:
    first = await server.create(MAPS, config_map("first"))
    second = await server.create(MAPS, config_map("second"))
    two = owned("child", first, second, controller=True)
    refused = await server.request("POST", SECRETS, two)
    assert refused.status == 422
    assert "Only one reference can have Controller set to true" in refused.body["message"]
    await server.create(SECRETS, owned("child", first, controller=True))
    later = await server.request("PATCH", f"{SECRETS}/child", two, content_type=MERGE)
    assert later.status == 422


async def test_foreground_deletion_ends_with_the_owner(server: Server) -> None:
    owner = await server.create(MAPS, config_map("owner"))
    child = owned("child", owner, blockOwnerDeletion=True)
    child["metadata"]["finalizers"] = ["ex.io/hold"]
    await server.create(SECRETS, child)
    await wait_owners_observed(server, SECRETS, {})
    deleted = await server.request("DELETE", f"{MAPS}/owner?propagationPolicy=Foreground")
    assert deleted.body["metadata"]["finalizers"] == ["foregroundDeletion"]
    async with server.watch(f"{SECRETS}?watch=1&fieldSelector=metadata.name%3Dchild") as lines:
        event = await lines.next()
        while "deletionTimestamp" not in event["object"]["metadata"]:
            event = await lines.next()
    assert (await server.request("GET", f"{MAPS}/owner")).status == 200
    body = {"metadata": {"finalizers": None}}
    await server.request("PATCH", f"{SECRETS}/child", body, content_type=MERGE)
    await wait_deleted(server, MAPS, "owner")
    assert (await server.request("GET", f"{SECRETS}/child")).status == 404


async def test_objects_that_own_each_other_in_a_circle_are_deleted_in_the_foreground(
    server: Server,
) -> None:
    created = [await server.create(SECRETS, owned(f"s{number}")) for number in range(3)]
    for index, obj in enumerate(created):
        child = owned("", created[index - 1], kind="Secret", blockOwnerDeletion=True)
        body = {"metadata": {"ownerReferences": child["metadata"]["ownerReferences"]}}
        path = f"{SECRETS}/{obj['metadata']['name']}"
        assert (await server.request("PATCH", path, body, content_type=MERGE)).status == 200
    await wait_owners_observed(server, SECRETS, {})
    await server.request("DELETE", f"{SECRETS}/s0?propagationPolicy=Foreground")
    for number in range(3):
        await wait_deleted(server, SECRETS, f"s{number}")


async def test_orphaned_dependents_are_kept(server: Server) -> None:
    """INV-OW-5."""
    owner = await server.create(MAPS, config_map("owner"))
    await server.create(SECRETS, owned("child", owner))
    await wait_owners_observed(server, SECRETS, {})
    await server.request("DELETE", f"{MAPS}/owner?propagationPolicy=Orphan")
    await wait_deleted(server, MAPS, "owner")
    child = await server.get(f"{SECRETS}/child")
    assert "ownerReferences" not in child["metadata"]


async def test_dependents_of_owners_deleted_before_a_crash_are_collected(tmp_path: Path) -> None:
    async with embedded_server(tmp_path, collect_garbage=False) as server:
        owner = await server.create(MAPS, config_map("owner"))
        await server.create(SECRETS, owned("child", owner))
        await server.request("DELETE", f"{MAPS}/owner")
    async with embedded_server(tmp_path) as server:
        await wait_deleted(server, SECRETS, "child")


async def test_a_finalizer_blocks_deletion_until_it_is_removed(
    server: Server,
) -> None:
    body = config_map("a")
    body["metadata"]["finalizers"] = ["ex.io/hold"]
    await server.create(MAPS, body)
    held = await server.request("DELETE", f"{MAPS}/a")
    assert held.body["metadata"]["deletionTimestamp"]
    again = await server.request("DELETE", f"{MAPS}/a")
    assert again.body == held.body
    last = await server.request(
        "PATCH", f"{MAPS}/a", {"metadata": {"finalizers": []}}, content_type=MERGE
    )
    assert last.status == 200
    assert (await server.request("GET", f"{MAPS}/a")).status == 404


async def test_a_namespace_gets_default_objects_and_its_content_is_deleted_with_it(
    server: Server,
) -> None:
    async with server.watch(
        "/api/v1/serviceaccounts?watch=1&fieldSelector=metadata.namespace%3Dspace"
    ) as lines:
        created = await server.create(NAMESPACES_PATH, {"metadata": {"name": "space"}})
        assert (await lines.next())["object"]["metadata"]["name"] == "default"
    assert created["status"]["phase"] == "Active"
    inside = "/api/v1/namespaces/space/configmaps"
    held = config_map("a")
    held["metadata"]["finalizers"] = ["ex.io/hold"]
    await server.create(inside, held)
    ending = await server.request("DELETE", f"{NAMESPACES_PATH}/space")
    assert ending.body["status"]["phase"] == "Terminating"
    refused = await server.request("POST", inside, config_map("b"))
    assert refused.status == 403
    assert refused.body["details"]["causes"][0]["reason"] == "NamespaceTerminating"
    async with server.watch(
        f"{NAMESPACES_PATH}?watch=1&fieldSelector=metadata.name%3Dspace"
    ) as lines:
        event = await lines.next()
        while "conditions" not in event["object"]["status"]:
            event = await lines.next()
    kinds = {c["type"]: c["status"] for c in event["object"]["status"]["conditions"]}
    assert kinds["NamespaceFinalizersRemaining"] == "True"
    body = {"metadata": {"finalizers": None}}
    await server.request("PATCH", f"{inside}/a", body, content_type=MERGE)
    await wait_deleted(server, NAMESPACES_PATH, "space")
    assert (await server.get(inside))["items"] == []


async def test_the_pods_of_a_namespace_are_deleted_before_everything_else(server: Server) -> None:
    await server.create(NAMESPACES_PATH, {"metadata": {"name": "space"}})
    space = f"{NAMESPACES_PATH}/space"

    async def account_exists() -> bool:
        return (await server.request("GET", f"{space}/serviceaccounts/default")).status == 200

    await wait_until_true(account_exists)
    held = pod("p")
    held["metadata"]["finalizers"] = ["ex.io/hold"]
    await server.create(f"{space}/pods", held)
    await server.create(f"{space}/configmaps", config_map("a"))
    await server.request("DELETE", space)
    async with server.watch(f"{space}/pods?watch=1") as lines:
        event = await lines.next()
        while "deletionTimestamp" not in event["object"]["metadata"]:
            event = await lines.next()
    async with server.watch(
        f"{NAMESPACES_PATH}?watch=1&fieldSelector=metadata.name%3Dspace"
    ) as lines:
        event = await lines.next()
        while "conditions" not in event["object"]["status"]:
            event = await lines.next()
    remaining = await server.get(f"{space}/configmaps/a")
    assert "deletionTimestamp" not in remaining["metadata"]
    body = {"metadata": {"finalizers": None}}
    await server.request("PATCH", f"{space}/pods/p", body, content_type=MERGE)
    await wait_deleted(server, NAMESPACES_PATH, "space")


async def test_system_namespaces_cannot_be_deleted(server: Server) -> None:
    refused = await server.request("DELETE", f"{NAMESPACES_PATH}/kube-system")
    assert (refused.status, refused.body["reason"]) == (403, "Forbidden")


async def test_a_running_pod_gets_its_grace_period_and_the_agent_removes_it(server: Server) -> None:
    await bound_pod(server, "p", terminationGracePeriodSeconds=60)
    ending = await server.request("DELETE", f"{PODS}/p")
    assert ending.body["metadata"]["deletionGracePeriodSeconds"] == 60
    longer = await server.request("DELETE", f"{PODS}/p?gracePeriodSeconds=90")
    assert longer.body["metadata"]["deletionGracePeriodSeconds"] == 60
    shorter = await server.request("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 5})
    assert shorter.body["metadata"]["deletionGracePeriodSeconds"] == 5
    uid = ending.body["metadata"]["uid"]
    wrong = {"gracePeriodSeconds": 0, "preconditions": {"uid": "other"}}
    assert (await server.request("DELETE", f"{PODS}/p", wrong)).status == 409
    final = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
    done = await server.request("DELETE", f"{PODS}/p", final)
    assert (done.status, done.body["kind"]) == (200, "Pod")
    assert (await server.request("GET", f"{PODS}/p")).status == 404


async def test_an_unscheduled_or_finished_pod_is_removed_immediately(server: Server) -> None:
    await server.create(PODS, pod("waiting"))
    await server.request("DELETE", f"{PODS}/waiting")
    assert (await server.request("GET", f"{PODS}/waiting")).status == 404
    await bound_pod(server, "done")
    body = {"status": {"phase": "Succeeded"}}
    await server.request("PATCH", f"{PODS}/done/status", body, content_type=MERGE)
    await server.request("DELETE", f"{PODS}/done")
    assert (await server.request("GET", f"{PODS}/done")).status == 404


async def test_a_pod_can_be_bound_only_once(server: Server) -> None:
    await server.create(PODS, pod("p"))
    binding = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}}
    assert (await server.request("POST", f"{PODS}/p/binding", binding)).status == 201
    again = await server.request("POST", f"{PODS}/p/binding", binding)
    assert (again.status, again.body["reason"]) == (409, "Conflict")
    assert (await server.get(f"{PODS}/p"))["spec"]["nodeName"] == "n1"


EVICTION = {"apiVersion": "policy/v1", "kind": "Eviction"}
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


async def running(server: Server, name: str, *, ready: str = "True") -> None:
    """A running pod of the app db."""
    created = pod(name)
    created["metadata"]["labels"] = {"app": "db"}
    await server.create(PODS, created)
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}
    await patch_status(server, f"{PODS}/{name}", status)


async def patch_status(server: Server, path: str, status: Json) -> None:
    patched = await server.request(
        "PATCH", f"{path}/status", {"status": status}, content_type=MERGE
    )
    assert patched.status == 200, patched.body


async def evict(server: Server, name: str) -> RawResponse:
    body = {**EVICTION, "metadata": {"name": name}}
    return await server.request("POST", f"{PODS}/{name}/eviction", body)


async def test_an_eviction_deletes_a_pod_without_a_budget(server: Server) -> None:
    await server.create(PODS, pod("free"))
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "db"}}}
    await server.create(BUDGETS, {"metadata": {"name": "b"}, "spec": spec})
    assert (await evict(server, "free")).status == 201
    assert (await server.request("GET", f"{PODS}/free")).status == 404


async def test_a_budget_allows_eviction_of_pods_not_ready_or_not_running(
    server: Server,
) -> None:
    await running(server, "ready")
    await running(server, "unready", ready="False")
    labelled = pod("pending")
    labelled["metadata"]["labels"] = {"app": "db"}
    await server.create(PODS, labelled)
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "db"}}}
    await server.create(BUDGETS, {"metadata": {"name": "b"}, "spec": spec})

    async def counted() -> bool:
        status = (await server.get(f"{BUDGETS}/b")).get("status") or {}
        return bool(status.get("currentHealthy") == status.get("desiredHealthy") == 1)

    await wait_until_true(counted)
    assert (await evict(server, "ready")).status == 429
    assert (await evict(server, "unready")).status == 201
    assert (await evict(server, "pending")).status == 201


async def test_a_pod_under_two_budgets_is_not_evicted(server: Server) -> None:
    await running(server, "p")
    for name in ("a", "b"):
        spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "db"}}}
        await server.create(BUDGETS, {"metadata": {"name": name}, "spec": spec})
    refused = await evict(server, "p")
    assert (refused.status, "reason" in refused.body) == (500, False)
    assert "more than one PodDisruptionBudget" in refused.body["message"]


async def test_pods_get_a_priority_a_service_account_and_tolerations(server: Server) -> None:
    created = await server.create(PODS, pod("p", priorityClassName="system-cluster-critical"))
    spec = created["spec"]
    assert spec["priority"] == 2_000_000_000
    assert spec["serviceAccountName"] == "default"
    assert {each["key"] for each in spec["tolerations"]} == {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    }
    unknown = await server.request("POST", PODS, pod("q", priorityClassName="none"))
    assert unknown.status == 403
    assert "no PriorityClass with name none was found" in unknown.body["message"]
    liar = await server.request("POST", PODS, pod("q", priority=7))
    assert liar.status == 403


async def test_a_terminating_crd_accepts_no_new_objects(tmp_path: Path) -> None:
    async with embedded_server(tmp_path, crds=[definition()]) as server:
        held = foo("held", mode="a")
        held["metadata"]["finalizers"] = ["ex.io/hold"]
        await server.create(FOOS, held)
        path = f"{DEFINITIONS}?watch=1&fieldSelector=metadata.name%3Dfoos.ex.io"
        async with server.watch(path) as lines:
            await lines.next()
            await server.request("DELETE", f"{DEFINITIONS}/foos.ex.io")
            conditions: list[str] = []
            while "InstanceDeletionInProgress" not in conditions:
                status = (await lines.next())["object"]["status"]
                conditions = [each["reason"] for each in status["conditions"]]
            rejected = await server.request("POST", FOOS, foo("rejected", mode="a"))
            assert rejected.status == 403
            body = {"metadata": {"finalizers": None}}
            await server.request("PATCH", f"{FOOS}/held", body, content_type=MERGE)
            while (await lines.next())["type"] != "DELETED":
                pass
        await server.create(DEFINITIONS, definition())


async def test_a_dry_run_changes_nothing(server: Server) -> None:
    tried = await server.request("POST", f"{MAPS}?dryRun=All", config_map("a"))
    assert (tried.status, "resourceVersion" in tried.body["metadata"]) == (201, False)
    assert (await server.request("GET", f"{MAPS}/a")).status == 404
    created = await server.create(MAPS, config_map("a"))
    await server.request("DELETE", f"{MAPS}/a?dryRun=All")
    assert await server.get(f"{MAPS}/a") == created


async def test_delete_collection_honours_selectors(server: Server) -> None:
    await server.create(MAPS, config_map("a", tier="x"))
    await server.create(MAPS, config_map("b", tier="y"))
    deleted = await server.request("DELETE", f"{MAPS}?labelSelector=tier%3Dx")
    assert [item["metadata"]["name"] for item in deleted.body["items"]] == ["a"]
    left = await server.get(f"{MAPS}?labelSelector=tier")
    assert [item["metadata"]["name"] for item in left["items"]] == ["b"]


async def test_token_reviews_return_the_user(server: Server) -> None:
    path = "/apis/authentication.k8s.io/v1/tokenreviews"
    token = server.tokens["scheduler"]
    review = await server.create(path, {"spec": {"token": token}})
    assert review["status"]["authenticated"] is True
    user = review["status"]["user"]
    assert (user["username"], user["uid"], user.get("extra")) == ("scheduler", "scheduler", None)
    assert "system:authenticated" in user["groups"]
    wrong = await server.create(path, {"spec": {"token": "wrong"}})
    assert not wrong["status"].get("authenticated")
    myself = await server.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
    assert myself["status"]["userInfo"]["username"] == "admin"
    access = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    asked = {"spec": {"resourceAttributes": {"verb": "create", "resource": "pods"}}}
    assert (await server.create(access, asked))["status"]["allowed"] is True


async def test_events_expire_after_an_hour(tmp_path: Path) -> None:
    async with embedded_server(tmp_path) as server:
        await _expire_events(server)


async def _expire_events(server: EmbeddedServer) -> None:
    handlers = server.running.app.handlers
    context = ControllerContext(
        writer=handlers.writer, deleter=handlers.deleter, catalog=server.running.app.catalog
    )
    controller = EventTtlController(context)
    clock = FakeClock()
    controller.queue.clock = clock
    handlers.writer.store.listeners.append(controller.on_event)
    events = "/api/v1/namespaces/default/events"
    about = {"kind": "Pod", "name": "p", "namespace": "default"}
    for name in ("old", "fresh"):
        body = {"metadata": {"name": name}, "involvedObject": about, "message": "m"}
        await server.create(events, body)
        await clock.advance(EVENT_TTL / 2)
    await server.request("PATCH", f"{events}/fresh", {"count": 2}, content_type=MERGE)
    await clock.advance(EVENT_TTL / 2)
    await controller.reconcile("events")
    left = await server.get(events)
    assert [item["metadata"]["name"] for item in left["items"]] == ["fresh"]


async def test_an_event_written_during_expiry_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batholith.local.apiserver.controllers.event_ttl.PARSED_SLICE_SIZE", 2)
    async with embedded_server(tmp_path) as server:
        handlers, clock = server.running.app.handlers, FakeClock()
        controller = EventTtlController(
            ControllerContext(
                writer=handlers.writer, deleter=handlers.deleter, catalog=server.running.app.catalog
            )
        )
        controller.queue.clock = clock
        handlers.writer.store.listeners.append(controller.on_event)
        events = "/api/v1/namespaces/default/events"
        about = {"kind": "Pod", "name": "p", "namespace": "default"}
        for name in "abcde":
            body = {"metadata": {"name": name}, "involvedObject": about, "message": "m"}
            await server.create(events, body)
        await clock.advance(EVENT_TTL)
        written: list[str] = []

        def write(resource_store: ResourceStore, event: WatchEvent) -> None:
            """As soon as the first slice is deleted."""
            if resource_store.resource.plural == "events" and not written:
                written.append(event.entry.name)
                call = internal_request(resource_store.kind, ("default", "e"))
                handlers.writer.update_unchecked(call, lambda obj: {**obj, "message": "again"})

        handlers.writer.store.listeners.append(write)
        await controller.reconcile("events")
        left = await server.get(events)
        assert [item["metadata"]["name"] for item in left["items"]] == ["e"]


async def test_logs_are_fetched_from_the_agent(server: Server) -> None:
    asked: list[str] = []

    async def serve_log(request: web.Request) -> web.StreamResponse:
        asked.append(request.path_qs)
        if request.match_info["container"] == "waiting":
            raise web.HTTPBadRequest(text='container "waiting" in pod "p" is waiting to start')
        response = web.StreamResponse()
        await response.prepare(request)
        for line in (b"one\n", b"two\n"):
            await response.write(line)
        return response

    pki = server.pki
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(pki.ca))
    context.load_cert_chain(pki.agent.certificate, pki.agent.key)
    context.verify_mode = ssl.CERT_REQUIRED
    app = web.Application()
    app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", serve_log)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    try:
        port = runner.addresses[0][1]
        await server.create("/api/v1/nodes", {"metadata": {"name": "n1"}})
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }
        # A patch, since the node lifecycle controller writes nodes, too.
        path = "/api/v1/nodes/n1/status"
        await server.request("PATCH", path, {"status": status}, content_type=MERGE)
        await bound_pod(server, "p")
        log = await server.request("GET", f"{PODS}/p/log?follow=true&tailLines=3")
        assert (log.status, log.body) == (200, "one\ntwo\n")
        assert asked == ["/containerLogs/default/p/main?follow=true&tailLines=3"]
        two = pod("two", nodeName="n1")
        two["spec"]["containers"].append({"name": "waiting", "image": "busybox:1"})
        await server.create(PODS, two)
        which = await server.request("GET", f"{PODS}/two/log")
        assert which.body["message"] == (
            "a container name must be specified for pod two, choose one of: [main waiting]"
        )
        none = await server.request("GET", f"{PODS}/two/log?container=nope")
        assert none.body["message"] == "container nope is not valid for pod two"
        waiting = await server.request("GET", f"{PODS}/two/log?container=waiting")
        assert (waiting.status, waiting.body["reason"]) == (400, "BadRequest")
        assert "waiting to start" in waiting.body["message"]
    finally:
        await stop_server(runner)


@pytest.mark.parametrize(
    "body",
    [
        {"gracePeriodSeconds": "soon"},
        {"preconditions": [1]},
        {"dryRun": True},
        {"propagationPolicy": {}},
    ],
)
async def test_invalid_delete_options_are_rejected(server: Server, body: Json) -> None:
    await server.create(MAPS, config_map("a"))
    refused = await server.request("DELETE", f"{MAPS}/a", body)
    assert (refused.status, refused.body["reason"]) == (400, "BadRequest")
    assert (await server.request("GET", f"{MAPS}/a")).status == 200


async def test_the_log_of_a_pod_with_init_containers_is_that_of_its_only_container(
    server: Server,
) -> None:
    waits = pod("p")
    waits["spec"]["initContainers"] = [{"name": "init", "image": "busybox:1"}]
    await server.create(PODS, waits)
    log = await server.request("GET", f"{PODS}/p/log")
    assert "a container name must be specified" not in str(log.body)


async def test_malformed_pod_subresources_are_rejected(server: Server) -> None:
    await server.create(PODS, pod("p"))
    for subresource, body in (
        ("binding", {"target": [1]}),
        ("binding", {"target": {"name": 1}}),
        ("eviction", {"deleteOptions": "now"}),
    ):
        refused = await server.request("POST", f"{PODS}/p/{subresource}", body)
        assert refused.status == 400, refused.body
    malformed = {"spec": {"containers": [1]}}
    media = "application/strategic-merge-patch+json"
    merged = await server.request("PATCH", f"{PODS}/p", malformed, content_type=media)
    assert merged.status >= 400
    assert any(reason in merged.body["message"] for reason in ("merge key", "not identical"))


async def test_finalization_leaves_a_recreated_namespace_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reconcile = NamespaceController.reconcile

    async def skip(_: NamespaceController, key: str) -> None:
        """Keep the server's own controller from finalizing the namespace."""

    monkeypatch.setattr(NamespaceController, "reconcile", skip)
    async with embedded_server(tmp_path, collect_garbage=False) as server:
        handlers, path = server.running.app.handlers, f"{NAMESPACES_PATH}/n"
        await server.create(NAMESPACES_PATH, {"metadata": {"name": "n"}})
        await server.create(f"{path}/configmaps", config_map("old"))
        await server.request("DELETE", path)
        deleted: list[str] = []

        async def recreate(_: object, entries: list[StoredObject], __: object) -> None:
            """Instead of the first deletion, replace the namespace."""
            deleted.extend(entry.name for entry in entries)
            if [entry.name for entry in entries] == ["old"]:
                body = {"metadata": {"name": "n"}, "spec": {"finalizers": []}}
                await server.request("PUT", f"{path}/finalize", body)
                await server.create(NAMESPACES_PATH, {"metadata": {"name": "n"}})
                await server.create(f"{path}/secrets", {"metadata": {"name": "new"}})

        monkeypatch.setattr(handlers.deleter, "delete_each", recreate)
        context = ControllerContext(
            writer=handlers.writer, deleter=handlers.deleter, catalog=server.running.app.catalog
        )
        app = server.running.app
        remote = RemoteContent(app.remote_apis, app.aggregator)
        await reconcile(NamespaceController(context, ca=b"", remote=remote), "n")
        assert deleted == ["old"]
        namespace = await server.get(path)
    assert namespace["spec"]["finalizers"] == ["kubernetes"]
    assert namespace["status"] == {"phase": "Active"}
