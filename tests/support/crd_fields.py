"""Content of a custom resource definition without descriptions: a table of fields and a few
facts."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Facts = dict[str, Any]

DIR = Path(__file__).parents[1] / "data" / "crd-fields"
_INNER = ("properties", "items", "additionalProperties", "description")


def fields(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Facts]]:
    """Every field below *schema*, with its type and limits.

    A path is written ``.spec.tasks[].name``; ``[]`` means the items of a list and ``{}``
    the values of a map.
    """
    limits = {keyword: value for keyword, value in schema.items() if keyword not in _INNER}
    unordered = {
        keyword: sorted(limits[keyword]) for keyword in ("enum", "required") if keyword in limits
    }
    yield path or ".", limits | unordered
    for name, inner in schema.get("properties", {}).items():
        yield from fields(inner, f"{path}.{name}")
    if "items" in schema:
        yield from fields(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from fields(schema["additionalProperties"], f"{path}{{}}")


def facts(definition: Mapping[str, Any]) -> Facts:
    """Content of a definition of one version except its fields."""
    spec = definition["spec"]
    (version,) = spec["versions"]
    columns = [
        {keyword: value for keyword, value in column.items() if keyword != "description"}
        for column in version.get("additionalPrinterColumns", [])
    ]
    apart = ("schema", "additionalPrinterColumns")  # and what is false or empty: as good as absent
    return {
        **{keyword: value for keyword, value in spec.items() if keyword != "versions"},
        "version": {
            keyword: value for keyword, value in version.items() if keyword not in apart and value
        },
        "columns": columns,
    }


def schema(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a definition of one version."""
    (version,) = definition["spec"]["versions"]
    found: Mapping[str, Any] = version["schema"]["openAPIV3Schema"]
    return found


def write_table(definition: Mapping[str, Any]) -> None:
    """Store the table of a definition."""
    name = definition["metadata"]["name"]
    rows = sorted(fields(schema(definition)))
    lines = [f"{path}\t{json.dumps(result, sort_keys=True)}\n" for path, result in rows]
    (DIR / f"{name}.tsv").write_text("".join(lines))


def read_table(name: str) -> dict[str, Facts]:
    """The stored table of a definition: fields by path."""
    lines = (DIR / f"{name}.tsv").read_text().splitlines()
    return {path: json.loads(result) for path, result in (line.split("\t") for line in lines)}
