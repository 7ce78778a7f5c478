"""Rules in CEL that could cost too much are not accepted."""

from typing import Any

from support.embedded_apiserver import DEFINITIONS, Server, definition

from batholith.local.apiserver.custom.crds import validate_crd
from batholith.local.apiserver.custom.rule_costs import cost_errors

Json = dict[str, Any]
PATH = "spec.validation.openAPIV3Schema"
QUADRATIC = "self.all(a, self.exists(b, a == b))"


def texts(rule: str, **limits: int) -> Json:
    """The schema of a list of texts with a rule."""
    item: Json = {"type": "string"}
    found: Json = {"type": "array", "items": item, "x-kubernetes-validations": [{"rule": rule}]}
    if "maxLength" in limits:
        item["maxLength"] = limits.pop("maxLength")
    return found | limits


def crd(spec: Json) -> Json:
    body = definition()
    whole = {"type": "object", "properties": {"spec": spec}}
    body["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = whole
    return body


async def test_a_rule_over_an_unlimited_list_is_rejected(server: Server) -> None:
    response = await server.request("POST", DEFINITIONS, crd(texts(QUADRATIC)))
    assert response.status == 422
    advice = (
        "(try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, "
        "maps, and strings are declared)"
    )
    where = f"{PATH}.properties[spec].x-kubernetes-validations[0].rule"
    of_all = (
        "Forbidden: x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema"
    )
    too_much = "exceeds budget by factor of more than 100x"
    assert [(each["field"], each["message"]) for each in response.body["details"]["causes"]] == [
        (where, f"Forbidden: estimated rule cost {too_much} {advice}"),
        (
            where,
            "Forbidden: contributed to estimated rule cost total exceeding cost limit for entire "
            "OpenAPIv3 schema",
        ),
        (PATH, f"{of_all} {too_much} {advice}"),
    ]


async def test_a_rule_over_a_limited_list_is_accepted(server: Server) -> None:
    limited = texts(QUADRATIC, maxItems=50, maxLength=20)
    assert (await server.request("POST", DEFINITIONS, crd(limited))).status == 201


async def test_an_update_may_not_make_a_rule_expensive(server: Server) -> None:
    limited = crd(texts(QUADRATIC, maxItems=50, maxLength=20))
    await server.create(DEFINITIONS, limited)
    patch = [
        {
            "op": "remove",
            "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/maxItems",
        }
    ]
    response = await server.request(
        "PATCH",
        f"{DEFINITIONS}/{limited['metadata']['name']}",
        patch,
        content_type="application/json-patch+json",
    )
    assert response.status == 422
    assert "estimated rule cost exceeds budget" in response.body["message"]


def test_a_stored_definition_may_stay_expensive() -> None:
    stored = crd(texts(QUADRATIC))
    assert validate_crd(stored) != []
    changed = {**stored, "metadata": {**stored["metadata"], "labels": {"a": "b"}}}
    assert validate_crd(changed, stored) == []
    other = crd(texts("self.all(a, self.exists(b, a == b + 'x'))"))
    assert validate_crd(other, stored) != []


def test_a_text_that_doubles_again_and_again_is_too_expensive() -> None:
    expression = "v24 == ''"
    for number in range(24, -1, -1):
        text = f"v{number - 1}" if number else "self"
        expression = f"cel.bind(v{number}, {text} + {text}, {expression})"
    schema = {"type": "string", "maxLength": 10, "x-kubernetes-validations": [{"rule": expression}]}
    errors = cost_errors({"type": "object", "properties": {"spec": schema}}, "schema")
    assert "estimated rule cost exceeds budget by factor of 26.8x" in errors[0].message
