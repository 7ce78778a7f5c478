"""The groups and versions of other API servers, as their APIServices describe them."""

import msgspec

from ..builtin.api_services import HTTPS_PORT, is_available
from ..discovery.catalog import Catalog
from ..discovery.remote import RemoteVersion
from ..errors.status import path_not_found
from ..http.requests import Json

_ROOTS = ("/apis/", "/openapi/v3/apis/")


class RemoteApi(msgspec.Struct, frozen=True, kw_only=True):
    """One group and version, and the Service of its server."""

    group: str
    version: str
    namespace: str
    service: str
    port: int
    ca_bundle: str
    """In base64; empty: the authorities of the system."""

    insecure: bool
    """Whether the certificate of the server is not verified."""

    available: bool
    priorities: tuple[int, int]
    """Of the group, and of the version in it."""

    @property
    def path(self) -> str:
        """Path of its discovery document, below which all of its objects are."""
        return f"/apis/{self.group}/{self.version}"

    @property
    def server_name(self) -> str:
        """The name for which its certificate must be valid."""
        return f"{self.service}.{self.namespace}.svc"


def parse_api(obj: Json) -> RemoteApi | None:
    """Return what an APIService describes; ``None`` if it names no Service."""
    spec = obj.get("spec") or {}
    service = spec.get("service")
    if service is None:
        return None
    return RemoteApi(
        group=spec.get("group", ""),
        version=spec.get("version", ""),
        namespace=service.get("namespace", ""),
        service=service.get("name", ""),
        port=service.get("port", HTTPS_PORT),
        ca_bundle=spec.get("caBundle") or "",
        insecure=spec.get("insecureSkipTLSVerify", False),
        available=is_available(obj),
        priorities=(spec.get("groupPriorityMinimum", 0), spec.get("versionPriority", 0)),
    )


class Documents(msgspec.Struct, frozen=True, kw_only=True):
    """What another API server publishes of one group and version."""

    resources: tuple[Json, ...] = ()
    """Its resources with their subresources, in the form of aggregated discovery."""

    openapi_v3_url: str = ""
    openapi_v2: Json = {}
    openapi_v2_etag: str = ""


class RemoteApis:
    """The remote APIs by group and version; :class:`Catalog` lists them."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._by_name: dict[str, RemoteApi] = {}
        self._documents: dict[str, Documents] = {}

    def update(self, name: str, obj: Json | None) -> None:
        """Apply an APIService as it is now; ``None``: it is deleted."""
        api = parse_api(obj) if obj is not None else None
        before = self._by_name.pop(name, None)
        if api is not None:
            self._by_name[name] = api
        else:
            self._documents.pop(name, None)
        if api != before:
            self._publish()

    def documents(self, name: str) -> Documents:
        """Return what the server of an APIService has published last."""
        return self._documents.get(name) or Documents()

    def set_documents(self, name: str, documents: Documents) -> None:
        """Keep what the server of an APIService publishes."""
        if name in self._by_name and documents != self._documents.get(name):
            self._documents[name] = documents
            self._publish()

    def served(self) -> list[tuple[RemoteApi, tuple[Json, ...]]]:
        """Return the APIs that this server does not have itself, with their resources."""
        return [
            (api, self.documents(name).resources)
            for name, api in self._by_name.items()
            if not self._catalog.serves(api.group, api.version)
        ]

    def names_with_service(self, namespace: str, name: str) -> list[str]:
        """Return the names of the APIServices whose server a Service leads to."""
        return [
            key
            for key, api in self._by_name.items()
            if (api.namespace, api.service) == (namespace, name)
        ]

    def find(self, path: str) -> RemoteApi | None:
        """Return the API that has *path*; ``None`` if this server has it itself, or none has.

        Raises:
            StatusError: 404, another server could understand the path differently.
        """
        if not self._by_name:
            return None
        root = next((each for each in _ROOTS if path.startswith(each)), None)
        if root is None:
            return None
        group, _, rest = path.removeprefix(root).partition("/")
        version, *segments = rest.split("/")
        api = self._by_name.get(f"{version}.{group}")
        if api is None or self._catalog.serves(group, version):
            return None
        if segments and segments[-1] == "":
            segments.pop()
        if any(each in ("", ".", "..") for each in segments):
            raise path_not_found()
        return api

    def _publish(self) -> None:
        by_priority = sorted(
            self._by_name.items(), key=lambda each: (*(-n for n in each[1].priorities), each[0])
        )
        self._catalog.set_remote(
            [_published(api, self.documents(name)) for name, api in by_priority]
        )


def _published(api: RemoteApi, documents: Documents) -> RemoteVersion:
    return RemoteVersion(
        group=api.group,
        version=api.version,
        available=api.available,
        resources=documents.resources,
        openapi_v3_url=documents.openapi_v3_url if api.available else "",
        openapi_v2=documents.openapi_v2 if api.available else {},
    )
