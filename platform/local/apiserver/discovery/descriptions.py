"""Descriptions of the built-in types and their fields, as `kubectl explain` shows them.

They are read from the installed Python client of Kubernetes, whose models are generated from the
same API. Its modules are parsed, not imported, which would need ten times as long and stay in
memory. What the package does not describe has no description.
"""

import ast
import functools
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..kinds import go_types

Json = dict[str, Any]

_PACKAGE = "kubernetes"
_LINTER_COMMENT = "# noqa: E501"


class _Model(NamedTuple):
    """The texts of one type."""

    text: str = ""
    fields: Mapping[str, str] = {}
    """By JSON name."""


def source_version() -> str:
    """Return the version of the package that the descriptions are of; empty without it."""
    try:
        return importlib.metadata.version(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return ""


@functools.cache
def described(name: str) -> Mapping[str, Any]:
    """Return the schema of the built-in component *name* with descriptions.

    A field that is not described itself has the description of its type: the package has no
    texts for fields that refer to another model.
    """
    schema, model = go_types.schemas()[name], _model(name)
    found = {"description": model.text, **schema} if model.text else {**schema}
    if "properties" in schema:
        found["properties"] = {
            field: _with_description(each, model.fields.get(field, ""))
            for field, each in schema["properties"].items()
        }
    return found


def _with_description(schema: Json, text: str) -> Json:
    if not text and (types := schema.get("allOf")):
        text = _model(types[0]["$ref"].rpartition("/")[2]).text
    return {"description": text, **schema} if text else schema


@functools.cache
def _model(name: str) -> _Model:
    modules = _modules()
    for model in _model_names(name, modules):
        if (path := modules.get(model)) is not None:
            return _parse(path.read_text(encoding="utf-8"))
    return _Model()


def _model_names(name: str, modules: Mapping[str, Path]) -> Iterator[str]:
    """Yield the names, in lower case, that the model of a component may have, the best one first.

    If several groups have a type of one name, those of its models start with the group. The
    package may have another version of an API that is not stable yet.
    """
    *_, group, version, kind = name.lower().split(".")
    yield f"{group}{version}{kind}"
    yield f"{version}{kind}"
    other_version = re.compile(rf"v\d+(?:alpha|beta)\d+{kind}")
    yield from sorted(filter(other_version.fullmatch, modules), reverse=True)


@functools.cache
def _modules() -> Mapping[str, Path]:
    """Return the files of the models by their name in lower case; none without the package."""
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or not found.submodule_search_locations:
        return {}
    files = Path(found.submodule_search_locations[0], "client", "models").glob("*.py")
    return {path.stem.replace("_", ""): path for path in files}


def _parse(source: str) -> _Model:
    """Return the texts of the model that a module defines."""
    model = next((each for each in ast.parse(source).body if isinstance(each, ast.ClassDef)), None)
    if model is None:
        return _Model()
    names: Mapping[str, str] = {}
    texts: dict[str, str] = {}
    for node in model.body:
        attribute, value = _assignment(node)
        if attribute == "attribute_map" and value is not None:
            names = ast.literal_eval(value)
        elif isinstance(value, ast.Call):
            texts[attribute] = _keyword(value, "description")
        elif isinstance(node, ast.FunctionDef) and _is_property(node):
            texts[node.name] = _getter_text(node)
    fields = {
        # Names that are reserved in Python, or by Pydantic, have a prefix.
        json: text
        for name, json in names.items()
        if (text := texts.get(name) or texts.get(f"var_{json}"))
    }
    return _Model(_class_text(model), fields)


def _assignment(node: ast.stmt) -> tuple[str, ast.expr | None]:
    match node:
        case ast.AnnAssign(target=ast.Name(id=name), value=value):
            return name, value
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return name, value
    return "", None


def _keyword(call: ast.Call, name: str) -> str:
    for each in call.keywords:
        if each.arg == name and isinstance(each.value, ast.Constant):
            return str(each.value.value)
    return ""


def _is_property(node: ast.FunctionDef) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "property" for each in node.decorator_list)


def _getter_text(node: ast.FunctionDef) -> str:
    """Return the docstring of a getter between its first line and its result."""
    text = (ast.get_docstring(node) or "").replace(_LINTER_COMMENT, "")
    return text.partition("\n")[2].partition(":return:")[0].strip()


def _class_text(model: ast.ClassDef) -> str:
    """Return the first part of a docstring, unless it only names the class or its generator."""
    text = (ast.get_docstring(model) or "").partition("\n\nAttributes:")[0].strip()
    return (
        "" if text == model.name or text.startswith("NOTE: This class is auto generated") else text
    )
