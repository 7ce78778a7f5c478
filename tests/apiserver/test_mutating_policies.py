"""MutatingAdmissionPolicies on both servers."""

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.api_servers import ServerFactory
from support.embedded_apiserver import MAPS, MERGE, Server, embedded_server, pod
from support.polling import wait_until_equal
from support.review_server import API, MUTATING, labelling, path_of, review_server

from batholith.local.apiserver.builtin.unenforced import warnings_on_write
from batholith.model.names import Resource
from batholith.model.service_network import PodNetwork

Json = dict[str, Any]
TEMPLATES = "/api/v1/namespaces/default/podtemplates"
POLICIES = f"{API}/mutatingadmissionpolicies"
BINDINGS = f"{API}/mutatingadmissionpolicybindings"
RULE = {
    "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"],
    "operations": ["CREATE", "UPDATE"],
}  # fmt: skip
LABELS = "Object.metadata.labels"


@pytest.fixture
async def server(servers: ServerFactory, tmp_path: Path) -> AsyncIterator[Server]:
    async with servers.start(tmp_path / "server") as started:
        yield started
        # A real server is used again, and applies policies a moment later.
        for path in (path_of(MUTATING), BINDINGS, POLICIES):
            await started.request("DELETE", path)
        await wait_until_equal(lambda: outcome(started, "last"), {"k": "1"})


def apply(expression: str) -> Json:
    return {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}


