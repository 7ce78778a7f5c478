"""Rules in CEL in the schemas of custom resource definitions, on both servers."""

import copy
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.api_servers import ServerFactory
from support.embedded_apiserver import DEFINITIONS, FOOS, MERGE, Server, definition, foo

from batholith.local.apiserver.custom import rules
from batholith.local.apiserver.custom.rule_costs import cost_errors
from batholith.local.apiserver.custom.schema import StructuralSchema
from batholith.model import crds

Json = dict[str, Any]
KEY = "x-kubernetes-validations"
INTEGER: Json = {"type": "integer"}
TEXT: Json = {"type": "string"}
NUMBER: Json = {"type": "number"}
BOUNDED: Json = {"type": "string", "maxLength": 50}
RECORDED = json.loads((Path(__file__).parents[1] / "data" / "crd-rules.json").read_text())
"""The causes of a real server, by the names of the examples."""


def listed(items: Json, **more: Any) -> Json:
    return {"type": "array", "maxItems": 20, "items": items, **more}


def mapped(values: Json) -> Json:
    return {"type": "object", "maxProperties": 20, "additionalProperties": values}


def nested(**properties: Json) -> Json:
    return {"type": "object", "properties": properties}


def crd(*found: Json, **properties: Json) -> Json:
    """A definition whose spec has these rules and properties."""
    created = definition()
    schema = created["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"] = nested(**properties)
    if found:
        schema["properties"]["spec"][KEY] = list(found)
    return created


def rule(text: str, **more: Any) -> Json:
    return {"rule": text, **more}


