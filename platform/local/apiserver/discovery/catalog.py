"""The served kinds: built-in ones and those of custom resource definitions."""

import hashlib

import msgspec

from ....model.names import Resource
from ..builtin.kinds import BUILT_IN, COMPUTED
from ..errors.status import qualified
from ..kinds.info import KindInfo
from . import documents, openapi, openapi_v2
from .documents import Json

Path = tuple[str, str, str]
"""Group, version and plural."""


class Catalog:
    """Kinds by group, version and plural, and the documents that list them."""

    def __init__(self) -> None:
        self._built_in = {_path(kind): kind for kind in (*BUILT_IN, *COMPUTED)}
        self._by_stored: dict[Resource, list[KindInfo]] = {}
        """Built-in kinds by the resource that stores their objects."""

        for kind in self._built_in.values():
            self._by_stored.setdefault(kind.stored_as or kind.resource, []).append(kind)
        self._custom: dict[str, tuple[KindInfo, ...]] = {}
        self._by_path: dict[Path, KindInfo] = {}
        self._documents: dict[str, tuple[bytes, str]] = {}
        self.terminating_crds: set[str] = set()
        """Terminating definitions: their kinds accept no new objects."""

        self._refresh()

    def get(self, group: str, version: str, plural: str) -> KindInfo | None:
        """Return the kind of a group, version and plural, if served."""
        return self._by_path.get((group, version, plural))

    def require(self, resource: Resource) -> KindInfo:
        """Return the kind of a built-in resource.

        Raises:
            KeyError: it is not built in.
        """
        return self._by_path[resource.group, resource.version, resource.plural]

    def kind_named(self, api_version: str, name: str) -> KindInfo | None:
        """Return the served kind with an ``apiVersion`` and ``kind``."""
        for kind in self._by_path.values():
            if kind.resource.kind == name and kind.resource.api_version == api_version:
                return kind
        return None

    def equivalents(self, kind: KindInfo) -> tuple[KindInfo, ...]:
        """Return the other served kinds that represent the same stored objects."""
        if kind.custom:
            found = self._custom.get(qualified(kind.resource), ())
            return tuple(each for each in found if each is not kind)
        others = self._by_stored[kind.stored_as or kind.resource]
        return tuple(each for each in others if each is not kind)

    def kinds(self) -> list[KindInfo]:
        """Return all kinds in the order of discovery."""
        return list(self._by_path.values())

    def stored_kinds(self) -> list[KindInfo]:
        """Return one kind per stored resource: custom kinds in their storage version."""
        found = {}
        for kind in self._by_path.values():
            resource = kind.resource
            if "list" not in kind.verbs or kind.stored_as is not None or kind.computed:
                continue
            if kind.custom and kind.storage_version != resource.version:
                continue
            found[resource.group, resource.plural] = kind
        return list(found.values())

    def add_crd(self, name: str, kinds: tuple[KindInfo, ...]) -> None:
        """Serve *kinds* for the definition *name*, instead of its previous ones."""
        self._custom[name] = kinds
        self._refresh()

    def remove_crd(self, name: str) -> tuple[KindInfo, ...]:
        """Stop serving the kinds of the definition *name*; return them."""
        removed = self._custom.pop(name, ())
        self._refresh()
        return removed

    def crd_kinds(self, name: str) -> tuple[KindInfo, ...]:
        """Return the served kinds of the definition *name*."""
        return self._custom.get(name, ())

    def _refresh(self) -> None:
        self._by_path = dict(self._built_in)
        for kinds in self._custom.values():
            for kind in kinds:
                # A definition cannot replace a built-in kind.
                self._by_path.setdefault(_path(kind), kind)
        self._documents.clear()

    def document(self, path: str, *, aggregated: str, address: str) -> tuple[bytes, str] | None:
        """Return a discovery document as JSON with its entity tag; ``None`` if not found.

        *aggregated*: the version of aggregated discovery, or empty.
        """
        key = f"{path}?{aggregated}"
        found = self._documents.get(key)
        if found is None:
            document = self._build_document(path, aggregated, address)
            if document is None:
                return None
            body = msgspec.json.encode(document) + b"\n"
            found = body, f'"{hashlib.sha512(body).hexdigest()[:64].upper()}"'
            self._documents[key] = found
        return found

    def _build_document(self, path: str, aggregated: str, address: str) -> Json | None:
        kinds = self.kinds()
        segments = path.strip("/").split("/")
        match segments:
            case ["api" | "apis" as root] if aggregated:
                return documents.aggregated(kinds, core=root == "api", version=aggregated)
            case ["api"]:
                return documents.api_versions(address)
            case ["apis"]:
                return documents.group_list(kinds)
            case ["api", "v1"]:
                return documents.resource_list(kinds, "v1")
            case ["apis", group]:
                return documents.group(kinds, group)
            case ["apis", group, version]:
                return documents.resource_list(kinds, f"{group}/{version}")
            case ["openapi", "v2"]:
                return openapi_v2.document(kinds)
            case ["openapi", "v3"]:
                return openapi.index(_with_schemas(kinds))
            case ["openapi", "v3", *group_version]:
                return openapi.document("/".join(group_version), _with_schemas(kinds))
        return None


def _with_schemas(kinds: list[KindInfo]) -> list[KindInfo]:
    return [kind for kind in kinds if not kind.computed]


def _path(kind: KindInfo) -> Path:
    resource = kind.resource
    return resource.group, resource.version, resource.plural