def patch(expression: str) -> Json:
    return {"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}


def policy(name: str, *mutations: Json, **spec: Any) -> Json:
    """A policy about the ConfigMap of its name."""
    condition = {"name": "named", "expression": f"object.metadata.name == '{name}'"}
    whole = {
        "matchConstraints": {"resourceRules": [RULE]},
        "matchConditions": [condition],
        "mutations": list(mutations),
        "reinvocationPolicy": "Never",
        **spec,
    }
    return {"metadata": {"name": name}, "spec": whole}


async def install(server: Server, *policies: Json, binding: Json | None = None) -> None:
    """Create policies with their bindings, and wait until they apply."""
    for each in (*policies, policy("last", apply('Object{data: {"last": "1"}}'))):
        name = each["metadata"]["name"]
        await server.create(POLICIES, each)
        spec = {"policyName": name, **(binding or {})} if name != "last" else {"policyName": name}
        await server.create(BINDINGS, {"metadata": {"name": name}, "spec": spec})
    await wait_until_equal(lambda: outcome(server, "last"), {"k": "1", "last": "1"})


async def outcome(server: Server, name: str) -> Any:
    """The data of a new ConfigMap, with its labels if it has any; or why it is denied."""
    body = {"metadata": {"name": name}, "data": {"k": "1"}}
    response = await server.request("POST", f"{MAPS}?dryRun=All", body)
    if response.status != 201:
        by = f"policy '{name}' with binding '{name}' denied request: "
        return response.status, str(response.body["message"]).removeprefix(by)
    labels = response.body["metadata"].get("labels")
    return response.body["data"] | ({"labels": labels} if labels else {})


CASES: Mapping[str, tuple[list[Json], Any]] = {
    "applied-map": ([apply('Object{data: {"x": object.data.k}}')], {"k": "1", "x": "1"}),
    "applied-object": (
        [apply(f'Object{{metadata: Object.metadata{{labels: {LABELS}{{a: "b"}}}}}}')],
        {"k": "1", "labels": {"a": "b"}},
    ),
    "optional-field": (
        [apply("Object{metadata: Object.metadata{?labels: object.metadata.?labels}}")], {"k": "1"},
    ),
    "added": ([patch('[JSONPatch{op: "add", path: "/data/x", value: "y"}]')], {"k": "1", "x": "y"}),
    "removed": (
        [patch('object.data.map(key, JSONPatch{op: "remove", path: "/data/" + key})'),
         apply('Object{data: {"x": "y"}}')],
        {"x": "y"},
    ),
    "object-as-value": (
        [patch(f'[JSONPatch{{op: "add", path: "/metadata/labels", value: {LABELS}{{b: "c"}}}}]')],
        {"k": "1", "labels": {"b": "c"}},
    ),
    "escaped-key": (
        [patch('[JSONPatch{op: "add", path: "/metadata/labels", value: {}}, JSONPatch{op: "add", '
               'path: "/metadata/labels/" + jsonpatch.escapeKey("a.io/b"), value: "c"}]')],
        {"k": "1", "labels": {"a.io/b": "c"}},
    ),
    "failed-test": (
        [patch('[JSONPatch{op: "test", path: "/data/k", value: "2"},'
               'JSONPatch{op: "add", path: "/data/x", value: "y"}]')],
        {"k": "1"},
    ),
    "one-after-the-other": (
        [apply('Object{data: {"x": "2"}}'), apply('Object{data: {"y": object.data.x}}')],
        {"k": "1", "x": "2", "y": "2"},
    ),
    "literals-in-text": (
        [apply("Object{data: {'x': 'Object{a: 1}'}} // Object{")], {"k": "1", "x": "Object{a: 1}"},
    ),
    "unknown-field": (
        [apply("Object{spec: Object.spec{a: 1}}")],
        (403, "error applying patch: failed to convert patch object to typed object: "
              ".spec: field not declared in schema"),
    ),
    "wrong-type-name": (
        [apply('Object{data: Object.spec{a: "1"}}')],
        (403, 'type mismatch: unexpected type name "Object.spec", expected "Object.data", which '
              "matches field name path from root Object type"),
    ),
    "wrong-type": (
        [apply('Object{data: {"x": 1}}')],
        (403, "error applying patch: failed to convert patch object to typed object: "
              ".data.x: expected string, got &value.valueUnstructured{Value:1}"),
    ),
    "atomic-list": (
        [apply("Object{metadata: Object.metadata{ownerReferences: ["
               'Object.metadata.ownerReferences{apiVersion: "v1", kind: "A", name: "a", uid: "u"}'
               "]}}")],
        (403, "error applying patch: invalid ApplyConfiguration: may not mutate atomic arrays, "
              "maps or structs: .metadata.ownerReferences[0]"),
    ),
    "no-such-key": (
        [apply('Object{data: {"x": object.data.none}}')],
        (403, "expression 'Object{data: {\"x\": object.data.none}}' resulted in error: "
              "no such key: none"),
    ),
    "other-namespace": (
        [apply('Object{metadata: Object.metadata{namespace: "other"}}')],
        (400, "the namespace of the provided object does not match the namespace sent on the "
              "request"),
    ),
}  # fmt: skip
"""Mutations by the name of their policy, and what becomes of the object."""


async def test_mutations_change_the_object_or_deny_the_write(server: Server) -> None:
    await install(server, *(policy(name, *row[0]) for name, row in CASES.items()))
    found = {name: await outcome(server, name) for name in CASES}
    assert found == {name: row[1] for name, row in CASES.items()}


async def test_policies_have_conditions_parameters_and_run_again(
    server: Server, tmp_path: Path
) -> None:
    """Policies run in the order of their names, before webhooks, and again after a change."""
    # kube-apiserver waits for ever for parameters of a kind that other policies had before.
    template = {"metadata": {"labels": {"value": "p"}}, "spec": pod("p")["spec"]}
    await server.create(TEMPLATES, {"metadata": {"name": "params"}, "template": template})
    count = "object.data.?{0}.orValue('') + 'x'"

    def counter(name: str, **spec: Any) -> Json:
        # Each run adds an x.
        expression = f"Object{{data: {{'{name}': {count.format(name)}}}}}"
        shown = policy(name, apply(expression), **spec)
        shown["spec"]["matchConditions"][0]["expression"] = "'counted' in object.?data.orValue({})"
        return shown

    wrong = apply("Object{data: {'x': object.data.none}}")
    ignored = policy("ignored", wrong, apply("Object{data: {'y': '1'}}"), failurePolicy="Ignore")
    params = policy("with-params", apply("Object{data: {'x': variables.text}}"))
    params["spec"] |= {
        "paramKind": {"apiVersion": "v1", "kind": "PodTemplate"},
        "variables": [
            {"name": "text", "expression": "params.template.metadata.labels.value + '!'"}
        ],
    }
    reference = {"name": "params", "parameterNotFoundAction": "Deny"}
    await install(
        server,
        counter("again", reinvocationPolicy="IfNeeded"),
        ignored,
        counter("once"),
        params,
        binding={"paramRef": reference},
    )
    assert await outcome(server, "ignored") == {"k": "1", "y": "1"}
    assert await outcome(server, "with-params") == {"k": "1", "x": "p!"}
    path = f"{MAPS}/counted"
    data = {"counted": ""}
    created = await server.create(MAPS, {"metadata": {"name": "counted"}, "data": data})
    assert created["data"] == {**data, "again": "xx", "once": "x"}
    async with review_server(tmp_path) as reviews:
        hook = reviews.hook("label", labelling("a", "b"))
        await reviews.install(server, MUTATING, hook)
        change = {"metadata": {"labels": {"c": "d"}}, "data": {"again": None, "once": None}}
        changed = await server.request("PATCH", path, change, content_type=MERGE)
        assert changed.body["data"] == {**data, "again": "xx", "once": "x"}
        assert changed.body["metadata"]["labels"] == {"a": "b", "c": "d"}
        (review,) = reviews.requests("label")
        assert review["object"]["data"] == {**data, "again": "x", "once": "x"}
        await server.request("DELETE", path_of(MUTATING))


async def test_an_evaluation_that_could_take_too_long_fails_at_once(tmp_path: Path) -> None:
    """Of the embedded server, where nothing else runs while the library evaluates."""
    async with embedded_server(tmp_path) as server:
        mapped = apply("Object{data: {'x': string(object.data.map(k, k).size())}}")
        searched = apply("Object{data: {'x': string(object.data.all(k, object.data.k != ''))}}")
        for name, mutation in (("mapped", mapped), ("searched", searched)):
            await server.create(POLICIES, policy(name, mutation))
            spec = {"policyName": name}
            await server.create(BINDINGS, {"metadata": {"name": name}, "spec": spec})
        many, long = dict.fromkeys(map(str, range(2_001)), ""), "k" * 1_000_000
        for name, data, why in (
            ("mapped", many, "a list or map of 2001 items is too long for map and filter"),
            ("searched", {**many, "k": long[:60_000]}, "60000 characters is too long for 2002"),
        ):
            body = {"metadata": {"name": name}, "data": data}
            response = await server.request("POST", f"{MAPS}?dryRun=All", body)
            assert (response.status, why in response.body["message"]) == (403, True)
        for name in ("mapped", "searched"):
            body = {"metadata": {"name": name}, "data": {"k": long}}
            assert (await server.request("POST", f"{MAPS}?dryRun=All", body)).status == 201


INVALID: Mapping[str, tuple[Json, str]] = {
    "no mutation": ({"mutations": []}, "spec.mutations: Required value: mutations must contain"),
    "unknown type": ({"mutations": [{"patchType": "X"}]}, 'Unsupported value: "X"'),
    "other field": (
        {"mutations": [{**patch("[JSONPatch{}]"), "applyConfiguration": {"expression": "x"}}]},
        "must not be specified when patchType is JSONPatch",
    ),
    "empty": ({"mutations": [apply(" ")]}, "expression: Required value"),
    "no object": ({"mutations": [apply("{'a': 1}")]}, "must evaluate to Object but got map"),
    "no patch": ({"mutations": [patch("[]")]}, "must evaluate to list(JSONPatch) but got list"),
    "type of a field": ({"mutations": [patch("[JSONPatch{op: 1}]")]}, "compilation failed"),
    "field of a patch": ({"mutations": [patch("[JSONPatch{no: 1}]")]}, "compilation failed"),
    "syntax": ({"mutations": [apply("Object{a: }")]}, "compilation failed"),
    "unknown message": ({"mutations": [apply("Objekt{}")]}, "compilation failed"),
    "operation": (
        {"matchConstraints": {"resourceRules": [{**RULE, "operations": ["DELETE"]}]}},
        'spec.matchConstraints.resourceRules.operations: Unsupported value: "DELETE"',
    ),
    "reinvocation": ({"reinvocationPolicy": "x"}, "spec.reinvocationPolicy: Unsupported value"),
}


async def test_invalid_policies_are_rejected(server: Server) -> None:
    for why, (spec, text) in INVALID.items():
        body = policy("p", apply("Object{}"), **spec)
        response = await server.request("POST", f"{POLICIES}?dryRun=All", body)
        assert (response.status, text in response.body["message"]) == (422, True), (
            why,
            response.body["message"],
        )


def test_rules_that_no_policy_reviews_cause_a_warning() -> None:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/exec"]}
    constraints = {"resourceRules": [{**rule, "operations": ["CONNECT"]}]}
    body = {"kind": "MutatingAdmissionPolicy", **policy("p", matchConstraints=constraints)}
    resource = Resource("admissionregistration.k8s.io", "v1", "", body["kind"])
    found = warnings_on_write(resource, body, None, PodNetwork.HOST)
    assert ["operations[CONNECT]" in each for each in found] == [True, False]