KEYED = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
OWN_RULE = {KEY: [rule("self.n != 7", message="no seven")]}
GROWS = rule("self.n >= oldSelf.n", message="must not shrink", reason="FieldValueForbidden")
CASES: dict[str, tuple[Json, list[Json]]] = {
    "comparison": (
        crd(rule("self.low <= self.high"), low=INTEGER, high=INTEGER),
        [{"low": 1, "high": 2}, {"low": 3, "high": 2}, {"low": 3}],
    ),
    "message": (
        crd(rule("self.n > 0", message="n must be positive"), n=INTEGER),
        [{"n": 1}, {"n": 0}],
    ),
    "message expression": (
        crd(rule("self.n > 0", messageExpression="'n is %d'.format([self.n])"), n=INTEGER),
        [{"n": 0}],
    ),
    "message expression that fails": (
        crd(
            rule("self.n > 0", messageExpression="string(1 / self.n)", message="fallback"),
            n=INTEGER,
        ),
        [{"n": 0}],
    ),
    "empty message expression": (
        crd(rule("self.n > 0", messageExpression="''"), n=INTEGER),
        [{"n": 0}],
    ),
    "transition": (
        crd({**GROWS, "fieldPath": ".n"}, n=INTEGER, m=INTEGER),
        [{"n": 2}, {"n": 1}, {"n": 3}, {"n": 3, "m": 1}, {"n": 1}],
    ),
    "optional transition": (
        crd(
            rule(
                "oldSelf.hasValue() ? oldSelf.value().n == self.n : self.n == 1",
                optionalOldSelf=True, message="starts at one and stays",
            ),
            n=INTEGER,
        ),
        [{"n": 2}, {"n": 1}, {"n": 2}],
    ),
    "scalars": (
        crd(
            text={**BOUNDED, KEY: [rule("self.startsWith('a')", reason="FieldValueDuplicate")]},
            n={**INTEGER, KEY: [rule("self % 2 == 0", message="even only")]},
        ),
        [{"text": "ab", "n": 2}, {"text": "b", "n": 3}],
    ),
    "reasons": (
        crd(
            *(
                rule("self.n > 0", reason=reason, message="wrong")
                for reason in (
                    "FieldValueInvalid", "FieldValueForbidden", "FieldValueRequired",
                    "FieldValueDuplicate",
                )
            ),
            n=INTEGER,
        ),
        [{"n": 0}],
    ),
    "formats": (
        crd(
            rule(
                "!format.named(self.kind).value()\n    .validate(self.text).hasValue()",
                message="does not fit",
                messageExpression=(
                    "format.named(self.kind).value().validate(self.text).value()[0]"
                ),
            ),
            rule("format.named(self.kind).orValue(format.byte()).validate('').orValue([]) == []"),
            kind=BOUNDED, text=BOUNDED,
        ),
        [
            {"kind": kind, "text": text}
            for kind, text in (
                ("dns1123Label", "A"), ("dns1123Label", "a" * 64), ("dns1123Subdomain", "a..b"),
                ("dns1035Label", "1a"), ("qualifiedName", "a/b/c"), ("labelValue", "-"),
                ("dns1123LabelPrefix", "a-"), ("dns1123SubdomainPrefix", "a.-"),
                ("dns1035LabelPrefix", "b--"), ("uri", "a b"), ("uri", "/a"), ("uri", ""),
                ("uuid", "0"), ("byte", "%"), ("byte", "YQ=="), ("date", "2026-02-30"),
                ("datetime", "2026-02-01"), ("datetime", "2026-02-01T00:00:00Z"), ("none", "a"),
            )
        ],
    ),
    "items": (
        crd(tasks=listed({**nested(n=INTEGER), **OWN_RULE})),
        [{"tasks": [{"n": 1}]}, {"tasks": [{"n": 1}, {"n": 7}]}],
    ),
    "values": (
        crd(tasks=mapped({**nested(n=INTEGER), **OWN_RULE})),
        [{"tasks": {"a": {"n": 1}}}, {"tasks": {"a": {"n": 7}, "b.c": {"n": 7}}}],
    ),
    "items with keys keep their old value": (
        crd(
            tasks=listed(
                {**nested(name=TEXT, n=INTEGER), "required": ["name"], KEY: [GROWS]}, **KEYED
            )
        ),
        [
            {"tasks": [{"name": "a", "n": 1}, {"name": "b", "n": 5}]},
            {"tasks": [{"name": "b", "n": 5}, {"name": "a", "n": 2}, {"name": "c", "n": 0}]},
            {"tasks": [{"name": "b", "n": 4}, {"name": "a", "n": 2}]},
        ],
    ),
    "comprehensions": (
        crd(
            rule("self.names.all(n, n.startsWith('a'))"),
            rule("self.names.exists(n, n == 'ab') || size(self.names) == 0"),
            rule("self.names.map(n, size(n)).sum() < 6"),
            rule("self.names.map(n, size(n)).isSorted()"),
            names=listed(BOUNDED),
        ),
        [{"names": ["ab"]}, {"names": ["ac", "ab", "b"]}, {"names": []}],
    ),
    "presence": (
        crd(rule("has(self.a) != has(self.b)", message="one of a, b"), a=TEXT, b=TEXT),
        [{"a": "x"}, {"a": "x", "b": "y"}, {}],
    ),
    "optional fields": (
        crd(
            rule("self.?a.?b.orValue(1) < 3"),
            a=nested(b=INTEGER),
        ),
        [{}, {"a": {"b": 2}}, {"a": {"b": 5}}],
    ),
    "numbers": (
        crd(
            rule("self.ratio / 2.0 < 1.0"), rule("double(self.n) <= self.ratio"),
            ratio=NUMBER, n=INTEGER,
        ),
        [{"ratio": 1, "n": 1}, {"ratio": 3, "n": 4}, {"ratio": 1.5, "n": 1}],
    ),
    "times": (
        crd(
            rule("self.when > timestamp('2020-01-01T00:00:00Z')"),
            rule("self.length <= duration('1h')"), rule("self.when.getFullYear() < 2030"),
            rule("self.day < timestamp('2026-01-01T00:00:00Z')"),
            when={**TEXT, "format": "date-time"}, length={**TEXT, "format": "duration"},
            day={**TEXT, "format": "date"},
        ),
        [
            {"when": "2021-01-01T00:00:00Z", "length": "1h", "day": "2025-01-01"},
            {"when": "2031-01-01T00:00:00Z", "length": "61m", "day": "2027-01-01"},
        ],
    ),
    "int or string": (
        crd(
            rule("type(self.any) == int ? self.any > 0 : self.any == 'all'"),
            any={"x-kubernetes-int-or-string": True},
        ),
        [{"any": 1}, {"any": "all"}, {"any": 0}, {"any": "none"}],
    ),
    "wrong type at run time": (
        crd(rule("self.any > 0"), any={"x-kubernetes-int-or-string": True}),
        [{"any": "x"}],
    ),
    "escaped names": (
        crd(
            rule("self.a__dash__b == 1 && self.__namespace__ == 'x' && self.c__dot__d > 0"),
            **{"a-b": INTEGER, "namespace": TEXT, "c.d": INTEGER},
        ),
        [{"a-b": 1, "namespace": "x", "c.d": 1}, {"a-b": 2, "namespace": "x", "c.d": 1}],
    ),
    "maps": (
        crd(
            rule("self.labels.all(k, k != self.labels[k])"), rule("'a' in self.labels"),
            labels=mapped(BOUNDED),
        ),
        [{"labels": {"a": "b"}}, {"labels": {"b": "b"}}],
    ),
    "quantities": (
        crd(
            rule("quantity(self.low).isLessThan(quantity(self.high))"),
            rule("quantity(self.low).add(quantity('1')).compareTo(quantity('2')) <= 0"),
            rule("isQuantity(self.high) && quantity(self.high).isInteger()"),
            low=BOUNDED, high=BOUNDED,
        ),
        [
            {"low": "500m", "high": "1"}, {"low": "1500m", "high": "1Gi"},
            {"low": "x", "high": "1"}, {"low": "1", "high": "1"},
        ],
    ),
    "addresses": (
        crd(
            rule("isIP(self.ip) && ip(self.ip).family() == 4"),
            rule("cidr(self.net).containsIP(self.ip)"),
            rule("cidr(self.net).prefixLength() >= 8 && !ip(self.ip).isLoopback()"),
            ip=BOUNDED, net=BOUNDED,
        ),
        [
            {"ip": "10.1.2.3", "net": "10.0.0.0/8"}, {"ip": "127.0.0.1", "net": "10.0.0.0/8"},
            {"ip": "::1", "net": "10.0.0.0/8"},
        ],
    ),
    "urls": (
        crd(
            rule("isURL(self.url) && url(self.url).getScheme() == 'https'"),
            rule("url(self.url).getHostname() == 'ex.io' && url(self.url).getPort() == '8443'"),
            rule("url(self.url).getQuery()['q'] == ['1', '2']"),
            url=BOUNDED,
        ),
        [{"url": "https://ex.io:8443/a?q=1&q=2"}, {"url": "http://other.io/?q=1"}],
    ),
    "strings": (
        crd(
            rule("self.s.split(',')[0] == 'a' && self.s.trim() == self.s"),
            rule("self.s.find('[a-z]') == 'a' && self.s.findAll('[a-z]') == ['a', 'b']"),
            rule("self.s.upperAscii().replace(' ', '').indexOf('B') == 2"),
            rule("self.s.substring(0, 1) == self.s.charAt(0) && self.s.matches('^a.*b$')"),
            s={"type": "string", "maxLength": 5},
        ),
        [{"s": "a, b"}, {"s": "b,a"}],
    ),
    "sets and versions": (
        crd(
            rule("sets.contains(['a', 'b', 'c'], self.names)"),
            rule("sets.intersects(self.names, ['a'])"),
            rule("semver(self.v).isLessThan(semver('2.0.0')) && semver(self.v).minor() > 0"),
            rule("semver(self.v, true) == semver('v01.2', true) || isSemver(self.v)"),
            names=listed(BOUNDED), v=BOUNDED,
        ),
        [{"names": ["a"], "v": "1.10.0"}, {"names": ["d"], "v": "2.0.0"}],
    ),
    "embedded metadata": (
        crd(pod={
            "type": "object", "x-kubernetes-embedded-resource": True,
            "x-kubernetes-preserve-unknown-fields": True,
            KEY: [rule("self.metadata.name.startsWith('p')"), rule("self.kind == 'Pod'")],
        }),
        [
            {"pod": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}},
            {"pod": {"apiVersion": "v1", "kind": "Job", "metadata": {"name": "q"}}},
        ],
    ),
    "schema errors are first": (
        crd(rule("self.n > 0"), n=INTEGER, m=INTEGER),
        [{"n": "x"}, {"n": 0, "m": "y"}],
    ),
    "division": (crd(rule("10 / self.n > 1"), n=INTEGER), [{"n": 5}, {"n": 0}, {"n": 10}]),
    "indexes": (crd(rule("self.names[1] == 'a'"), names=listed(TEXT)), [{"names": ["a"]}]),
    "equality": (
        crd(rule("self.a == self.b", message="a is not b"), a=listed(INTEGER), b=listed(INTEGER)),
        [{"a": [1], "b": [1]}, {"a": [1], "b": [2]}],
    ),
}  # fmt: skip
"""Definitions, and the specs of one object after the other."""


