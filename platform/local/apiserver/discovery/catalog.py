"""The served kinds: built-in ones and those of custom resource definitions."""

import hashlib
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from ....model.names import Resource
from ..builtin.kinds import BUILT_IN, COMPUTED
from ..errors.status import qualified
from ..kinds.info import KindInfo
from ..media_types import OPENAPI_V2_PROTOBUF
from . import documents, openapi, openapi_protobuf, openapi_v2, remote
from .documents import Json
from .remote import RemoteVersion

Path = tuple[str, str, str]
"""Group, version and plural."""

Document = tuple[bytes, str]
"""A document as JSON or protobuf, and its entity tag."""

InThread = Callable[[Callable[[], Document | None]], Awaitable[Document | None]]
"""Runs a function in a thread."""


def _ignore_change() -> None:
    """Do nothing."""


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
        self._group_versions: dict[tuple[str, str], bool] = {}
        """Those of this server, and whether all of their kinds are custom."""

        self._remote: tuple[RemoteVersion, ...] = ()
        self.on_change: Callable[[], None] = _ignore_change
        """Called when this server serves other groups or versions."""

        self._documents: dict[str, Document] = {}
        """Replaced with each change, so that a document that is being built belongs to one set."""

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
        """Return one kind per stored resource.

        Custom kinds in their storage version, or in another one if that is not served.
        """
        found: dict[tuple[str, str], KindInfo] = {}
        for kind in self._by_path.values():
            resource = kind.resource
            if "list" not in kind.verbs or kind.stored_as is not None or kind.computed:
                continue
            key = resource.group, resource.plural
            if not kind.custom or kind.storage_version == resource.version:
                found[key] = kind
            else:
                found.setdefault(key, kind)
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

    def serves(self, group: str, version: str) -> bool:
        """Return whether this server itself has kinds of a group and version."""
        return (group, version) in self._group_versions

    def group_versions(self) -> dict[tuple[str, str], bool]:
        """Return this server's groups and versions, and whether all kinds are custom."""
        return self._group_versions

    def set_remote(self, versions: Iterable[RemoteVersion]) -> None:
        """List the versions of other API servers, but for those that this server has itself."""
        self._remote = tuple(versions)
        self._documents = {}

    def _listed_remote(self) -> list[RemoteVersion]:
        return [each for each in self._remote if not self.serves(each.group, each.version)]

    def _refresh(self) -> None:
        self._by_path = dict(self._built_in)
        for kinds in self._custom.values():
            for kind in kinds:
                # A definition cannot replace a built-in kind.
                self._by_path.setdefault(_path(kind), kind)
        self._documents = {}
        before, self._group_versions = self._group_versions, {}
        for (group, version, _), kind in self._by_path.items():
            custom = self._group_versions.get((group, version), True) and kind.custom
            self._group_versions[group, version] = custom
        if self._group_versions != before:
            self.on_change()

    def document(self, path: str, *, aggregated: str, address: str) -> Document | None:
        """Return a discovery document; ``None`` if not found.

        *aggregated*: the version of aggregated discovery, or empty.
        """
        key = f"{path}?{aggregated}"
        found = self._documents.get(key)
        if found is None:
            document = self._build_document(path, aggregated, address)
            if document is None:
                return None
            found = self._documents[key] = _encoded(document)
        return found

    async def openapi_document(
        self, path: str, content_type: str, run_in_thread: InThread
    ) -> Document | None:
        """Return an OpenAPI document in JSON, or that of version 2 in protobuf; ``None`` if not
        found.

        It is built in a thread, as reading the descriptions takes long.
        """
        documents = self._documents
        key = f"{path}?{content_type}"
        if (found := documents.get(key)) is not None:
            return found
        kinds, others = self.kinds(), self._listed_remote()

        def build() -> Document | None:
            document = _openapi_document(path, kinds, others)
            if document is not None and content_type == OPENAPI_V2_PROTOBUF:
                return _tagged(openapi_protobuf.encode(document))
            return None if document is None else _encoded(document)

        found = await run_in_thread(build)
        if found is not None:
            documents[key] = found
        return found

    def _build_document(self, path: str, aggregated: str, address: str) -> Json | None:
        kinds, others = self.kinds(), self._listed_remote()
        segments = path.strip("/").split("/")
        match segments:
            case ["api" | "apis" as root] if aggregated:
                core = root == "api"
                listed = documents.aggregated(kinds, core=core, version=aggregated)
                return listed if core else remote.add_aggregated(listed, others)
            case ["api"]:
                return documents.api_versions(address)
            case ["apis"]:
                return remote.add_groups(documents.group_list(kinds), others)
            case ["api", "v1"]:
                return documents.resource_list(kinds, "v1")
            case ["apis", group]:
                return _group_document(kinds, others, group)
            case ["apis", group, version]:
                return documents.resource_list(kinds, f"{group}/{version}")
        return None


def _group_document(kinds: list[KindInfo], others: list[RemoteVersion], group: str) -> Json | None:
    found = documents.group(kinds, group)
    if not any(each.group == group for each in others):
        return found
    return documents.GROUP_HEAD | remote.add_versions(found, group, others)


def _openapi_document(path: str, kinds: list[KindInfo], others: list[RemoteVersion]) -> Json | None:
    match path.strip("/").split("/"):
        case ["openapi", "v2"]:
            return remote.add_openapi_v2(openapi_v2.document(kinds), others)
        case ["openapi", "v3"]:
            return remote.add_openapi_v3(openapi.index(kinds), others)
        case ["openapi", "v3", *group_version]:
            return openapi.document("/".join(group_version), kinds)
    return None


def _encoded(document: Json) -> Document:
    return _tagged(msgspec.json.encode(document) + b"\n")


def _tagged(body: bytes) -> Document:
    return body, f'"{hashlib.sha512(body).hexdigest()[:64].upper()}"'


def _path(kind: KindInfo) -> Path:
    resource = kind.resource
    return resource.group, resource.version, resource.plural
