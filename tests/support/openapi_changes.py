"""Changes of an OpenAPI document that break its clients.

A client breaks if something it may send is not accepted any more, or if something it relies on in
responses is missing. So what requests contain may only grow, and what responses contain, too; a
value in a response may be new, which clients must expect.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Schema = Mapping[str, Any]

_LIMITS_BELOW = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_LIMITS_ABOVE = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_MAX_DEPTH = 20


def breaking_changes(old: Schema, new: Schema) -> list[str]:
    """Return the breaking changes from the document *old* to *new*, sorted."""
    return sorted(set(_Comparison(old, new).document()))


@dataclass(frozen=True)
class _Comparison:
    old: Schema
    new: Schema

    def document(self) -> Iterator[str]:
        """Compare all operations."""
        for path, item in self.old["paths"].items():
            if path not in self.new["paths"]:
                yield f"{path}: path removed"
                continue
            for method, operation in item.items():
                where = f"{method.upper()} {path}"
                changed = self.new["paths"][path].get(method)
                if changed is None:
                    yield f"{where}: operation removed"
                else:
                    yield from self.operation(where, operation, changed)

    def operation(self, where: str, old: Schema, new: Schema) -> Iterator[str]:
        """Compare one operation."""
        if old.get("operationId") != new.get("operationId"):
            yield f"{where}: operationId changed"
        yield from self.parameters(where, old.get("parameters", ()), new.get("parameters", ()))
        yield from self.bodies(where, old.get("requestBody", {}), new.get("requestBody", {}))
        for status, response in old["responses"].items():
            if status.startswith("2"):
                yield from self.response(
                    f"{where} {status}", response, new["responses"].get(status)
                )

    def parameters(self, where: str, old: Any, new: Any) -> Iterator[str]:
        """Compare query, path and header parameters."""
        before = {(each["in"], each["name"]): each for each in old}
        after = {(each["in"], each["name"]): each for each in new}
        for key, parameter in before.items():
            name = f"{where}: parameter {key[1]}"
            changed = after.get(key)
            if changed is None:
                yield f"{name} removed"
                continue
            if changed.get("required") and not parameter.get("required"):
                yield f"{name} is required now"
            yield from self.request(name, parameter["schema"], changed["schema"])
        for key, parameter in after.items():
            if key not in before and parameter.get("required"):
                yield f"{where}: new required parameter {key[1]}"

    def bodies(self, where: str, old: Schema, new: Schema) -> Iterator[str]:
        """Compare request bodies."""
        if new.get("required") and not old.get("required"):
            yield f"{where}: the body is required now"
        for media_type, content in old.get("content", {}).items():
            changed = new.get("content", {}).get(media_type)
            if changed is None:
                yield f"{where}: body {media_type} removed"
            else:
                yield from self.request(f"{where}: body", content["schema"], changed["schema"])

    def response(self, where: str, old: Schema, new: Schema | None) -> Iterator[str]:
        """Compare the responses of one status."""
        if new is None:
            yield f"{where}: status removed"
            return
        for name in old.get("headers", {}):
            if name not in new.get("headers", {}):
                yield f"{where}: header {name} removed"
        for media_type, content in old.get("content", {}).items():
            changed = new.get("content", {}).get(media_type)
            if changed is None:
                yield f"{where}: content {media_type} removed"
            else:
                yield from self.result(where, content.get("schema", {}), changed.get("schema", {}))

    # -- schemas

    def request(self, where: str, old: Schema, new: Schema, depth: int = 0) -> Iterator[str]:
        """Find what *new* rejects of that which *old* accepts."""
        old, new = _resolved(old, self.old), _resolved(new, self.new)
        if depth > _MAX_DEPTH or not new:
            return
        if missing := _types(old, self.old) - _types(new, self.new):
            yield f"{where}: type {', '.join(sorted(missing))} is not accepted any more"
        yield from self.narrowed_values(where, old, new)
        for name in new.get("required", ()):
            if name not in old.get("required", ()):
                yield f"{where}: {name} is required now"
        for name, schema in old.get("properties", {}).items():
            changed = new.get("properties", {}).get(name)
            if changed is not None:
                yield from self.request(f"{where}.{name}", schema, changed, depth + 1)
            elif new.get("additionalProperties") is False:
                yield f"{where}: {name} is not accepted any more"
        if new.get("additionalProperties") is False and "additionalProperties" not in old:
            yield f"{where}: unknown fields are not accepted any more"
        yield from self.nested(where, old, new, self.request, depth)

    def narrowed_values(self, where: str, old: Schema, new: Schema) -> Iterator[str]:
        """Find narrowed enumerations, limits and patterns."""
        if "enum" in new:
            values = set(old.get("enum", ())) - set(new["enum"])
            if values:
                yield f"{where}: value {', '.join(sorted(map(str, values)))} removed"
            elif "enum" not in old and "const" not in old:
                yield f"{where}: limited to some values"
        for name in _LIMITS_BELOW:
            if name in new and (name not in old or new[name] > old[name]):
                yield f"{where}: {name} raised"
        for name in _LIMITS_ABOVE:
            if name in new and (name not in old or new[name] < old[name]):
                yield f"{where}: {name} lowered"
        for name in ("pattern", "format", "multipleOf", "const"):
            if name in new and new[name] != old.get(name):
                yield f"{where}: {name} changed"

    def result(self, where: str, old: Schema, new: Schema, depth: int = 0) -> Iterator[str]:
        """Find what *new* may lack of that which *old* promises."""
        old, new = _resolved(old, self.old), _resolved(new, self.new)
        if depth > _MAX_DEPTH or not old:
            return
        if added := _types(new, self.new) - _types(old, self.old):
            yield f"{where}: may be {', '.join(sorted(added))} now"
        for name in old.get("required", ()):
            if name not in new.get("required", ()):
                yield f"{where}: {name} may be missing now"
        for name, schema in old.get("properties", {}).items():
            changed = new.get("properties", {}).get(name)
            if changed is None:
                yield f"{where}: {name} removed"
            else:
                yield from self.result(f"{where}.{name}", schema, changed, depth + 1)
        yield from self.nested(where, old, new, self.result, depth)

    def nested(
        self, where: str, old: Schema, new: Schema, compare: Any, depth: int
    ) -> Iterator[str]:
        """Compare items, values of mappings, and the alternatives of the same type."""
        for name in ("items", "additionalProperties"):
            if isinstance(old.get(name), dict) and isinstance(new.get(name), dict):
                yield from compare(f"{where}[]", old[name], new[name], depth + 1)
        before, after = _alternatives(old), _alternatives(new)
        if before == [old] and after == [new]:
            return
        for schema in before:
            types = _types(schema, self.old)
            same = [each for each in after if _types(each, self.new) & types]
            if len(same) == 1:
                yield from compare(where, schema, same[0], depth + 1)


def _alternatives(schema: Schema) -> list[Schema]:
    found: list[Schema] = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    return found or [schema]


def _resolved(schema: Schema, document: Schema) -> Schema:
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def _types(schema: Schema, document: Schema, depth: int = 0) -> set[str]:
    """Return the JSON types that *schema* allows; none if it has no type."""
    schema = _resolved(schema, document)
    if "type" in schema:
        named = schema["type"]
        types = set(named) if isinstance(named, list) else {named}
        return types | {"integer"} if "number" in types else types
    if depth > _MAX_DEPTH or _alternatives(schema) == [schema]:
        return set()
    return set().union(*(_types(each, document, depth + 1) for each in _alternatives(schema)))