@pytest.fixture
async def server(servers: ServerFactory, tmp_path: Path) -> AsyncIterator[Server]:
    async with servers.start(tmp_path) as started:
        yield started


@pytest.mark.parametrize("example", CASES)
async def test_objects_are_checked_by_the_rules(server: Server, example: str) -> None:
    created, specs = CASES[example]
    await server.install_crds(copy.deepcopy(created))
    found = []
    for spec in specs:
        response = await server.request("POST", FOOS, foo("a", **spec))
        if response.status == 409:
            patch = [{"op": "replace", "path": "/spec", "value": spec}]
            content = "application/json-patch+json"
            response = await server.request("PATCH", f"{FOOS}/a", patch, content_type=content)
        causes = response.body.get("details", {}).get("causes", [])
        found.append(sorted([each["reason"], each["field"], each["message"]] for each in causes))
        assert response.status in (200, 201, 422), response.body
        assert (response.status == 422) == bool(causes), response.body
    # kube-apiserver visits the keys of a map in any order.
    assert found == [sorted(each) for each in RECORDED[example]]


async def test_unchanged_values_may_break_a_new_rule(server: Server) -> None:
    created = crd(n=INTEGER, m=INTEGER)
    await server.install_crds(created)
    await server.create(FOOS, foo("a", n=0))
    current = await server.get(f"{DEFINITIONS}/foos.ex.io")
    schema = current["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["properties"]["n"][KEY] = [rule("self > 0")]
    response = await server.request("PUT", f"{DEFINITIONS}/foos.ex.io", current)
    assert response.status == 200, response.body

    async def status(spec: Json) -> int:
        patch = {"spec": spec}
        path = f"{FOOS}/a?dryRun=All"
        return (await server.request("PATCH", path, patch, content_type=MERGE)).status

    while await status({"n": -1}) != 422:
        pass  # a real server compiles the new schema a moment later
    assert await status({"m": 1}) == 200
    assert await status({"n": -1}) == 422


WRONG_RULES: dict[str, list[Json]] = {
    "syntax": [rule("self.n >")],
    "unknown field": [rule("self.other == 1")],
    "types": [rule("self.n == 'a'")],
    "no bool": [rule("self.n")],
    "unknown function": [rule("self.n.foo()")],
    "unknown variable": [rule("object.n > 0")],
    "empty": [rule(" ")],
    "blank message": [rule("self.n > 0", message=" ")],
    "lines": [rule("self.n\n> 0")],
    "lines in the message": [rule("self.n > 0", message="a\nb")],
    "reason": [rule("self.n > 0", reason="Because")],
    "field path": [rule("self.n > 0", fieldPath=".other")],
    "message expression": [rule("self.n > 0", messageExpression="self.n")],
    "message syntax": [rule("self.n > 0", messageExpression="self.")],
    "blank message expression": [rule("self.n > 0", messageExpression=" ")],
    "optional without old": [rule("self.n > 0", optionalOldSelf=True)],
    "not optional": [rule("oldSelf.hasValue()")],
    "several": [rule("self.n > 0"), rule("self.x"), rule("self.y")],
}


@pytest.mark.parametrize("example", WRONG_RULES)
async def test_definitions_with_wrong_rules_are_rejected(server: Server, example: str) -> None:
    created = crd(*WRONG_RULES[example], n=INTEGER)
    response = await server.request("POST", f"{DEFINITIONS}?dryRun=All", created)
    assert (response.status, response.body.get("reason")) == (422, "Invalid"), response.body
    causes = response.body["details"]["causes"]
    # The texts of compilers differ.
    assert [[each["reason"], each["field"]] for each in causes] == RECORDED[f"wrong: {example}"]


async def test_a_transition_rule_needs_items_that_keep_their_identity(server: Server) -> None:
    created = crd(tasks=listed({**nested(n=INTEGER), KEY: [rule("self.n >= oldSelf.n")]}))
    response = await server.request("POST", f"{DEFINITIONS}?dryRun=All", created)
    (cause,) = response.body["details"]["causes"]
    assert cause["field"].endswith("properties[tasks].items.x-kubernetes-validations[0].rule")
    assert "oldSelf cannot be used on the uncorrelatable portion of the schema" in cause["message"]


def own_schemas() -> dict[str, Json]:
    """Those with rules, by the names of Batholith's definitions."""
    return {
        each["metadata"]["name"]: schema
        for each in (*crds.load(), *crds.load_training())
        for version in each["spec"]["versions"]
        if rules.has_rules(schema := version["schema"]["openAPIV3Schema"])
    }


@pytest.mark.parametrize("name", own_schemas())
def test_own_rules_have_no_errors_and_are_not_compiled_for_that(name: str) -> None:
    schema = own_schemas()[name]
    assert rules.are_checked(schema)
    assert rules.rule_errors(schema, "s") == cost_errors(schema, "s") == []


async def test_an_own_definition_with_another_rule_is_compiled(server: Server) -> None:
    (hypernodes,) = (each for each in crds.load() if each["spec"]["names"]["kind"] == "HyperNode")
    changed = json.loads(json.dumps(hypernodes).replace("has(self.exactMatch)", "has(self.exact)"))
    assert changed != hypernodes
    changed["metadata"]["name"] = "othernodes.topology.volcano.sh"
    changed["spec"]["names"] = {"plural": "othernodes", "kind": "OtherNode"}
    response = await server.request("POST", f"{DEFINITIONS}?dryRun=All", changed)
    assert (response.status, response.body.get("reason")) == (422, "Invalid"), response.body
    assert "undefined field 'exact'" in response.body["message"]


# What only the embedded server limits.


def schema_of(created: Json) -> StructuralSchema:
    return StructuralSchema(created["spec"]["versions"][0]["schema"]["openAPIV3Schema"])


def test_one_expression_iterates_ten_thousand_times_at_most() -> None:
    schema = schema_of(crd(rule("self.l.all(a, self.l.all(b, a + b >= 0))"), l=listed(INTEGER)))
    assert schema.validate_rules({"spec": {"l": [0] * 90}}) == []
    (error,) = schema.validate_rules({"spec": {"l": [0] * 200}})
    assert error.message.startswith(
        "spec: Invalid value: \"object\": 'the expression iterates more than 10000 times': "
        "no further validation rules will be run due to call cost exceeds limit for rule: self.l"
    )


def test_the_rules_of_one_object_have_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr("time.thread_time", lambda: next(clock) * 0.3)
    schema = schema_of(crd(l=listed({**INTEGER, KEY: [rule("self > 0")]})))
    errors = schema.validate_rules({"spec": {"l": [0] * 10}})
    assert [each.field for each in errors] == [f"spec.l[{index}]" for index in range(4)]
    assert "running out of cost budget" in errors[-1].message


def test_rules_below_all_of_are_refused_by_name() -> None:
    inner = {"properties": {"n": {KEY: [rule("self > 0")]}}}
    created = crd(n=INTEGER)
    schema = created["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["allOf"] = [inner]
    (error,) = rules.rule_errors(schema, "s")
    assert error.message == (
        "s.properties[spec].allOf[0]: Forbidden: rules below allOf are not supported by the "
        "embedded cluster"
    )
