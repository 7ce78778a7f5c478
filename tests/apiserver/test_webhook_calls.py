"""Webhooks that users configure, on both servers."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from support.api_servers import ServerFactory, add_namespace, merge_patch
from support.embedded_apiserver import MAPS, Server, config_map, embedded_server
from support.polling import wait_until_equal, wait_until_true
from support.realkube import RealServer
from support.review_server import (
    MUTATING,
    VALIDATING,
    Reviewer,
    ReviewServer,
    allow,
    deny,
    labelling,
    patching,
    path_of,
    review_server,
)

Json = dict[str, Any]


@pytest.fixture
async def server(servers: ServerFactory, tmp_path: Path) -> AsyncIterator[Server]:
    async with servers.start(tmp_path / "server") as started:
        yield started
        # A real server is used again: nothing may call webhooks that are stopped.
        for kind in (MUTATING, VALIDATING):
            await started.request("DELETE", path_of(kind))
        await wait_until_equal(lambda: _is_writable(started), True)


async def _is_writable(server: Server) -> bool:
    probe = config_map("is-writable", reviewed="yes", call="yes")
    return (await server.request("POST", f"{MAPS}?dryRun=All", probe)).status == 201


@pytest.fixture
async def reviews(tmp_path: Path) -> AsyncIterator[ReviewServer]:
    async with review_server(tmp_path) as serving:
        yield serving


async def create(server: Server, name: str, query: str = "", **labels: str) -> Any:
    body = config_map(name, **(labels or {"reviewed": "yes"}))
    return await server.request("POST", f"{MAPS}{query}", body)


async def test_a_validating_webhook_denies_with_its_message(
    server: Server, reviews: ReviewServer
) -> None:
    await reviews.install(server, VALIDATING, reviews.hook("check", deny))
    response = await create(server, "a")
    assert (response.status, response.body["message"]) == (
        400,
        'admission webhook "check.ex.io" denied the request: not today',
    )
    assert (await server.request("GET", f"{MAPS}/a")).status == 404


async def test_the_path_of_a_url_is_cleaned(server: Server, reviews: ReviewServer) -> None:
    hook = reviews.hook("check", deny)
    hook["clientConfig"]["url"] = f"{reviews.url}/./x/..//check/"
    await reviews.install(server, VALIDATING, hook)
    response = await create(server, "a")
    assert 'webhook "check.ex.io" denied the request' in response.body["message"]


async def test_a_bundle_may_be_the_certificate_of_the_webhook_itself(
    server: Server, reviews: ReviewServer
) -> None:
    hook = reviews.hook("check", deny)
    hook["clientConfig"]["caBundle"] = base64.b64encode(reviews.certificate).decode()
    await reviews.install(server, VALIDATING, hook)
    response = await create(server, "a")
    assert 'webhook "check.ex.io" denied the request' in response.body["message"]


@pytest.mark.parametrize(
    "result",
    [
        None,
        {"reason": "Teapot"},
        {"code": 418, "reason": "Teapot", "message": "short and stout", "details": {"name": "x"}},
        {"code": 200, "message": "fine"},
    ],
)
async def test_a_denial_has_the_status_of_the_webhook(
    server: Server, reviews: ReviewServer, result: Json | None, servers: ServerFactory
) -> None:
    def respond(request: Json) -> Json:
        return {"allowed": False} | ({"status": result} if result else {})

    await reviews.install(server, VALIDATING, reviews.hook("check", respond))
    response = await create(server, "a")
    by = 'admission webhook "check.ex.io" denied the request'
    why = (result or {}).get("message") or (result or {}).get("reason")
    code = (result or {}).get("code", 400)
    assert response.status == (max(code, 400))
    assert response.body["message"] == (f"{by}: {why}" if why else f"{by} without explanation")
    assert response.body.get("reason", "") == (result or {}).get("reason", "")
    assert response.body.get("details") == (result or {}).get("details")


async def test_a_mutating_webhook_changes_what_is_stored(
    server: Server, reviews: ReviewServer
) -> None:
    await reviews.install(server, MUTATING, reviews.hook("label", labelling("by", "hook")))
    created = await create(server, "a")
    assert created.status == 201
    assert created.body["metadata"]["labels"] == {"reviewed": "yes", "by": "hook"}
    assert (await server.get(f"{MAPS}/a"))["metadata"]["labels"]["by"] == "hook"


async def test_reviews_contain_the_write(server: Server, reviews: ReviewServer) -> None:
    await reviews.install(server, VALIDATING, reviews.hook("check"))
    created = (await create(server, "a")).body
    await merge_patch(server, f"{MAPS}/a", {"data": {"k": "w"}})
    on_create, on_update = reviews.requests("check")
    kind = {"group": "", "version": "v1", "kind": "ConfigMap"}
    resource = {"group": "", "version": "v1", "resource": "configmaps"}
    assert on_create["kind"] == on_create["requestKind"] == kind
    assert on_create["resource"] == on_create["requestResource"] == resource
    assert (on_create["name"], on_create["namespace"]) == ("a", "default")
    assert on_create["operation"], on_update["operation"] == ("CREATE", "UPDATE")
    assert on_create["userInfo"]["username"] == "admin"
    assert "system:masters" in on_create["userInfo"]["groups"]
    assert on_create["dryRun"] is False
    assert on_create["oldObject"] is None
    assert on_create["object"]["metadata"]["uid"] == created["metadata"]["uid"]
    assert on_create["options"]["kind"] == "CreateOptions"
    assert on_update["options"]["kind"] == "UpdateOptions"
    assert on_update["oldObject"]["data"] == {"k": "v"}
    assert on_update["object"]["data"] == {"k": "w"}
    assert on_update["object"]["kind"] == "ConfigMap"


async def test_a_generated_name_is_not_known_to_mutating_webhooks(
    server: Server, reviews: ReviewServer
) -> None:
    await reviews.install(server, MUTATING, reviews.hook("change"), name="m.ex.io")
    await reviews.install(server, VALIDATING, reviews.hook("check"), name="v.ex.io")
    body = config_map("", reviewed="yes")
    body["metadata"] = {"generateName": "a-", "labels": {"reviewed": "yes"}}
    created = await server.create(MAPS, body)
    (changing,), (checking,) = reviews.requests("change"), reviews.requests("check")
    assert "name" not in changing["object"]["metadata"]
    assert "uid" not in changing["object"]["metadata"]
    assert checking["object"]["metadata"]["name"] == created["metadata"]["name"]
    assert checking["object"]["metadata"]["uid"] == created["metadata"]["uid"]


async def test_webhooks_are_called_in_the_order_of_names(
    server: Server, reviews: ReviewServer
) -> None:
    await reviews.install(
        server, MUTATING, reviews.hook("first", labelling("a", "1")), name="b.ex.io"
    )
    hooks = [reviews.hook("second", labelling("b", "2")), reviews.hook("third", allow)]
    await reviews.install(server, MUTATING, *hooks, name="a.ex.io")
    await create(server, "a")
    assert [path for path, _ in reviews.reviews] == ["second", "third", "first"]
    seen = [request["object"]["metadata"]["labels"] for _, request in reviews.reviews]
    assert [sorted(labels) for labels in seen] == [
        ["reviewed"], ["b", "reviewed"], ["b", "reviewed"],
    ]  # fmt: skip


async def test_a_webhook_is_called_again_after_a_later_one_changed_the_object(
    server: Server, reviews: ReviewServer
) -> None:
    hooks = [
        reviews.hook("again", labelling("a", "1"), reinvocationPolicy="IfNeeded"),
        reviews.hook("once", labelling("b", "2")),
        reviews.hook("idle", allow, reinvocationPolicy="IfNeeded"),
    ]
    await reviews.install(server, MUTATING, *hooks)
    created = await create(server, "a")
    assert [path for path, _ in reviews.reviews] == ["again", "once", "idle", "again"]
    assert sorted(created.body["metadata"]["labels"]) == ["a", "b", "reviewed"]


async def test_a_request_ends_at_the_timeout_that_the_client_allows(
    server: Server, reviews: ReviewServer
) -> None:
    ended = asyncio.Event()

    async def wait(request: Json) -> Json:
        await ended.wait()
        return {"allowed": True}

    await reviews.install(server, VALIDATING, reviews.hook("slow", wait))
    body = config_map("a", reviewed="x")
    try:
        response = await server.request("POST", f"{MAPS}?timeout=300ms", body)
    except aiohttp.ServerDisconnectedError:
        # kube-apiserver does so if its own error is written at that moment.
        assert isinstance(server, RealServer)
    else:
        status = response.body  # kube-apiserver does not label it as JSON
        status = msgspec.json.decode(status) if isinstance(status, str) else status
        assert (response.status, status["reason"]) == (504, "Timeout")
        assert status["message"].startswith("Timeout: request did not complete within")
    finally:
        ended.set()
    assert (await server.request("GET", f"{MAPS}/a")).status == 404
    assert (await create(server, "b")).status == 201


async def test_selectors_decide_which_writes_are_reviewed(
    server: Server, reviews: ReviewServer
) -> None:
    selector = {"matchLabels": {"call": "yes"}}
    hook = reviews.hook("check", deny, objectSelector=selector)
    await reviews.install(server, VALIDATING, hook)
    assert (await create(server, "a")).status == 201
    assert (await create(server, "b", call="yes")).status == 400
    labelled = {"metadata": {"labels": {"call": "yes"}}}
    response = await server.request(
        "PATCH", f"{MAPS}/a", labelled, content_type="application/merge-patch+json"
    )
    assert response.status == 400


async def test_a_namespace_selector_reads_the_labels_of_the_namespace(
    server: Server, reviews: ReviewServer
) -> None:
    await add_namespace(server, "strict")
    name = {"key": "kubernetes.io/metadata.name", "operator": "In"}
    selector = {"matchExpressions": [{**name, "values": ["strict", "default"]}]}
    hook = reviews.hook("check", allow, namespaceSelector=selector)
    await reviews.install(server, VALIDATING, hook)
    await add_namespace(server, "free")
    for namespace in ("strict", "free"):
        body = config_map("a", reviewed="yes")
        await server.create(f"/api/v1/namespaces/{namespace}/configmaps", body)
    named = [each["namespace"] for each in reviews.requests("check") if each["name"] == "a"]
    assert named == ["strict"]


async def test_a_deletion_is_reviewed_with_the_old_object(
    server: Server, reviews: ReviewServer
) -> None:
    await create(server, "a")
    hook = reviews.hook("check", deny)
    hook["rules"][0]["operations"] = ["*"]
    await reviews.install(server, VALIDATING, hook)
    response = await server.request("DELETE", f"{MAPS}/a")
    assert response.status == 400
    (request,) = reviews.requests("check")
    assert request["object"] is None
    assert request["oldObject"]["metadata"]["name"] == "a"
    assert request["options"]["kind"] == "DeleteOptions"
    assert (await server.get(f"{MAPS}/a"))["metadata"]["name"] == "a"


async def test_writes_of_the_status_are_reviewed_where_a_rule_names_them(
    server: Server, reviews: ReviewServer
) -> None:
    pods = "/api/v1/namespaces/default/pods"
    hook = reviews.hook("check", deny)
    hook["rules"].append({**hook["rules"][0], "resources": ["pods/status"]})
    await reviews.install(server, VALIDATING, hook)
    body = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    await server.create(pods, body)
    response = await server.request(
        "PATCH",
        f"{pods}/p/status",
        {"status": {"message": "x"}},
        content_type="application/merge-patch+json",
    )
    assert response.status == 400
    (request,) = reviews.requests("check")
    assert request["subResource"] == request["requestSubResource"] == "status"
    assert request["object"]["status"]["message"] == "x"


async def test_warnings_of_webhooks_reach_the_client(server: Server, reviews: ReviewServer) -> None:
    def respond(request: Json) -> Json:
        return {"allowed": True, "warnings": ["mind the gap"], "auditAnnotations": {"a": "b"}}

    await reviews.install(server, VALIDATING, reviews.hook("check", respond))
    assert (await create(server, "a")).warnings == ["mind the gap"]


async def test_a_dry_run_is_refused_for_a_webhook_with_side_effects(
    server: Server, reviews: ReviewServer
) -> None:
    """Configurations cannot declare them any more, but webhooks see that it is a dry run."""
    hook = reviews.hook("check", allow, sideEffects="NoneOnDryRun")
    await reviews.install(server, VALIDATING, hook)
    assert (await create(server, "a", "?dryRun=All")).status == 201
    assert [each["dryRun"] for each in reviews.requests("check")] == [True]
    refused = reviews.hook("other", allow, sideEffects="Some")
    body = {"metadata": {"name": "other"}, "webhooks": [refused]}
    response = await server.request("POST", path_of(VALIDATING), body)
    assert response.status == 422
    assert response.body["message"].endswith(
        'Unsupported value: "Some": supported values: "None", "NoneOnDryRun"'
    )


async def test_a_webhook_that_cannot_be_called_fails_the_write(
    server: Server, reviews: ReviewServer
) -> None:
    hook = reviews.hook("check")
    hook["clientConfig"]["url"] = "https://127.0.0.1:1/check"
    await server.create(path_of(VALIDATING), {"metadata": {"name": "h"}, "webhooks": [hook]})
    text = (
        'Internal error occurred: failed calling webhook "check.ex.io": failed to call webhook: '
        'Post "https://127.0.0.1:1/check?timeout=10s": dial tcp 127.0.0.1:1: connect: connection '
        "refused"
    )

    async def message() -> Any:
        return (await create(server, "a", "?dryRun=All")).body.get("message")

    await wait_until_equal(message, text)
    response = await create(server, "a")
    assert (response.status, response.body["reason"]) == (500, "InternalError")
    cause = text.removeprefix("Internal error occurred: ")
    assert response.body["details"] == {"causes": [{"message": cause}]}


async def test_a_failing_webhook_may_be_ignored(server: Server, reviews: ReviewServer) -> None:
    broken = reviews.hook("broken", lambda _: web.Response(status=500), failurePolicy="Ignore")
    await reviews.install(server, VALIDATING, reviews.hook("check"), broken)
    assert (await create(server, "a")).status == 201
    assert sorted(path for path, _ in reviews.reviews) == ["broken", "check"]


BAD_RESPONSES: dict[str, tuple[Reviewer, str]] = {
    "status 500": (
        lambda _: web.Response(status=500, text="boom"),
        'failed to call webhook: an error on the server ("boom") has prevented the request from '
        "succeeding",
    ),
    "status 404": (
        lambda _: web.Response(status=404),
        "failed to call webhook: the server could not find the requested resource",
    ),
    "wrong uid": (
        lambda _: {"uid": "other", "allowed": True},
        "received invalid webhook response: expected response.uid=",
    ),
    "patch by a validating webhook": (
        patching({"op": "remove", "path": "/data"}),
        "received invalid webhook response: validating webhook may not return response.patch",
    ),
    "absent": (
        lambda _: web.json_response({"apiVersion": "admission.k8s.io/v1"}),
        "",
    ),
}


@pytest.mark.parametrize("example", BAD_RESPONSES)
async def test_a_response_that_is_no_review_fails_the_write(
    server: Server, reviews: ReviewServer, example: str
) -> None:
    respond, text = BAD_RESPONSES[example]
    await reviews.install(server, VALIDATING, reviews.hook("check", respond))
    response = await create(server, "a")
    assert response.status == 500
    start = 'Internal error occurred: failed calling webhook "check.ex.io": '
    assert response.body["message"].startswith(start + text)


async def test_a_slow_webhook_fails_the_write_and_holds_up_no_other(
    server: Server, reviews: ReviewServer
) -> None:
    released = asyncio.Event()

    async def respond(request: Json) -> Json:
        await released.wait()
        return {"allowed": True}

    selector = {"matchLabels": {"call": "yes"}}
    hook = reviews.hook("check", respond, objectSelector=selector, timeoutSeconds=1)
    await reviews.install(server, VALIDATING, hook)
    waiting = asyncio.create_task(create(server, "slow", call="yes"))
    await wait_until_equal(lambda: _count(reviews), 1)
    assert (await create(server, "fast")).status == 201
    assert not waiting.done()
    response = await waiting
    released.set()
    assert response.status == 500
    assert response.body["message"].endswith("context deadline exceeded")


async def _count(reviews: ReviewServer) -> int:
    return len(reviews.reviews)


async def test_what_is_stored_is_what_was_reviewed(server: Server, reviews: ReviewServer) -> None:
    """INV-OW-6: a change in the meantime is reviewed, or the write fails."""
    await create(server, "a")
    released, first = asyncio.Event(), asyncio.Event()

    async def respond(request: Json) -> Json:
        if "slow" in request["object"]["data"] and not first.is_set():
            first.set()
            await released.wait()
        return {"allowed": True}

    await reviews.install(server, VALIDATING, reviews.hook("check", respond))
    waiting = asyncio.create_task(merge_patch(server, f"{MAPS}/a", {"data": {"slow": "1"}}))
    await first.wait()
    await merge_patch(server, f"{MAPS}/a", {"data": {"fast": "1"}})
    released.set()
    await waiting
    stored = await server.get(f"{MAPS}/a")
    assert stored["data"] == {"k": "v", "slow": "1", "fast": "1"}
    reviewed = [each["object"]["data"] for each in reviews.requests("check")]
    assert stored["data"] in reviewed


async def test_configurations_are_not_reviewed(server: Server, reviews: ReviewServer) -> None:
    hook = reviews.hook("check", deny)
    hook["rules"][0].update(apiGroups=["*"], apiVersions=["*"], resources=["*"], operations=["*"])
    await reviews.install(server, VALIDATING, hook)
    response = await server.request("DELETE", path_of(VALIDATING, "hooks.ex.io"))
    assert response.status == 200


@pytest.mark.parametrize(
    ("policy", "called"), [("Equivalent", ["v1"]), ("Exact", [])], ids=["Equivalent", "Exact"]
)
async def test_a_rule_covers_other_versions_of_a_resource_unless_it_is_exact(
    server: Server, reviews: ReviewServer, policy: str, called: list[str]
) -> None:
    events = "/apis/events.k8s.io/v1/namespaces/default/events"
    hook = reviews.hook("check", matchPolicy=policy)
    hook["rules"].append({**hook["rules"][0], "resources": ["events"]})
    await reviews.install(server, VALIDATING, hook)
    event = {
        "metadata": {"name": "e", "namespace": "default"}, "reason": "Test", "action": "Test",
        "type": "Normal", "eventTime": "2026-01-01T00:00:00.000000Z", "note": "hello",
        "reportingController": "ex.io/test", "reportingInstance": "test",
        "regarding": {"kind": "Pod", "namespace": "default", "name": "p"},
    }  # fmt: skip
    await server.create(events, event)
    found = [each for each in reviews.requests("check") if each["name"] == "e"]
    assert [each["resource"]["version"] for each in found] == called
    for each in found:
        assert each["resource"]["group"] == ""
        assert each["requestResource"]["group"] == "events.k8s.io"
        assert each["object"]["message"] == "hello"


async def test_a_patch_cannot_move_an_object_to_another_namespace(
    server: Server, reviews: ReviewServer
) -> None:
    patch = patching({"op": "replace", "path": "/metadata/namespace", "value": "kube-system"})
    await reviews.install(server, MUTATING, reviews.hook("move", patch))
    response = await create(server, "a")
    assert response.status == 400
    assert response.body["message"] == (
        "the namespace of the provided object does not match the namespace sent on the request"
    )


async def test_what_a_webhook_writes_is_defaulted_and_validated(
    server: Server, reviews: ReviewServer
) -> None:
    hook = reviews.hook("bad", patching({"op": "add", "path": "/data/a~1b", "value": "x"}))
    await reviews.install(server, MUTATING, hook)
    response = await create(server, "a")
    assert (response.status, response.body["reason"]) == (422, "Invalid")
    assert response.body["details"]["causes"][0]["field"] == "data[a/b]"


WRONG: dict[str, Json] = {
    "short name": {"name": "check"},
    "no name": {"name": ""},
    "two targets": {
        "clientConfig": {"url": "https://h/", "service": {"name": "s", "namespace": "n"}}
    },
    "no target": {"clientConfig": {}},
    "http": {"clientConfig": {"url": "http://h/x?a=b#c"}},
    "user": {"clientConfig": {"url": "https://u:p@h/"}},
    "service path": {"clientConfig": {"service": {"name": "s", "namespace": "n", "path": "a//b"}}},
    "service port": {"clientConfig": {"service": {"name": "s", "namespace": "n", "port": 70000}}},
    "service name": {"clientConfig": {"service": {"name": "", "namespace": "n"}}},
    "versions": {"admissionReviewVersions": ["v7", "v7"]},
    "no versions": {"admissionReviewVersions": []},
    "old version": {"admissionReviewVersions": ["v1beta1"]},
    "side effects": {"sideEffects": None},
    "timeout": {"timeoutSeconds": 31},
    "failure policy": {"failurePolicy": "Maybe"},
    "match policy": {"matchPolicy": "Maybe"},
    "selector": {"objectSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
    "rule": {"rules": [{}]},
    "wildcards": {
        "rules": [
            {
                "apiGroups": ["*", "a"], "apiVersions": ["v1", ""], "operations": ["*", "CREATE"],
                "resources": ["pods/*", "pods/status", "*/scale", "a/scale", "*", "b"],
                "scope": "All",
            }
        ]
    },
    "operation": {
        "rules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["GET"], "resources": ["*/*"]}
        ]
    },
}  # fmt: skip
VALID = {"old version"}
RECORDED = json.loads(
    (Path(__file__).parents[1] / "data" / "webhook-configuration-errors.json").read_text()
)
"""The errors of a real server, by example."""


@pytest.mark.parametrize("kind", [MUTATING, VALIDATING])
async def test_wrong_configurations_are_rejected_with_the_same_errors(
    tmp_path: Path, servers: ServerFactory, kind: str
) -> None:
    async with servers.start(tmp_path) as server:
        found = {}
        for example, change in WRONG.items():
            hook = {
                "name": "check.ex.io", "clientConfig": {"url": "https://127.0.0.1:1/"},
                "sideEffects": "None", "admissionReviewVersions": ["v1"],
            } | change  # fmt: skip
            body = {"metadata": {"name": "h"}, "webhooks": [hook]}
            response = await server.request("POST", f"{path_of(kind)}?dryRun=All", body)
            assert response.status == (201 if example in VALID else 422), (example, response.body)
            causes = response.body.get("details", {}).get("causes", [])
            found[example] = sorted(f"{each['field']}: {each['message']}" for each in causes)
        assert found == RECORDED


async def test_configurations_are_defaulted(tmp_path: Path, servers: ServerFactory) -> None:
    async with servers.start(tmp_path) as server:
        hook = {
            "name": "check.ex.io", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"service": {"name": "s", "namespace": "n"}},
        }  # fmt: skip
        path = f"{path_of(MUTATING)}?dryRun=All"
        stored = await server.create(path, {"metadata": {"name": "h"}, "webhooks": [hook]})
        expected = hook | {
            "clientConfig": {"service": {"name": "s", "namespace": "n", "port": 443}},
            "failurePolicy": "Fail", "matchPolicy": "Equivalent", "namespaceSelector": {},
            "objectSelector": {}, "reinvocationPolicy": "Never", "timeoutSeconds": 10,
        }  # fmt: skip
        assert stored["webhooks"] == [expected]


# What a real server without a network of Services cannot show.


async def test_a_webhook_of_a_service_is_called_at_its_endpoints(tmp_path: Path) -> None:
    async with (
        embedded_server(tmp_path) as server,
        review_server(tmp_path, ["svc.default.svc"]) as reviews,
    ):
        hook = reviews.hook("check", deny)
        service = {"name": "svc", "namespace": "default", "path": "/check", "port": 8443}
        hook["clientConfig"] = {"service": service, "caBundle": reviews.bundle}
        configuration = {"metadata": {"name": "h"}, "webhooks": [hook]}
        await server.create(path_of(VALIDATING), configuration)

        async def why() -> str:
            return str((await create(server, "a")).body["message"])

        call = 'failed to call webhook: Post "https://svc.default.svc:8443/check?timeout=10s": '
        failed = f'Internal error occurred: failed calling webhook "check.ex.io": {call}'
        assert await why() == f'{failed}service "svc" not found'
        services, endpoints = (f"/api/v1/namespaces/default/{p}" for p in ("services", "endpoints"))
        ports = [{"name": "https", "port": 8443, "targetPort": "web"}]
        spec = {"clusterIP": "None", "selector": {"app": "hook"}, "ports": ports}
        await server.create(services, {"metadata": {"name": "svc"}, "spec": spec})
        assert await why() == f'{failed}no endpoints available for service "svc"'
        subset = {
            "addresses": [{"ip": "127.0.0.1"}], "ports": [{"name": "https", "port": reviews.port}],
        }  # fmt: skip
        await server.create(endpoints, {"metadata": {"name": "svc"}, "subsets": [subset]})
        denied = 'admission webhook "check.ex.io" denied the request: not today'
        assert await why() == denied
        # A Service without Endpoints leads to its pods.
        await server.request("DELETE", f"{endpoints}/svc")
        await _run_pod(server, reviews.port)
        assert await why() == denied


async def _run_pod(server: Server, port: int) -> None:
    pods = "/api/v1/namespaces/default/pods"
    container = {"name": "c", "image": "i", "ports": [{"name": "web", "containerPort": port}]}
    body = {
        "metadata": {"name": "p", "labels": {"app": "hook"}},
        "spec": {"containers": [container]},
    }
    await server.create(pods, body)
    ready = [{"type": "Ready", "status": "True"}]
    status = {"status": {"phase": "Running", "podIP": "127.0.0.1", "conditions": ready}}
    await merge_patch(server, f"{pods}/p/status", status)


async def test_a_certificate_of_another_authority_or_host_is_rejected(tmp_path: Path) -> None:
    async with (
        embedded_server(tmp_path) as server,
        review_server(tmp_path, ["other.ex.io"]) as wrong_host,
        review_server(tmp_path) as reviews,
    ):
        hooks = {"host": wrong_host.hook("check"), "authority": reviews.hook("check")}
        hooks["authority"]["clientConfig"]["caBundle"] = wrong_host.bundle
        for name, hook in hooks.items():
            body = {"metadata": {"name": name}, "webhooks": [hook]}
            await server.create(path_of(VALIDATING), body)
            response = await create(server, "a")
            assert "failed to verify certificate" in response.body["message"], name
            await server.request("DELETE", path_of(VALIDATING, name))
        assert wrong_host.reviews == reviews.reviews == []


async def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    async with embedded_server(tmp_path) as server, review_server(tmp_path) as reviews:
        target = f"{reviews.url}/target"
        moved = web.Response(status=307, headers={"Location": target})
        reviews.responses["target"] = allow
        await reviews.install(server, VALIDATING, reviews.hook("check", lambda _: moved))
        response = await create(server, "a")
        assert "redirects the request (status 307)" in response.body["message"]
        assert reviews.requests("target") == []


async def test_an_endless_response_is_not_read_to_its_end(tmp_path: Path) -> None:
    async with embedded_server(tmp_path) as server, review_server(tmp_path) as reviews:
        long = web.Response(body=b" " * (6 * 2**20 + 1), content_type="application/json")
        await reviews.install(server, VALIDATING, reviews.hook("check", lambda _: long))
        response = await create(server, "a")
        assert "the response is longer than 6291456 bytes" in response.body["message"]


async def test_a_webhook_that_calls_the_server_back_does_not_wait_for_itself(
    tmp_path: Path,
) -> None:
    async with embedded_server(tmp_path) as server, review_server(tmp_path) as reviews:

        async def respond(request: Json) -> Json:
            body = config_map(f"{request['name']}-copy")
            response = await server.request("POST", MAPS, body)
            return {"allowed": response.status == 201}

        selector = {"matchLabels": {"call": "yes"}}
        hook = reviews.hook("check", respond, objectSelector=selector)
        await reviews.install(server, VALIDATING, hook)
        results = await asyncio.gather(*(create(server, f"m{n}", call="yes") for n in range(40)))
        assert {each.status for each in results} == {201}


async def test_large_objects_are_reviewed_too(tmp_path: Path) -> None:
    async with embedded_server(tmp_path) as server, review_server(tmp_path) as reviews:
        await reviews.install(server, MUTATING, reviews.hook("label", labelling("by", "hook")))
        body = config_map("big", reviewed="yes") | {"data": {"k": "v" * 200_000}}
        assert (await server.create(MAPS, body))["metadata"]["labels"]["by"] == "hook"
        (request,) = reviews.requests("label")
        assert len(request["object"]["data"]["k"]) == 200_000


async def test_configurations_apply_after_a_restart(tmp_path: Path) -> None:
    async with review_server(tmp_path) as reviews:
        async with embedded_server(tmp_path / "data") as server:
            await reviews.install(server, VALIDATING, reviews.hook("check", deny))
        async with embedded_server(tmp_path / "data") as server:
            assert (await create(server, "a")).status == 400


async def test_the_servers_own_controllers_are_not_reviewed(tmp_path: Path) -> None:
    async with embedded_server(tmp_path) as server, review_server(tmp_path) as reviews:
        hook = reviews.hook("check", deny)
        hook["rules"][0]["operations"] = ["*"]
        await server.create("/api/v1/namespaces", {"metadata": {"name": "deleted"}})
        await reviews.install(server, VALIDATING, hook)
        await server.request("DELETE", "/api/v1/namespaces/deleted")

        async def is_deleted() -> bool:
            return (await server.request("GET", "/api/v1/namespaces/deleted")).status == 404

        await wait_until_true(is_deleted)


async def test_subresources_that_are_not_reviewed_bring_a_warning(tmp_path: Path) -> None:
    async with embedded_server(tmp_path) as server, review_server(tmp_path) as reviews:
        hook = reviews.hook("check")
        hook["rules"][0]["resources"] = ["pods", "pods/exec"]
        body = {"metadata": {"name": "h"}, "webhooks": [hook]}
        response = await server.request("POST", path_of(VALIDATING), body)
        assert response.status == 201
        (warning,) = response.warnings
        assert warning.startswith("webhooks[0].rules[0].resources[pods/exec] has no effect")


async def test_connections_are_reviewed(server: Server, reviews: ReviewServer) -> None:
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CONNECT"],
        "resources": ["pods/attach", "pods/proxy"],
    }
    hook = reviews.hook("check", deny, rules=[*reviews.hook("check")["rules"], rule])
    await reviews.install(server, VALIDATING, hook)
    body = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    path = "/api/v1/namespaces/default/pods"
    await server.create(path, body)
    denied = 'admission webhook "check.ex.io" denied the request: not today'
    query = "container=c&stdin=true&stdout=true&tty=false"
    attach = await server.request("POST", f"{path}/p/attach?{query}")
    assert (attach.status, attach.body["message"]) == (400, denied)
    proxy = await server.request("GET", f"{path}/p:80/proxy/a/b")
    assert (proxy.status, proxy.body["message"]) == (400, denied)
    found = [each for each in reviews.requests("check") if each["operation"] == "CONNECT"]
    assert [each["subResource"] for each in found] == ["attach", "proxy"]
    assert found[0]["kind"] == {"group": "", "version": "v1", "kind": "PodAttachOptions"}
    assert found[0]["resource"] == {"group": "", "version": "v1", "resource": "pods"}
    assert (found[0]["name"], found[0]["namespace"]) == ("p", "default")
    attached = {key: found[0]["object"].get(key) for key in ("container", "stdin", "stdout")}
    assert attached == {"container": "c", "stdin": True, "stdout": True}
    assert "tty" not in found[0]["object"]
    assert (found[1]["name"], found[1]["object"]["path"]) == ("p:80", "/a/b")
