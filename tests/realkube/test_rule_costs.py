"""Definitions with rules that could cost too much are rejected as by a real API server."""

import random
import re
from pathlib import Path
from typing import Any

import pytest
from support.api_servers import RealServerFactory
from support.embedded_apiserver import Server, embedded_server
from support.embedded_apiserver import definition as plain_definition
from support.examples import examples

from batholith.model.names import CRDS

Json = dict[str, Any]
RULES = (
    "self.items.all(x, x.name != 'b')",
    "self.items.all(x, self.items.exists(y, y.name == x.name))",
    "self.items.all(x, self.items.exists_one(y, y.name == x.name))",
    "self.texts.all(x, x.contains(self.text))",
    "self.texts.all(x, x.matches('^[a-z]+$'))",
    "self.texts.map(x, x + self.text).exists(y, y == 'b')",
    "self.texts.filter(x, x.startsWith('a')).size() < 3",
    "self.text.matches(self.pattern)",
    "self.text.replace('a', self.pattern) == self.text",
    "self.text.split(',').all(x, x.size() > 3)",
    "self.texts.join(self.text).size() < 10",
    "self.text.find(self.pattern) == ''",
    "self.text.lowerAscii() + self.text == self.pattern",
    "self.labels.all(k, self.labels[k] == self.text)",
    "self.labels.exists(k, k == self.text)",
    "self.labels.all(k, k in self.texts)",
    "has(self.text) && self.text == 'a' || self.number > 3",
    "self.text == 'a' ? self.texts.isSorted() : self.items.size() > 2",
    "sets.contains(self.texts, ['a', 'b'])",
    "sets.equivalent(self.texts, self.texts)",
    "isQuantity(self.text) && quantity(self.text).isGreaterThan(quantity('1'))",
    "self.?text.orValue('') == 'a'",
    "self.text in ['a', 'b', 'c']",
    "[1, 2, 3].all(n, self.numbers.exists(m, m == n))",
    "self.numbers.max() > self.number",
    "self.texts[0] == self.text && self.items[0].name == 'a'",
    "self.numbers.map(n, n * 2).all(n, n < 10)",
    "ip.isCanonical(self.text) || isCIDR(self.text)",
    "self.items.all(x, x.children.all(c, c.size() > 1))",
    "string(self.number) == self.text",
    "self.texts.indexOf('a') < self.texts.lastIndexOf(self.text)",
    "self.texts.all(x, !format.dns1123Label().validate(x).hasValue())",
    "!format.named(self.text).value().validate(self.pattern).hasValue()",
    "self.texts.all(x, semver(x, true).major() > 1)",
    "self.when > timestamp('2020-01-01T00:00:00Z')",
)
OF_UPDATES = (
    {"rule": "self == oldSelf || self.texts == oldSelf.texts"},
    {"rule": "self.items.all(x, oldSelf.items.exists(y, y.name == x.name))"},
    {"rule": "oldSelf.text.matches(self.pattern)"},
)
"""Not for items of lists, which have no old value."""

MESSAGES = ("'a ' + self.text", "self.texts.join(', ')", "'none'")


def schema(rng: random.Random) -> Json:
    """A schema of an object with random limits."""

    def limited(node: Json, key: str, *values: int) -> Json:
        return {**node, key: rng.choice(values)} if rng.random() < 0.7 else node

    text = limited({"type": "string"}, "maxLength", 5, 40, 300, 5000)
    numbers = limited({"type": "array", "items": {"type": "integer"}}, "maxItems", 3, 50, 2000)
    texts = limited({"type": "array", "items": text}, "maxItems", 3, 20, 150, 1000)
    labels = {"type": "object", "additionalProperties": text}
    name: Json = text if rng.random() < 0.7 else {"type": "string", "enum": ["abc", "d"]}
    children = limited({"type": "array", "items": text}, "maxItems", 3, 100)
    item = {"type": "object", "properties": {"name": name, "children": children}}
    if rng.random() < 0.5:
        item["required"] = ["name"]
    return {
        "type": "object",
        "properties": {
            "text": text,
            "pattern": limited({"type": "string"}, "maxLength", 5, 100),
            "number": {"type": "integer"},
            "when": {"type": "string", "format": "date-time"},
            "numbers": numbers,
            "texts": texts,
            "labels": limited(labels, "maxProperties", 3, 40, 1000),
            "items": limited({"type": "array", "items": item}, "maxItems", 3, 30, 400),
        },
    }


def nested(rng: random.Random, node: Json) -> Json:
    """Put the node into lists and maps, which repeat it."""
    for _ in range(rng.choice((0, 0, 1, 2))):
        if rng.random() < 0.5:
            node = {"type": "array", "items": node}
            if rng.random() < 0.7:
                node["maxItems"] = rng.choice((2, 10, 200))
        else:
            node = {"type": "object", "additionalProperties": node}
            if rng.random() < 0.7:
                node["maxProperties"] = rng.choice((2, 10, 200))
    return node


def definition(rng: random.Random) -> Json:
    node = schema(rng)
    rules = []
    for rule in rng.sample(RULES, rng.randint(1, 4)):
        found: Json = {"rule": rule}
        if rng.random() < 0.2:
            found["messageExpression"] = rng.choice(MESSAGES)
        rules.append(found)
    body = plain_definition()
    spec = nested(rng, {**node, "x-kubernetes-validations": rules})
    if spec["type"] == "object" and "properties" in spec:
        rules.append(rng.choice(OF_UPDATES))
    whole = {"type": "object", "properties": {"spec": spec}}
    body["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = whole
    return body


async def outcome(server: Server, body: Json) -> tuple[int, list[tuple[str, str]]]:
    """Status and costs in the errors of a creation that is not stored."""
    response = await server.request("POST", f"{CRDS.path()}?dryRun=All", body)
    causes = (response.body.get("details") or {}).get("causes") or ()
    return response.status, sorted((each["field"], each["message"]) for each in causes)


@pytest.mark.parametrize("seed", range(examples(8)))
async def test_random_definitions_are_accepted_or_rejected_alike(
    real: RealServerFactory, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    statuses, factors = [], set()
    async with embedded_server(tmp_path) as embedded, real.start(tmp_path) as kube:
        for _ in range(40):
            body = definition(rng)
            theirs = await outcome(kube, body)
            ours = await outcome(embedded, body)
            assert ours == theirs, body
            statuses.append(theirs[0])
            factors |= set(re.findall(r"factor of ([\d.]+)x", str(theirs)))
    assert set(statuses) == {201, 422}
    assert len(factors) > 2
