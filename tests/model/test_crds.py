"""The custom resource definitions hold Volcano's fields, and one of our own."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batholith.model import crds, names

DATA = Path(__file__).parents[1] / "data" / "crd-fields.json"
FACTS: dict[str, Any] = json.loads(DATA.read_text())
BY_NAME = {crd["metadata"]["name"]: crd for crd in crds.load()}
WORDS = ("properties", "items", "additionalProperties", "description")


def fields(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every field below *schema*, with its type and limits."""
    limits = {word: value for word, value in schema.items() if word not in WORDS}
    unordered = {word: sorted(limits[word]) for word in ("enum", "required") if word in limits}
    yield path or ".", limits | unordered
    for name, inner in schema.get("properties", {}).items():
        yield from fields(inner, f"{path}.{name}")
    if "items" in schema:
        yield from fields(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from fields(schema["additionalProperties"], f"{path}{{}}")


def test_the_four_kinds_are_there() -> None:
    assert sorted(BY_NAME) == sorted(FACTS)
    for resource in (names.JOBS, names.QUEUES, names.PODGROUPS, names.COMMANDS):
        spec = BY_NAME[f"{resource.plural}.{resource.group}"]["spec"]
        assert spec["names"]["kind"] == resource.kind
        assert [version["name"] for version in spec["versions"]] == [resource.version]
        assert (spec["scope"] == "Namespaced") is resource.namespaced


@pytest.mark.parametrize("name", FACTS)
def test_fields_types_defaults_and_limits_are_the_known_ones(name: str) -> None:
    (version,) = BY_NAME[name]["spec"]["versions"]
    assert dict(fields(version["schema"]["openAPIV3Schema"])) == FACTS[name]["fields"]


@pytest.mark.parametrize("name", FACTS)
def test_names_columns_and_subresources_are_the_known_ones(name: str) -> None:
    spec = BY_NAME[name]["spec"]
    (version,) = spec["versions"]
    known = FACTS[name]
    assert (spec["group"], spec["scope"]) == (known["group"], known["scope"])
    assert spec["names"] == known["names"]
    assert version.get("additionalPrinterColumns", []) == known["columns"]
    assert sorted(version.get("subresources", {})) == known["subresources"]
    assert version["served"] and version["storage"]


def test_a_pod_group_has_no_status_of_its_own() -> None:
    (version,) = BY_NAME["podgroups.scheduling.volcano.sh"]["spec"]["versions"]
    assert "subresources" not in version


def test_loading_again_gives_fresh_objects() -> None:
    first = crds.load()[0]
    first["spec"]["versions"][0]["schema"].clear()
    assert crds.load()[0]["spec"]["versions"][0]["schema"]


def test_no_part_of_a_definition_is_shared() -> None:
    topology = [
        path_schema
        for path_schema in all_schemas(crds.load()[0])
        if "highestTierName" in path_schema.get("properties", {})
    ]
    assert len(topology) == 2
    assert topology[0] == topology[1]
    assert topology[0] is not topology[1]


def all_schemas(node: Any) -> Iterator[dict[str, Any]]:
    """All objects within *node*."""
    if isinstance(node, dict):
        yield node
        for inner in node.values():
            yield from all_schemas(inner)
    if isinstance(node, list):
        for inner in node:
            yield from all_schemas(inner)
