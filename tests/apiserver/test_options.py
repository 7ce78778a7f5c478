"""Request parameters: neither server silently ignores any."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.api_servers import ServerFactory
from support.embedded_apiserver import MAPS, Server, config_map

LONG = "x" * 129
_VERSION = re.compile(r'("resourceVersion": ?)"[0-9]+"')
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
AUTHORIZATION = "/apis/authorization.k8s.io/v1"
ACCESS = f"{AUTHORIZATION}/subjectaccessreviews"
LOCAL = f"{AUTHORIZATION}/namespaces/default/localsubjectaccessreviews"


class Refused(NamedTuple):
    """A rejected request, and the field that is invalid."""

    method: str
    path: str
    code: int
    field: str = ""
    body: Any = None


REFUSED = (
    Refused("POST", f"{MAPS}?fieldManager={LONG}", 422, "fieldManager"),
    Refused("POST", f"{MAPS}?fieldManager=a%07", 422, "fieldManager"),
    Refused("PUT", f"{MAPS}/a?fieldManager={LONG}", 422, "fieldManager"),
    Refused("PATCH", f"{MAPS}/a?fieldManager={LONG}", 422, "fieldManager"),
    Refused("PATCH", f"{MAPS}/a?force=false", 422, "force"),
    Refused("POST", f"{MAPS}?dryRun=all", 422, "dryRun"),
    Refused("POST", f"{MAPS}?dryRun=", 422, "dryRun"),
    Refused("DELETE", f"{MAPS}/a?dryRun=", 422, "dryRun"),
    Refused("DELETE", f"{MAPS}/a?dryRun=true", 422, "dryRun"),
    Refused("DELETE", f"{MAPS}?dryRun=true", 422, "dryRun"),
    Refused("POST", f"{MAPS}?fieldValidation=strict", 422, "fieldValidation"),
    Refused("DELETE", f"{MAPS}/a?propagationPolicy=foo", 422, "propagationPolicy"),
    Refused("DELETE", f"{MAPS}/a?gracePeriodSeconds=abc", 400),
    Refused("GET", f"{MAPS}?timeoutSeconds=abc", 400),
    Refused("GET", f"{MAPS}?timeout=abc", 400),
    Refused("GET", "/version?timeout=abc", 400),
    Refused("GET", f"{MAPS}/a?timeout=abc", 400),
    Refused("POST", f"{MAPS}?timeout=abc", 400),
    Refused("DELETE", f"{MAPS}/a?timeout=5", 400),
    Refused("GET", f"{MAPS}?watch=maybe&resourceVersion=x", 500),
    Refused("GET", f"{MAPS}?sendInitialEvents=maybe", 422, "sendInitialEvents"),
    Refused("GET", f"{MAPS}?resourceVersionMatch=Exact", 422, "resourceVersionMatch"),
    Refused("POST", REVIEWS, 400, body={"spec": {}}),
    Refused("POST", REVIEWS, 400, body={"spec": {"token": "t", "audiences": 5}}),
    Refused("POST", ACCESS, 400, body={"spec": 5}),
    Refused("POST", f"{REVIEWS}?fieldValidation=Strict", 400, body={"spec": {"nope": "t"}}),
    Refused("POST", ACCESS, 422, "spec.user", {"spec": {"resourceAttributes": {}}}),
    Refused("POST", ACCESS, 422, "spec.resourceAttributes", {"spec": {"user": "u"}}),
    Refused(
        "POST",
        f"{AUTHORIZATION}/selfsubjectaccessreviews",
        422,
        "spec.nonResourceAttributes",
        {"spec": {"resourceAttributes": {}, "nonResourceAttributes": {}}},
    ),
    Refused("POST", f"{AUTHORIZATION}/selfsubjectrulesreviews", 400, body={"spec": {}}),
    Refused(
        "POST",
        LOCAL,
        422,
        "spec.resourceAttributes.namespace",
        {"spec": {"user": "u", "resourceAttributes": {"namespace": "other"}}},
    ),
)


@pytest.fixture
async def server(servers: ServerFactory, tmp_path: Path) -> AsyncIterator[Server]:
    async with servers.start(tmp_path) as running:
        await running.create(MAPS, config_map("a"))
        yield running


async def test_invalid_parameters_are_rejected(server: Server) -> None:
    before = await server.get(f"{MAPS}/a")
    for method, path, code, field, body in REFUSED:
        sent = body or (None if method in ("GET", "DELETE") else config_map("a"))
        media = "application/merge-patch+json" if method == "PATCH" else "application/json"
        response = await server.request(method, path, sent, content_type=media)
        assert response.status == code, (method, path, response.body)
        causes = (response.body.get("details") or {}).get("causes") or ()
        assert {cause["field"] for cause in causes} == ({field} if field else set()), path
    assert await server.get(f"{MAPS}/a") == before


async def test_a_boolean_parameter_is_true_unless_false_or_0(server: Server) -> None:
    for value, wanted in (("maybe", True), ("", True), ("1", True), ("False", False), ("0", False)):
        path = f"{MAPS}/a?dryRun=All&orphanDependents={value}"
        response = await server.request("DELETE", path)
        assert response.status == 200
        # The object keeps its finalizer until its dependents are orphaned.
        assert (response.body["kind"] == "ConfigMap") is wanted, value


async def test_a_token_is_reviewed_for_its_audience(server: Server) -> None:
    token = server.tokens["admin"]
    plain = await server.create(REVIEWS, {"spec": {"token": token}})
    assert plain["status"]["authenticated"] is True
    assert plain["status"]["audiences"] == ["https://kubernetes.default.svc"]
    body = {"spec": {"token": token, "audiences": ["x", *plain["status"]["audiences"]]}}
    both = await server.create(REVIEWS, body)
    assert both["status"]["audiences"] == plain["status"]["audiences"]
    other = await server.create(REVIEWS, {"spec": {"token": token, "audiences": ["x"]}})
    assert other["status"] == {"user": {}, "error": "invalid bearer token"}


async def test_responses_to_command_line_clients_are_indented(server: Server) -> None:
    for path in (f"{MAPS}/a", MAPS, f"{MAPS}/none", "/apis", "/api/v1"):
        lines = {}
        for query, agent in (("", ""), ("?pretty=true", ""), ("", "curl/8"), ("?pretty=0", "curl")):
            value = {"Authorization": f"Bearer {server.tokens['admin']}", "User-Agent": agent}
            async with server.session.get(server.url + path + query, headers=value) as response:
                # The version of a list is the server's, whose controllers may be writing.
                text = await response.text()
                lines[query, agent] = _VERSION.sub(r'\1"1"', text)
        plain = lines["", ""]
        assert plain.count("\n") == 1, path
        assert lines["?pretty=0", "curl"] == plain
        indented = json.dumps(json.loads(plain), indent=2, ensure_ascii=False) + "\n"
        for asked in (("?pretty=true", ""), ("", "curl/8")):
            assert lines[asked].count("\n") > 3, path
            assert json.loads(lines[asked]) == json.loads(plain)
            assert lines[asked].rstrip("\n") == indented.rstrip("\n"), path


async def test_unknown_and_duplicate_fields_are_reported_in_the_order_of_the_body(
    server: Server,
) -> None:
    body = (
        b'{"metadata":{"name":"d","unknownMeta":1},"spec":{"unknownField":"foo","replicas":2,'
        b'"replicas":3,"selector":{"matchLabels":{"app":"a"}},"template":{"metadata":{"labels":'
        b'{"app":"a","app":"a"}},"spec":{"containers":[{"name":"c","image":"i","odd":1}]}}}}'
    )
    path = "/apis/apps/v1/namespaces/default/deployments?fieldValidation=Strict"
    response = await server.request("POST", path, body)
    assert response.status == 400
    _, _, found = response.body["message"].partition("strict decoding error: ")
    assert found == (
        'unknown field "metadata.unknownMeta", unknown field "spec.unknownField", '
        'duplicate field "spec.replicas", duplicate field "spec.template.metadata.labels.app", '
        'unknown field "spec.template.spec.containers[0].odd"'
    )


async def test_reviews_are_no_tables(server: Server) -> None:
    body = {"spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}}}
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    path = f"{AUTHORIZATION}/selfsubjectaccessreviews"
    response = await server.request("POST", path, body, headers=accept)
    assert (response.status, response.body["reason"]) == (406, "NotAcceptable")
    accept = {"Accept": "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"}
    response = await server.request("POST", path, body, headers=accept)
    assert (response.status, response.body["kind"]) == (201, "PartialObjectMetadata")
    head = {"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1"}
    for form in ("application/json", "application/yaml"):
        accept = {"Accept": form}
        response = await server.request("POST", path, {**head, **body}, headers=accept)
        assert response.status == 201
