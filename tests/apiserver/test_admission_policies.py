"""ValidatingAdmissionPolicies and match conditions in CEL, on both servers."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.api_servers import ServerFactory, add_namespace
from support.embedded_apiserver import MAPS, MERGE, RawResponse, Server, config_map, embedded_server
from support.polling import wait_until_equal, wait_until_true
from support.review_server import (
    API,
    VALIDATING,
    ReviewServer,
    deny,
    path_of,
    review_server,
)

from batholith.local.apiserver.admission import policies

Json = dict[str, Any]
POLICIES = f"{API}/validatingadmissionpolicies"
BINDINGS = f"{API}/validatingadmissionpolicybindings"
RULE = {
    "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"],
    "operations": ["CREATE", "UPDATE", "DELETE"],
}  # fmt: skip
BY = "ValidatingAdmissionPolicy 'p' with binding 'p' denied request: "


@pytest.fixture
async def server(servers: ServerFactory, tmp_path: Path) -> AsyncIterator[Server]:
    async with servers.start(tmp_path / "server") as started:
        yield started
        # A real server is used again, and applies policies a moment later.
        for path in (BINDINGS, POLICIES, path_of(VALIDATING)):
            await started.request("DELETE", path)
        await wait_until_equal(lambda: denial(started, probe()), "")


def probe() -> Json:
    """What each policy of these tests denies."""
    return config_map("probe", probe="yes")


def policy(*validations: Json, **spec: Any) -> Json:
    constraints = {"resourceRules": [RULE]}
    whole = {"matchConstraints": constraints, "validations": list(validations), **spec}
    return {"metadata": {"name": "p"}, "spec": whole}


def valid(expression: str, **more: Any) -> Json:
    """A validation that does not accept the probe."""
    return {
        "expression": f"object == null || object.metadata.name != 'probe' && ({expression})",
        **more,
    }


async def install(server: Server, body: Json, **binding: Any) -> None:
    """Create a policy and its binding, and wait until it is enforced."""
    await server.create(POLICIES, body)
    spec = {"policyName": "p", "validationActions": ["Deny"], **binding}
    await server.create(BINDINGS, {"metadata": {"name": "p"}, "spec": spec})

    async def is_enforced() -> bool:
        response = await create(server, probe(), "?dryRun=All")
        return response.status != 201 or bool(response.warnings)

    await wait_until_true(is_enforced)


async def create(server: Server, body: Json, query: str = "") -> RawResponse:
    return await server.request("POST", f"{MAPS}{query}", body)


async def denial(server: Server, body: Json) -> str:
    """The message of a denial; empty if there is none."""
    response = await create(server, body, "?dryRun=All")
    if response.status == 201:
        return ""
    name = body["metadata"]["name"]
    return str(response.body["message"]).removeprefix(f'configmaps "{name}" is forbidden: ')


async def test_a_validation_that_fails_denies_the_write(server: Server) -> None:
    await install(server, policy(valid("'k' in object.data", message="k is missing")))
    response = await create(server, config_map("a") | {"data": {"x": "y"}})
    message = f'configmaps "a" is forbidden: {BY}k is missing'
    assert (response.status, response.body["reason"]) == (422, "Invalid")
    assert response.body["message"] == message
    cause = message.removeprefix('configmaps "a" is forbidden: ')
    assert response.body["details"]["causes"] == [{"message": cause}]
    assert (await create(server, config_map("a"))).status == 201


@pytest.mark.parametrize(
    ("reason", "status"), [("Forbidden", 403), ("Invalid", 422), ("RequestEntityTooLarge", 413)]
)
async def test_the_reason_decides_the_status(server: Server, reason: str, status: int) -> None:
    await install(server, policy(valid("false", reason=reason)))
    response = await create(server, config_map("a"))
    assert (response.status, response.body["reason"]) == (status, reason)
    assert response.body["message"].endswith(
        "failed expression: object == null || object.metadata.name != 'probe' && (false)"
    )


async def test_a_message_expression_says_why(server: Server) -> None:
    validations = [
        valid("false", messageExpression="'not ' + object.metadata.name", message="other")
    ]
    await install(server, policy(*validations))
    assert await denial(server, config_map("a")) == f"{BY}not a"


async def test_a_message_expression_that_fails_leaves_the_message(server: Server) -> None:
    await install(
        server, policy(valid("false", messageExpression="string(object.x.y)", message="other"))
    )
    assert await denial(server, config_map("a")) == f"{BY}other"


async def test_variables_are_evaluated_when_they_are_needed(server: Server) -> None:
    variables = [
        {"name": "labels", "expression": "object.metadata.?labels.orValue({})"},
        {"name": "team", "expression": "variables.labels.team"},
        {"name": "maybe", "expression": "object.metadata.?annotations"},
    ]
    expression = (
        "!('team' in variables.labels) || variables.team == 'a' && "
        "variables.maybe.orValue({}).size() == 0 && 'variables.team' != ''"
    )
    await install(server, policy(valid(expression, message="wrong team"), variables=variables))
    assert await denial(server, config_map("a")) == ""
    assert await denial(server, config_map("a", team="a")) == ""
    assert await denial(server, config_map("a", team="b")) == f"{BY}wrong team"


async def test_an_expression_that_cannot_be_evaluated_denies(server: Server) -> None:
    await install(server, policy(valid("object.data.missing == 'x'")))
    found = await denial(server, config_map("a"))
    assert found.startswith(f"{BY}expression 'object == null")
    assert found.endswith("resulted in error: no such key: missing")


async def test_failures_may_be_ignored(server: Server) -> None:
    body = policy(valid("true"), valid("object.data.missing == 'x'"), failurePolicy="Ignore")
    await install(server, body)
    assert await denial(server, config_map("a")) == ""


async def test_match_conditions_exempt_writes(server: Server) -> None:
    conditions = [
        {"name": "labelled", "expression": "has(object.metadata.labels)"},
        {"name": "free", "expression": "!('free' in object.metadata.labels)"},
    ]
    await install(server, policy(valid("false", message="no"), matchConditions=conditions))
    assert await denial(server, config_map("a", free="yes")) == ""
    assert await denial(server, config_map("a", other="yes")) == f"{BY}no"


async def test_an_update_is_compared_with_the_old_object(server: Server) -> None:
    validation = valid("oldObject == null || object.data == oldObject.data", message="fixed")
    await install(server, policy(validation))
    await create(server, config_map("a"))
    patches: list[tuple[Json, int]] = [
        ({"metadata": {"labels": {"x": "y"}}}, 200), ({"data": {"k": "w"}}, 422),
    ]  # fmt: skip
    for patch, status in patches:
        response = await server.request("PATCH", f"{MAPS}/a", patch, content_type=MERGE)
        assert response.status == status, response.body


async def test_a_deletion_has_no_object(server: Server) -> None:
    validation = {
        "expression": "request.operation != 'DELETE' || oldObject.metadata.name != 'keep'"
    }
    await install(server, policy(validation, valid("true")))
    for name, status in (("keep", 422), ("other", 200)):
        await create(server, config_map(name))
        assert (await server.request("DELETE", f"{MAPS}/{name}")).status == status


async def test_expressions_see_the_request_and_the_namespace(server: Server) -> None:
    validations = [
        valid("request.userInfo.username == 'admin'", message="user"),
        valid("request.resource.resource == 'configmaps' && request.namespace == 'default'"),
        valid("namespaceObject.metadata.name == 'default'", message="namespace"),
        valid("request.?dryRun.orValue(false) == (object.metadata.name == 'dry')", message="dry"),
        valid("request.name == object.metadata.name", message="name"),
    ]
    await install(server, policy(*validations))
    assert await denial(server, config_map("dry")) == ""
    assert (await create(server, config_map("a"))).status == 201


async def test_the_authorizer_decides_by_rbac(server: Server) -> None:
    validations = [
        valid("authorizer.group('').resource('pods').namespace('default').check('get').allowed()"),
        valid("authorizer.path('/healthz').check('get').allowed()"),
        valid("authorizer.requestResource.check('create').allowed()"),
        valid(
            "!authorizer.serviceAccount('default', 'default').group('apps').resource('deployments')"
            ".namespace('default').check('delete').allowed()"
        ),
    ]
    await install(server, policy(*validations))
    assert await denial(server, config_map("a")) == ""


async def test_warnings_do_not_deny(server: Server) -> None:
    await install(server, policy(valid("false", message="odd")), validationActions=["Warn"])
    response = await create(server, config_map("a"))
    assert response.status == 201
    assert response.warnings == [
        "Validation failed for ValidatingAdmissionPolicy 'p' with binding 'p': odd"
    ]


async def test_a_parameter_is_an_object(server: Server) -> None:
    limits = config_map("limits") | {"data": {"max": "2"}}
    await server.create(MAPS, limits)
    kind = {"apiVersion": "v1", "kind": "ConfigMap"}
    expression = "size(object.data) <= int(params.data.max)"
    body = policy(valid(expression, message="too much"), paramKind=kind)
    ref = {"name": "limits", "namespace": "default", "parameterNotFoundAction": "Deny"}
    await install(server, body, paramRef=ref)
    assert await denial(server, config_map("a")) == ""
    large = config_map("a") | {"data": {"a": "", "b": "", "c": ""}}
    await wait_until_equal(lambda: denial(server, large), f"{BY}too much")
    await server.request("PATCH", f"{MAPS}/limits", {"data": {"max": "3"}}, content_type=MERGE)
    await wait_until_equal(lambda: denial(server, large), "")


async def test_a_missing_parameter_denies_unless_it_is_allowed(server: Server) -> None:
    kind = {"apiVersion": "v1", "kind": "ConfigMap"}
    await server.create(POLICIES, policy({"expression": "false"}, paramKind=kind))
    spec = {"policyName": "p", "validationActions": ["Deny"]}
    ref = {"name": "none", "namespace": "default", "parameterNotFoundAction": "Deny"}
    binding = {"metadata": {"name": "p"}, "spec": {**spec, "paramRef": ref}}
    created = await server.create(BINDINGS, binding)
    text = "failed to configure binding: no params found for policy binding with `Deny` "
    await wait_until_equal(
        lambda: denial(server, config_map("a")), f"{BY}{text}parameterNotFoundAction"
    )
    created["spec"]["paramRef"]["parameterNotFoundAction"] = "Allow"
    await server.request("PUT", f"{BINDINGS}/p", created)
    await wait_until_equal(lambda: denial(server, config_map("a")), "")


async def test_parameters_are_selected_by_labels(server: Server) -> None:
    for name, labels in (("one", {"limit": "yes"}), ("two", {"limit": "yes"}), ("three", {})):
        body = {"metadata": {"name": name, "labels": labels}}
        await server.create("/api/v1/namespaces/default/secrets", body)
    kind = {"apiVersion": "v1", "kind": "Secret"}
    validation = valid("params.metadata.name in object.data", message="missing")
    ref = {"selector": {"matchLabels": {"limit": "yes"}}, "parameterNotFoundAction": "Deny"}
    await install(server, policy(validation, paramKind=kind), paramRef=ref)
    some, both = ({"data": dict.fromkeys(keys, "")} for keys in (["one"], ["one", "two"]))
    await wait_until_equal(lambda: denial(server, config_map("a") | some), f"{BY}missing")
    assert await denial(server, config_map("a") | both) == ""


async def test_a_binding_limits_a_policy(server: Server) -> None:
    await add_namespace(server, "other")
    names = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["other"]}
    selected = {"namespaceSelector": {"matchExpressions": [names]}}
    await install(server, policy(valid("false")), matchResources=selected)
    assert await denial(server, config_map("a")) != ""
    body = config_map("a")
    await server.create("/api/v1/namespaces/other/configmaps", body)


async def test_excluded_resources_and_names(server: Server) -> None:
    body = policy(valid("false", message="no"))
    body["spec"]["matchConstraints"]["excludeResourceRules"] = [{**RULE, "resourceNames": ["free"]}]
    await install(server, body)
    assert await denial(server, config_map("free")) == ""
    assert await denial(server, config_map("a")) == f"{BY}no"


async def test_policies_are_no_subject_of_policies(server: Server) -> None:
    body = policy(valid("false"))
    rule = {"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"], "operations": ["*"]}
    body["spec"]["matchConstraints"]["resourceRules"] = [rule]
    await install(server, body)
    assert (await server.request("DELETE", f"{BINDINGS}/p")).status == 200


WRONG: dict[str, Json] = {
    "syntax": policy({"expression": "object."}),
    "result": policy({"expression": "'x'"}),
    "unknown result": policy({"expression": "object.x"}),
    "variable": policy({"expression": "variables.x == 1"}),
    "params without a kind": policy({"expression": "params.x == 1"}),
    "unknown function": policy({"expression": "object.foo()"}),
    "blank": policy({"expression": " "}),
    "nothing": policy(),
    "message": policy({"expression": "true", "message": " "}),
    "lines": policy({"expression": "true", "message": "a\nb"}),
    "message expression": policy({"expression": "true", "messageExpression": "1"}),
    "reason": policy({"expression": "true", "reason": "NotFound"}),
    "variable name": policy(
        {"expression": "true"}, variables=[{"name": "a-b", "expression": "1"}]
    ),
    "variable expression": policy(
        {"expression": "true"}, variables=[{"name": "a", "expression": "b"}]
    ),
    "later variable": policy(
        {"expression": "true"},
        variables=[
            {"name": "a", "expression": "variables.b"}, {"name": "b", "expression": "1"},
        ],
    ),
    "condition": policy(
        {"expression": "true"}, matchConditions=[{"name": "a b", "expression": "1"}]
    ),
    "conditions": policy(
        {"expression": "true"},
        matchConditions=[{"name": "a", "expression": "true"}, {"name": "a", "expression": ""}],
    ),
    "param kind": policy({"expression": "true"}, paramKind={"apiVersion": "a/b/c", "kind": ""}),
    "failure policy": policy({"expression": "true"}, failurePolicy="Maybe"),
    "no rules": policy({"expression": "true"}, matchConstraints={}),
    "names": policy(
        {"expression": "true"},
        matchConstraints={"resourceRules": [{**RULE, "resourceNames": ["a", "a", "b/c"]}]},
    ),
}  # fmt: skip
FIELDS: dict[str, list[list[str]]] = {
    "syntax": [["FieldValueInvalid", "spec.validations[0].expression"]],
    "result": [["FieldValueInvalid", "spec.validations[0].expression"]],
    "unknown result": [["FieldValueInvalid", "spec.validations[0].expression"]],
    "variable": [["FieldValueInvalid", "spec.validations[0].expression"]],
    "params without a kind": [["FieldValueInvalid", "spec.validations[0].expression"]],
    "unknown function": [["FieldValueInvalid", "spec.validations[0].expression"]],
    "blank": [["FieldValueRequired", "spec.validations[0].expression"]],
    "nothing": [
        ["FieldValueRequired", "spec.auditAnnotations"], ["FieldValueRequired", "spec.validations"],
    ],
    "message": [["FieldValueInvalid", "spec.validations[0].message"]],
    "lines": [["FieldValueInvalid", "spec.validations[0].message"]],
    "message expression": [["FieldValueInvalid", "spec.validations[0].messageExpression"]],
    "reason": [["FieldValueNotSupported", "spec.validations[0].reason"]],
    "variable name": [["FieldValueInvalid", "spec.variables[0].name"]],
    "variable expression": [["FieldValueInvalid", "spec.variables[0].expression"]],
    "later variable": [["FieldValueInvalid", "spec.variables[0].expression"]],
    "condition": [
        ["FieldValueInvalid", "spec.matchConditions[0].expression"],
        ["FieldValueInvalid", "spec.matchConditions[0].name"],
    ],
    "conditions": [
        ["FieldValueDuplicate", "spec.matchConditions[1].name"],
        ["FieldValueRequired", "spec.matchConditions[1].expression"],
    ],
    "param kind": [
        ["FieldValueInvalid", "spec.paramKind.apiVersion"],
        ["FieldValueRequired", "spec.paramKind.kind"],
    ],
    "failure policy": [["FieldValueNotSupported", "spec.failurePolicy"]],
    "no rules": [["FieldValueRequired", "spec.matchConstraints.resourceRules"]],
    "names": [
        ["FieldValueDuplicate", "spec.matchConstraints.resourceRules[0].resourceNames[1]"],
        ["FieldValueInvalid", "spec.matchConstraints.resourceRules[0].resourceNames[2]"],
    ],
}  # fmt: skip


async def test_wrong_policies_are_rejected(servers: ServerFactory, tmp_path: Path) -> None:
    async with servers.start(tmp_path) as server:
        found = {}
        for example, body in WRONG.items():
            response = await server.request("POST", f"{POLICIES}?dryRun=All", body)
            assert response.status == 422, (example, response.body)
            causes = response.body["details"]["causes"]
            found[example] = sorted([each["reason"], each["field"]] for each in causes)
        assert found == FIELDS


async def test_wrong_bindings_are_rejected(servers: ServerFactory, tmp_path: Path) -> None:
    async with servers.start(tmp_path) as server:
        both = ["Deny", "Warn", "Warn", "Shout"]
        ref = {"name": "a", "selector": {}}
        spec = {"policyName": "A b", "validationActions": both, "paramRef": ref}
        body = {"metadata": {"name": "b"}, "spec": spec}
        response = await server.request("POST", f"{BINDINGS}?dryRun=All", body)
        causes = response.body["details"]["causes"]
        assert sorted([each["reason"], each["field"]] for each in causes) == [
            ["FieldValueDuplicate", "spec.validationActions[2]"],
            ["FieldValueForbidden", "spec.paramRef.name"],
            ["FieldValueForbidden", "spec.paramRef.selector"],
            ["FieldValueInvalid", "spec.policyName"],
            ["FieldValueInvalid", "spec.validationActions"],
            ["FieldValueNotSupported", "spec.validationActions[3]"],
            ["FieldValueRequired", "spec.paramRef.parameterNotFoundAction"],
        ]


# Match conditions of webhooks.


@pytest.fixture
async def reviews(tmp_path: Path) -> AsyncIterator[ReviewServer]:
    async with review_server(tmp_path) as serving:
        yield serving


async def test_match_conditions_of_a_webhook(server: Server, reviews: ReviewServer) -> None:
    conditions = [
        {"name": "reviewed", "expression": "'reviewed' in object.metadata.?labels.orValue({})"},
        {"name": "admin", "expression": "request.userInfo.username == 'admin'"},
    ]
    hook = reviews.hook("check", deny, matchConditions=conditions)
    await reviews.install(server, VALIDATING, hook)
    assert (await create(server, config_map("a"))).status == 201
    assert (await create(server, config_map("b", reviewed="yes"))).status == 400


async def test_a_match_condition_that_fails_fails_the_write(
    server: Server, reviews: ReviewServer
) -> None:
    expression = "object.metadata.name == 'probe' || object.spec.x"
    conditions = [{"name": "broken", "expression": expression}]
    hook = reviews.hook("check", deny, matchConditions=conditions)
    await reviews.install(server, VALIDATING, hook)
    response = await create(server, config_map("a"))
    assert (response.status, response.body["reason"]) == (403, "Forbidden")
    assert response.body["message"] == (
        f"configmaps \"a\" is forbidden: expression '{expression}' resulted in error: "
        "no such key: spec"
    )


async def test_match_conditions_must_compile(servers: ServerFactory, tmp_path: Path) -> None:
    async with servers.start(tmp_path) as server, review_server(tmp_path) as reviews:
        conditions = [{"name": "a", "expression": "variables.x"}, {"name": "", "expression": "1"}]
        hook = reviews.hook("check", matchConditions=conditions)
        body = {"metadata": {"name": "h"}, "webhooks": [hook]}
        response = await server.request("POST", f"{path_of(VALIDATING)}?dryRun=All", body)
        causes = response.body["details"]["causes"]
        assert sorted(each["field"] for each in causes) == [
            "webhooks[0].matchConditions[0].expression",
            "webhooks[0].matchConditions[1].expression",
            "webhooks[0].matchConditions[1].name",
        ]
        assert '"variables.x": compilation failed: ' in response.body["message"]


# What concerns the embedded server alone.


async def test_the_server_starts_under_a_policy_that_denies_everything(tmp_path: Path) -> None:
    rule = {"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"], "operations": ["*"]}
    body = policy({"expression": "false"})
    body["spec"]["matchConstraints"]["resourceRules"] = [rule]
    async with embedded_server(tmp_path) as server:
        await server.create(POLICIES, body)
        spec = {"policyName": "p", "validationActions": ["Deny"]}
        await server.create(BINDINGS, {"metadata": {"name": "p"}, "spec": spec})
    async with embedded_server(tmp_path) as server:
        assert (await create(server, config_map("a"))).status == 422


@pytest.mark.parametrize(("failures", "status"), [("Fail", 422), ("Ignore", 201)])
async def test_the_policies_of_one_write_have_a_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: str, status: int
) -> None:
    monkeypatch.setattr(policies, "MAX_SECONDS", -1.0)
    async with embedded_server(tmp_path) as server:
        await server.create(POLICIES, policy({"expression": "true"}, failurePolicy=failures))
        spec = {"policyName": "p", "validationActions": ["Deny"]}
        await server.create(BINDINGS, {"metadata": {"name": "p"}, "spec": spec})
        response = await create(server, config_map("a"))
        assert response.status == status
        assert ("cost budget" in str(response.body)) == (failures == "Fail")


async def test_what_has_no_effect_brings_a_warning(tmp_path: Path) -> None:
    async with embedded_server(tmp_path) as server:
        annotations = [{"key": "k", "valueExpression": "'x'"}]
        body = policy({"expression": "true"}, auditAnnotations=annotations)
        response = await server.request("POST", POLICIES, body)
        assert [each.partition(" has no effect")[0] for each in response.warnings] == [
            "spec.auditAnnotations"
        ]
        spec = {"policyName": "p", "validationActions": ["Audit"]}
        binding = {"metadata": {"name": "p"}, "spec": spec}
        response = await server.request("POST", BINDINGS, binding)
        assert [each.partition(" has no effect")[0] for each in response.warnings] == [
            "spec.validationActions[Audit]"
        ]
